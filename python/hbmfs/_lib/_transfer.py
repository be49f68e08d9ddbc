"""Many large reads into memory of the caller: begun ahead, waited for in order, and shown as they arrive.

    with Transfer(total, progress, "weights") as transfer:
        transfer.read(file, pointer, offset, length)
        ...

A read is cut into requests, so that progress moves and an interrupt is answered at once. Leaving the block waits for
all of them, or, after an exception, cancels them: nothing writes to the memory any more then.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import WaitTimeoutError
from . import _device, _native
from .reader import File, Reader

if TYPE_CHECKING:
    from .request import Request

REQUEST = 64 << 20
"""Bytes of one request: long enough that beginning it costs nothing beside it."""
AHEAD = 8 * REQUEST
"""Bytes begun and not yet waited for, so that the link never waits for Python: 10 ms of it, while other threads run Python for 5."""
LOOK = 0.5
"""Seconds between two calls of `check`."""
DROPPERS = 4
"""Threads that drop files from the page cache."""
ARENA = 64 << 20
"""A reader's own memory: only paths that cannot write into memory of the caller need some."""

Progress = bool | None | Callable[[int, int], object]
"""None: a bar where tqdm is installed and stderr is a terminal. True: a bar where tqdm is installed. False: none.
Otherwise it is called with the bytes that have arrived and their total."""


class Transfer:
    """An ordered queue of reads. Its memory must stay until the block is left."""

    def __init__(self, total: int, progress: Progress, name: str, check: Callable[[], object] | None = None) -> None:
        """check is called while reads are waited for, and ends the transfer by raising."""
        self._left = total
        self._check = check
        self._waiting: deque[tuple[Request[int], int, Callable[[], object] | None]] = deque()
        self._ahead = 0
        self._show, self._end = shower(progress, total, name)

    def read(self, file: File, pointer: int, offset: int, length: int, then: Callable[[], object] | None = None) -> None:
        """Begins reading [offset, offset+length) of a file to pointer, after the work on the caller's current stream; calls `then` at the end."""
        at = 0
        while at < length:
            size = min(REQUEST, length - at)
            while self._waiting and self._ahead + size > AHEAD:
                self._finish_one()
            last = at + size == length
            self._waiting.append((file.read_into(pointer + at, offset + at, size), size, then if last else None))
            self._ahead += size
            at += size

    def gather(self, file: File, pointer: int, offsets: np.ndarray[Any, np.dtype[np.int64]], run: int, then: Callable[[], object] | None = None) -> None:
        """Begins reading runs of so many bytes at offsets of a file to pointer, one after the other; calls `then` when all
        of it is there."""
        most, at = max(REQUEST // run, 1), 0
        while at < len(offsets):
            some = offsets[at : at + most]
            size = len(some) * run
            while self._waiting and self._ahead + size > AHEAD:
                self._finish_one()
            to = pointer + at * run
            self._waiting.append(
                (file.gather_into(size, to, size, some, run, widen=_native.KEEP, stream=file.stream()), size, then if at + len(some) == len(offsets) else None)
            )
            self._ahead += size
            at += len(some)

    def then(self, call: Callable[[], object]) -> None:
        """Calls it when all that was begun before is there."""
        if not self._waiting:
            call()
            return
        request, size, before = self._waiting.pop()

        def both() -> None:
            if before is not None:
                before()
            call()

        self._waiting.append((request, size, both))

    def until(self, done: Callable[[], bool]) -> None:
        """Waits for what was begun, in its order, and then for what `check` brings about, until done() is true."""
        while not done():
            if self._waiting:
                self._finish_one()
            elif self._check is not None:
                self._check()
                time.sleep(LOOK / 500)

    def finish(self) -> None:
        """Waits for all that was begun. Bytes of the total that were not to be read count as arrived."""
        while self._waiting:
            self._finish_one()
        if self._left:
            self._arrived(self._left)

    def _finish_one(self) -> None:
        request, size, then = self._waiting[0]
        while self._check is not None:
            self._check()
            with contextlib.suppress(WaitTimeoutError):
                request.wait(LOOK)
                break
        request.wait()
        self._waiting.popleft()
        self._ahead -= size
        if then is not None:
            then()
        self._arrived(size)

    def _arrived(self, size: int) -> None:
        self._left -= size
        self._show(size)

    def _cancel(self) -> None:
        for request, _, _ in self._waiting:
            request.cancel()
        self._waiting.clear()

    def __enter__(self) -> Transfer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self._cancel()
            self._end()


def open_reader(device: int, method: str, readers: int | None = None) -> Reader:
    """A reader for bytes that are read once. readers is how many share the machine, if that is known."""
    return Reader(_device.name(device), method=method, arena=ARENA, readers=readers)


class Ranks(Protocol):
    """The ranks of a call."""

    rank: int

    def meet(self, key: str) -> None:
        """Waits until every rank has come here."""


def uncache(files: Sequence[File], page_cache: str, team: Ranks | None) -> None:
    """Drops the pages of files that were read, as page_cache says, once no rank of the team maps them. Each rank begins with another file."""
    if page_cache == "keep":
        return
    first = 0
    if team is not None:
        for file in files:
            file.uncache("keep")
        team.meet("uncache")
        first = team.rank % max(len(files), 1)
    with ThreadPoolExecutor(max(min(len(files), DROPPERS), 1), "hbmfs-uncache") as threads:
        list(threads.map(lambda file: file.uncache(page_cache), [*files[first:], *files[:first]]))


def shower(progress: Progress, total: int, name: str) -> tuple[Callable[[int], object], Callable[[], object]]:
    """The functions to call with the number of bytes that arrived, and at the end."""
    if callable(progress):
        done = 0

        def show(size: int) -> None:
            nonlocal done
            done += size
            progress(done, total)

        return show, lambda: None
    if progress or (progress is None and sys.stderr.isatty()):
        try:
            from tqdm import tqdm
        except ImportError:
            pass
        else:
            bar = tqdm(total=total, unit="B", unit_scale=True, desc=name)
            return bar.update, bar.close
    return lambda size: None, lambda: None
