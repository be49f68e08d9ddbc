"""The header of a safetensors file, as the library judges it (layout/safetensors says by which rules), and files opened without waiting."""

import ctypes
import json
import os
import stat
from typing import NamedTuple

from .._lib._native import library
from ..errors import AccessError, FormatError, NotFoundError, ReadError

MAX_HEADER = 100_000_000

BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""The bits of one element of every dtype of the format."""


class Tensor(NamedTuple):
    """A tensor of a file: where its bytes lie, counted from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


class Header(NamedTuple):
    """The parsed header of a file. Tensors are in the order of their bytes."""

    path: str
    size: int
    tensors: tuple[Tensor, ...]
    metadata: dict[str, str]


def read(path: str | os.PathLike[str]) -> Header:
    """Reads the header of a safetensors file. FormatError: the file is damaged, or is no such file."""
    name = os.fspath(path)
    fd = open_regular(name)
    try:
        claim = int.from_bytes(read_exactly(fd, name, 8, 0), "little")  # the table is hardly ever longer than the header
        room, length = 0, ctypes.c_int64(min(claim, MAX_HEADER, os.fstat(fd).st_size) + 4096)
        while length.value > room:
            room = length.value
            table = ctypes.create_string_buffer(room)
            library().ask("safetensors_header", fd, os.fsencode(name), table, room, length)
    finally:
        os.close(fd)
    said = json.loads(table[: length.value])
    return Header(name, said["size"], tuple(Tensor(name, dtype, tuple(shape), *place) for name, dtype, shape, *place in said["tensors"]), said["metadata"])


def open_regular(path: str) -> int:
    """Opens a file for reading. A pipe or a device, which could keep the caller waiting, is refused."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}: give a file, a directory or an index of files") from None
    except PermissionError:
        raise AccessError(f"{path} may not be read by this user") from None
    except OSError as err:
        raise ReadError(f"{path} cannot be opened: {err.strerror}") from err
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FormatError(f"{path} is not a regular file: give the path of a file")
    return fd


def read_exactly(fd: int, path: str, length: int, offset: int) -> bytes:
    """Reads length bytes; fewer only at the end of the file."""
    pieces = []
    while length > 0:
        try:
            piece = os.pread(fd, min(length, 1 << 24), offset)
        except OSError as err:
            raise ReadError(f"{path} cannot be read at byte {offset}: {err.strerror}") from err
        if not piece:
            break
        pieces.append(piece)
        length -= len(piece)
        offset += len(piece)
    return b"".join(pieces)
