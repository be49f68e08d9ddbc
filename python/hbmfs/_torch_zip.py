"""What torch.save writes around the elements of a tensor, so that they can come from anywhere, and lie aligned.

torch.save writes a zip archive (torch 1.6 on, torch/serialization.py _save): data.pkl says how to rebuild the tensor, data/0
is its storage, uncompressed. Here all other records come before data/0, so that a tensor is head, elements, tail.

Head and tail carry the CRC-32 of all records but data/0, whose field is 0, as torch leaves it with
set_crc32_options(False): torch's readers check none of them (its miniz is built so), Python's zipfile and unzip say of data/0 that
its CRC is wrong. The elements are covered by the manifest of the checkpoint instead.
"""

from __future__ import annotations

import functools
import io
import math
import pickle
import struct
import zlib
from collections import OrderedDict
from typing import Any, NamedTuple

import torch

_DATE = 33
"""1980-01-01, in the form of a zip archive."""
_MORE = 0xFFFFFFFF
"""In a field of 32 bits: the figure is in the extra field of 64."""


class Frame(NamedTuple):
    """The bytes before and behind the elements. Their first byte must lie at a multiple of the element's size, as torch has it."""

    head: bytes
    tail: bytes


class _Storage:
    """Stands in the pickle for the storage, data/0."""

    def __init__(self, kind: Any, elements: int) -> None:
        self.id = ("storage", kind, "0", "cpu", elements)


class _Tensor:
    """Is pickled as torch pickles a tensor (torch/_tensor.py, _reduce_ex_internal)."""

    def __init__(self, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
        self._dtype, self._size, self._stride = dtype, size, stride

    def __reduce__(self) -> tuple[Any, ...]:
        elements = math.prod(self._size)
        legacy = _legacy().get(self._dtype)
        if legacy is None:
            storage = _Storage(torch.storage.UntypedStorage, elements * self._dtype.itemsize)
            return torch._utils._rebuild_tensor_v3, (storage, 0, self._size, self._stride, False, OrderedDict(), self._dtype)
        return torch._utils._rebuild_tensor_v2, (_Storage(legacy, elements), 0, self._size, self._stride, False, OrderedDict())


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return obj.id if isinstance(obj, _Storage) else None


@functools.cache
def _legacy() -> dict[torch.dtype, Any]:
    """The storage classes that torch names in a pickle, of the dtypes that have one."""
    names = torch.storage._dtype_to_storage_type_map()
    return {dtype: getattr(torch, name) for dtype, name in names.items() if dtype not in torch.storage._new_dtypes()}


@functools.lru_cache(4096)
def frame(dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...]) -> Frame:
    """Makes the frame of a dense tensor, whose elements fill its storage in any order."""
    pickled = io.BytesIO()
    _Pickler(pickled, protocol=2).dump(_Tensor(dtype, size, stride))
    head, directory = bytearray(), bytearray()
    for name, data in (("data.pkl", pickled.getvalue()), ("byteorder", b"little"), ("version", b"3\n")):
        directory += _entry(name, len(head), len(data), zlib.crc32(data))
        head += _local(name, len(data), zlib.crc32(data)) + data
    length = math.prod(size) * dtype.itemsize
    directory += _entry("data/0", len(head), length, 0)
    head += _local("data/0", length, 0)
    at = len(head) + length
    end = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 4, 4, len(directory), at)
    end += struct.pack("<4sIQI", b"PK\x06\x07", 0, at + len(directory), 1)
    end += struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 4, 4, len(directory), _MORE, 0)
    return Frame(bytes(head), bytes(directory) + end)


def _local(name: str, length: int, crc: int) -> bytes:
    path, extra = f"archive/{name}".encode(), struct.pack("<HHQQ", 1, 16, length, length)
    return struct.pack("<4sHHHHHIIIHH", b"PK\x03\x04", 45, 0, 0, 0, _DATE, crc, _MORE, _MORE, len(path), len(extra)) + path + extra


def _entry(name: str, at: int, length: int, crc: int) -> bytes:
    path, extra = f"archive/{name}".encode(), struct.pack("<HHQQ", 1, 16, length, length)
    fields = (b"PK\x01\x02", 45, 45, 0, 0, 0, _DATE, crc, _MORE, _MORE, len(path), len(extra), 0, 0, 0, 0, at)
    return struct.pack("<4sHHHHHHIIIHHHHHII", *fields) + path + extra
