"""Batches of tokens in a shuffled order, sharded over ranks, prefetched, and resumable at any sample.

    stream = hbmfs.TokenStream(ds, batch_size=32, seq_len=4096, seed=1, rank=r, world_size=w)
    for batch in stream:                       # [32, 4096], on the dataset's device
        ...
        torch.save({"data": stream.state_dict(), ...}, path)

**One order for everybody.** All samples of all epochs form one sequence, which the seed alone decides: epoch 0's
samples in its order, then epoch 1's in another, and so on. A step takes the next batch_size * world_size samples of
it: the first batch_size of them are rank 0's, the next ones rank 1's. So the batches of all ranks one after another are
the sequence itself, whatever the world size, and where a run stands is one number: the samples that all ranks consumed.
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
step, which a DataLoader puts together in the order of no workers. Only the workers know how far they are; the stream in
the main process does not move. So with workers take the state from StatefulDataLoader, and pass persistent_workers=True
where a loader is iterated more than once: new workers would begin where the stream of the main process stands.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .device_array import DeviceArray
from .errors import InvalidError
from .permutation import Permutation

if TYPE_CHECKING:
    from ._queue import Queue
    from .dataset import Dataset

STATE_VERSION = 1


class TokenStream:
    """An iterable over batches of `dataset` (of hbmfs.open); help("hbmfs.token_stream") has the whole story.

    Iterating goes on where the last iteration stopped, so that breaking out of a loop loses nothing; after the last
    epoch, it begins the next `epochs` ones.

    batch_size, seq_len  samples in a batch of this rank, tokens in a sample
    seed                 chooses the order (an integer)
    rank, world_size     this reader's number, and how many share the samples (the data-parallel ones). They must be given
                         where torch.distributed runs several ranks; elsewhere there is one
    dtype                None keeps the dataset's, "int64" widens on the device
    depth                batches on their way while the caller works on one
    ahead                batches whose plan is told to the mount's daemon, so that what is far is there in time (of a
                         file outside of a mount nobody is told); 0: none, which saves 0.1 ms for 500 samples
    shuffle              False gives the samples in their order
    epochs               None: endless
    documents, drop_last, targets   see there

    One iteration at a time: a second one, or load_state_dict, ends the first one with a RuntimeError.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        seq_len: int,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        dtype: Any = None,
        depth: int = 2,
        ahead: int = 16,
        shuffle: bool = True,
        epochs: int | None = None,
        documents: bool = False,
        drop_last: bool = True,
        targets: bool = False,
    ) -> None:
        self.dataset, self.dtype = dataset, dtype
        self.batch_size, self.seq_len = _at_least(1, "batch_size", batch_size), _at_least(1, "seq_len", seq_len)
        self.seed = operator.index(seed)
        if (rank is None or world_size is None) and (ranks := _distributed()) > 1:
            raise InvalidError(
                f"torch.distributed runs {ranks} ranks here, and without rank= and world_size= all of them would read the same samples: "
                "give both, of the data-parallel group"
            )
        self.rank = _at_least(0, "rank", 0 if rank is None else rank)
        self.world_size = _at_least(1, "world_size", 1 if world_size is None else world_size)
        if self.rank >= self.world_size:
            raise InvalidError(f"rank is {self.rank}: give 0 to {self.world_size - 1}, since world_size is {self.world_size}")
        self.depth, self.ahead = _at_least(1, "depth", depth), _at_least(0, "ahead", ahead)
        self.epochs = None if epochs is None else _at_least(1, "epochs", epochs)
        self.shuffle, self.documents = bool(shuffle), bool(documents)
        self.drop_last, self.targets = bool(drop_last), bool(targets)
        self._row = self.seq_len + self.targets  # tokens read for one sample
        if documents:
            self._borders, self._first = _samples_of_documents(dataset, self.seq_len, self._row)
            self.samples = int(self._first[-1])
        else:
            self.samples = max(0, len(dataset) - self.targets) // self.seq_len
        self._position = self._began = 0  # the sample to come, and the one that the pass over `epochs` began with
        self._check_size()
        if torch := sys.modules.get("torch"):
            # DataLoader asks by isinstance whether to iterate; IterableDataset is an abstract base class. Not a base
            # of ours, since importing torch takes seconds that a reader on the CPU need not spend.
            torch.utils.data.IterableDataset.register(type(self))

    def _check_size(self) -> None:
        if self.samples == 0:
            where = "no document" if self.documents else "the dataset"
            raise InvalidError(
                f"{where} holds the {self._row} tokens of a sample (it has {len(self.dataset)} tokens in all): "
                "give a smaller seq_len"
            )
        if self.epochs and self.drop_last and self.epochs * self.samples < self._step:
            raise InvalidError(
                f"{self.epochs} epochs of {self.samples} samples do not fill one step of {self.batch_size} samples on "
                f"{self.world_size} ranks: give a smaller batch_size, or drop_last=False"
            )

    @property
    def _step(self) -> int:
        """Samples that all ranks take in one step."""
        return self.batch_size * self.world_size

    @property
    def position(self) -> int:
        """Samples that all ranks together have consumed, over all epochs."""
        return self._position

    @property
    def epoch(self) -> int:
        """The epoch of the next sample, from 0."""
        return self._position // self.samples

    def __len__(self) -> int:
        """The number of steps in `epochs` epochs."""
        if self.epochs is None:
            raise TypeError("an endless TokenStream has no length: give epochs=...")
        whole, rest = divmod(self.epochs * self.samples, self._step)
        return whole + (rest > 0 and not self.drop_last)

    # --- state ------------------------------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        """What decides the order. Of another order, a position says nothing."""
        return {
            "version": STATE_VERSION,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "seq_len": self.seq_len,
            "targets": self.targets,
            "documents": self.documents,
            "tokens": len(self.dataset),
            "samples": self.samples,
        }

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is, as plain numbers: the batches that were handed out count, those read ahead do not. It
        is the same on every rank between steps, so one rank's is enough to save."""
        return {**self._identity(), "consumed": self._position, "began": self._began}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken, by a stream of any rank, world size and batch size. A state of another
        dataset, sample length or order is an InvalidError."""
        for name, ours in self._identity().items():
            if name not in state:
                raise InvalidError(f"the state has no {name!r}: it was not made by TokenStream.state_dict()")
            if state[name] != ours:
                raise InvalidError(
                    f"the state was taken with {name}={state[name]!r}, this stream has {ours!r}: "
                    "resume with the same dataset and options (rank, world_size and batch_size may differ)"
                )
        consumed, began = state.get("consumed"), state.get("began")
        if not (isinstance(consumed, int) and isinstance(began, int) and 0 <= began <= consumed):
            raise InvalidError(
                f"the state counts {consumed!r} consumed samples since {began!r}: it was not made by state_dict()"
            )
        self._position, self._began = consumed, began

    # --- iteration --------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        worker, workers = _worker()
        position = self._position
        end = None if self.epochs is None else max(position, self._began + self.epochs * self.samples)
        plan = self._plan(position + worker * self._step, end, workers * self._step)
        with self.dataset.queue(self.depth) as queue:
            self._fill(queue, plan)
            while len(queue):
                batch = queue.get()
                self._fill(queue, plan)
                self._check_unmoved(position)
                # In a worker, a round of all workers: from its own state each of them goes on with its own next step.
                position += workers * self._step
                if end is not None:
                    position = min(position, end)
                self._position = position
                yield _shifted(batch) if self.targets else batch
            self._check_unmoved(position)
            if end is not None:
                self._position = self._began = end

    def _fill(self, queue: Queue, plan: Iterator[NDArray[np.int64]]) -> None:
        for starts in itertools.islice(plan, self.depth - len(queue)):
            queue.put(starts, self._row, dtype=self.dtype)

    def _check_unmoved(self, position: int) -> None:
        if self._position != position:
            raise RuntimeError(
                "the stream was moved, by load_state_dict or by another iteration, while this one ran: "
                "begin again with iter(stream)"
            )

    def _plan(self, first: int, end: int | None, stride: int) -> Iterator[NDArray[np.int64]]:
        """Yields the token offsets of this reader's batches. The daemon is told of a window of them before the window
        ahead of it is read."""
        tell = bool(self.ahead and self.dataset.stats().get("mounted"))
        previous: list[NDArray[np.int64]] = []
        for window in self._windows(first, end, stride):
            if tell:
                self.dataset.prefetch(np.concatenate(window), self._row)
            yield from previous
            previous = window
        yield from previous

    def _windows(self, first: int, end: int | None, stride: int) -> Iterator[list[NDArray[np.int64]]]:
        """Yields the same as lists of batches, since computing the order of 16 of them costs hardly more than of one."""
        batch = np.arange(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)
        while True:
            steps = max(1, self.ahead)
            if end is not None:
                steps = min(steps, max(0, (end - self._step - first) // stride + 1))
            if steps == 0:
                break
            steps_begin = first + stride * np.arange(steps, dtype=np.int64)
            yield list(self._starts(steps_begin[:, None] + batch))
            first += steps * stride
        if end is not None and first < end and not self.drop_last:
            rest = end - first
            mine = np.arange(rest * self.rank // self.world_size, rest * (self.rank + 1) // self.world_size)
            yield [self._starts(first + mine)]

    def _starts(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the token offsets of the samples at these places of the sequence of all epochs (ascending)."""
        places = positions.reshape(-1)
        samples = np.empty_like(places)
        begin = 0
        while begin < len(places):
            epoch = int(places[begin]) // self.samples
            end = int(np.searchsorted(places, (epoch + 1) * self.samples))
            here = places[begin:end] - epoch * self.samples
            samples[begin:end] = Permutation(self.samples, self.seed, epoch)(here) if self.shuffle else here
            begin = end
        samples = samples.reshape(positions.shape)
        if not self.documents:
            return samples * self.seq_len
        document = np.searchsorted(self._first, samples, side="right") - 1
        starts: NDArray[np.int64] = self._borders[document] + (samples - self._first[document]) * self.seq_len
        return starts


def _at_least(least: int, name: str, value: int) -> int:
    number = operator.index(value)
    if number < least:
        raise InvalidError(f"{name} is {number}: give at least {least}")
    return number


def _samples_of_documents(dataset: Dataset, seq_len: int, row: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the documents' borders in tokens, and the number of the first sample of each document (and the end)."""
    borders = dataset.documents
    if borders is None:
        raise InvalidError(f"{dataset.path} has no document borders: open a dataset that has, or pass documents=False")
    borders = np.asarray(borders, np.int64)
    counts = np.maximum(0, np.diff(borders) - (row - seq_len)) // seq_len
    first = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=first[1:])
    return borders, first


def _shifted(batch: Any) -> tuple[Any, Any]:
    """Splits rows of seq_len + 1 tokens into inputs and targets. Copies, since a loss does targets.view(-1)."""
    if isinstance(batch, DeviceArray):
        raise InvalidError("targets=True splits batches on a GPU with torch, which is not installed: install it, or leave targets out")
    x, y = batch[:, :-1], batch[:, 1:]
    if isinstance(batch, np.ndarray):
        return np.ascontiguousarray(x), np.ascontiguousarray(y)
    return x.contiguous(), y.contiguous()


def _distributed() -> int:
    """Returns how many ranks torch.distributed runs, 1 where nobody has begun it."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1
    return int(torch.distributed.get_world_size())


def _worker() -> tuple[int, int]:
    """Returns which of how many DataLoader workers this process is: (0, 1) outside of one."""
    torch = sys.modules.get("torch")
    info = torch.utils.data.get_worker_info() if torch else None
    return (info.id, info.num_workers) if info else (0, 1)
