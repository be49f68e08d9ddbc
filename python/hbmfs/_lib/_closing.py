"""Closing without a caller, on another thread or by a finalizer: an error is a warning, not a traceback."""

import sys
from collections.abc import Callable
from typing import Any

from ..errors import CloseWarning
from ._warn import warn


def unheard(what: str, close: Callable[..., Any], *arguments: Any) -> None:
    """Closes something, and warns of an exception."""
    try:
        close(*arguments)
    except Exception as err:  # noqa: BLE001 (it is told)
        tell(what, err)


def tell(what: str, why: object) -> None:
    """Warns that something could not be closed. At the interpreter's end all of it goes anyway."""
    if not sys.is_finalizing():
        warn(f"hbmfs: {what} could not be closed: {why}", CloseWarning)
