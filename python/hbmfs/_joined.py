"""Batches whose rows several datasets give: one gather of each of them, and then the rows in their order."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ._scatter import Ints, Scatter
from .request import Request

if TYPE_CHECKING:
    from .dataset import Dataset

Part = tuple[int, Ints, Ints]
"""The number of a dataset, the rows of the batch that it gives (ascending), and the token offset of each of them."""


class Shares(NamedTuple):
    """The rows of a batch by dataset."""

    counts: Ints  # of each dataset
    starts: Ints  # token offsets: the first dataset's, the second one's, and so on
    rows: Ints  # where each goes

    @classmethod
    def none(cls, datasets: int) -> Shares:
        """Those of an empty batch."""
        return cls(np.zeros(datasets, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))

    def parts(self) -> list[Part]:
        """Those of each dataset that has some."""
        ends = np.cumsum(self.counts).tolist()
        return [(i, self.rows[a:b], self.starts[a:b]) for i, (a, b) in enumerate(itertools.pairwise([0, *ends])) if a < b]


class Joined:
    """Requests that end together: what a queue waits for as for one Request."""

    def __init__(self, requests: Sequence[Any], finish: Callable[[list[Any]], Any]) -> None:
        self._requests = list(requests)
        self._results: list[Any] = []
        self._finish = finish

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
    """Begins the batches of a mixture, as a queue asks for them. All datasets are on one device."""

    def __init__(self, datasets: Sequence[Dataset], dtype: np.dtype[Any]) -> None:
        self._datasets, self._dtype = datasets, dtype
        self._scatter = Scatter.of(datasets)

    def begin_gather(self, starts: Shares, length: int, *, dtype: Any = None) -> Joined | Request[Any]:
        """Starts reading a batch: rows of `length` tokens. Files of one type are read by one request, straight to their rows."""
        place = self._datasets[0].place()
        narrow = np.dtype(self._datasets[0].dtype)
        if self._scatter is not None and (narrow == self._dtype or place.orders) and self._scatter.works():
            shape = (len(starts.rows), length)
            finish = None if narrow == self._dtype else lambda batch: place.convert(batch, self._dtype, None)
            return self._scatter.begin(place.allocate(shape, narrow), shape[0] * length, starts.counts, starts.starts, length, starts.rows * length, finish)
        parts = starts.parts() if place.orders else _stretches(starts.parts())
        rows = np.concatenate([rows for _, rows, _ in parts]) if parts else np.empty(0, np.int64)
        batch, _, _ = place.allocate((len(rows), length), self._dtype)
        begun: list[Any] = []
        end = 0
        try:
            for source, part, offsets in parts:
                first, end = (end, end + len(part)) if place.orders else (int(part[0]), int(part[0]) + len(part))
                begun.append(self._datasets[source].begin_gather(offsets, length, out=place.rows(batch, first, end), dtype=dtype))
        except BaseException:
            for request in begun:
                request.cancel()
            raise
        ordered = not place.orders or len(parts) < 2
        return Joined(begun, lambda _: batch if ordered else place.order(batch, rows))


class Beside:
    """Begins the batches of a mixture of aligned datasets: the rows of each name."""

    def __init__(self, rows: dict[str, Rows]) -> None:
        self._rows = rows

    def begin_gather(self, starts: Shares, length: int, *, dtype: Any = None) -> Joined:
        """Starts reading a batch, which is a dict."""
        begun: list[Any] = []
        try:
            for rows in self._rows.values():
                begun.append(rows.begin_gather(starts, length, dtype=None if begun else dtype))
        except BaseException:
            for request in begun:
                request.cancel()
            raise
        return Joined(begun, lambda batches: dict(zip(self._rows, batches, strict=True)))


def _stretches(parts: Sequence[Part]) -> list[Part]:
    """The same with the rows of each part next to each other, for memory in which nobody can move rows."""
    return [
        (source, rows[a:b], offsets[a:b])
        for source, rows, offsets in parts
        for cuts in [[0, *(np.flatnonzero(np.diff(rows) != 1) + 1), len(rows)]]
        for a, b in itertools.pairwise(cuts)
    ]
