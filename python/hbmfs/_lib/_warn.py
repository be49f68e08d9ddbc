"""Warnings that name the user's line, however many calls of this package lie between."""

from __future__ import annotations

import sys
import warnings


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns of something, at the line outside this package that led to it."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "hbmfs":
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
