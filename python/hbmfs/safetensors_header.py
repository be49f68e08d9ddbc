"""The header of a safetensors file, read without trusting a byte of it.

A file is 8 bytes of length (little-endian), so many bytes of JSON, and the tensors' bytes one after the other:

    {"name": {"dtype": "BF16", "shape": [4096, 4096], "data_offsets": [begin, end]}, "__metadata__": {"key": "text"}}

Offsets count from the end of the JSON. What is accepted is what the safetensors package accepts (version 0.8.0,
safetensors/src/tensor.rs): the header is at most 100 MB, the tensors cover the rest of the file exactly, without holes
or overlap, and each is as long as its shape and dtype say. It is stricter in two things, which no writer produces: a
name or key that is there twice is refused, since readers differ in which one they take, and so is an entry in the form
of a list. Fields that are not known are ignored there and here.
"""

import json
import os
import re
import stat
import struct
from typing import Any, NamedTuple

from .errors import AccessError, FormatError, NotFoundError, ReadError

MAX_HEADER = 100_000_000
MAX_DEPTH = 127
"""Nesting that serde_json, which the safetensors package reads JSON with, puts up with."""

BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""The bits of one element of every dtype of the format."""

_U64 = (1 << 64) - 1


class Tensor(NamedTuple):
    """A tensor of a file: where its bytes lie, counted from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


class Header(NamedTuple):
    """What a file says of itself. Tensors are in the order of their bytes."""

    path: str
    size: int
    tensors: tuple[Tensor, ...]
    metadata: dict[str, str]


class _Bad(Exception):
    """Something wrong with a header, before anybody has said in which file."""


def read(path: str | os.PathLike[str]) -> Header:
    """Reads the header of a safetensors file. FormatError: the file is damaged, or is no such file."""
    name = os.fspath(path)
    text, size = _read_text(name)
    try:
        tensors, metadata = _parse(text, 8 + len(text), size)
    except _Bad as err:
        raise FormatError(f"{name} is damaged or no safetensors file: {err}") from None
    return Header(name, size, tensors, metadata)


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


def _read_text(path: str) -> tuple[bytes, int]:
    """The JSON of a file, and the file's size."""
    fd = open_regular(path)
    try:
        size = os.fstat(fd).st_size
        prefix = read_exactly(fd, path, 8, 0)
        if len(prefix) < 8:
            raise FormatError(f"{path} is damaged or no safetensors file: it has {size} bytes, the length of the header alone has 8")
        (length,) = struct.unpack("<Q", prefix)
        if length > MAX_HEADER:
            raise FormatError(f"{path} is damaged or no safetensors file: a header of {length} bytes, at most {MAX_HEADER} are allowed")
        if length > size - 8:
            raise FormatError(f"{path} is damaged or cut off: a header of {length} bytes, but only {size - 8} follow its length")
        text = read_exactly(fd, path, length, 8)
        if len(text) != length:
            raise FormatError(f"{path} became shorter while it was read: load it again when its writer is done")
        return text, size
    finally:
        os.close(fd)


def _parse(raw: bytes, data_start: int, size: int) -> tuple[tuple[Tensor, ...], dict[str, str]]:
    header = _decode(raw)
    metadata = header.pop("__metadata__", None)
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _Bad("__metadata__ must be an object of strings")
    tensors = [_tensor(name, entry) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.length))
    at = 0
    for tensor in tensors:
        if tensor.offset != at:
            what = "overlaps the tensor before it" if tensor.offset < at else f"leaves {tensor.offset - at} bytes unused before it"
            raise _Bad(f"tensor {tensor.name!r} {what}: it begins at {tensor.offset}, expected {at}")
        at += tensor.length
        if data_start + at > size:
            raise _Bad(f"tensor {tensor.name!r} ends at {data_start + at}, but the file has {size} bytes")
    if data_start + at != size:
        raise _Bad(f"the tensors end at {data_start + at}, but the file has {size} bytes")
    return tuple(tensor._replace(offset=data_start + tensor.offset) for tensor in tensors), metadata


def _tensor(name: str, entry: Any) -> Tensor:
    """Checks one entry by itself. The offset of the result counts from the end of the header."""
    if not isinstance(entry, dict):
        raise _Bad(f"tensor {name!r} must be an object with dtype, shape and data_offsets")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in BITS:
        raise _Bad(f"tensor {name!r} has the dtype {_short(dtype)}, which is none of the format's")
    if not isinstance(shape, list) or not all(_is_size(n) for n in shape):
        raise _Bad(f"tensor {name!r} has the shape {_short(shape)}, expected a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(n) for n in offsets):
        raise _Bad(f"tensor {name!r} has the data_offsets {_short(offsets)}, expected [begin, end]")
    for key, value in entry.items():
        # Two levels lie around this one.
        if key not in ("dtype", "shape", "data_offsets") and _deeper(value, MAX_DEPTH - 2):
            raise _Bad(f"tensor {name!r} has a field nested more than {MAX_DEPTH} deep")
    elements = 1
    for n in shape:
        elements *= n
        if elements > _U64:
            break
    bits = elements * BITS[dtype]
    if bits > _U64:
        raise _Bad(f"tensor {name!r} has the shape {_short(shape)}, which is more than any file can hold")
    begin, end = offsets
    if bits % 8 or begin + bits // 8 != end:
        raise _Bad(f"tensor {name!r} of shape {_short(shape)} and dtype {dtype} has data_offsets {offsets}, expected {bits / 8:.15g} bytes")
    return Tensor(name, dtype, tuple(shape), begin, end - begin)


def _decode(raw: bytes) -> dict[str, Any]:
    """JSON as serde_json takes it, which is narrower than what Python's takes by default."""
    try:
        text = raw.decode("utf-8")
        header = json.loads(text, object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant)
        if re.search(r"\\u[dD][89a-fA-F]", text):
            json.dumps(header, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except UnicodeError:
        raise _Bad("its header is not UTF-8") from None
    except (ValueError, RecursionError) as err:
        raise _Bad(f"its header is not JSON: {str(err)[:200]}") from None
    if not isinstance(header, dict):
        raise _Bad("its header must be a JSON object")
    return header


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _Bad(f"{twice!r} is there twice")
    return result


def _integer(text: str) -> int | float:
    if len(text) < 21 and text != "-0" and -(1 << 63) <= int(text) <= _U64:
        return int(text)
    return _float(text)


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _Bad(f"its header has the number {_short(text)}, which is out of range")
    return value


def _constant(text: str) -> float:
    raise _Bad(f"its header is not JSON: {text} is no number there")


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


def _deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    return levels == 0 or any(_deeper(v, levels - 1) for v in (value.values() if isinstance(value, dict) else value))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
