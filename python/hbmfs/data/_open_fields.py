"""The files of a set of samples, opened for the devices that their fields go to."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from .._lib import _device, _native
from .._lib._memory import Pinned, Place
from .._lib._warn import warn
from .._lib.reader import Reader
from ..errors import ClosedError, SlowPathWarning
from . import _fields
from .dataset import Dataset, kept

PINNED = "pinned"
"""The place of a field in page-locked memory of the host."""


class OpenField(NamedTuple):
    """A field that is read to one device."""

    field: _fields.Field
    dataset: Dataset[Any]  # its elements
    device: str
    pinned: Pinned | None

    def place(self) -> Place:
        """Where its arrays are made."""
        return self.pinned or self.dataset.place()

    @property
    def said(self) -> str:
        """What it is, in one line."""
        form = "ragged" if self.field.ragged else str(list(self.field.shape))
        return f"{form} {self.dataset.dtype} of {self.field.found.path}"


class Opened:
    """The files of a set of samples, and a reader for each device. Parts and selections of a set share it."""

    def __init__(self, path: str, reader: Reader | None) -> None:
        self.path = path
        self.fields = _fields.read(_fields.find(path))
        self.given = reader
        self.closed = False
        self._readers: dict[int, Reader] = {}
        self._fields: dict[tuple[str, str], OpenField] = {}
        self._lock = threading.Lock()

    def open(self, name: str, device: str) -> OpenField:
        """The field for a device, which is opened once."""
        if self.closed:
            raise ClosedError(f"the samples of {self.path} are closed: open them again")
        with self._lock:
            if (name, device) not in self._fields:
                self._fields[name, device] = self._open(self.fields.each[name], device)
            return self._fields[name, device]

    def _open(self, field: _fields.Field, device: str) -> OpenField:
        pinned = None
        if device == PINNED:
            pinned = Pinned.of_torch()
            if pinned is None:
                warn(f"hbmfs: field {field.name!r} goes to memory that is not pinned: pinned memory needs torch with a GPU", SlowPathWarning)
        index = _device.CPU if device == PINNED else _device.parse(device)
        reader = None if index == _device.CPU and _native.library().forked else self._reader(index, field)
        again = (field.found.path, _device.name(index), "auto", None, None, reader, None)
        return OpenField(field, Dataset(field.found, index, reader, own=False, again=again, tensors=False), device, pinned)

    def _reader(self, index: int, field: _fields.Field) -> Reader:
        if self.given is not None and self.given.device == index:
            return self.given
        if index not in self._readers:
            self._readers[index] = Reader(_device.name(index), **kept(field.found, index))
        return self._readers[index]

    def close(self) -> None:
        """Closes all fields and readers."""
        self.closed = True
        with self._lock:
            opened, readers = list(self._fields.values()), list(self._readers.values())
        for each in opened:
            each.dataset.close()
        for reader in readers:
            reader.close()
