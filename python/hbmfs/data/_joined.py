"""Batches whose rows one dataset gives, or several: by one request where that can be, else a gather of each of them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._lib._arguments import seconds
from .._lib._native import WIDEN
from .._lib.request import Request
from . import tokens
from ._scatter import Scatter, Spans
from ._segments import shifted
from ._types import Ints

if TYPE_CHECKING:
    from ._segments import Sequences

Part = tuple[int, Ints, Ints]
"""The number of a dataset, the rows of the batch that it gives (ascending), and the token offset of each of them."""


class Batch(NamedTuple):
    """A batch as it is planned."""

    spans: Spans
    sequences: Sequences | None = None  # where a batch says where documents begin


class Joined:
    """Requests that end together, for which a queue waits as for one Request."""

    def __init__(self, requests: Sequence[Any], finish: Callable[[list[Any]], Any]) -> None:
        self._requests = list(requests)
        self._results: list[Any] = []
        self._finish = finish

    @classmethod
    def begin(cls, begins: Sequence[Callable[[], Any]], finish: Callable[[list[Any]], Any]) -> Joined:
        """Begins requests. Where one cannot begin, those before it are cancelled."""
        begun: list[Any] = []
        try:
            for begin in begins:
                begun.append(begin())
        except BaseException:
            for request in begun:
                request.cancel()
            raise
        return cls(begun, finish)

    @property
    def done(self) -> bool:
        """Whether wait() would return, or raise, at once."""
        return all(request.done for request in self._requests)

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for all of them, and gives what `finish` makes of their results. An error of one of them cancels the others."""
        end = None if timeout is None else time.monotonic() + seconds(timeout)
        try:
            while self._requests:
                self._results.append(self._requests[0].wait(None if end is None else max(0.0, end - time.monotonic())))
                self._requests.pop(0)
        except TimeoutError:
            raise
        except BaseException:
            self.cancel()
            raise
        return self._finish(self._results)

    def cancel(self) -> None:
        """Cancels those that are under way."""
        for request in self._requests:
            request.cancel()


class Rows:
    """Begins the batches of a stream, as a queue asks for them. All datasets are on one device. A batch with sequences comes with
    metadata of each token: (tokens, (cu_seqlens, position_ids, document_ids))."""

    def __init__(self, datasets: Sequence[Any], dtype: Any) -> None:
        self._datasets, first = list(datasets), datasets[0]
        self._given = dtype
        self._narrow = first.dtype
        self._dtype = self._narrow if dtype is None else tokens.parse_dtype(dtype)
        wide = self._dtype if (self._narrow, self._dtype) in WIDEN else None
        self._scatter = Scatter.of(datasets, wide) if wide or self._dtype == self._narrow else None
        self._writer = self._scatter or _scatter_of(first)  # of metadata of tokens

    @property
    def on_gpu(self) -> bool:
        """Whether the batches are in a GPU's memory."""
        return str(getattr(self._datasets[0], "device", "cpu")) != "cpu"

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again of the datasets, which multiprocessing's spawn opens again."""
        return Rows, (self._datasets, self._given)

    def begin_gather(self, batch: Batch, length: int, *, dtype: Any = None) -> Any:
        """Starts reading a batch: rows of `length` tokens. Files of one type are read by one request, straight to their rows."""
        spans, sequences = batch
        if self._scatter is not None and self._scatter.works():
            place = self._datasets[0].place()
            if not spans.targets:
                return self._scatter.begin(place.allocate((spans.rows, length), self._dtype), spans.rows * length, spans, length, sequences, place=place)
            shape = (spans.rows, length - 1)
            array, targets = place.allocate(shape, self._dtype), place.allocate(shape, self._dtype)
            return self._scatter.begin(array, spans.rows * (length - 1), spans, length, sequences, targets=targets)
        if spans.targets:
            return Joined.begin([lambda: self.gather(spans, length, dtype)], lambda got: shifted(got[0]))
        if sequences is None:
            return self.gather(spans, length, dtype)
        return Joined.begin([lambda: self.gather(spans, length, dtype), lambda: self.expand(sequences)], tuple)

    def expand(self, sequences: Sequences) -> Request[Any]:
        """Starts writing the metadata of each token."""
        if self._writer is None or not self._writer.works():
            return Request(None, sequences.expanded())
        return self._writer.begin((None, 0, 0), 0, Spans(0, np.empty(0, np.int64)), 0, sequences, lambda got: got[1])

    def gather(self, spans: Spans, length: int, dtype: Any) -> Any:
        """Starts reading the tokens, by a gather of each dataset."""
        shape = (spans.rows, length)
        if spans.lengths is not None:
            return self._datasets[0].begin_pieces(spans.starts, spans.lengths, shape, pad=spans.pad or 0, dtype=dtype)
        if len(self._datasets) == 1:
            return self._datasets[0].begin_gather(spans.starts, length, dtype=dtype)
        place = self._datasets[0].place()
        parts: list[Part] = [(i, rows, spans.starts[rows]) for i in range(len(self._datasets)) for rows in [spans.of(i)] if len(rows)]
        if not place.orders:
            parts = _stretches(parts)
        rows = np.concatenate([rows for _, rows, _ in parts]) if parts else np.empty(0, np.int64)
        batch, _, _ = place.allocate(shape, self._dtype)

        def begin(part: Part, end: int) -> Callable[[], Any]:
            source, own, starts = part
            first = end - len(own) if place.orders else int(own[0])
            return lambda: self._datasets[source].begin_gather(starts, length, out=place.rows(batch, first, first + len(own)), dtype=dtype)

        ends = itertools.accumulate(len(own) for _, own, _ in parts)
        ordered = not place.orders or len(parts) < 2
        return Joined.begin([*map(begin, parts, ends)], lambda _: batch if ordered else place.order(batch, rows))


class Beside:
    """Begins the batches of a mixture of aligned datasets: the rows of each name."""

    def __init__(self, rows: dict[str, Rows]) -> None:
        self._rows = rows
        self.on_gpu = next(iter(rows.values())).on_gpu
        """Whether the batches are in a GPU's memory."""

    def begin_gather(self, batch: Batch, length: int, *, dtype: Any = None) -> Joined:
        """Starts reading a batch, whose tokens are a dict. dtype is of the first name."""
        names, sequences = list(self._rows), batch.sequences

        def begin(name: str) -> Callable[[], Any]:
            return lambda: self._rows[name].begin_gather(Batch(batch.spans), length, dtype=dtype if name == names[0] else None)

        begins = [begin(name) for name in names]
        if sequences is None:
            return Joined.begin(begins, lambda got: dict(zip(names, got, strict=True)))
        return Joined.begin([*begins, lambda: self._rows[names[0]].expand(sequences)], lambda got: (dict(zip(names, got[:-1], strict=True)), got[-1]))


def _scatter_of(dataset: Any) -> Scatter | None:
    """A Scatter on the device of a part, or of aligned datasets."""
    while dataset is not None and getattr(dataset, "_file", None) is None:
        dataset = getattr(dataset, "whole", None) or getattr(dataset, "first", None)
    return None if dataset is None else Scatter([dataset])


def _stretches(parts: Sequence[Part]) -> list[Part]:
    """The same with the rows of each part next to each other, for memory in which nobody can move rows."""
    return [
        (source, rows[a:b], offsets[a:b])
        for source, rows, offsets in parts
        for cuts in [[0, *(np.flatnonzero(np.diff(rows) != 1) + 1), len(rows)]]
        for a, b in itertools.pairwise(cuts)
    ]
