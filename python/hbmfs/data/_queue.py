"""Requests begun ahead and given out in order."""

import collections
import queue
from typing import Any, Protocol

from .._lib._arguments import checked
from ..errors import ClosedError, InvalidError, WaitTimeoutError


class Waiting(Protocol):
    """A batch that is being read."""

    @property
    def done(self) -> bool:
        """Whether wait() would return at once."""

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for it."""

    def cancel(self) -> None:
        """Ends it."""


class Source(Protocol):
    """What a queue begins its requests with: a dataset, or what puts batches together of several."""

    def begin_gather(self, starts: Any, length: int, *, dtype: Any = None) -> Waiting:
        """Starts reading a batch."""


class Queue:
    """At most ``depth`` gathers under way, given out in the order in which they were put in. One thread uses it.

    put() on a full queue raises queue.Full, get() on an empty one queue.Empty: nobody else could make room.
    """

    @checked
    def __init__(self, source: Source, depth: int) -> None:
        if depth < 1:
            raise InvalidError(f"depth must be 1 or more, not {depth}")
        self.depth = depth
        self._source = source
        self._waiting: collections.deque[Waiting] = collections.deque()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether get() must come before the next put()."""
        return len(self._waiting) >= self.depth

    @property
    def ready(self) -> bool:
        """Whether get() would give a batch at once."""
        return bool(self._waiting) and self._waiting[0].done

    def put(self, starts: Any, length: int, *, dtype: Any = None) -> None:
        """Starts reading the next batch."""
        if self._closed:
            raise ClosedError("the queue is closed: make another one")
        if self.full:
            raise queue.Full(f"{self.depth} batches are under way, and so many were asked for: get() one first")
        self._waiting.append(self._source.begin_gather(starts, length, dtype=dtype))

    def get(self, timeout: float | None = None) -> Any:
        """Waits for the oldest batch and gives it. When the time is up it stays the oldest."""
        if not self._waiting:
            if self._closed:
                raise ClosedError("the queue is closed: make another one")
            raise queue.Empty("nothing was put into the queue: put() before get()")
        try:
            batch = self._waiting[0].wait(timeout)
        except WaitTimeoutError:
            raise
        except BaseException:
            self._waiting.popleft()
            raise
        self._waiting.popleft()
        return batch

    def close(self) -> None:
        """Cancels running requests."""
        self._closed = True
        while self._waiting:
            self._waiting.popleft().cancel()

    def __enter__(self) -> "Queue":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
