"""Work that goes on while its result is not needed yet."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Any, TypeVar

from .._lib._native import library, process

T = TypeVar("T")


def begun(call: Callable[..., T], *arguments: Any) -> Callable[[], T]:
    """Calls a function on a thread of its own, and gives a function that waits for its result, or raises its error. It is for calls
    that are mostly in the library or NumPy, without the interpreter's lock. A forked child makes the call when its result is asked for."""
    if library().forked:
        return lambda: call(*arguments)
    results: list[T] = []
    errors: list[BaseException] = []
    running, started = _thread.allocate_lock(), process()
    running.acquire()

    def run() -> None:
        try:
            results.append(call(*arguments))
        except BaseException as err:  # noqa: BLE001 (raised by the thread that waits)
            errors.append(err)
        finally:
            running.release()

    _thread.start_new_thread(run, ())  # threading.Thread would wait here until it runs

    def result() -> T:
        if started != process():  # a fork ended the thread, maybe while it held the lock
            if errors:
                raise errors[0]
            return results[0] if results else call(*arguments)
        with running:
            if errors:
                raise errors[0]
            return results[0]

    return result
