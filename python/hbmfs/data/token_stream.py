"""Batches of tokens in a shuffled order, sharded over ranks, prefetched, and resumable at any sample.

    stream = hbmfs.TokenStream(ds, batch_size=32, seq_len=4096, seed=1, rank=r, world_size=w)
    for batch in stream:                       # [32, 4096], on the dataset's device
        ...
        torch.save({"data": stream.state_dict(), ...}, path)

**One order for everybody.** All samples of all epochs form one sequence, which the seed alone decides: epoch 0's
samples in its order, then epoch 1's in another, and so on. A step takes the next batch_size * world_size samples of
it: the first batch_size of them are rank 0's, the next ones rank 1's. So the batches of all ranks one after another are the
sequence itself, for any world size. The position of a run is one number: the samples that all ranks consumed.
Resuming on another world size, or with another batch size, goes on at that number.

**Remainders.** A step may hold the end of one epoch and the beginning of the next, so that nothing is lost between
epochs. Only at the very end of `epochs` epochs fewer samples than a step needs may be left: drop_last=True leaves them
out; drop_last=False gives them out in one last, smaller step, spread evenly over the ranks (to rank r of w the samples
m*r//w to m*(r+1)//w of m), where a rank's batch may be empty: every rank takes the same number of steps.
Tokens beyond the last whole sample are never given out.

**Samples.** Sample i is the tokens from i*seq_len on; with documents=True no sample crosses the border of a document,
and the tail of each document that fills no sample is left out, so shorter documents do not appear. That mode reads the
borders at start and keeps 8 bytes for each document; the other one reads nothing and keeps nothing. With targets=True
a batch is a pair (x, y) of contiguous [batch_size, seq_len] arrays where y is one token further, as GPT trainers want
it, and the samples share one token with the next. Models of Hugging Face shift by themselves: give them the plain batch
as input_ids and as labels.

**In a DataLoader.** DataLoader(stream, batch_size=None, num_workers=0), of torch or torchdata's StatefulDataLoader. (If
torch is imported, then before the stream is made: that is when it becomes an IterableDataset.) More workers
work where the dataset does, with device="cpu" after fork and any device after spawn: worker i of n takes every n-th
step, which a DataLoader puts together in the order of no workers. The stream in the main process does not move, and a worker
knows only how far it is itself. So with workers save stream.state_after(batches), of the number of batches that the main process
took: it may be loaded with any workers, ranks and batch size. The state of StatefulDataLoader is exact with as many workers and as
many samples in a step of all ranks, and refused in another shape. Pass persistent_workers=True where a loader is iterated more than
once: new workers would begin where the stream of the main process stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from .._lib._arguments import checked
from ._epochs import Epochs
from ._joined import Rows
from ._queue import Queue
from ._samples import Samples
from ._segments import borders_of
from ._types import A, B, Dataset
from .part import Aligned

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._segments import Packed
    from ._types import StreamOptions

    class Options(StreamOptions, total=False):
        epochs: int | None
        documents: bool

    class Others(Options, total=False):
        targets: bool
        packed: bool
        tensors: bool | None


class TokenStream(Epochs[B]):
    """An iterable over batches of `dataset` (of hbmfs.open); help("hbmfs.token_stream") has the whole story.

    Iterating goes on where the last iteration stopped, so that breaking out of a loop loses nothing; after the last
    epoch, it begins the next `epochs` ones.

    batch_size, seq_len  samples in a batch of this rank, tokens in a sample
    seed                 chooses the order (an integer)
    rank, world_size     this reader's number, and how many share the samples (the data-parallel ones). They must be given
                         where torch.distributed runs several ranks; elsewhere there is one
    dtype                None keeps the dataset's, "int64" widens on the device, and "int32" tokens of 8 and 16 bits
    depth                batches on their way while the caller works on one. None: up to 8 on a GPU, in at most 256 MiB if tokens had 8 bytes;
                         2 on the CPU
    ahead                batches whose plan is told to the mount's daemon, so that what is far is there in time (of a
                         file outside of a mount nobody is told, nor while the device sees all that was read); 0: none
    shuffle              False gives the samples in their order
    epochs               1: one epoch, after which the loop ends; None: endless
    documents, drop_last, targets   see there
    tensors              on the CPU: True gives tensors of torch, False NumPy arrays; None: as the dataset does
    packed               batches say where documents begin: see help("hbmfs.packed")

    `with hbmfs.TokenStream(...) as stream:` cancels reads ahead at its end. len(stream) is known with epochs=.

    One iteration at a time: a second one, or load_state_dict, ends the first one with a RuntimeError.
    """

    @overload
    def __init__(
        self: TokenStream[Packed[A]], dataset: Dataset[A], batch_size: int, seq_len: int, *, packed: Literal[True], targets: bool = False, **o: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(
        self: TokenStream[tuple[A, A]], dataset: Dataset[A], batch_size: int, seq_len: int, *, targets: Literal[True], **o: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(self: TokenStream[A], dataset: Dataset[A], batch_size: int, seq_len: int, **o: Unpack[Options]) -> None: ...
    @overload
    def __init__(self: TokenStream[Any], dataset: Dataset[Any] | Aligned, batch_size: int, seq_len: int, **o: Unpack[Others]) -> None: ...
    @checked
    def __init__(
        self,
        dataset: Dataset[Any] | Aligned,
        batch_size: int,
        seq_len: int,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        dtype: Any = None,
        depth: int | None = None,
        ahead: int = 16,
        shuffle: bool = True,
        epochs: int | None = None,
        documents: bool = False,
        drop_last: bool = True,
        targets: bool = False,
        tensors: bool | None = None,
        packed: bool = False,
    ) -> None:
        super().__init__(
            dataset, batch_size, seq_len, seed=seed, rank=rank, world_size=world_size, dtype=dtype, depth=depth, ahead=ahead, shuffle=shuffle,
            drop_last=drop_last, targets=targets, tensors=tensors,
        )  # fmt: skip
        self.documents = bool(documents)
        self._borders = borders_of(dataset) if packed else None
        self._rows = Rows([dataset], dtype)
        self._take(dataset, Samples(dataset, self.seq_len, self._row, self.documents), epochs)

    def _identity(self) -> dict[str, Any]:
        own = {"seq_len": self.seq_len, "targets": self.targets, "documents": self.documents}
        return {**super()._identity(), **own, **self._samples.identity()}

    def _queue(self) -> Queue:
        self.dataset.stats()  # an error if it is closed
        return Queue(self._rows, self.depth)
