"""Where bytes end: NumPy arrays on the host; on a GPU torch tensors, or DeviceArrays where there is no torch."""

import importlib.util
import math
import sys
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ..errors import DeviceError, DtypeError, InvalidError, OutOfMemoryError
from . import _device
from ._native import NO_STREAM, Library, address
from .device_array import DeviceArray, Memory

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_UNSIGNED = ("uint16", "uint32", "uint64")

Shape = tuple[int, ...]
Dtype = np.dtype[Any]


class Place(Protocol):
    """The memory of one device, as arrays of one library."""

    orders: bool  # whether order() is there

    def allocate(self, shape: Shape, dtype: Dtype) -> tuple[Any, int, int]:
        """Makes an array. Gives it with its address and the stream that may still use the memory."""

    def allocate_expanded(self, many: int, shape: Shape) -> tuple[tuple[Any, Any, Any], tuple[int, int, int], int]:
        """Makes the arrays of Sequences.expanded() for so many sequences. Gives them with their addresses and the stream."""

    def accept(self, out: Any, shape: Shape, dtype: Dtype) -> tuple[int, int]:
        """Checks an array of the caller. Gives its address and the stream that may still use it."""

    def convert(self, value: Any, dtype: Dtype, out: Any) -> Any:
        """Converts an array to another type, into out if there is one."""

    def rows(self, value: Any, first: int, end: int) -> Any:
        """The rows [first, end) of an array, as accept() takes them."""

    def order(self, value: Any, rows: "np.ndarray[Any, Any]") -> Any:
        """A new array whose row rows[i] is row i of the array."""

    def stream(self) -> int:
        """The caller's current stream."""


def place(library: Library, reader: int, device: int) -> Place:
    """The arrays to use for a device. For a GPU this imports torch if it is installed."""
    if device == _device.CPU:
        return Host()
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            return Torch(torch, device)
    return Bare(library, reader, device)


class _Each:
    """Three arrays are three allocations."""

    def allocate(self, shape: Shape, dtype: Dtype) -> tuple[Any, int, int]:
        raise NotImplementedError

    def allocate_expanded(self, many: int, shape: Shape) -> tuple[tuple[Any, Any, Any], tuple[int, int, int], int]:
        borders, positions, documents = self.allocate((many + 1,), _INT32), self.allocate(shape, _INT64), self.allocate(shape, _INT64)
        return (borders[0], positions[0], documents[0]), (borders[1], positions[1], documents[1]), documents[2]


class Host(_Each):
    """NumPy arrays; a torch tensor of the CPU is taken as ``out``, too."""

    orders = True

    def allocate(self, shape: Shape, dtype: Dtype) -> tuple[Any, int, int]:
        value = np.empty(shape, dtype)
        return value, address(value), NO_STREAM

    def accept(self, out: Any, shape: Shape, dtype: Dtype) -> tuple[int, int]:
        if hasattr(out, "data_ptr"):
            return _tensor(out, "cpu", shape, dtype), NO_STREAM
        if not isinstance(out, np.ndarray):
            raise InvalidError(f"out is a {type(out).__name__}: on the CPU give a NumPy array or a torch tensor")
        _same(out.shape, out.dtype.name, shape, dtype.name)
        if not out.flags.c_contiguous or not out.flags.writeable or not out.dtype.isnative:
            raise InvalidError("out must be writable, in C order without gaps, and in this machine's byte order")
        return out.ctypes.data, NO_STREAM

    def convert(self, value: Any, dtype: Dtype, out: Any) -> Any:
        if out is None:
            return value.astype(dtype)
        np.copyto(out.numpy() if hasattr(out, "data_ptr") else out, value)
        return out

    def rows(self, value: Any, first: int, end: int) -> Any:
        return value[first:end]

    def order(self, value: Any, rows: "np.ndarray[Any, Any]") -> Any:
        ordered = np.empty_like(value)
        ordered[rows] = value
        return ordered

    def stream(self) -> int:
        return NO_STREAM


class Pinned(Host):
    """Tensors of torch in page-locked memory of the host, which its allocator keeps and uses again."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    @classmethod
    def of_torch(cls) -> "Pinned | None":
        """None where torch, or a GPU, is missing."""
        if importlib.util.find_spec("torch") is None:
            return None
        torch = importlib.import_module("torch")
        return cls(torch) if torch.cuda.is_available() else None

    def allocate(self, shape: Shape, dtype: Dtype) -> tuple[Any, int, int]:
        value = self._torch.empty(shape, dtype=getattr(self._torch, dtype.name), device="cpu", pin_memory=True)
        return value, value.data_ptr(), NO_STREAM


class Torch:
    """Tensors of torch, from its caching allocator, in order with its current stream."""

    orders = True

    def __init__(self, torch: Any, device: int) -> None:
        self._torch = torch
        self._index = device
        self._device = torch.device("cuda", device)
        self._types: dict[Dtype, Any] = {}  # torch's, by NumPy's, which names them slowly
        # As torch's own compiler asks, in a third of the time of the public calls, and without giving up the interpreter's lock.
        self._current: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
        self._view: Callable[..., Any] = getattr(guards, "_reinterpret_tensor", None) or torch.as_strided
        self._empty: Callable[..., Any] | None = getattr(guards, "_empty_strided_cuda", None)  # on the device that _chosen() gives
        self._chosen: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", None) or (lambda: -1)

    def allocate(self, shape: Shape, dtype: Dtype) -> tuple[Any, int, int]:
        kind = self._types.get(dtype)
        try:
            if kind is not None and self._empty is not None and 0 < len(shape) < 3 and self._chosen() == self._index:
                value = self._empty(shape, (*shape[1:], 1), kind)
            else:  # which also has torch begin to use the device
                kind = self._types[dtype] = getattr(self._torch, dtype.name)
                value = self._torch.empty(shape, dtype=kind, device=self._device)
        except self._torch.cuda.OutOfMemoryError as err:
            size = math.prod(shape) * dtype.itemsize
            raise OutOfMemoryError(f"cuda:{self._index} has no {size} bytes left: delete tensors, or ask for less at a time") from err
        return value, value.data_ptr(), self.stream()

    def allocate_expanded(self, many: int, shape: Shape) -> tuple[tuple[Any, Any, Any], tuple[int, int, int], int]:
        n, strides, view = math.prod(shape), (shape[-1], 1), self._view
        borders, begins, _ = self.allocate((many + 1,), _INT32)
        memory, at, stream = self.allocate((2 * n,), _INT64)  # at once: an allocation takes longer than two views
        return (borders, view(memory, shape, strides, 0), view(memory, shape, strides, n)), (begins, at, at + 8 * n), stream

    def accept(self, out: Any, shape: Shape, dtype: Dtype) -> tuple[int, int]:
        if not isinstance(out, self._torch.Tensor):
            raise InvalidError(f"out is a {type(out).__name__}: give a torch tensor on cuda:{self._index}")
        return _tensor(out, f"cuda:{self._index}", shape, dtype), self.stream()

    def convert(self, value: Any, dtype: Dtype, out: Any) -> Any:
        return value.to(getattr(self._torch, dtype.name)) if out is None else out.copy_(value)

    def rows(self, value: Any, first: int, end: int) -> Any:
        return value[first:end]

    def order(self, value: Any, rows: "np.ndarray[Any, Any]") -> Any:
        places = self._torch.from_numpy(np.argsort(rows)).to(self._device, non_blocking=True)
        return signed(value)[places].view(value.dtype)

    def stream(self) -> int:
        return self._current(self._index) if self._current else int(self._torch.cuda.current_stream(self._index).cuda_stream)


def signed(value: Any) -> Any:
    """The same memory as signed numbers: torch moves no elements of unsigned ones of more than a byte."""
    kind = str(value.dtype).removeprefix("torch.")
    return value.view(getattr(sys.modules["torch"], kind[1:])) if kind in _UNSIGNED else value


class Bare(_Each):
    """DeviceArrays; any object with __cuda_array_interface__ is taken as ``out``."""

    orders = False

    def __init__(self, library: Library, reader: int, device: int) -> None:
        self._library, self._reader, self._device = library, reader, device

    def allocate(self, shape: Shape, dtype: Dtype) -> tuple[Any, int, int]:
        memory = Memory(self._library, self._reader, math.prod(shape) * dtype.itemsize)
        return DeviceArray(memory, self._device, shape, dtype), memory.pointer, NO_STREAM

    def accept(self, out: Any, shape: Shape, dtype: Dtype) -> tuple[int, int]:
        interface = getattr(out, "__cuda_array_interface__", None)
        if interface is None:
            raise DeviceError(f"out is a {type(out).__name__} and not on cuda:{self._device}: give an array with __cuda_array_interface__")
        _same(tuple(interface["shape"]), np.dtype(interface["typestr"]).name, shape, dtype.name)
        pointer, read_only = interface["data"]
        if read_only or interface.get("strides") is not None:
            raise InvalidError("out must be writable and in C order without gaps")
        return int(pointer), int(interface.get("stream") or 0)

    def convert(self, value: Any, dtype: Dtype, out: Any) -> Any:
        raise DtypeError(f"{value.dtype} cannot become {dtype} on a GPU without torch: leave dtype= out and convert with what computes there")

    def rows(self, value: Any, first: int, end: int) -> Any:
        interface = value.__cuda_array_interface__
        size = math.prod(value.shape[1:]) * value.dtype.itemsize
        return _Rows({**interface, "shape": (end - first, *value.shape[1:]), "data": (value.pointer + first * size, False)})

    def order(self, value: Any, rows: "np.ndarray[Any, Any]") -> Any:
        raise InvalidError("nobody moves rows on a GPU without torch: read them to where they belong")

    def stream(self) -> int:
        return 0


class _Rows:
    """A part of an array in HBM. Its user keeps the array."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__cuda_array_interface__ = interface


def _tensor(out: Any, device: str, shape: Shape, dtype: Dtype) -> int:
    """The address of a torch tensor, once it is found to fit."""
    if str(out.device) != device:
        raise DeviceError(f"out is on {out.device} and the bytes go to {device}: give a tensor of that device")
    _same(tuple(out.shape), str(out.dtype).removeprefix("torch."), shape, dtype.name)
    if not out.is_contiguous():
        raise InvalidError("out must be contiguous")
    if out.is_conj() or out.is_neg():
        raise InvalidError("out is a lazy conjugate or negative of its memory: give a plain tensor")
    return int(out.data_ptr())


def _same(got: Shape, got_dtype: str, shape: Shape, dtype: str) -> None:
    if got_dtype != dtype:
        raise DtypeError(f"out is of {got_dtype} and must be of {dtype}")
    if got != shape:
        raise InvalidError(f"out has shape {got} and must have {shape}")
