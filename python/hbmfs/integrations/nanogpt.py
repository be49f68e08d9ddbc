"""nanoGPT's get_batch, read through hbmfs.

In nanoGPT's train.py, instead of the function get_batch:

    import hbmfs.nanogpt
    get_batch = hbmfs.nanogpt.batches(data_dir, block_size, batch_size, device)

The batches are the same, bit for bit: the offsets are drawn by the same call of torch.randint from the same generator,
and the tokens arrive as int64. The difference is one gather of block_size + 1 tokens for x and y together, which are
widened on the device, instead of two copies of four times the bytes.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .._lib import _device
from .._lib._arguments import Device, Path, checked
from ..data import tokens
from ..data.dataset import Dataset
from ..data.dataset import open as open_dataset
from ..errors import InvalidError, UnavailableError

if TYPE_CHECKING:
    import torch

__all__ = ["batches"]


@checked
def batches(
    data: Path | Mapping[str, Path | Dataset[Any]],
    block_size: int,
    batch_size: int,
    device: Device = "cuda",
    *,
    generator: "torch.Generator | None" = None,
    dtype: Any = None,
    **options: Any,
) -> "Batches":
    """Returns get_batch(split), which returns x and y: contiguous int64 tensors [batch_size, block_size] on `device`.

    data       nanoGPT's data directory, whose train.bin and val.bin are the splits "train" and "val" (at the source or
               in a mount); or a dict that names a path or an open hbmfs dataset for each split
    generator  torch's generator of the offsets; None is the global one, as in nanoGPT
    dtype      of the tokens in files that do not say it: None is that of the manifest of hbmfs pack, or uint16 for a directory without one, since nanoGPT's are
    options    go to hbmfs.open, such as method=

    A split is opened when its first batch is asked for. get_batch.close() closes its dataset.
    """
    try:
        import torch  # noqa: F401
    except ImportError:
        raise UnavailableError("nanoGPT's batches are torch tensors, but torch is not installed: pip install torch") from None
    if isinstance(data, Mapping):
        splits = dict(data)
    else:
        splits = {split: os.path.join(os.fspath(data), f"{split}.bin") for split in ("train", "val")}
        told = os.path.exists(os.path.join(os.fspath(data), tokens.MANIFEST))  # of hbmfs pack, which has the type
        dtype = "uint16" if dtype is None and not told else dtype
    for name, value in (("block_size", block_size), ("batch_size", batch_size)):
        if value < 1:
            raise InvalidError(f"{name} is {value}: give at least 1")
    return Batches(splits, block_size, batch_size, generator, {"device": device, "dtype": dtype, **options})


class Batches:
    """get_batch, with its open dataset. Made by batches()."""

    def __init__(
        self,
        splits: dict[str, Any],
        block_size: int,
        batch_size: int,
        generator: "torch.Generator | None",
        options: dict[str, Any],
    ) -> None:
        self._splits = splits
        self._block_size, self._batch_size = block_size, batch_size
        self._generator = generator
        self._options = options
        self._opened: dict[str, Dataset[Any]] = {}

    def __call__(self, split: str) -> "tuple[torch.Tensor, torch.Tensor]":
        import torch

        dataset = self._dataset(split)
        room = len(dataset) - self._block_size
        if room < 1:
            raise InvalidError(
                f"{dataset.path} has {len(dataset)} tokens, too few for a block of {self._block_size} and the next token: give a smaller block_size"
            )
        starts = torch.randint(room, (self._batch_size,), generator=self._generator)
        # The offsets are of use on the host, and the rows where they are, wherever torch's default device is.
        rows: Any = _device.array_on_host(dataset.gather(starts.cpu(), self._block_size + 1), tensors=True)
        x, y = rows[:, :-1], rows[:, 1:]
        return x.to(torch.int64).contiguous(), y.to(torch.int64).contiguous()  # a trainer does y.view(-1)

    def _dataset(self, split: str) -> Dataset[Any]:
        if split in self._opened:
            return self._opened[split]
        if split not in self._splits:
            raise InvalidError(f"there is no split {split!r}: give one of {', '.join(self._splits)}")
        data = self._splits[split]
        if isinstance(data, Dataset):
            return data
        self._opened[split] = open_dataset(data, **self._options)
        return self._opened[split]

    def close(self) -> None:
        """Closes the datasets that this object opened. The next batch opens them again."""
        while self._opened:
            self._opened.popitem()[1].close()

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
