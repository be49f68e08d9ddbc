"""The .idx file of a Megatron dataset: where its sequences and documents lie in the .bin file."""

import os
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError

# Of megatron/core/datasets/indexed_dataset.py: _INDEX_HEADER, the version, and DType.
_HEADER = struct.Struct("<9sQBQQ")
_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.float64, 7: np.float32, 8: np.uint16}


def element_type(path: str, size: int) -> np.dtype[Any] | None:
    """The integer type of the .bin file of an index, which has size bytes. None for an index that does not tell: floats have two readings,
    and other files may end with .idx. Fairseq's index has the same beginning, and no documents."""
    with open(path, "rb") as file:
        head = file.read(_HEADER.size)
    if len(head) < _HEADER.size or head[: len(_MAGIC)] != _MAGIC or head[17] not in _DTYPES or head[17] in (6, 7):
        return None
    try:
        index = Index(path)
    except FormatError:
        return np.dtype(_DTYPES[head[17]])
    end = int(index.sequence_pointers[-1]) + int(index.sequence_lengths[-1]) * index.dtype_size if len(index) else 0
    if end > size:
        raise FormatError(f"{path[:-4]}.bin has {size} bytes, but its index counts {end}: is the copy complete?")
    return np.dtype(index.dtype)


class Index:
    """The .idx file, mapped: `sequence_lengths` in tokens, `sequence_pointers` in bytes of the .bin, and
    `document_indices`, which number the first sequence of each document, then the end. `sequence_modes` is None unless
    the dataset is multimodal, which the file does not say."""

    def __init__(self, path: str, multimodal: bool = False) -> None:
        size = os.path.getsize(path)
        if size < _HEADER.size:
            raise FormatError(f"{path} has {size} bytes, fewer than a Megatron index's header: is the copy complete?")
        with open(path, "rb") as file:
            magic, version, code, sequences, documents = _HEADER.unpack(file.read(_HEADER.size))
        if magic != _MAGIC or version != _VERSION:
            raise FormatError(f"{path} is no Megatron index of version 1: it begins with {magic!r}, version {version}")
        if code not in _DTYPES:
            raise FormatError(f"{path}: byte 17 is {code}, no code of an element type (1 to 8)")
        need = _HEADER.size + (13 if multimodal else 12) * sequences + 8 * documents
        if size < need:
            raise FormatError(
                f"{path} has {size} bytes, but {sequences} sequences and {documents} document borders need {need}: "
                f"is the copy complete{', and the dataset multimodal' if multimodal else ''}?"
            )
        self.dtype = _DTYPES[code]
        self.dtype_size = np.dtype(self.dtype).itemsize
        self.sequence_count: int = sequences
        self.document_count: int = documents
        self.path = path
        mapped = np.memmap(path, np.uint8, mode="r")

        def table(dtype: Any, count: int, offset: int) -> NDArray[Any]:
            return np.frombuffer(mapped, dtype, count, offset)

        at = _HEADER.size
        self.sequence_lengths = table(np.int32, sequences, at)
        self.sequence_pointers = table(np.int64, sequences, at + 4 * sequences)
        self.document_indices = table(np.int64, documents, at + 12 * sequences)
        self.sequence_modes = table(np.int8, sequences, at + 12 * sequences + 8 * documents) if multimodal else None
        if documents == 0 or self.document_indices[-1] != sequences:
            raise FormatError(f"{path}: the last document does not end at sequence {sequences}, the last one")

    def document_borders(self) -> NDArray[np.int64]:
        """Where documents begin in the .bin, in tokens, and where the last one ends."""
        ends = np.zeros(self.sequence_count + 1, np.int64)
        np.cumsum(self.sequence_lengths, out=ends[1:])
        if not np.array_equal(ends[:-1] * self.dtype_size, self.sequence_pointers):
            raise FormatError(f"{self.path}: sequences do not lie one behind the other, so documents have no borders")
        if np.any(np.diff(self.document_indices) < 0) or self.document_indices[0] != 0:
            raise FormatError(f"{self.path}: documents do not begin one behind the other")
        borders: NDArray[np.int64] = ends[self.document_indices]
        return borders

    def __len__(self) -> int:
        return self.sequence_count

    def __getitem__(self, idx: Any) -> tuple[Any, Any, Any]:
        mode = None if self.sequence_modes is None else self.sequence_modes[idx]
        return self.sequence_pointers[idx], self.sequence_lengths[idx], mode
