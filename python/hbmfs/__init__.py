"""hbmfs: batches, weights and checkpoints that arrive in GPU memory, from files and hbmfs mounts.

    ds = hbmfs.open("/mnt/pile", device="cuda:0")     # or a file, or a view; device="cpu" works everywhere
    x = ds.gather(starts, length=4097)                # [N, L] in HBM, any unaligned token offsets

Importing it needs NumPy only and imports no torch; docs/guide/pytorch.md shows everything that it does.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .dataset import Dataset, open
from .device_array import DeviceArray
from .errors import (
    AccessError,
    BusyError,
    CancelledError,
    ClosedError,
    CloseWarning,
    DeviceError,
    DtypeError,
    Error,
    ExistsError,
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
    WriteError,
)
from .reader import File, Reader
from .request import Request
from .writer import FilePart, OutFile, Snapshot, Write, Writer, Written, WrittenFile

if TYPE_CHECKING:
    from . import deepspeed, megatron, mixture, nanogpt, transformers, vllm
    from ._parts import SKIP
    from .checkpoints import Checkpoints
    from .dcp import DCPReader
    from .dcp_stager import DCPStager
    from .dcp_writer import DCPWriter
    from .kv import KVOutcome, KVResult, KVStore
    from .mixture import Mixture
    from .packed import Packed, PackedStream
    from .part import Aligned, Part
    from .safetensors_save import save_safetensors
    from .token_stream import TokenStream
    from .weights import load_safetensors

# Loaded when they are first used: they may need torch, or more time than opening a dataset does.
_LATER = {
    "Aligned": "part",
    "Checkpoints": "checkpoints",
    "DCPReader": "dcp",
    "DCPStager": "dcp_stager",
    "DCPWriter": "dcp_writer",
    "KVOutcome": "kv",
    "KVResult": "kv",
    "KVStore": "kv",
    "Mixture": "mixture",
    "Packed": "packed",
    "PackedStream": "packed",
    "Part": "part",
    "SKIP": "_parts",
    "TokenStream": "token_stream",
    "load_safetensors": "weights",
    "save_safetensors": "safetensors_save",
}
_LATER |= dict.fromkeys(("deepspeed", "megatron", "mixture", "nanogpt", "transformers", "vllm"), "")

__all__ = [
    "SKIP",
    "AccessError",
    "Aligned",
    "BusyError",
    "CancelledError",
    "Checkpoints",
    "CloseWarning",
    "ClosedError",
    "DCPReader",
    "DCPStager",
    "DCPWriter",
    "Dataset",
    "DeviceArray",
    "DeviceError",
    "DtypeError",
    "Error",
    "ExistsError",
    "File",
    "FilePart",
    "ForkedError",
    "FormatError",
    "GroupError",
    "InternalError",
    "InvalidError",
    "KVOutcome",
    "KVResult",
    "KVStore",
    "LibraryError",
    "Mixture",
    "NotFoundError",
    "OutFile",
    "OutOfMemoryError",
    "OutOfRangeError",
    "Packed",
    "PackedStream",
    "Part",
    "ReadError",
    "Reader",
    "Request",
    "SlowPathWarning",
    "Snapshot",
    "StaleError",
    "TokenStream",
    "TooLargeError",
    "UnavailableError",
    "WaitTimeoutError",
    "Write",
    "WriteError",
    "Writer",
    "Written",
    "WrittenFile",
    "__version__",
    "deepspeed",
    "load_safetensors",
    "megatron",
    "mixture",
    "nanogpt",
    "open",
    "save_safetensors",
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
