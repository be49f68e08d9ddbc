"""The saves of this process that have begun a draft."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from .._lib.writer import Writer
from ._staging import runs

saves: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""DCPWriters, by the path of the checkpoint."""


def is_saving(writer: Writer) -> bool:
    """Whether another thread saves with a writer, and has begun a draft that is not published yet."""
    others = [save._thread for save in list(saves.values()) if save._given is writer and save._draft is not None]
    return any(thread is not None and thread is not threading.current_thread() and runs(thread) for thread in others)
