"""Megatron's IndexedDataset, read through hbmfs.

A stand-in for megatron.core.datasets.indexed_dataset.IndexedDataset (of megatron-core 0.16): the same constructor and
the same answers, as NumPy arrays in host memory, which is where GPTDataset puts its samples together. Hand it to a
GPTDataset, or have Megatron's own builder make it:

    class Dataset(GPTDataset):
        @staticmethod
        def build_low_level_dataset(path, config):
            return hbmfs.megatron.IndexedDataset(path)

    BlendedMegatronDatasetBuilder(Dataset, sizes, lambda: True, config).build()

path is a prefix: of PREFIX.bin and PREFIX.idx at the source, in a mount, or of the view `megatron` of a dataset of
another format. Without path_to_cache in the configuration GPTDataset writes its indices below the prefix, and a mount is
read-only: set it.

Unlike Megatron's own readers, this one never returns bytes that were not read: a .bin that is shorter than its index says is
an OutOfRangeError at the read, where Megatron's --no-mmap-bin-files returns memory as it found it.

Importing this module needs neither megatron-core nor torch.
"""

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._lib._arguments import Path, checked
from ..data._megatron_index import Index
from ..data.dataset import open as open_dataset
from ..errors import FormatError, InvalidError, NotFoundError


class IndexedDataset:
    """The dataset at PREFIX.bin and PREFIX.idx. Takes the arguments of Megatron's class, so that it can stand in its place.

    mmap, fast_cache_load, sequences_per_dataset and dtype_code are without effect: the index's header is always read.
    An object storage is refused: mount it. `options` go to hbmfs.open, such as method=.
    """

    @checked
    def __init__(
        self,
        path_prefix: Path,
        multimodal: bool = False,
        mmap: bool = True,
        object_storage_config: Any = None,
        s3_config: Any = None,
        fast_cache_load: bool = False,
        sequences_per_dataset: tuple[int, int] | None = None,
        dtype_code: int | None = None,
        **options: Any,
    ) -> None:
        if object_storage_config is not None or s3_config is not None:
            raise InvalidError("hbmfs.megatron reads files: mount the object storage with hbmfs, and give a prefix there")
        if not self.exists(path_prefix):
            raise NotFoundError(f"{path_prefix}.idx or {path_prefix}.bin is not there: give the path without its ending")
        self.path_prefix, self.multimodal, self.mmap = path_prefix, multimodal, mmap
        self._options = options
        self.index = Index(f"{path_prefix}.idx", multimodal)
        self.dataset = open_dataset(f"{path_prefix}.bin", dtype=self.index.dtype, tensors=False, **options)

    def close(self) -> None:
        """Closes the .bin. Arrays that were handed out stay as they are."""
        self.dataset.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"path_prefix": self.path_prefix, "multimodal": self.multimodal, "mmap": self.mmap, **self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @staticmethod
    def exists(path_prefix: Path) -> bool:
        """Returns whether both files are there."""
        return os.path.exists(f"{path_prefix}.idx") and os.path.exists(f"{path_prefix}.bin")

    def __len__(self) -> int:
        """The number of sequences."""
        return len(self.index)

    def __getitem__(self, idx: int | np.integer[Any] | slice) -> Any:
        """One sequence, or the list of a slice of neighbouring ones; with their modes where there are."""
        if isinstance(idx, slice):
            return self._slice(idx)
        if isinstance(idx, (int, np.integer)):
            return self.get(idx)
        raise TypeError(f"a sequence is named by a number or a slice, not by {type(idx).__name__}")

    @checked
    def get(self, idx: int | np.integer[Any], offset: int = 0, length: int | None = None) -> Any:
        """`length` tokens (None: all that follow) of sequence `idx` from its token `offset` on, and the sequence's
        mode where the dataset has modes. As in Megatron, they may reach into the sequence that follows."""
        pointer, whole, mode = self.index[idx]
        if length is None:
            length = int(whole) - int(offset)
        tokens = self._read(int(pointer), int(offset), int(length))
        return tokens if mode is None else (tokens, mode)

    def _slice(self, where: slice) -> Any:
        begin, end, step = where.indices(len(self))
        if step != 1:
            raise ValueError("a slice of an IndexedDataset has step 1: its sequences are read at once")
        end = max(begin, end)
        lengths = self.index.sequence_lengths[begin:end].astype(np.int64)
        sequences: list[Any] = []
        if begin < end:
            # At once, as Megatron does: sequences lie one behind the other in the .bin.
            tokens = self._read(int(self.index.sequence_pointers[begin]), 0, int(lengths.sum()))
            sequences = np.split(tokens, np.cumsum(lengths)[:-1])
        modes = self.index.sequence_modes
        return sequences if modes is None else (sequences, modes[begin:end])

    def _read(self, pointer: int, offset: int, length: int) -> Any:
        first, rest = divmod(pointer, self.index.dtype_size)
        if rest:
            raise FormatError(f"{self.path_prefix}.idx: a sequence begins at byte {pointer}, in the midst of a token")
        return self.dataset.read(first + offset, length)

    @property
    def sequence_lengths(self) -> NDArray[np.int32]:
        """The length of each sequence in tokens."""
        return self.index.sequence_lengths

    @property
    def document_indices(self) -> NDArray[np.int64]:
        """The number of the first sequence of each document, then the end."""
        return self.index.document_indices

    def get_document_indices(self) -> NDArray[np.int64]:
        """document_indices, as older callers ask for it."""
        return self.index.document_indices

    def set_document_indices(self, document_indices: NDArray[np.int64]) -> None:
        """Puts others in the place of document_indices, as older callers do."""
        self.index.document_indices = document_indices

    @property
    def sequence_modes(self) -> NDArray[np.int8]:
        """The mode of each sequence of a multimodal dataset."""
        if self.index.sequence_modes is None:
            raise InvalidError(f"{self.path_prefix} was not opened with multimodal=True, so its modes were not read")
        return self.index.sequence_modes
