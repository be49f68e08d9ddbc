"""The bytes of torch.save around the elements of tensors, so that elements can come from anywhere, and lie aligned.

torch.save writes a zip archive (torch 1.6 on, torch/serialization.py _save): data.pkl says how to rebuild the tensors, data/0
and so on are their storages, uncompressed. Here all other records come before data/0, so that a tensor is head, elements, tail.

The archive carries the CRC-32 of all records but storages, whose field is 0, as torch leaves it with
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
_PADDING = 0x4246
"""The extra field that torch pads with ("FB", caffe2/serialize/inline_container.cc)."""


class Frame(NamedTuple):
    """The bytes before and behind the elements. Their first byte must lie at a multiple of the element's size, as torch has it."""

    head: bytes
    tail: bytes


class Archive:
    """Lays out an archive. Pieces are its bytes and their offsets, without those of the storages."""

    def __init__(self, pickled: bytes) -> None:
        self.pieces: list[tuple[int, bytearray]] = []
        self._at = 0
        self._directory = bytearray()
        self._count = 0
        for name, data in (("data.pkl", pickled), ("byteorder", b"little"), ("version", b"3\n")):
            crc = zlib.crc32(data)
            self._record(name, len(data), crc, 1)
            self._put(data)

    def storage(self, key: str, length: int, align: int) -> int:
        """Makes room for the bytes of a storage, and says where they go."""
        self._record(f"data/{key}", length, 0, align)
        at = self._at
        self._at += length
        return at

    def end(self) -> int:
        """Writes the directory, and gives the size of all."""
        at, size, count = self._at, len(self._directory), self._count
        end = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, at)
        end += struct.pack("<4sIQI", b"PK\x06\x07", 0, at + size, 1)
        end += struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, min(count, 0xFFFF), min(count, 0xFFFF), min(size, _MORE), _MORE, 0)
        self._put(bytes(self._directory) + end)
        return self._at

    def _put(self, data: bytes) -> None:
        if not self.pieces or self.pieces[-1][0] + len(self.pieces[-1][1]) != self._at:
            self.pieces.append((self._at, bytearray()))
        self.pieces[-1][1].extend(data)
        self._at += len(data)

    def _record(self, name: str, length: int, crc: int, align: int) -> None:
        """The local header of a record, whose data begins at a multiple of align."""
        path, at = f"archive/{name}".encode(), self._at
        extra = struct.pack("<HHQQ", 1, 16, length, length)
        if (at + 30 + len(path) + len(extra)) % align:
            pad = -(at + 30 + len(path) + len(extra) + 4) % align
            extra += struct.pack("<HH", _PADDING, pad) + bytes(pad)
        self._put(struct.pack("<4sHHHHHIIIHH", b"PK\x03\x04", 45, 0, 0, 0, _DATE, crc, _MORE, _MORE, len(path), len(extra)) + path + extra)
        fields = (b"PK\x01\x02", 45, 45, 0, 0, 0, _DATE, crc, _MORE, _MORE, len(path), 28, 0, 0, 0, 0, _MORE)
        self._directory += struct.pack("<4sHHHHHHIIIHHHHHII", *fields) + path + struct.pack("<HHQQQ", 1, 24, length, length, at)
        self._count += 1


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
    archive = Archive(pickled.getvalue())
    archive.storage("0", math.prod(size) * dtype.itemsize, 1)
    archive.end()
    head, *tail = (bytes(data) for _, data in archive.pieces)
    return Frame(head, b"".join(tail))
