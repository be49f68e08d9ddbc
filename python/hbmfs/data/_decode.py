"""Batches of samples whose fields are decoded by threads, while other batches are read and the caller works."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .._lib.device_array import DeviceArray
from ..errors import FormatError, InvalidError
from ._joined import Batch
from ._queue import Queue
from ._sample_rows import SampleRows

Decoders = Mapping[str, Callable[[Any], Any]]


def queue_of(rows: SampleRows, depth: int, decode: Decoders, threads: int | None) -> Queue:
    """A queue of batches, which decodes them if there are decoders."""
    return Decoding(rows, depth, decode, threads) if decode else Queue(rows, depth)


def known(decode: Decoders | None, fields: Mapping[str, Any]) -> dict[str, Callable[[Any], Any]]:
    """The decoders, if all of them are of fields that are read."""
    if unknown := set(decode or {}) - set(fields):
        raise InvalidError(f"decode= names {min(unknown)!r}, which is no field that is read: these are {', '.join(fields)}")
    return dict(decode or {})


class Decoding(Queue):
    """A queue that decodes a batch as soon as it is read."""

    def __init__(self, rows: SampleRows, depth: int, decode: Decoders, threads: int | None) -> None:
        super().__init__(rows, depth)
        self._rows, self._decode = rows, decode
        self._threads = ThreadPoolExecutor(threads or len(os.sched_getaffinity(0)), "hbmfs-decode")
        self._plans: deque[Batch] = deque()  # of the batches that are read
        self._decoding: deque[tuple[Batch, dict[str, Any], dict[str, list[Future[Any]]]]] = deque()

    def __len__(self) -> int:
        return super().__len__() + len(self._decoding)

    @property
    def full(self) -> bool:
        """As of a queue."""
        return len(self) >= self.depth

    def put(self, starts: Any, length: int, *, dtype: Any = None) -> None:
        """Starts reading the next batch."""
        super().put(starts, length, dtype=dtype)
        self._plans.append(starts)

    def get(self, timeout: float | None = None) -> Any:
        """Waits for the oldest batch and its decoders, and gives it."""
        if not self._decoding:
            self._begin(timeout)
        while self.ready:
            self._begin(None)
        plan, batch, futures = self._decoding.popleft()
        for name, results in futures.items():
            batch[name] = [self._result(plan, name, at, result) for at, result in enumerate(results)]
        while self.ready:
            self._begin(None)
        return batch

    def _begin(self, timeout: float | None) -> None:
        """Has the oldest batch that is read decoded."""
        batch = super().get(timeout)
        rows = {name: batch[name].rows() if hasattr(batch[name], "rows") else _each(name, batch[name]) for name in self._decode}
        futures = {name: [self._threads.submit(self._decode[name], row) for row in own] for name, own in rows.items()}
        self._decoding.append((self._plans.popleft(), batch, futures))

    def _result(self, plan: Batch, name: str, at: int, result: Future[Any]) -> Any:
        try:
            return result.result()
        except Exception as err:
            raise FormatError(f"{self._rows.said(plan, at)}: its field {name!r} cannot be decoded: {err!r}") from err

    def close(self) -> None:
        """Cancels running requests and decoders that have not begun, and waits for the others."""
        super().close()
        self._plans.clear()
        self._decoding.clear()
        self._threads.shutdown(cancel_futures=True)


def _each(name: str, value: Any) -> list[Any]:
    if isinstance(value, DeviceArray):
        raise InvalidError(f"decode= of field {name!r} on a GPU needs torch, which is not installed: install it, or choose \"cpu\"")
    return list(value)
