"""Any object as torch.save would write it, with the storages of its tensors left where they are: a file in parts.

    size, parts = lay_out(state)

The pickle is torch's own (torch/serialization.py, _save): tensors that share a storage share it in the file, and parts of a
storage that a view leaves out are in the file, too. Each storage begins at a multiple of 4,096 bytes, unless it is shorter.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch.serialization import location_tag

from ..errors import InvalidError
from ._torch_zip import Archive

PAGE = 4096
SMALL = 64
"""The alignment of storages of less than a page, which torch gives to all."""


def lay_out(obj: Any) -> tuple[int, list[tuple[int, Any]]]:
    """The size of the file, and its bytes by offset: bytes, or tensors of uint8 that are an object's storages."""
    pickled = io.BytesIO()
    pickler = _Pickler(pickled, protocol=2)
    pickler.dump(obj)
    archive, placed = Archive(pickled.getvalue()), list[tuple[int, Any]]()
    for key, storage in pickler.storages.items():
        length = storage.nbytes()
        at = archive.storage(key, length, PAGE if length >= PAGE else SMALL)
        if length:
            placed.append((at, _bytes(storage)))
    size = archive.end()
    return size, sorted([*placed, *((at, bytes(data)) for at, data in archive.pieces)], key=lambda part: part[0])


class _Pickler(pickle.Pickler):
    """Gives storages a number instead of pickling them."""

    def __init__(self, file: Any, protocol: int) -> None:
        super().__init__(file, protocol=protocol)
        self.storages: dict[str, Any] = {}
        self._keys: dict[int, str] = {}
        self._dtypes: dict[int, torch.dtype] = {}

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, torch.storage.TypedStorage):
            typed: Any = obj  # its methods have no types
            storage, dtype, kind, elements = typed._untyped_storage, typed.dtype, getattr(torch, typed._pickle_storage_type()), typed._size()
        elif isinstance(obj, torch.UntypedStorage):
            storage, dtype, kind, elements = obj, torch.uint8, torch.storage.UntypedStorage, obj.nbytes()
        else:
            return None
        if storage.data_ptr() and self._dtypes.setdefault(storage.data_ptr(), dtype) != dtype:
            raise InvalidError("two tensors have the same memory and different dtypes, which a file of torch.save cannot hold: clone() one of them")
        key = self._keys.setdefault(storage._cdata, str(len(self._keys)))
        self.storages[key] = storage
        return "storage", kind, key, location_tag(storage), elements


def _bytes(storage: Any) -> torch.Tensor:
    if storage.device.type not in ("cpu", "cuda"):
        storage = storage.cpu()
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),), (1,))
