"""hbmfs: batches, weights and checkpoints that arrive in GPU memory, from files and hbmfs mounts.

    ds = hbmfs.open("/mnt/pile", device="cuda:0")     # or a file, or a view; device="cpu" works everywhere
    x = ds.gather(starts, length=4097)                # [N, L] in HBM, any unaligned token offsets

Importing it needs NumPy only and imports no torch; docs/guide/pytorch.md shows everything that it does.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from . import _absent, _moved
from ._lib.device_array import DeviceArray
from ._lib.reader import File, Reader
from ._lib.request import Request
from ._lib.writer import FilePart, OutFile, Snapshot, Write, Writer, Written, WrittenFile
from ._version import __version__
from .data.dataset import Dataset, open
from .errors import (
    AccessError,
    ArgumentError,
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
    TargetError,
    TooLargeError,
    UnavailableError,
    UndefinedError,
    WaitTimeoutError,
    WriteError,
)

if TYPE_CHECKING:
    from .checkpoints import Checkpoints
    from .checkpoints.dcp import DCPReader
    from .checkpoints.dcp_stager import DCPStager
    from .checkpoints.dcp_writer import DCPWriter
    from .checkpoints.safetensors_save import save_safetensors
    from .data import mixture
    from .data.mixture import Mixture
    from .data.packed import Packed, PackedStream
    from .data.part import Aligned, Part
    from .data.sample_stream import Ragged, SampleStream
    from .data.samples import SampleDataset
    from .data.token_stream import TokenStream
    from .integrations import deepspeed, megatron, nanogpt, transformers, vllm
    from .kv import KVOutcome, KVResult, KVStore
    from .weights import load_safetensors
    from .weights._parts import SKIP
    from .weights.prefetch import safe_open

sys.meta_path.append(_moved.Finder)

# Loaded when they are first used: they may need torch, or more time than opening a dataset does.
_LATER = {
    "Aligned": "data.part",
    "Checkpoints": "checkpoints",
    "DCPReader": "checkpoints.dcp",
    "DCPStager": "checkpoints.dcp_stager",
    "DCPWriter": "checkpoints.dcp_writer",
    "KVOutcome": "kv",
    "KVResult": "kv",
    "KVStore": "kv",
    "Mixture": "data.mixture",
    "Packed": "data.packed",
    "PackedStream": "data.packed",
    "Part": "data.part",
    "Ragged": "data.sample_stream",
    "SKIP": "weights._parts",
    "SampleDataset": "data.samples",
    "SampleStream": "data.sample_stream",
    "TokenStream": "data.token_stream",
    "load_safetensors": "weights",
    "safe_open": "weights.prefetch",
    "save_safetensors": "checkpoints.safetensors_save",
}

__all__ = [
    "SKIP",
    "AccessError",
    "Aligned",
    "ArgumentError",
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
    "Ragged",
    "ReadError",
    "Reader",
    "Request",
    "SampleDataset",
    "SampleStream",
    "SlowPathWarning",
    "Snapshot",
    "StaleError",
    "TargetError",
    "TokenStream",
    "TooLargeError",
    "UnavailableError",
    "UndefinedError",
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
    "safe_open",
    "save_safetensors",
    "transformers",
    "vllm",
]


def __getattr__(name: str) -> Any:
    module = _LATER.get(name)
    if module is None and f"hbmfs.{name}" not in _moved.MOVED:
        raise AttributeError(f"module 'hbmfs' has no attribute {name!r}")
    try:
        found = getattr(importlib.import_module("." + module, __name__), name) if module else importlib.import_module("." + name, __name__)
    except ModuleNotFoundError as err:
        package = (err.name or "hbmfs").partition(".")[0]
        if package == "hbmfs":
            raise
        return _absent.named(name, package, module=module is None)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
