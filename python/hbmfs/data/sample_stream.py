"""Batches of samples of any fields, such as images or latents, in a shuffled order, sharded over ranks, read ahead, and resumable at any sample.

    ds = hbmfs.SampleDataset("/mnt/imagenet", fields={"jpg": "pinned", "latent": "cuda:0"})
    for batch in hbmfs.SampleStream(ds, batch_size=512, seed=1, rank=r, world_size=w):
        batch["latent"]                        # [512, 4, 32, 32] on the GPU
        values, offsets = batch["jpg"]         # uint8 [bytes of all], int64 [513]: image i is values[offsets[i]:offsets[i + 1]]

**Batches** are dicts by field. A dense field is one array [batch_size, *shape]. A ragged one is Ragged(values, offsets), whose rows() are views of each
sample's values, and whose nested() is a nested tensor of torch over the same memory. A sample without bytes has equal offsets.

**Order, remainders, states and DataLoader workers** are as in TokenStream: see help("hbmfs.token_stream"). A state may be loaded with another rank,
world_size and batch_size, and with other fields, places and decoders.

**Decoding.** decode={"jpg": f} has threads call f on each sample's value, while later batches are read and the caller works. The field is then a
list of what f gave, in the order of the batch. What f raises becomes a FormatError that names the sample. Functions that release Python's lock, as
torchvision's decode_jpeg does, run side by side. A decoder of whole batches, as decode_jpeg(device="cuda") is, takes batch["jpg"].rows() in your loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._lib._arguments import checked
from ..errors import InvalidError
from ._decode import known, queue_of
from ._epochs import Epochs
from ._queue import Queue
from ._sample_rows import Ragged, SampleRows
from ._samples import Samples
from ._stream import at_least
from .samples import SampleDataset, words_of

__all__ = ["Ragged", "SampleStream"]


class SampleStream(Epochs[dict[str, Any]]):
    """An iterable over batches of `dataset`, a SampleDataset or a part of one; help("hbmfs.data.sample_stream") has the whole story.

    batch_size      samples in a batch of this rank
    fields          None: as the dataset has them; or names, or places by name: see SampleDataset
    decode          functions by field, which threads call on each sample's value
    decode_threads  how many; None: as many as this process has CPUs
    depth           batches on their way while the caller works on one. None: 2 to 8, in at most 256 MiB of average samples; one more with decode=
    The rest is as in TokenStream.
    """

    @checked
    def __init__(
        self,
        dataset: SampleDataset,
        batch_size: int,
        fields: Sequence[str] | Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        depth: int | None = None,
        ahead: int = 16,
        shuffle: bool = True,
        epochs: int | None = None,
        drop_last: bool = True,
        tensors: bool | None = None,
        decode: Mapping[str, Callable[..., Any]] | None = None,
        decode_threads: int | None = None,
    ) -> None:
        if fields is not None or (tensors is not None and tensors != dataset.tensors):
            dataset = dataset.select(fields, tensors=tensors)
        super().__init__(
            dataset, batch_size, 1, seed=seed, rank=rank, world_size=world_size, dtype=None, depth=depth, ahead=ahead, shuffle=shuffle, drop_last=drop_last,
            targets=False, tensors=tensors,
        )  # fmt: skip
        if not len(dataset):
            raise InvalidError(f"{dataset.path} has no samples")
        self._row = words_of(dataset)
        self._decode = known(decode, dataset.fields)
        self._decode_threads = None if decode_threads is None else at_least(1, "decode_threads", decode_threads)
        self._rows = SampleRows([dataset])
        self._take(dataset, Samples(dataset, 1, 1, False), epochs)

    @property
    def depth(self) -> int:
        """Batches on their way while the caller works on one."""
        return super().depth + (self._depth is None and bool(self._decode))

    def _form(self) -> str:
        return f"[{self.batch_size}]"

    def _identity(self) -> dict[str, Any]:
        own = self._samples.identity()
        del own["tokens"]
        return {**super()._identity(), "of": "samples", **own}

    def _queue(self) -> Queue:
        self.dataset.stats()  # an error if it is closed
        assert isinstance(self._rows, SampleRows)
        return queue_of(self._rows, self.depth, self._decode, self._decode_threads)
