"""Where the elements of a tensor lie in a file of torch.save.

torch.save writes a zip archive (torch 1.6 on): a pickle, data.pkl, that says how to rebuild the tensor, and its storage,
data/0, uncompressed and in the order of memory. find_tensor follows the pickle without running anything that it names.
It leaves unknown forms to torch.load.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

MAX_PICKLE = 1 << 20

_STORAGES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
    "ComplexDoubleStorage": torch.complex128, "ComplexFloatStorage": torch.complex64,
}  # fmt: skip


class Slice(io.RawIOBase):
    """A part of a file, as a file. The descriptor is the caller's."""

    def __init__(self, fd: int, offset: int, length: int) -> None:
        super().__init__()
        self._fd = fd
        self._offset = offset
        self.length = length
        self._at = 0

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        view = view[: max(self.length - self._at, 0)]
        size = os.preadv(self._fd, [view], self._offset + self._at) if view else 0
        self._at += size
        return size

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.length}[whence]
        if base + offset < 0:
            raise ValueError("a seek to before the beginning")
        self._at = base + offset
        return self._at

    def pread(self, length: int, offset: int) -> bytes:
        """Reads without moving. Fewer bytes only at the end, none outside."""
        if not 0 <= offset < self.length:
            return b""
        return os.pread(self._fd, min(length, self.length - offset), self._offset + offset)

    def close(self) -> None:
        """Does nothing, so that several buffers, which close their file, can follow each other."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


class Stored(NamedTuple):
    """A strided tensor in a file: elements of dtype, the first of them at offset, in bytes from the entry's beginning.
    length is that from the first to behind the last element, in bytes; needs, how long the entry must be for it."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    length: int
    needs: int

    def narrow(self, offsets: Sequence[int], lengths: Sequence[int]) -> Stored:
        """The part of it that begins at offsets and has the size lengths. It must be inside."""
        first = sum(o * s for o, s in zip(offsets, self.stride, strict=True))
        offset = self.offset + first * self.dtype.itemsize
        length = _extent(lengths, self.stride) * self.dtype.itemsize
        return Stored(self.dtype, tuple(lengths), self.stride, offset, length, offset + length if length else 0)

    def order(self) -> list[int]:
        """Its dimensions in the order of the file, the outermost first."""
        return sorted(range(len(self.size)), key=lambda dimension: -self.stride[dimension])

    def nbytes(self) -> int:
        """The bytes of its elements, without those between them."""
        return math.prod(self.size) * self.dtype.itemsize

    def runs(self, most: int) -> tuple[int, np.ndarray[Any, np.dtype[np.int64]]] | None:
        """Its elements as they lie in the file: the bytes of each run, and where runs begin, from the first element on.
        None where elements overlap, or where there are more runs than so many."""
        run, end, offsets = 1, 1, np.zeros(1, np.int64)
        for dimension in reversed(self.order()):
            size, stride = self.size[dimension], self.stride[dimension]
            if size == 1:
                continue
            if len(offsets) == 1 and stride == run:
                run *= size
            elif stride < end or len(offsets) * size > most:
                return None
            else:
                offsets = np.add.outer(np.arange(size, dtype=np.int64) * stride, offsets).ravel()
            end += (size - 1) * stride
        return run * self.dtype.itemsize, offsets * self.dtype.itemsize

    def is_contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.size), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def view(self, data: torch.Tensor) -> torch.Tensor:
        """Shows its bytes, aligned to an element, as the tensor."""
        return data.view(self.dtype).as_strided(self.size, self.stride)

    def view_runs(self, data: torch.Tensor) -> torch.Tensor:
        """Shows its runs, one after the other, as the tensor."""
        order = self.order()
        return data.view(self.dtype).view([self.size[dimension] for dimension in order]).permute([order.index(dimension) for dimension in range(len(order))])


class _Other(Exception):
    """An entry that is for torch.load."""


class _Storage(NamedTuple):
    key: str
    dtype: torch.dtype


class _Rebuilt(NamedTuple):
    storage: Any
    dtype: Any
    offset: Any
    size: Any
    stride: Any


def find_tensor(entry: Slice) -> Stored | None:
    """Finds the tensor of an entry; None where torch.load has to find it, or to report the error."""
    if entry.pread(4, 0) != b"PK\x03\x04":
        return None
    try:
        return _find(entry)
    except (_Other, zipfile.BadZipFile, pickle.UnpicklingError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None
    except (EOFError, OverflowError, RecursionError, struct.error, NotImplementedError):
        return None


def _find(entry: Slice) -> Stored:
    with zipfile.ZipFile(io.BufferedReader(entry, 4096)) as archive:
        records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        offset, length = _record(entry, records["data.pkl"])
        if length > MAX_PICKLE:
            raise _Other
        rebuilt = _Pickle(io.BytesIO(entry.pread(length, offset))).load()
        if "byteorder" in records:
            at, n = _record(entry, records["byteorder"])
            if entry.pread(n, at) != b"little":
                raise _Other
        if not isinstance(rebuilt, _Rebuilt) or not isinstance(rebuilt.storage, _Storage):
            raise _Other
        begin, room = _record(entry, records[f"data/{rebuilt.storage.key}"])
    size, stride, first = rebuilt.size, rebuilt.stride, rebuilt.offset
    if len(size) != len(stride) or not all(type(n) is int and n >= 0 for n in (*size, *stride, first)):
        raise _Other
    dtype = rebuilt.dtype or rebuilt.storage.dtype
    length = _extent(size, stride) * dtype.itemsize
    offset = begin + first * dtype.itemsize
    if length and offset + length > begin + room:
        raise _Other
    return Stored(dtype, tuple(size), tuple(stride), offset, length, offset + length if length else 0)


def _extent(size: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to behind the last one of a strided tensor."""
    if 0 in size:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


def _record(entry: Slice, info: zipfile.ZipInfo) -> tuple[int, int]:
    """Where an uncompressed record begins, and its length."""
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.file_size != info.compress_size:
        raise _Other
    signature, name, extra = struct.unpack("<4s22xHH", entry.pread(30, info.header_offset))
    offset = info.header_offset + 30 + name + extra
    if signature != b"PK\x03\x04" or offset + info.file_size > entry.length:
        raise _Other
    return offset, info.file_size


class _Pickle(pickle.Unpickler):
    """Reads the pickle of a plain tensor. Of the names in it, only our own functions and dtypes come to life."""

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_v2
        if (module, name) == ("torch._utils", "_rebuild_tensor_v3"):
            return _rebuild_v3
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch.storage", "UntypedStorage"):
            return torch.uint8
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        raise _Other

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _location, _elements = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype) or not isinstance(key, str):
            raise _Other
        return _Storage(key, dtype)


def _rebuild_v2(storage: Any, offset: Any, size: Any, stride: Any, _grad: Any, _hooks: Any, metadata: Any = None) -> _Rebuilt:
    if metadata:
        raise _Other  # a conjugate, or something else than its elements say
    return _Rebuilt(storage, None, offset, size, stride)


def _rebuild_v3(storage: Any, offset: Any, size: Any, stride: Any, _grad: Any, _hooks: Any, dtype: Any, metadata: Any = None) -> _Rebuilt:
    if metadata or not isinstance(dtype, torch.dtype):
        raise _Other
    return _Rebuilt(storage, dtype, offset, size, stride)
