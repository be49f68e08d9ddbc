"""Waiting for conditions in tests, and acting while the main thread waits where a test wants it to wait."""

import signal
import sys
import threading
import time

PATIENCE = 120
"""Seconds. Only a hang takes that long."""


def until(true, patience=PATIENCE):
    """Waits for a condition."""
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def main_is_in(*functions):
    """Whether the main thread is in all of these functions, which are qualified names."""
    frame, names = sys._current_frames().get(threading.main_thread().ident), set()
    while frame is not None:
        names.add(frame.f_code.co_qualname)
        frame = frame.f_back
    return names.issuperset(functions)


def when(ready, act):
    """Acts in a thread as soon as something is ready."""

    def run():
        until(ready)
        act()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def interrupt_when(ready):
    """Sends Ctrl-C to the main thread as soon as it is ready for it. A timer instead could end the whole run: the main thread might be late."""
    return when(ready, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
