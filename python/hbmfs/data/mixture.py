"""Batches from several datasets, each of which has its share at every moment.

    mix = hbmfs.Mixture({"web": (web, 0.7), "code": (code, 0.25), "books": (books, 0.05)}, batch_size=32, seq_len=4096, seed=1)
    for batch in mix: ...                      # as of a TokenStream; help("hbmfs.token_stream") describes it

**Shares.** At every prefix of the order of all ranks each source has given its share to less than one sample: see
hbmfs.data._chairman. Weights need not sum to 1. schedule= changes them at samples of that order (a step is batch_size *
world_size of them); the shares of a prefix are then the sum of what each sample's weights were.

**A source's end.** After `epochs` of its epochs a source begins again ("repeat", where epochs means nothing), ends the
mixture ("stop": no source gives more than it has), or leaves its share to the others by their weights ("drop"; when the last
one has ended so does the mixture, and each has given every sample). Both may be dicts by name. A mixture that ends begins
anew when it is iterated again, in another order.

**State.** state_dict() holds the position, how many samples each source has given, and the settings that decide the order. It may
be loaded on any rank, world size and batch size, replays nothing, and refuses other data, weights and options.

**Samples.** Sources may be sets of samples (hbmfs.SampleDataset) with the same fields: then leave seq_len out. Batches, and decode=, are as in
SampleStream.

**Sources** are open datasets of any format, mount and origin, on one device. Where their types differ, say dtype="int64".
hbmfs.mixture.sources() opens them as Megatron's --data-path or a file names them.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from .._lib._arguments import checked
from ..errors import DeviceError, DtypeError, InvalidError
from . import tokens
from ._blend import sources
from ._chairman import NEVER, Assignment, lines
from ._decode import known, queue_of
from ._joined import Batch, Beside, Rows
from ._queue import Queue
from ._sample_rows import SampleRows
from ._samples import Samples, places_of, starts_of_drawn
from ._segments import borders_of
from ._stream import _WINDOW_SAMPLES, STATE_VERSION, Stream, at_least
from ._types import A, B, Dataset, Ints
from .part import Aligned, part_of
from .samples import SampleDataset, words_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._segments import Packed
    from ._types import StreamOptions

    class Schedule(StreamOptions, total=False):
        schedule: Sequence[tuple[int, Mapping[str, Weight]]]
        exhausted: str | Mapping[str, str] | None
        epochs: int | Mapping[str, int] | None

    class OfSamples(Schedule, total=False):
        decode: Mapping[str, Callable[..., Any]] | None
        decode_threads: int | None

    class Options(Schedule, total=False):
        documents: bool

    class Others(Options, total=False):
        targets: bool
        packed: bool
        tensors: bool | None


__all__ = ["Mixture", "sources"]

_ENDS = ("repeat", "stop", "drop")

Weight = float | int | str | Fraction


class Mixture(Stream[B]):
    """An iterable over batches of several datasets; help("hbmfs.mixture") has the whole story.

    sources     {name: (dataset, weight)}
    schedule    [(sample, {name: weight})]: weights from that sample on; a name that is left out keeps its weight
    epochs      1: one epoch of each source, after which the loop ends; a source's epochs before it counts as exhausted, or a dict of
                them by name; None: endless
    exhausted   "repeat", "stop" or "drop", or a dict of them by name. None: "drop" where epochs are given, else "repeat"
    The rest is as in TokenStream.
    """

    _endless = "give epochs=1"

    @overload
    def __init__(
        self: Mixture[Packed[A]],
        sources: Mapping[str, tuple[Dataset[A], Weight]],
        batch_size: int,
        seq_len: int,
        *,
        packed: Literal[True],
        targets: bool = False,
        **o: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Mixture[tuple[A, A]],
        sources: Mapping[str, tuple[Dataset[A], Weight]],
        batch_size: int,
        seq_len: int,
        *,
        targets: Literal[True],
        **o: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(self: Mixture[A], sources: Mapping[str, tuple[Dataset[A], Weight]], batch_size: int, seq_len: int, **o: Unpack[Options]) -> None: ...
    @overload
    def __init__(
        self: Mixture[dict[str, Any]], sources: Mapping[str, tuple[SampleDataset, Weight]], batch_size: int, **o: Unpack[OfSamples]
    ) -> None: ...
    @overload
    def __init__(
        self: Mixture[Any], sources: Mapping[str, tuple[Dataset[Any] | Aligned, Weight]], batch_size: int, seq_len: int, **o: Unpack[Others]
    ) -> None: ...
    @checked
    def __init__(
        self,
        sources: Mapping[str, tuple[Dataset[Any] | Aligned | SampleDataset, Weight]],
        batch_size: int,
        seq_len: int | None = None,
        *,
        seed: int = 0,
        schedule: Sequence[tuple[int, Mapping[str, Weight]]] = (),
        exhausted: str | Mapping[str, str] | None = None,
        epochs: int | Mapping[str, int] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        dtype: Any = None,
        depth: int | None = None,
        ahead: int = 16,
        shuffle: bool = True,
        documents: bool = False,
        drop_last: bool = True,
        targets: bool = False,
        tensors: bool | None = None,
        packed: bool = False,
        decode: Mapping[str, Callable[..., Any]] | None = None,
        decode_threads: int | None = None,
    ) -> None:
        if not sources:
            raise InvalidError("a mixture needs at least one source: give {name: (dataset, weight)}")
        first, self._of_samples = next(iter(sources.values()))[0], _of_samples(sources)
        if self._of_samples:
            if seq_len is not None or documents or targets or packed or dtype is not None:
                raise InvalidError("a mixture of samples has no seq_len, documents, targets, packed or dtype: leave them out")
        elif seq_len is None or decode:
            raise InvalidError("a mixture of tokens needs seq_len, and decodes nothing: give seq_len, and leave decode out")
        super().__init__(
            first, batch_size, 1 if seq_len is None else seq_len, seed=seed, rank=rank, world_size=world_size, dtype=dtype, depth=depth, ahead=ahead,
            shuffle=shuffle, drop_last=drop_last, targets=targets, tensors=tensors,
        )  # fmt: skip
        self.names = list(sources)
        self.datasets: list[Any] = [dataset for dataset, _ in sources.values()]
        if self._of_samples:
            if tensors is not None:
                self.datasets = [dataset.select(tensors=tensors) for dataset in self.datasets]
            self._decode = known(decode, self.datasets[0].fields)
            self._decode_threads = None if decode_threads is None else at_least(1, "decode_threads", decode_threads)
            self._rows = SampleRows(self.datasets)
        else:
            self._rows = _rows(dict(zip(self.names, self.datasets, strict=True)), dtype)
        self.documents = bool(documents)
        self._borders = [borders_of(dataset) for dataset in self.datasets] if packed else None
        self._samples = [Samples(dataset, self.seq_len, self._row, self.documents) for dataset in self.datasets]
        if self._of_samples:
            self._row = max(map(words_of, self.datasets))
        self._seeds = [_seed(self.seed, name) for name in self.names]
        self.schedule = _weights({name: weight for name, (_, weight) in sources.items()}, schedule)
        if exhausted is None:
            exhausted = dict.fromkeys(epochs, "drop") if isinstance(epochs, Mapping) else "repeat" if epochs is None else "drop"
        ends = self._by_name("exhausted", exhausted, "repeat")
        if wrong := [end for end in ends if end not in _ENDS]:
            raise InvalidError(f"exhausted is {wrong[0]!r}: give one of {', '.join(_ENDS)}")
        passes = [at_least(1, "epochs", n) for n in self._by_name("epochs", 1 if epochs is None else epochs, 1)]
        self._limits = [None if end == "repeat" else n * s.count for end, n, s in zip(ends, passes, self._samples, strict=True)]
        self._assigned = Assignment(lines(self.schedule, self._limits, [end == "stop" for end in ends]))
        self._assigned_for = 0  # the beginning of the pass that it is for
        self._ends = ends
        self.pass_samples = None if self._assigned.end >= NEVER else self._assigned.end
        self._most = self._assigned.most()
        if self.drop_last and self.pass_samples is not None and self.pass_samples < self._step:
            raise InvalidError(f"the mixture ends after {self.pass_samples} samples, which do not fill one step of {self._step}: give drop_last=False")

    def _by_name(self, what: str, given: Any, otherwise: Any) -> list[Any]:
        if not isinstance(given, Mapping):
            return [given] * len(self.names)
        if unknown := set(given) - set(self.names):
            raise InvalidError(f"{what} names {min(unknown)!r}, which is no source: the sources are {', '.join(self.names)}")
        return [given.get(name, otherwise) for name in self.names]

    def _said(self) -> str:
        return f"{len(self.names)} sources: {', '.join(self.names)}"

    @property
    def counts(self) -> dict[str, dict[str, float]]:
        """Counts of each source for all ranks in this pass, or in the one that has just ended: samples, tokens, and
        epochs as a fraction."""
        given = self._assigned.counts(self._position - self._assigned_for).tolist()
        return {
            name: {"samples": n, **({} if self._of_samples else {"tokens": n * self.seq_len}), "epochs": n / samples.count}
            for name, n, samples in zip(self.names, given, self._samples, strict=True)
        }

    # --- state ------------------------------------------------------------------------------------------------------

    def _earlier(self, source: int) -> int:
        """The samples of a source that earlier passes took, with the rest of their last epoch."""
        if not self.pass_samples:
            return 0
        count = self._samples[source].count
        return self._began // self.pass_samples * -(-self._most[source] // count) * count

    def _identity(self) -> dict[str, Any]:
        weights = [[at, *map(str, row)] for at, row in self.schedule]
        sources = [
            [name, len(s.dataset), s.count, str(getattr(s.dataset, "dtype", "samples")), end, limit, *part_of(s.dataset).values()]
            for name, s, end, limit in zip(self.names, self._samples, self._ends, self._limits, strict=True)
        ]
        return {
            "version": STATE_VERSION,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "seq_len": self.seq_len,
            "targets": self.targets,
            "documents": self.documents,
            "sources": sources,
            "weights": weights,
        }

    def state_dict(self) -> dict[str, Any]:
        fresh = self._assigned_for != self._began  # nothing of the pass to come is drawn yet
        given = [0] * len(self.names) if fresh else self._assigned.counts(self._position - self._began).tolist()
        return {**super().state_dict(), "given": given}

    def _accept(self, state: dict[str, Any], consumed: int, began: int) -> None:
        given, passes = state.get("given"), self.pass_samples
        known = isinstance(given, list) and all(isinstance(n, int) for n in given)
        if not known or began % (passes or 1) or (began and not passes) or not self._assigned.fits(consumed - began, given or []):
            raise InvalidError(f"the state says that the sources gave {given!r} of samples {began} to {consumed}, which this mixture does not do")
        self._assigned.restart(consumed - began, given or [])
        self._assigned_for = began

    _skips = _WINDOW_SAMPLES

    def _moved(self) -> None:
        if self._assigned_for != self._began:
            self._assigned.restart(0, [0] * len(self.names))
            self._assigned_for = self._began
        self._assigned.forget(self._position - self._began)

    def _twin(self) -> Any:
        twin = super()._twin()
        twin._assigned = copy.deepcopy(self._assigned)
        return twin

    # --- reading ----------------------------------------------------------------------------------------------------

    def _batches(self, firsts: Ints, rows: int) -> Callable[[], list[Batch]]:
        self._moved()
        places = places_of(firsts - self._began, rows)
        first, end = (int(places[0]), int(places[-1]) + 1) if places.size else (0, 0)
        given = self._assigned.counts(first).tolist()
        drawn = self._assigned.sources(first, end)
        before = [n + self._earlier(source) for source, n in enumerate(given)]
        seeds = self._seeds if self.shuffle else [None] * len(self._seeds)
        return self._of_rows(self._borders, (len(firsts), rows), lambda: starts_of_drawn(self._samples, seeds, before, drawn, places - first))

    def _read(self) -> Sequence[Any]:
        return self.datasets

    def _tell(self, window: list[Batch]) -> None:
        starts, sources = (np.concatenate([getattr(batch.spans, field) for batch in window]) for field in ("starts", "sources"))
        for number, dataset in enumerate(self.datasets):
            own = starts[sources == number]
            if len(own):
                dataset.prefetch(own, self._row)

    def _form(self) -> str:
        return f"[{self.batch_size}]" if self._of_samples else super()._form()

    def _queue(self) -> Queue:
        if isinstance(self._rows, SampleRows):
            return queue_of(self._rows, self.depth, self._decode, self._decode_threads)
        return Queue(self._rows, self.depth)


def _of_samples(sources: Mapping[str, tuple[Any, Any]]) -> bool:
    """Whether the sources are sets of samples: all or none of them."""
    of = {isinstance(dataset, SampleDataset) for dataset, _ in sources.values()}
    if len(of) > 1:
        raise InvalidError("the sources are tokens and samples: mix each kind by itself")
    return of.pop()


def _seed(seed: int, name: str) -> int:
    """The seed of a source: that of others does not change when one is added."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8, person=b"hbmfs source").digest(), "little")


def _rows(datasets: Mapping[str, Any], dtype: Any) -> Rows | Beside:
    """The object that begins the batches of these sources. Aligned ones have the same names."""
    names = {name: list(d.datasets) if isinstance(d, Aligned) else [] for name, d in datasets.items()}
    first, *others = names.values()
    if any(other != first for other in others):
        raise InvalidError(f"the sources hold different things ({', '.join(f'{n}: {sorted(of)}' for n, of in names.items())}): align all of them alike")
    if not first:
        return Rows(list(datasets.values()), _common_type(datasets, dtype))
    each = {name: {source: d.datasets[name] for source, d in datasets.items()} for name in first}
    return Beside({name: Rows(list(of.values()), _common_type(of, dtype if name == first[0] else None)) for name, of in each.items()})


def _common_type(datasets: Mapping[str, Dataset[Any]], dtype: Any) -> np.dtype[Any]:
    if len({dataset.device for dataset in datasets.values()}) > 1:
        where = ", ".join(f"{name} on {dataset.device}" for name, dataset in datasets.items())
        raise DeviceError(f"the sources are not on one device ({where}): open all with the same device=")
    types = {name: dataset.dtype if dtype is None else tokens.parse_dtype(dtype) for name, dataset in datasets.items()}
    if len(set(types.values())) > 1:
        raise DtypeError(f"the sources have different types ({', '.join(f'{n}: {t}' for n, t in types.items())}): give dtype='int64'")
    return next(iter(types.values()))


def _weights(first: dict[str, Weight], schedule: Sequence[tuple[int, Mapping[str, Weight]]]) -> list[tuple[int, list[Fraction]]]:
    """[(sample, weights of all sources)], by sample."""
    now = {name: _exact(name, weight) for name, weight in first.items()}
    out = [(0, list(now.values()))]
    for at, changed in schedule:
        if unknown := set(changed) - set(now):
            raise InvalidError(f"the schedule names {min(unknown)!r}, which is no source: the sources are {', '.join(now)}")
        now.update((name, _exact(name, weight)) for name, weight in changed.items())
        at = at_least(0, "a sample of the schedule", at)
        if at < out[-1][0] or (at == out[-1][0] and at):
            raise InvalidError(f"the schedule goes from sample {out[-1][0]} to {at}: give its samples in order")
        out = [*(out if at else []), (at, list(now.values()))]
    for at, row in out:
        if not any(row):
            raise InvalidError(f"all weights are 0 from sample {at} on: give one that is larger")
    return out


def _exact(name: str, weight: Weight) -> Fraction:
    """A weight as the number that it prints as, so that 0.1 is a tenth."""
    try:
        exact = Fraction(weight if isinstance(weight, (int, str, Fraction)) else repr(float(weight)))
    except (TypeError, ValueError, ZeroDivisionError) as err:
        raise InvalidError(f"the weight of {name} is {weight!r}: give a number that is not negative") from err
    if exact < 0:
        raise InvalidError(f"the weight of {name} is {weight!r}: give a number that is not negative")
    return exact
