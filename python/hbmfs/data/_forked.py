"""Reading on the CPU in a forked child, where nothing of the library may be used: plain pread, from files opened anew."""

import ctypes
import os
from typing import Any

import numpy as np

from .._lib._closing import unheard
from .._lib._native import process
from ..errors import ReadError, StaleError
from ._types import Ints
from .tokens import Tokens


class HostFile:
    """The file of a dataset, opened again by this process."""

    def __init__(self, tokens: Tokens) -> None:
        self.process = process()
        self.moved = 0
        self.reads = 0
        self._path = tokens.path
        self._fd = tokens.open()

    def gather(self, pointer: int, offsets: "np.ndarray[Any, Any]", length: int) -> None:
        """Reads spans of ``length`` bytes one after the other to an address of the host."""
        self.pieces(pointer, length * len(offsets), offsets, np.full(len(offsets), length, np.int64))

    def pieces(self, pointer: int, size: int, offsets: Ints, lengths: Ints) -> None:
        """Reads spans of so many bytes each, one behind the other, to memory of `size` bytes. Spans that begin before 0 are left out."""
        room = memoryview((ctypes.c_char * size).from_address(pointer)).cast("B")
        for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
            if offset >= 0:
                self._fill(room[:length], offset)
                self.moved += length
            room = room[length:]
        self.reads += 1

    def _fill(self, part: memoryview, offset: int) -> None:
        while part:
            try:
                n = os.preadv(self._fd, [part], offset)
            except OSError as err:
                raise ReadError(f"{self._path} cannot be read at byte {offset}: {err.strerror}") from err
            if n == 0:
                raise StaleError(f"{self._path} ended early, at byte {offset}: it was cut off after it was opened; open it again")
            part, offset = part[n:], offset + n

    def close(self) -> None:
        """Closes it, if this process opened it."""
        if self._fd >= 0 and self.process == process():
            os.close(self._fd)
        self._fd = -1

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            unheard(self._path, self.close)
