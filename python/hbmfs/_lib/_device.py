"""Which device a caller means: "cpu", "cuda", "cuda:1", an index, or a torch.device."""

import importlib
import re
import sys
from typing import Any

import numpy as np

from ..errors import DeviceError

CPU = -1
"""The number of host memory, beside the indexes of GPUs."""


_MOST = 10_000


def parse(device: Any) -> int:
    """Gives the index of a GPU as CUDA counts them, or CPU. Whether the GPU exists shows when it is opened."""
    if isinstance(device, int) and not isinstance(device, bool):
        if not 0 <= device < _MOST:
            raise DeviceError(f'device {device} does not exist: give a GPU\'s index, "cuda:0" or "cpu"')
        return device
    name = str(device)  # a torch.device reads "cuda:0"
    if name == "cpu":
        return CPU
    if name == "cuda":
        return _current()
    match = re.fullmatch(r"cuda:(\d{1,4})", name)
    if not match:
        raise DeviceError(f'device {device!r} is not known: use "cpu", "cuda", "cuda:0" or an index')
    return int(match[1])


def name(device: int) -> str:
    """The name that torch gives to a device."""
    return "cpu" if device == CPU else f"cuda:{device}"


def imported_torch() -> Any:
    """Returns torch, None where nobody has imported it. It waits for another thread that imports it: half of it would be missing."""
    return importlib.import_module("torch") if "torch" in sys.modules else None


def torch_is_imported() -> bool:
    """Whether arrays on the CPU are tensors unless something else was asked for."""
    return "torch" in sys.modules


def array_on_host(value: Any, tensors: bool) -> Any:
    """The same memory of the host as a tensor of torch, or as a NumPy array. Memory on a GPU stays as it is."""
    if not tensors:
        return value.numpy() if getattr(getattr(value, "device", None), "type", "") == "cpu" else value
    return importlib.import_module("torch").from_numpy(value) if isinstance(value, np.ndarray) else value


def _current() -> int:
    torch = imported_torch()
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.current_device())
    return 0
