"""An array in HBM for programs without torch: it holds memory, and hands it to the library that computes with it.

CuPy, numba, JAX and torch take it through ``__cuda_array_interface__`` or ``__dlpack__`` without a copy::

    x = ds.gather(starts, 4097)   # a DeviceArray
    y = cupy.asarray(x)           # the same memory
    z = torch.from_dlpack(x)      # the same memory, and alive as long as one of the three is
"""

import ctypes
import math
from typing import Any

import numpy as np

from ..errors import DtypeError
from ._native import Library

_CUDA = 2  # kDLCUDA
_KINDS = {"i": 0, "u": 1, "f": 2}  # DLDataTypeCode, dlpack.h of DLPack 1.0


class Memory:
    """A piece of HBM. It belongs to the process and not to the reader, and goes when nobody refers to it any more."""

    def __init__(self, library: Library, reader: int, size: int) -> None:
        self._library = library
        self._handle = ctypes.c_uint64()
        pointer = ctypes.c_uint64()
        library.ask("memory_alloc", reader, max(size, 1), self._handle, pointer)
        self.pointer = pointer.value

    def copy_out(self, to: "np.ndarray[Any, Any]") -> None:
        """Fills a host array from the first byte on."""
        self._library.ask("memory_copy_out", self._handle, 0, to.nbytes, to.ctypes.data)

    def __del__(self) -> None:
        if hasattr(self, "_handle") and self._handle.value:  # an interrupt may end __init__ before its first line
            self._library.drop("memory_free", self._handle)


class DeviceArray:
    """A C-ordered array of ``shape`` and ``dtype`` on GPU ``device``. Its bytes are there when it is handed out."""

    def __init__(self, memory: Memory, device: int, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> None:
        self._memory = memory
        self.device = device
        self.shape = shape
        self.dtype = dtype

    @property
    def pointer(self) -> int:
        """The address of the first element in HBM."""
        return self._memory.pointer

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.size * self.dtype.itemsize

    def to_numpy(self) -> "np.ndarray[Any, Any]":
        """A copy on the host."""
        out = np.empty(self.shape, self.dtype)
        if out.nbytes:
            self._memory.copy_out(out)
        return out

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device='cuda:{self.device}')"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        # No stream: nothing that writes is under way when somebody has the array.
        return {"version": 3, "shape": self.shape, "typestr": self.dtype.str, "data": (self.pointer, False), "strides": None, "stream": None}

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, self.device

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None) -> Any:
        # stream and max_version need nothing: the bytes are there, and everybody still takes the unversioned capsule.
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(f"{self!r} is handed over without a copy only: copy it with the library that takes it")
        return _capsule(self)


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


class _Lent:
    """A consumer's holds: the struct that it reads, and the array. It keeps itself alive until it is given back."""

    def __init__(self, array: DeviceArray) -> None:
        self.array = array
        self.shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
        self.managed = _DLManagedTensor()
        tensor = self.managed.tensor
        tensor.data, tensor.device_type, tensor.device_id = array.pointer, _CUDA, array.device
        tensor.ndim, tensor.shape = array.ndim, self.shape
        tensor.code, tensor.bits, tensor.lanes = _KINDS[array.dtype.kind], array.dtype.itemsize * 8, 1
        self.managed.context, self.managed.deleter = id(self), _give_back
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))


def _gave_back(managed: int) -> None:
    context = _DLManagedTensor.from_address(managed).context
    ctypes.pythonapi.Py_DecRef(ctypes.cast(context, ctypes.py_object))


def _capsule_gone(capsule: int) -> None:
    # A consumer that took the tensor has renamed the capsule, and deletes the tensor itself.
    if _is_valid(capsule, b"dltensor"):
        _gave_back(_get_pointer(capsule, b"dltensor"))


_give_back = _Deleter(_gave_back)
_end_capsule = _Deleter(_capsule_gone)

# Of the C API, with the capsule as an address: its destructor runs when no reference to it may be made any more.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", ctypes.pythonapi))


def _capsule(array: DeviceArray) -> Any:
    if array.dtype.kind not in _KINDS:
        raise DtypeError(f"{array!r} has a type that DLPack has no name for")
    lent = _Lent(array)
    return _new_capsule(ctypes.addressof(lent.managed), b"dltensor", _end_capsule)
