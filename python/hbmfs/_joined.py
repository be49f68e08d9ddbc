"""Batches whose rows one dataset gives, or several: by one request where that can be, else a gather of each of them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import tokens
from ._scatter import Ints, Scatter, Spans
from .request import Request

if TYPE_CHECKING:
    from ._segments import Sequences
    from .dataset import Dataset

Part = tuple[int, Ints, Ints]
"""The number of a dataset, the rows of the batch that it gives (ascending), and the token offset of each of them."""


class Batch(NamedTuple):
    """A batch as it is planned."""

    spans: Spans
    sequences: Sequences | None = None  # where a batch says where documents begin


class Joined:
    """Requests that end together: what a queue waits for as for one Request."""

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

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for all of them, and gives what `finish` makes of their results. An error of one of them cancels the others."""
        end = None if timeout is None else time.monotonic() + timeout
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
    """Begins the batches of a stream, as a queue asks for them. All datasets are on one device. A batch with sequences comes with what
    they say of each token: (tokens, (cu_seqlens, position_ids, document_ids))."""

    def __init__(self, datasets: Sequence[Any], dtype: Any) -> None:
        self._datasets, first = list(datasets), datasets[0]
        self._given = dtype
        self._narrow = first.dtype
        self._dtype = self._narrow if dtype is None else tokens.parse_dtype(dtype)
        self._wide = self._dtype != self._narrow
        self._scatter = Scatter.of(datasets)
        self._writer = self._scatter or _scatter_of(first)  # of what sequences say

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again of the datasets, which multiprocessing's spawn opens again."""
        return Rows, (self._datasets, self._given)

    def begin_gather(self, batch: Batch, length: int, *, dtype: Any = None) -> Joined | Request[Any]:
        """Starts reading a batch: rows of `length` tokens. Files of one type are read by one request, straight to their rows."""
        spans, sequences = batch
        place = self._datasets[0].place() if self._scatter else None
        alone = len(self._datasets) == 1
        if self._scatter and place and (not self._wide or (place.orders and not alone)) and self._scatter.works():
            finish = None
            if self._wide:
                finish = (lambda rows: place.convert(rows, self._dtype, None)) if sequences is None else lambda got: (place.convert(got[0], self._dtype, None), got[1])
            array = place.allocate((spans.rows, length), self._narrow)
            return self._scatter.begin(array, spans.rows * length, spans, length, sequences, finish)
        if sequences is None:
            return self.gather(spans, length, dtype)
        return Joined.begin([lambda: self.gather(spans, length, dtype), lambda: self.expand(sequences)], tuple)

    def expand(self, sequences: Sequences) -> Request[Any]:
        """Starts writing what sequences say of each token."""
        if self._writer is None or not self._writer.works():
            return Request(None, sequences.expanded())
        return self._writer.begin((None, 0, 0), 0, Spans(0, np.empty(0, np.int64)), 0, sequences, lambda got: got[1])

    def gather(self, spans: Spans, length: int, dtype: Any) -> Any:
        """Starts reading the tokens, by a gather of each dataset."""
        shape = (spans.rows, length)
        if spans.lengths is not None:
            return self._datasets[0].begin_pieces(spans.starts, spans.lengths, spans.places, shape, dtype=dtype)
        if len(self._datasets) == 1:
            return self._datasets[0].begin_gather(spans.starts, length, dtype=dtype)
        place = self._datasets[0].place()
        own = ((i, np.asarray(spans.of(i))) for i in range(len(self._datasets)))
        parts: list[Part] = [(i, rows, spans.starts[rows]) for i, rows in own if len(rows)]
        if not place.orders:
            parts = _stretches(parts)
        rows = np.concatenate([rows for _, rows, _ in parts]) if parts else np.empty(0, np.int64)
        batch, _, _ = place.allocate(shape, self._dtype)
        ends = [*itertools.accumulate(len(part) for _, part, _ in parts)]

        def begin(source: int, part: Ints, offsets: Ints, end: int) -> Any:
            first = end - len(part) if place.orders else int(part[0])
            return self._datasets[source].begin_gather(offsets, length, out=place.rows(batch, first, first + len(part)), dtype=dtype)

        ordered = not place.orders or len(parts) < 2
        return Joined.begin([lambda p=(*part, end): begin(*p) for part, end in zip(parts, ends, strict=True)], lambda _: batch if ordered else place.order(batch, rows))


class Beside:
    """Begins the batches of a mixture of aligned datasets: the rows of each name."""

    def __init__(self, rows: dict[str, Rows]) -> None:
        self._rows = rows

    def begin_gather(self, batch: Batch, length: int, *, dtype: Any = None) -> Joined:
        """Starts reading a batch, whose tokens are a dict."""
        first, *others = [lambda rows=rows, t=t: rows.begin_gather(Batch(batch.spans), length, dtype=t) for rows, t in zip(self._rows.values(), itertools.chain([dtype], itertools.repeat(None)), strict=False)]
        names = list(self._rows)
        if batch.sequences is None:
            return Joined.begin([first, *others], lambda got: dict(zip(names, got, strict=True)))
        sequences, writer = batch.sequences, next(iter(self._rows.values()))
        return Joined.begin([first, *others, lambda: writer.expand(sequences)], lambda got: (dict(zip(names, got[:-1], strict=True)), got[-1]))


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
