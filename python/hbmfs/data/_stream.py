"""The streams' common part: one order of samples for all ranks, batches read ahead in it, and where a run stands."""

from __future__ import annotations

import copy
import itertools
import mmap
import operator
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
from numpy.typing import NDArray

from .._lib import _device
from .._lib._arguments import checked
from .._lib._device import imported_torch
from .._lib._warn import warn
from ..errors import InvalidError, StaleError
from ._ahead import begun
from ._joined import Batch, Beside, Rows
from ._queue import Queue
from ._sample_rows import SampleRows
from ._scatter import Spans
from ._segments import as_kind, rows_and_labels, sequences_of
from ._types import B, Ints

if TYPE_CHECKING:
    from typing_extensions import Self

STATE_VERSION = 1
Found = tuple[Ints, "NDArray[np.int32] | None"]
"""Of rows: the first token of each, and its dataset; None: the first."""
NEVER = 1 << 62
"""A position that no run reaches."""
DEPTH, _UNDER_WAY = 8, 256 << 20  # batches that keep the link to a GPU busy, in so many bytes of tokens of 8 bytes
_WINDOW, _WINDOW_SAMPLES = 64, 1 << 17  # batches, of so many samples of all ranks, that are planned at once where nobody is told


class Stream(Generic[B]):
    """An iterable over batches of samples. A kind of stream defines its samples:

    _identity()         what decides the order: a state of another one is refused
    _batches(firsts, rows) begins to plan batches of so many samples, given the place of each one's first in the order of all epochs, and gives a function
                        that gives what to read for them
    _read()             the datasets
    _tell(window)       tells the mount's daemon of such batches
    _queue()            begins their reads, and gives them out in order
    pass_samples        the samples of one iteration from its begin to its end, None if it has none
    """

    _deepest = DEPTH  # batches on their way to a GPU
    _row: int  # tokens read for one sample, or words of 8 bytes
    _rows: Rows | Beside | SampleRows
    pass_samples: int | None

    def __init__(
        self, dataset: Any, batch_size: int, seq_len: int, *, seed: int, rank: int | None, world_size: int | None, dtype: Any, depth: int | None, ahead: int, shuffle: bool,
        drop_last: bool, targets: bool, tensors: bool | None,
    ) -> None:  # fmt: skip
        self.dtype = dtype
        self.batch_size, self.seq_len = at_least(1, "batch_size", batch_size), at_least(1, "seq_len", seq_len)
        self.seed = operator.index(seed)
        if (rank is None or world_size is None) and (ranks := _distributed()) > 1:
            raise InvalidError(
                f"torch.distributed runs {ranks} ranks here, and without rank= and world_size= all of them would read the same samples: "
                "give both, of the data-parallel group"
            )
        self.rank = at_least(0, "rank", 0 if rank is None else rank)
        self.world_size = at_least(1, "world_size", 1 if world_size is None else world_size)
        if self.rank >= self.world_size:
            raise InvalidError(f"rank is {self.rank}: give 0 to {self.world_size - 1}, since world_size is {self.world_size}")
        self._depth, self.ahead = None if depth is None else at_least(1, "depth", depth), at_least(0, "ahead", ahead)
        self.shuffle, self.drop_last, self.targets = bool(shuffle), bool(drop_last), bool(targets)
        self._row = self.seq_len + self.targets
        self._position = self._began = 0  # the sample to come, and the one that this pass began with
        own: bool | None = getattr(dataset, "tensors", None) if tensors is None else bool(tensors)
        self.tensors: bool = _device.torch_is_imported() if own is None else own
        """Whether batches on the CPU are torch tensors."""
        self._iteration: weakref.ref[Any] | None = None  # the last one
        self._in_workers = mmap.mmap(-1, 1)  # whether workers read: a byte that forked ones write for this process
        self._after: tuple[tuple[int, int], int, Stream[Any]] | None = None  # of state_after: from where, how many batches, a copy that stands there
        if torch := imported_torch():
            # DataLoader asks by isinstance whether to iterate; IterableDataset is an abstract base class. Not a base
            # of ours, since importing torch takes seconds that a reader on the CPU need not spend.
            torch.utils.data.IterableDataset.register(type(self))

    @property
    def depth(self) -> int:
        """Batches on their way while the caller works on one."""
        if self._depth is not None:
            return self._depth
        most = self._deepest if self._rows.on_gpu else 2
        return max(2, min(most, _UNDER_WAY // (8 * self.batch_size * self._row)))

    @property
    def _step(self) -> int:
        """Samples that all ranks take in one step."""
        return self.batch_size * self.world_size

    @property
    def position(self) -> int:
        """Samples that all ranks together have consumed, over all epochs."""
        return self._position

    def __len__(self) -> int:
        """The number of steps of one iteration from its begin to its end."""
        samples = self._count()
        if samples is None:
            raise TypeError(f"an endless {type(self).__name__} has no length: {self._endless}")
        whole, rest = divmod(samples, self._step)
        return whole + (rest > 0 and not self.drop_last)

    def _count(self) -> int | None:
        """Samples of one iteration from its begin to its end, None if it has no end."""
        return self.pass_samples

    @property
    def _endless(self) -> str:
        """The work for a length."""
        raise NotImplementedError

    # --- state ------------------------------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is, as plain numbers: the batches that were handed out count, those read ahead do not. It
        is the same on every rank between steps, so one rank's is enough to save. In one of several DataLoader workers it is that
        worker's own. Where workers read, the stream of the main process does not move, and this warns: see state_after()."""
        worker, workers = _worker()
        if self._in_workers[0] and not _in_worker():
            warn(
                "hbmfs: this state counts no batch that DataLoader workers read: save state_after(batches), or StatefulDataLoader's state",
                RuntimeWarning,
            )
        own = {"worker": worker, "workers": workers, "step": self._step} if workers > 1 else {}
        return {**self._identity(), "consumed": self._position, "began": self._began, **own}

    @checked
    def state_after(self, batches: int) -> dict[str, Any]:
        """The state after the first `batches` batches of a DataLoader whose workers read this stream from where it stands: how many of
        them the main process has taken from the loader. Like state_dict() of a stream without workers it is the same on every rank,
        and may be loaded with any rank, world size, batch size and number of workers."""
        if at_least(0, "batches", batches) >= NEVER:
            raise InvalidError(f"batches are {batches}, which no run reaches")
        begun = self._position, self._began
        if self._after is None or self._after[0] != begun or self._after[1] > batches:
            self._after = begun, 0, self._twin()
        _, before, twin = self._after
        twin._skip(batches - before)
        self._after = begun, batches, twin
        return twin.state_dict()

    def _twin(self) -> Any:
        """A copy that moves by itself."""
        twin = copy.copy(self)
        twin._after = None
        return twin

    def _skip(self, batches: int) -> None:
        """Moves on by batches that others have read, as iterating over them would."""
        while batches:
            some = min(batches, max(1, self._skips // self._step))
            position = self._position + some * self._step
            end = self._end_by(position)
            if end is not None:
                whole, rest = divmod(max(0, end - self._position), self._step)
                steps = whole + (rest > 0 and not self.drop_last)
                if not steps and self._position == self._began:
                    raise InvalidError(f"there are no {batches} batches more: a pass of this stream fills no step of {self._step} samples")
                some, position = min(some, steps), min(position, max(end, self._position))
                if batches > steps:
                    self._finish(end)
                    position = self._position
            batches -= some
            self._position = position
            self._moved()

    _skips = NEVER
    """Samples that _skip() moves by at once."""

    def _moved(self) -> None:
        """Lets go of plans before the position."""

    def __getstate__(self) -> dict[str, Any]:
        from multiprocessing.context import get_spawning_popen

        if get_spawning_popen() is not None:  # a spawned worker cannot tell
            self._in_workers[0] = 1
        return {**self.__dict__, "_in_workers": None, "_after": None, "_iteration": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._in_workers = mmap.mmap(-1, 1)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken, by a stream of any rank, world size and batch size. A state of another
        dataset, sample length or order is an InvalidError, and so is that of one of several DataLoader workers, unless the same
        worker of as many goes on with steps of as many samples."""
        for name, ours in {"part": None, **self._identity()}.items():
            if not isinstance(state, Mapping) or (name not in state and name != "part"):  # a whole set has none
                raise InvalidError(f"the state has no {name!r}: it was not made by {type(self).__name__}.state_dict()")
            if state.get(name) != ours:
                raise InvalidError(
                    f"the state was taken with {name}={state.get(name)!r}, this stream has {ours!r}: "
                    "resume with the same dataset and options (rank, world_size and batch_size may differ)"
                )
        whose = state.get("worker", 0), state.get("workers", 1), state.get("step", self._step)
        if whose[1] != 1 and whose != (*_worker(), self._step):
            raise InvalidError(
                f"the state is that of worker {whose[0]} of {whose[1]}, with {whose[2]} samples in a step of all ranks: it does not say how far the "
                f"other workers were, so it can only go on in the same worker of as many, with as many samples in a step (here {self._step}). "
                "For another shape save state_after(batches) of the stream in the main process, which knows how many batches it took"
            )
        consumed, began = state.get("consumed"), state.get("began")
        if not (isinstance(consumed, int) and isinstance(began, int) and 0 <= began <= consumed < NEVER):
            raise InvalidError(f"the state counts {consumed!r} consumed samples since {began!r}: it was not made by state_dict()")
        self._accept(state, consumed, began)
        self._position, self._began = consumed, began
        self._in_workers[0] = 0

    def _accept(self, state: dict[str, Any], consumed: int, began: int) -> None:
        """Takes over the state of a kind of stream beside the position, or refuses it."""

    # --- iteration --------------------------------------------------------------------------------------------------

    def _batches(self, firsts: Ints, rows: int) -> Callable[[], list[Batch]]:
        raise NotImplementedError

    def _tell(self, window: list[Batch]) -> None:
        raise NotImplementedError

    def _queue(self) -> Queue:
        raise NotImplementedError

    def _of_rows(self, borders: Sequence[Ints] | None, shape: tuple[int, int], find: Callable[[], Found]) -> Callable[[], list[Batch]]:
        """Begins to plan so many batches of so many rows of consecutive tokens, which `find` finds; with borders, of the documents in them."""

        def plan() -> list[Batch]:
            starts, sources = find()
            of = itertools.repeat(None) if sources is None else sources.reshape(shape)
            targets = self.targets and borders is None
            each = [Spans(shape[1], own, its, targets=targets) for own, its in zip(starts.reshape(shape), of, strict=False)]
            if borders is None:
                return [*map(Batch, each)]
            return [*map(Batch, each, sequences_of(borders, sources, starts, shape[1], self.seq_len))]

        return begun(plan)

    def _read(self) -> Sequence[Any]:
        """The datasets that are read."""
        raise NotImplementedError

    def _told(self) -> bool:
        """Whether a daemon wants to hear of the plan."""
        return any(dataset.stats().get("mounted") for dataset in self._read())

    def _all_seen(self) -> bool:
        """Whether the daemon need not hear more now: the last bytes of all files were in memory that the device reads."""
        whole = [getattr(dataset, "whole", dataset) for dataset in self._read()]
        files = [dataset._open() if hasattr(dataset, "_open") else None for dataset in whole]
        return all(file is not None and file.seen for file in files)

    def _shape(self, batch: Any, plan: Batch) -> Any:
        """The form in which a batch of this plan is handed out."""
        if plan.sequences is not None:
            rows, expanded = batch
            return plan.sequences.pack(expanded, *rows_and_labels(rows, self.targets))
        return batch

    def _end_by(self, position: int) -> int | None:
        """Where this pass ends, if it does at `position` or before."""
        if self.pass_samples is None or self._began + self.pass_samples > position:
            return None
        return self._began + self.pass_samples

    def _finish(self, end: int) -> None:
        """The pass has ended; the next one begins."""
        self._position = self._began = max(end, self._position)

    def __iter__(self) -> Iterator[B]:
        _refuse_collation(sys._getframe(1))
        iteration = self._iterate()
        self._iteration = weakref.ref(iteration)
        return iteration

    def close(self) -> None:
        """Ends the iteration that is under way, and cancels its reads. The dataset stays open, and the stream may be iterated again."""
        iteration, self._iteration = None if self._iteration is None else self._iteration(), None
        if iteration is not None:
            iteration.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        epochs = getattr(self, "epochs", None)
        length = f"{len(self)} steps" if self.pass_samples is not None else f"{epochs} epochs" if isinstance(epochs, int) else "endless"
        ranks = "" if self.world_size == 1 else f" of rank {self.rank} of {self.world_size}"
        return f"<hbmfs.{type(self).__name__} {length} of {self._form()}{ranks} at sample {self._position}, of {self._said()}>"

    def _form(self) -> str:
        """The shape of a batch."""
        return f"[{self.batch_size}, {self.seq_len}]"

    def _said(self) -> str:
        """Its source, in one line."""
        raise NotImplementedError

    def _iterate(self) -> Iterator[Any]:
        worker, workers = _worker()
        self._in_workers[0] = _in_worker()
        position = self._position
        plan = self._plan(position + worker * self._step, workers * self._step)
        under_way: deque[Batch] = deque()
        of_tokens = not isinstance(self._rows, SampleRows)  # which hand out each field as its place wants it
        given, convert = _Given(), of_tokens and not self._rows.on_gpu and (self.tensors or _device.torch_is_imported())
        with self._queue() as queue:
            self._fill(queue, under_way, plan)
            while under_way:
                try:
                    batch, its_plan = queue.get(), under_way.popleft()
                except StaleError as err:
                    given.blame(err)
                    raise
                given.one()
                self._fill(queue, under_way, plan)
                self._check_unmoved(position)
                # In a worker, a round of all workers: from its own state each of them goes on with its own next step.
                position += workers * self._step
                end = self._end_by(position)
                self._position = position = position if end is None else max(end, self._position)
                shaped = self._shape(batch, its_plan)
                yield as_kind(shaped, self.tensors) if convert else shaped
            self._check_unmoved(position)
            if (end := self._end_by(NEVER)) is not None:
                self._finish(end)

    def _fill(self, queue: Queue, under_way: deque[Batch], plan: Iterator[Batch]) -> None:
        for batch in itertools.islice(plan, queue.depth - len(queue)):
            queue.put(batch, self._row, dtype=self.dtype)
            under_way.append(batch)

    def _check_unmoved(self, position: int) -> None:
        if self._position != position:
            raise RuntimeError("the stream was moved, by load_state_dict or by another iteration, while this one ran: begin again with iter(stream)")

    def _plan(self, first: int, stride: int) -> Iterator[Batch]:
        """Yields the plans of this reader's batches. The daemon is told of a window of them before the window
        ahead of it is read."""
        tell = bool(self.ahead and self._told())
        windows = self._windows(first, stride, tell)
        previous: list[Batch] = []
        planned = next(windows, None)
        while planned is not None:
            window = planned()
            if tell:
                if not self._all_seen():
                    self._tell(window)
                window, previous, planned = previous, window, next(windows, None)
                yield from window
                continue
            # The next window is planned while batches of this one are read; the first ones have begun by then.
            turn = min(self.depth, len(window) - 1)
            yield from window[:turn]
            planned = next(windows, None)
            yield from window[turn:]
        yield from previous

    def _windows(self, first: int, stride: int, tell: bool) -> Iterator[Callable[[], list[Batch]]]:
        """Yields the same as lists of batches that are being planned, since computing the order of many costs hardly more than of one: `ahead` of them
        while the daemon is told, otherwise more and more."""
        end, least = None, max(1, self.ahead)
        size, most = least, max(least, min(_WINDOW, _WINDOW_SAMPLES // self._step))
        while end is None:
            steps = size
            end = self._end_by(first + (steps - 1) * stride + self._step)
            if end is not None:
                steps = min(steps, max(0, (end - self._step - first) // stride + 1))
            if steps:
                yield self._batches(first + self.rank * self.batch_size + stride * np.arange(steps, dtype=np.int64), self.batch_size)
            first += steps * stride
            size = least if tell and not self._all_seen() else min(4 * size, most)
        if first < end and not self.drop_last:
            mine, others = ((end - first) * rank // self.world_size for rank in (self.rank, self.rank + 1))
            yield self._batches(np.array([first + mine]), others - mine)


class _Given:
    """When batches were given out, for an error that says since when bytes may be wrong."""

    _EVERY, _KEPT = 0.005, 4096  # seconds between two that are noted, and how many are: for longer than a sweep of the daemon's takes

    def __init__(self) -> None:
        self._noted: deque[tuple[float, int]] = deque(maxlen=self._KEPT)
        self._count, self._last = 0, 0.0

    def one(self) -> None:
        """Counts a batch that has come."""
        now = time.time()
        if not 0 <= now - self._last < self._EVERY:
            self._noted.append((now, self._count))
            self._last = now
        self._count += 1

    def blame(self, err: StaleError) -> None:
        """Says in an error, of the batch after these, which batch may be the first with wrong bytes."""
        if err.since is not None:
            before = [number for at, number in self._noted if at < err.since]
            err.first_batch = before[-1] + 1 if before else self._noted[0][1] if self._noted else 0
            err.args = (f"{err}, from batch {err.first_batch} of this iteration on, of {self._count} that came",)


def at_least(least: int, name: str, value: int) -> int:
    """The value, if it is a whole number that is large enough."""
    number = operator.index(value)
    if number < least:
        raise InvalidError(f"{name} is {number}: give at least {least}")
    return number


def _refuse_collation(caller: FrameType) -> None:
    """Refuses a DataLoader that would put whole batches into batches, which shows where its fetcher calls iter(stream)."""
    fetcher, torch = caller.f_locals.get("self"), imported_torch()
    if torch and getattr(fetcher, "auto_collation", False) and getattr(fetcher, "collate_fn", None) is torch.utils.data.default_collate:
        raise InvalidError("the stream makes batches, of which this DataLoader would make batches: pass it batch_size=None")


def _distributed() -> int:
    """Returns how many ranks torch.distributed runs, 1 where nobody has begun it."""
    torch = imported_torch()
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1
    return int(torch.distributed.get_world_size())


def _in_worker() -> bool:
    """Whether this process is a DataLoader worker."""
    torch = imported_torch()
    return torch is not None and torch.utils.data.get_worker_info() is not None


def _worker() -> tuple[int, int]:
    """Returns which of how many DataLoader workers this process is: (0, 1) outside of one."""
    torch = imported_torch()
    info = torch.utils.data.get_worker_info() if torch else None
    return (info.id, info.num_workers) if info else (0, 1)
