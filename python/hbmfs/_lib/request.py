"""A read that is under way, and how to wait for one so that Ctrl-C still works."""

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from .. import errors
from ._arguments import seconds
from ._closing import unheard
from ._native import OK, TIMEOUT, Library, Result

_SLICE = 0.1  # seconds in the library at a time: Python looks for signals in between
_PATIENCE = 2.0  # seconds that an interrupted or forgotten request waits for the kernel and the driver

T = TypeVar("T")


class Request(Generic[T]):
    """A read that is under way. It belongs to one thread at a time.

    The memory that is read into stays as long as anything may write to it, also when the request is forgotten.
    """

    _LATE = "the bytes had not arrived after {} s: wait again, or cancel the request"
    _CANCELLED = "the request was cancelled before its bytes had arrived"

    def __init__(
        self, library: Library | None, value: T, finish: Callable[[T], Any] | None = None, ended: Callable[[Result], None] | None = None, owner: object = None
    ) -> None:
        self._library = library
        self._owner = owner  # the file, whose finalizer must not run before the request has ended
        self._handle = ctypes.c_uint64()  # 0 when nothing is under way
        self._value = value
        self._finish = finish
        self._ended = ended
        self._error: BaseException | None = None

    @classmethod
    def begin(cls, library: Library, name: str, arguments: tuple[Any, ...], value: T, **rest: Any) -> "Request[T]":
        """Calls a function of the library that begins a request. An interrupt meanwhile leaves nothing under way."""
        request = cls(library, value, **rest)
        try:
            library.ask(name, *arguments, request._handle)
        except BaseException:
            request._cancel(_PATIENCE)
            raise
        return request

    def __repr__(self) -> str:
        return f"<hbmfs.{type(self).__name__} {'under way' if self._handle.value else 'done'}>"

    @property
    def done(self) -> bool:
        """Whether wait() would return, or raise, at once."""
        if not self._handle.value:
            return True
        try:
            self._look(0)
        except errors.Error:
            return True
        return not self._handle.value

    def wait(self, timeout: float | None = None) -> T:
        """Waits for the bytes, at most ``timeout`` seconds, and gives the array or value that they were read into.

        When the time is up it raises :class:`WaitTimeoutError` and the request goes on. Any other exception, also
        KeyboardInterrupt, cancels it first.
        """
        end = None if timeout is None else time.monotonic() + seconds(timeout)
        try:
            while self._handle.value:
                left = _SLICE if end is None else end - time.monotonic()
                if self._look(max(0.0, min(left, _SLICE))) == TIMEOUT and left <= 0:
                    break
        except BaseException:
            self._cancel(_PATIENCE)
            raise
        if self._handle.value:
            raise errors.WaitTimeoutError(self._LATE.format(timeout))
        if self._error is not None:
            raise self._error
        if self._finish is not None:
            self._value, self._finish = self._finish(self._value), None
        return self._value

    def cancel(self) -> None:
        """Ends the request. When it returns, nothing writes to the memory any more. Cancelling twice does nothing."""
        self._cancel(None)

    def _cancel(self, patience: float | None) -> None:
        if self._end(patience):
            self._error = errors.CancelledError(self._CANCELLED)

    def _look(self, seconds: float) -> int:
        """Waits once in the library, and takes note of how the request ended."""
        assert self._library is not None
        result = None if self._ended is None else Result()
        try:
            code = self._library.ask("wait", self._handle, int(seconds * 1e9), result)
        except errors.Error as err:
            self._handle.value, self._error = 0, err
            raise
        if code == OK:
            self._handle.value = 0
            if self._ended is not None and result is not None:
                self._ended(result)
        return code

    def _end(self, patience: float | None) -> bool:
        """Cancels the request, and tells whether it was under way.

        After ``patience`` seconds it leaves a read that hangs in the kernel or the driver to a thread, which keeps the memory
        until nothing writes to it any more.
        """
        if not self._handle.value or self._library is None or self._library.forked:
            return False
        end = None if patience is None else time.monotonic() + patience
        try:
            while self._library.ask("cancel", self._handle, int(_SLICE * 1e9)) == TIMEOUT:
                if end is not None and time.monotonic() > end:
                    with contextlib.suppress(RuntimeError):  # the interpreter ends, and all memory with it
                        threading.Thread(target=unheard, args=("a request", self._end, None), name="hbmfs-cancel", daemon=True).start()
                    return True
        except errors.ClosedError:
            pass  # with its file, or because the wait that was interrupted had ended it
        self._handle.value = 0
        return True

    def __del__(self) -> None:
        if hasattr(self, "_handle") and self._handle.value:  # an interrupt may end __init__ before its first line
            unheard("a request", self._end, _PATIENCE)
