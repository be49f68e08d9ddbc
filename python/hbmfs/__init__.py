"""hbmfs: batches, weights and checkpoints that arrive in GPU memory, from files and hbmfs mounts.

    ds = hbmfs.open("/mnt/pile", device="cuda:0")     # or a file, or a view; device="cpu" works everywhere
    x = ds.gather(starts, length=4097)                # [N, L] in HBM, any unaligned token offsets

Importing it needs NumPy only and imports no torch; docs/pytorch.md shows everything that it does.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .dataset import Dataset, open
from .device_array import DeviceArray
from .errors import (
    AccessError,
    CancelledError,
    ClosedError,
    CloseWarning,
    DeviceError,
    DtypeError,
    Error,
    ForkedError,
    FormatError,
    GroupError,
    InternalError,
    InvalidError,
    LibraryError,
    NotFoundError,
    OutOfMemoryError,
    OutOfRangeError,
    ReadError,
    SlowPathWarning,
    StaleError,
    TooLargeError,
    UnavailableError,
    WaitTimeoutError,
)
from .reader import File, Reader
from .request import Request

if TYPE_CHECKING:
    from . import megatron, mixture, nanogpt, transformers, vllm
    from ._parts import SKIP
    from .dcp import DCPReader
    from .mixture import Mixture
    from .packed import Packed, PackedStream
    from .part import Aligned, Part
    from .token_stream import TokenStream
    from .weights import load_safetensors

# Loaded when they are first used: they may need torch, or more time than opening a dataset does.
_LATER = {
    "TokenStream": "token_stream",
    "Mixture": "mixture",
    "Aligned": "part",
    "Packed": "packed",
    "Part": "part",
    "PackedStream": "packed",
    "load_safetensors": "weights",
    "SKIP": "_parts",
    "DCPReader": "dcp",
}
_LATER |= {"nanogpt": "", "megatron": "", "mixture": "", "transformers": "", "vllm": ""}

__all__ = [
    "SKIP",
    "AccessError",
    "Aligned",
    "CancelledError",
    "CloseWarning",
    "ClosedError",
    "DCPReader",
    "Dataset",
    "DeviceArray",
    "DeviceError",
    "DtypeError",
    "Error",
    "File",
    "ForkedError",
    "FormatError",
    "GroupError",
    "InternalError",
    "InvalidError",
    "LibraryError",
    "Mixture",
    "NotFoundError",
    "OutOfMemoryError",
    "OutOfRangeError",
    "Packed",
    "PackedStream",
    "Part",
    "ReadError",
    "Reader",
    "Request",
    "SlowPathWarning",
    "StaleError",
    "TokenStream",
    "TooLargeError",
    "UnavailableError",
    "WaitTimeoutError",
    "__version__",
    "load_safetensors",
    "megatron",
    "mixture",
    "nanogpt",
    "open",
    "transformers",
    "vllm",
]


def __getattr__(name: str) -> Any:
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module 'hbmfs' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module("." + module, __name__), name) if module else importlib.import_module("." + name, __name__)
    except ModuleNotFoundError as err:
        if err.name != "torch":
            raise
        raise UnavailableError(f"hbmfs.{name} needs torch, which is not installed: pip install torch") from err
