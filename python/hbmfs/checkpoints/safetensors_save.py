"""Weights to safetensors files, straight out of the memory of a GPU or of the host.

    hbmfs.save_safetensors(model.state_dict(), "/mnt/models/llama", extra={"config.json": config})

The directory is laid out as Hugging Face does it: model.safetensors, or model-00001-of-0000N.safetensors and so on with
model.safetensors.index.json. It is a draft until all of it is on the disk, and appears by one rename, with a manifest of
sizes and checksums in it (`hbmfs checkpoint verify`). A directory that is there already is never changed.

The layout of a file: the header is padded so that the tensors begin at a multiple of 4,096 bytes. The format allows no
gaps between them. So those go first whose length is a multiple of 4,096 bytes, and begin at one; the others follow by
the largest power of two that divides their length, and begin at a multiple of it.

Tensors that are one and the same memory (tied weights) are written once, under the first of their names, as save_pretrained
of Transformers does; the header's metadata says so of the others ({"lm_head.weight": "model.embed_tokens.weight"}).
Tensors that share only a part of their memory are refused by name, as the safetensors package does.

Tensors that are not contiguous are copied in host memory, those of one file at a time. So `shard_size` bounds that memory.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._lib import _device
from .._lib._arguments import checked
from .._lib._transfer import Progress, shower
from .._lib.device_array import DeviceArray
from .._lib.writer import FilePart, OutFile, Writer, Written
from ..errors import DeviceError, DtypeError, InvalidError
from ..weights._load import DTYPES
from ..weights.safetensors_header import MAX_HEADER
from ._publishing import Draft

if TYPE_CHECKING:
    import torch

PAGE = 4096
SHARD = 5_000_000_000
"""The largest file that huggingface_hub 0.36 makes by default."""

_CODES = {name: code for code, name in DTYPES.items()}


@checked
def save_safetensors(
    tensors: Mapping[str, torch.Tensor | np.ndarray[Any, Any] | DeviceArray],
    directory: str | os.PathLike[str],
    *,
    shard_size: int = SHARD,
    metadata: Mapping[str, str] | None = None,
    extra: Mapping[str, bytes] | None = None,
    method: str = "auto",
    require: str | None = None,
    progress: Progress = None,
    writer: Writer | None = None,
) -> Written:
    """Saves tensors by name in a new directory, and returns when all of it is safe.

    tensors     torch tensors, NumPy arrays or DeviceArrays, on one GPU, on the host, or on both. They must not change meanwhile
    shard_size  most bytes of tensors in a file. A tensor that has more gets a file of its own
    metadata    for the header of each file, beside {"format": "pt"}, which Transformers wants
    extra       small files to put beside, by name: config.json, tokenizer.json
    method      the path out of HBM that is wished for: see Writer. With `require` it is an error where there is none
    progress    None: a bar where tqdm is installed and stderr is a terminal; True, False, or a function(done, total) of bytes
    writer      a Writer to write with, which stays open; by default one is made for this call

    Where `directory` is to be one of a checkpoint volume (hbmfs checkpoint mount), it is written past FUSE; `way` of the answer says it.

    Raises ExistsError if the directory is there, BusyError while another process writes it, DtypeError for elements that
    the format does not have, WriteError for errors of the filesystem. After any exception nothing is left of it,
    unless Ctrl-C came when it was published already.
    """
    items, tied = _untie([_item(name, tensor) for name, tensor in tensors.items()])
    files = _layout(items, shard_size, metadata or {}, tied, extra or {})
    devices = sorted({item.device for item in items} - {_device.CPU})
    if len(devices) > 1:
        raise DeviceError(f"the tensors are on {' and '.join(map(_device.name, devices))}: save those of one GPU, or move them to the host")
    device = devices[0] if devices else _device.CPU
    if writer is not None and devices and writer.device != device:
        raise DeviceError(f"the writer is for {_device.name(writer.device)} and the tensors are on {_device.name(device)}: give one of that device")
    with contextlib.ExitStack() as stack:
        draft = Draft.begin(os.fspath(directory))
        try:
            if writer is None:
                writer = stack.enter_context(Writer(_device.name(device), method=method, require=require))
            written = _write(writer, draft, files, progress)
            draft.publish(written.files)
        except BaseException:
            draft.drop()
            raise
    return written


class _Item(NamedTuple):
    """A tensor as the format has it."""

    name: str
    code: str
    shape: tuple[int, ...]
    length: int
    device: int
    begin: int
    """Its address."""
    form: tuple[int, ...] | None
    """None where its memory has its bytes in their order. Otherwise how the memory is read: tensors of one form and address are equal."""
    value: Any

    def data(self) -> Any:
        """Its bytes in one piece, which are a copy on the host if it is not contiguous."""
        value = self.value
        if isinstance(value, DeviceArray):
            return value
        if isinstance(value, np.ndarray):
            value = value if self.form is None else np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
            return value.reshape(-1).view(np.uint8)
        import torch

        if self.form is not None:
            value = torch.empty(value.shape, dtype=value.dtype, device="cpu").copy_(value)
        return value.reshape(-1).view(torch.uint8)


def _item(name: str, tensor: Any) -> _Item:
    """Checks one tensor by itself."""
    if not isinstance(name, str) or name == "__metadata__":
        raise InvalidError(f"a tensor has the name {name!r}: give a string, and not __metadata__, which the format has for itself")
    if isinstance(tensor, DeviceArray):
        code = _code(name, tensor.dtype.name, tensor.dtype)
        return _Item(name, code, tensor.shape, tensor.nbytes, tensor.device, tensor.pointer, None, tensor)
    if isinstance(tensor, np.ndarray):
        code = _code(name, tensor.dtype.newbyteorder("=").name, tensor.dtype)
        plain = tensor.flags.c_contiguous and (tensor.dtype.isnative or tensor.nbytes == 0)
        form = None if plain else (*tensor.strides, tensor.dtype.isnative)
        return _Item(name, code, tensor.shape, tensor.nbytes, _device.CPU, tensor.ctypes.data, form, tensor)
    return _of_torch(name, tensor)


def _of_torch(name: str, tensor: Any) -> _Item:
    try:
        import torch
    except ModuleNotFoundError:
        torch = None  # type: ignore[assignment]
    if torch is None or not isinstance(tensor, torch.Tensor):
        raise InvalidError(f"{name!r} is a {type(tensor).__name__}: give torch tensors, NumPy arrays or DeviceArrays")
    if hasattr(tensor, "full_tensor") or hasattr(tensor, "local_shards"):
        raise InvalidError(f"tensor {name!r} is a {type(tensor).__name__}, of which this rank has a part: save its full_tensor(), or use hbmfs.DCPWriter")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise DtypeError(f"tensor {name!r} is sparse or quantized, which safetensors does not have: give a dense one")
    if tensor.device.type not in ("cpu", "cuda"):
        raise DeviceError(f"tensor {name!r} is on {tensor.device}: move it to a GPU or to the host")
    code = _code(name, str(tensor.dtype).removeprefix("torch."), tensor.dtype)
    tensor = tensor.detach()
    shape = tuple(tensor.shape)
    if code == "F4":
        if not shape:
            raise DtypeError(f"tensor {name!r} of F4 has no dimension, and a row of two elements is what torch has in a byte: give it one")
        shape = (*shape[:-1], shape[-1] * 2)
    device = _device.CPU if tensor.device.type == "cpu" else _device.parse(tensor.device)
    lazy = tensor.is_conj(), tensor.is_neg()
    form = None if tensor.is_contiguous() and not any(lazy) else (*tensor.stride(), *lazy)
    return _Item(name, code, shape, tensor.numel() * tensor.itemsize, device, tensor.data_ptr(), form, tensor)


def _code(name: str, dtype: str, said: Any) -> str:
    if dtype not in _CODES:
        raise DtypeError(f"tensor {name!r} is of {said}, which safetensors does not have: convert it, or leave it out")
    return _CODES[dtype]


def _untie(items: Sequence[_Item]) -> tuple[list[_Item], dict[str, str]]:
    """The items that are written, and of each other one the name that it is written under."""
    first, kept, tied = dict[Any, str](), list[_Item](), dict[str, str]()
    for item in items:
        same = (item.device, item.begin, item.code, item.shape, item.form)
        name = first.setdefault(same, item.name) if item.length else item.name
        if name == item.name:
            kept.append(item)
        else:
            tied[item.name] = name
    before: _Item | None = None
    for item in sorted((item for item in kept if item.length and item.form is None), key=lambda item: (item.device, item.begin)):
        if before is not None and before.device == item.device and item.begin < before.begin + before.length:
            raise InvalidError(f"the tensors {before.name!r} and {item.name!r} share a part of their memory: clone() one of them, or leave it out")
        before = item
    return kept, tied


class _File(NamedTuple):
    name: str
    head: bytes
    items: Sequence[_Item]

    def size(self) -> int:
        return len(self.head) + sum(item.length for item in self.items)

    def parts(self) -> OutFile:
        parts, at = [FilePart(0, self.head)], len(self.head)
        for item in self.items:
            if item.length:
                parts.append(FilePart(at, item.data()))
                at += item.length
        return OutFile(self.name, at, parts)


def _layout(items: Sequence[_Item], most: int, metadata: Mapping[str, str], tied: Mapping[str, str], extra: Mapping[str, bytes]) -> list[_File]:
    """All files of the directory."""
    if not all(isinstance(text, str) for pair in metadata.items() for text in pair):
        raise InvalidError("metadata must be strings by name: the format has nothing else")
    shards = _shards(items, most)
    count = len(shards)
    names = ["model.safetensors"] if count == 1 else [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    files = []
    for name, shard in zip(names, shards, strict=True):
        here = {item.name for item in shard}
        said = {"format": "pt"} | {other: kept for other, kept in tied.items() if kept in here} | dict(metadata)
        files.append(_shard(name, shard, said))
    if count > 1:
        owners = {item.name: name for name, shard in zip(names, shards, strict=True) for item in shard}
        index = {"metadata": {"total_size": sum(item.length for item in items)}, "weight_map": dict(sorted(owners.items()))}
        files.append(_File("model.safetensors.index.json", json.dumps(index, indent=2).encode() + b"\n", ()))
    taken = {file.name for file in files}
    for name, data in extra.items():
        if not isinstance(name, str) or name in taken or name != os.path.basename(name) or name.startswith(".") or not name or "\0" in name:
            raise InvalidError(f"extra has the file {name!r}: give plain names, not hidden ones, and none of {', '.join(sorted(taken))}")
        files.append(_File(name, bytes(memoryview(data)), ()))
    return files


def _shards(items: Iterable[_Item], most: int) -> list[list[_Item]]:
    """As huggingface_hub 0.36 cuts them (serialization/_base.py): in the order of the state dict, and a large tensor alone."""
    if most <= 0:
        raise InvalidError(f"shard_size is {most}: give the bytes of a file")
    shards, current, size = list[list[_Item]](), list[_Item](), 0
    for item in items:
        if item.length > most:
            shards.append([item])
            continue
        if size + item.length > most:
            shards.append(current)
            current, size = [], 0
        current.append(item)
        size += item.length
    return [*shards, current] if current or not shards else shards


def _shard(name: str, items: Sequence[_Item], metadata: Mapping[str, str]) -> _File:
    ordered = sorted(items, key=lambda item: -min(item.length & -item.length or PAGE, PAGE))
    entries, at = dict[str, Any](__metadata__=dict(metadata)), 0
    for item in ordered:
        entries[item.name] = {"dtype": item.code, "shape": item.shape, "data_offsets": [at, at + item.length]}
        at += item.length
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % PAGE)
    if len(text) > MAX_HEADER:
        raise InvalidError(f"the header of {name} would have {len(text)} bytes, and the format allows {MAX_HEADER}: give a smaller shard_size")
    return _File(name, len(text).to_bytes(8, "little") + text, ordered)


def _write(writer: Writer, draft: Draft, files: Sequence[_File], progress: Progress) -> Written:
    """Writes all files: those whose tensors lie in memory as they are at once, each of the others by itself."""
    copied = [file for file in files if any(item.form is not None for item in file.items)]
    batches = [[file for file in files if file not in copied], *([file] for file in copied)]
    show, end = shower(progress, sum(file.size() for file in files), "weights")
    done: Written | None = None
    try:
        for batch in batches:
            if batch:
                part = draft.write(writer, [file.parts() for file in batch], _steps(show)).wait()
                done = part if done is None else _both(done, part)
    finally:
        end()
    assert done is not None  # there is at least one file
    return done


def _steps(show: Callable[[int], object]) -> Callable[[int, int], None]:
    """What a Writer calls with the bytes that it has written, for what wants to hear how many these are more."""
    before = 0

    def step(done: int, _total: int) -> None:
        nonlocal before
        show(done - before)
        before = done

    return step


def _both(one: Written, two: Written) -> Written:
    moved = {path: one.moved.get(path, 0) + two.moved.get(path, 0) for path in [*one.moved, *two.moved]}
    return one._replace(files=[*one.files, *two.files], moved=moved, seconds=one.seconds + two.seconds)
