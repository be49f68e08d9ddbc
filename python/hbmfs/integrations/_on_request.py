"""Loading by hbmfs where an engine has no setting for it: one environment variable asks for it, and the engines' plugins look there."""

from __future__ import annotations

import logging
import os
import warnings

VARIABLE = "HBMFS_FASTSAFETENSORS"
"""1: the copiers of fastsafetensors that engines ask for are replaced by that of hbmfs."""


def replace_copiers(engine: str) -> None:
    """Replaces them if the variable says so, and says that in the engine's log. An engine goes on where it cannot be done."""
    said = os.environ.get(VARIABLE, "")
    if said in ("", "0"):
        return
    if said != "1":
        warnings.warn(f"{VARIABLE} is {said!r}, which means nothing: set it to 1, or to 0", stacklevel=2)
        return
    try:
        from . import fastsafetensors
    except ImportError as err:
        warnings.warn(f"{VARIABLE}=1 has no effect: {err}", stacklevel=2)
        return
    fastsafetensors.replace()
    logging.getLogger(f"{engine}.hbmfs").info("hbmfs reads for fastsafetensors, in the place of its copiers %s (%s=1)", " and ".join(fastsafetensors.REPLACED), VARIABLE)


def sglang() -> None:
    """SGLang's plugin. It calls this in each of its processes."""
    replace_copiers("sglang")
