"""Handles of libhbmfs: opened where Ctrl-C works, closed once, and given back with an owner that was forgotten."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from .. import errors
from . import _native

if TYPE_CHECKING:
    from typing_extensions import Self

_CLOSING = 30.0  # seconds that closing asks again: the library waits five at a time, so that Ctrl-C works in between


class Owner:
    """Has one handle of the library, which ends with close(), or with its owner. Classes call :meth:`_open`, or :meth:`_own`."""

    _library: _native.Library
    _handle: int
    _closed = False

    def _open(self, what: str, options: Any) -> None:
        """Opens what hbmfs_WHAT_open does."""
        library = _native.library()
        if library.forked:
            raise errors.ForkedError(_native.FORKED)
        try:
            handle = opened(library, f"{what}_open", f"{what}_close", options)
        except errors.DeviceError as err:
            raise errors.DeviceError(f'{err}; or give device="cpu"') from err.__cause__
        self._own(what, library, handle)

    def _own(self, what: str, library: _native.Library, handle: int) -> None:
        self._library, self._handle, self._closing = library, handle, f"{what}_close"
        self._end = weakref.finalize(self, library.drop, self._closing, handle)

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    def close(self) -> None:
        self._closed = True
        if self._end.alive:
            _close(self._library, self._closing, self._handle)
            self._end.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _close(library: _native.Library, name: str, handle: int) -> None:
    """Closes a handle. A forked child has none, and closing a reader has closed its files."""
    if library.forked:
        return
    end = time.monotonic() + _CLOSING
    with contextlib.suppress(errors.ClosedError):
        while library.ask(name, handle) == _native.TIMEOUT:
            if time.monotonic() >= end:
                raise errors.WaitTimeoutError("a read in the kernel or the driver is slow or hung, and its memory must stay: close it again later")


def opened(library: _native.Library, name: str, close: str, *arguments: Any) -> int:
    """Calls a function that opens something, which may take seconds, so that Ctrl-C works meanwhile.

    Signals wake the main thread only between calls, so the call is made on another one. If the caller is interrupted
    that thread closes the handle that it then has.
    """
    handle = ctypes.c_uint64()
    failed: list[BaseException] = []
    done, turn = threading.Event(), threading.Lock()
    abandoned = False

    def run() -> None:
        try:
            library.ask(name, *arguments, handle)
        except BaseException as err:  # noqa: BLE001 (raised by the thread that waits)
            failed.append(err)
        with turn:
            done.set()
            if abandoned and handle.value:
                library.drop(close, handle.value)

    thread = threading.Thread(target=run, name="hbmfs-open", daemon=True)
    try:
        thread.start()
        while not done.wait(1):
            pass
        thread.join()
    except BaseException:
        with turn:
            abandoned = True
            if done.is_set() and handle.value:
                library.drop(close, handle.value)
        raise
    if failed:
        raise failed[0]
    return handle.value
