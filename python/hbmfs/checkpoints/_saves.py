"""The saves of this process that have begun a draft."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

from .._lib.writer import Writer
from ._publishing import Draft
from ._staging import runs


class Save(Protocol):
    """A DCPWriter, as far as others ask about its save."""

    _given: Writer | None
    _draft: Draft | None
    _thread: threading.Thread | None

    def _end_earlier(self) -> None: ...


saves: weakref.WeakValueDictionary[str, Save] = weakref.WeakValueDictionary()
"""By the path of the checkpoint."""


def is_saving(writer: Writer) -> bool:
    """Whether another thread saves with a writer, and has begun a draft that is not published yet."""
    others = [save._thread for save in list(saves.values()) if save._given is writer and save._draft is not None]
    return any(thread is not None and thread is not threading.current_thread() and runs(thread) for thread in others)
