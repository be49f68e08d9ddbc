"""The files of a set of samples, opened for the devices that their fields go to."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from .._lib import _device, _native
from .._lib._memory import Pinned, Place
from .._lib._warn import warn
from .._lib.reader import Reader
from ..errors import ClosedError, DeviceError, OutOfMemoryError, SlowPathWarning, UnavailableError
from . import _fields
from .dataset import Dataset, kept

PINNED = "pinned"
"""The place of a field in page-locked memory of the host, to which the current GPU copies."""


class OpenField(NamedTuple):
    """A field that is read to one device."""

    field: _fields.Field
    dataset: Dataset[Any]  # its elements
    device: str
    pages: Pinned | None

    @property
    def pinned(self) -> Pinned | None:
        """Where its arrays are made, if that is pinned memory. A forked child, which cannot use CUDA, has none."""
        return None if _native.library().forked else self.pages

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
        if pinned is not None and not _native.library().forked:
            reader: Reader | None = self._copier(field)
        else:
            index = _device.CPU if device == PINNED else _device.parse(device)
            reader = None if index == _device.CPU and _native.library().forked else self._reader(index, field)
        index = _device.CPU if reader is None else reader.device
        again = (field.found.path, _device.name(index), "auto", None, None, reader, None)
        return OpenField(field, Dataset(field.found, index, reader, own=False, again=again, tensors=False), device, pinned)

    def _copier(self, field: _fields.Field) -> Reader:
        """The reader for pinned memory: of the current GPU, or of the host where that one was given or the GPU cannot be used."""
        if self.given is None or self.given.device != _device.CPU:
            try:
                return self._reader(_device.parse("cuda"), field, pinned=True)
            except (DeviceError, OutOfMemoryError, UnavailableError) as err:
                warn(f"hbmfs: field {field.name!r} is copied to pinned memory by threads: {err}", SlowPathWarning)
        return self._reader(_device.CPU, field)

    def _reader(self, index: int, field: _fields.Field, pinned: bool = False) -> Reader:
        if self.given is not None and self.given.device == index and (self.given.chooses or not pinned):
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
