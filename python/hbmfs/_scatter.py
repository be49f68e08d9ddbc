"""Spans of tokens of one dataset, or of several, to places of one array: one request, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .request import Request

if TYPE_CHECKING:
    from .dataset import Dataset

Ints = NDArray[np.int64]


class Scatter:
    """Begins such requests on datasets of one type of tokens, and one device."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        self._datasets = list(datasets)
        self._files = [dataset._file for dataset in datasets]
        self._handles = np.array([file._handle for file in self._files if file], np.uint64)
        self._begins = np.array([dataset._tokens.offset for dataset in datasets], np.int64)
        self._pointer, self._headers = self._handles.ctypes.data, bool(self._begins.any())

    @classmethod
    def of(cls, datasets: Sequence[Any]) -> Scatter | None:
        """None where they are no files, of several types, or of readers that each may have a warning of their own."""
        readers = {id(getattr(dataset, "_reader", None)): getattr(dataset, "_reader", None) for dataset in datasets}
        warns = len(readers) > 1 and any(reader is not None and reader.method != "auto" for reader in readers.values())
        if warns or any(getattr(dataset, "_file", None) is None for dataset in datasets) or len({dataset.dtype for dataset in datasets}) > 1:
            return None
        return cls(datasets)

    def works(self) -> bool:
        """Whether this process may use it. An error if one of them is closed."""
        files = [dataset._open() for dataset in self._datasets]
        return None not in files

    def begin(
        self, array: tuple[Any, int, int], room: int, counts: Ints, starts: Ints, lengths: Ints | int, places: Ints, finish: Callable[[Any], Any] | None
    ) -> Request[Any]:
        """Starts reading: counts[i] spans of dataset i, from the tokens starts on, so many tokens each, to places of the array's
        `room` tokens. array is of Place.allocate."""
        (value, pointer, stream), size = array, self._datasets[0].dtype.itemsize
        k, n = len(counts), len(starts)
        if n == 0:
            return Request(None, value, finish)
        table = np.empty(k + 3 * n, np.int64)  # one, since asking for an address takes a microsecond
        table[:k] = counts
        offsets, many, where = table[k:].reshape(3, n)
        np.multiply(starts, size, out=offsets)
        if self._headers:
            offsets += np.repeat(self._begins, counts)
        np.multiply(lengths, size, out=many)
        np.multiply(places, size, out=where)
        at = table.ctypes.data
        arguments = (self._pointer, at, k, at + 8 * k, at + 8 * (k + n), at + 8 * (k + 2 * n), pointer, room * size, stream)
        file = self._files[0]
        assert file is not None
        return Request.begin(file._library, "scatter_begin", arguments, value, finish=finish, ended=file._reader._saw, owner=self)
