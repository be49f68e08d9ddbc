"""Weights from safetensors files, straight into the memory of a GPU or of the host.

    sd = hbmfs.load_safetensors("/mnt/models/llama", device="cuda:0")
    model.load_state_dict(sd, assign=True)

The path is a file, a directory, or the index of a sharded model (model.safetensors.index.json). A directory with an
index is read by it; the index then says which tensors there are. A directory without is all its *.safetensors files.

A few large allocations hold all tensors, which are views of them, so loading runs at the speed of the link. It
follows that memory is given back when the last tensor of an allocation (4 GiB at most, if no tensor is larger) is
gone, and that torch.save of one tensor of them saves the whole allocation: clone() what is kept or saved alone.

Tensors that were saved twice are two tensors, as with the safetensors package. On the host, without torch, the arrays
are NumPy's, which has no bfloat16 and no 8-bit floats.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _device, safetensors_header
from ._closing import unheard
from ._transfer import Progress, Transfer, open_reader
from .errors import DeviceError, DtypeError, FormatError, NotFoundError, OutOfMemoryError, UnavailableError
from .safetensors_header import Header, Tensor

if TYPE_CHECKING:
    import torch

    from .reader import Reader

BLOCK = 4 << 30
"""Most bytes of one allocation that holds more than one tensor."""
ALIGNED = 64 << 10
"""Tensors from this size on begin at 16 bytes' alignment, which fast kernels want; smaller ones at their element's."""
MAX_INDEX = 100_000_000

_TORCH = {
    "BOOL": "bool", "F4": "float4_e2m1fn_x2", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16",
    "I32": "int32", "U32": "uint32", "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64",
    "U64": "uint64",
}  # fmt: skip
_NUMPY = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "I32": "<i4", "U32": "<u4",
    "F32": "<f4", "C64": "<c8", "F64": "<f8", "I64": "<i8", "U64": "<u8",
}  # fmt: skip


class Place(NamedTuple):
    """Where a tensor comes to lie: at an offset of a block."""

    tensor: Tensor
    block: int
    offset: int


class Span(NamedTuple):
    """Bytes of a file that become bytes of a block in one read."""

    file: int
    offset: int
    block: int
    to: int
    length: int


class Layout(NamedTuple):
    """What is to be read, and to where: the blocks' sizes, the reads, and the tensors."""

    blocks: list[int]
    spans: list[Span]
    places: list[Place]


def load_safetensors(
    path: str | os.PathLike[str],
    device: Any = "cuda:0",
    *,
    method: str = "auto",
    names: Iterable[str] | Callable[[str], bool] | None = None,
    progress: Progress = None,
    reader: Reader | None = None,
) -> dict[str, torch.Tensor]:
    """Loads tensors by name, in the order of their files.

    device    "cuda:0", "cuda", an index, a torch.device, or "cpu"
    method    the path into HBM that is wished for: see Reader
    names     only these tensors, or those for whose name it returns True
    progress  None: a bar where tqdm is installed and stderr is a terminal; True, False, or a function(done, total)
    reader    a Reader of this device, which stays open; by default one is made for this call

    Raises FormatError for a damaged file or index, NotFoundError for a missing file, DtypeError for elements that
    torch (or NumPy) does not have, OutOfMemoryError. After any exception, KeyboardInterrupt too, all memory is free.
    """
    index = _device.parse(device)
    if reader is not None and reader.device != index:
        raise DeviceError(f"the reader is for {_device.name(reader.device)} and the weights go to {_device.name(index)}: give one of that device")
    library = _Torch(index) if _has_torch(index) else _Numpy()
    blocks: list[Any] = []
    try:
        with contextlib.ExitStack() as stack:
            opening = None if reader is not None else stack.enter_context(_Opening(index, method))
            headers = _headers(_files(Path(path)), names)
            layout = lay_out(headers)
            for place in layout.places:
                library.check(place.tensor)
            blocks.extend(library.allocate(size) for size in layout.blocks[:1])
            if opening is not None:
                reader = opening.result()
            assert reader is not None
            files = [stack.enter_context(file) for file in reader.open_many([header.path for header in headers])]
            for header, file in zip(headers, files, strict=True):
                if file.size != header.size:
                    raise FormatError(f"{header.path} changed while it was opened: load it again when its writer is done")
            weights = _read(layout, files, blocks, library, progress)
            if opening is not None:
                # Closing takes milliseconds, of unpinning. Only the end of Python waits for it.
                threading.Thread(target=unheard, args=(f"the reader of {path}", stack.pop_all().close), name="hbmfs-close").start()
            return weights
    except BaseException:
        # The traceback keeps this frame, which must not keep the memory. The files are closed by now, which ends reads.
        blocks.clear()
        raise


class _Opening:
    """A reader that another thread opens, which takes milliseconds of pinning, while headers are read and memory is
    allocated."""

    def __init__(self, device: int, method: str) -> None:
        self._future: Future[Reader] = Future()
        threading.Thread(target=self._open, args=(device, method), name="hbmfs-open", daemon=True).start()

    def _open(self, device: int, method: str) -> None:
        try:
            self._future.set_result(open_reader(device, method))
        except BaseException as err:  # noqa: BLE001 (raised by who waits)
            self._future.set_exception(err)

    def result(self) -> Reader:
        return self._future.result()

    def __enter__(self) -> "_Opening":
        return self

    def __exit__(self, *_: object) -> None:
        if self._future.done():
            self._close(self._future)
        else:
            # Ctrl-C, or a bad header, does not wait for CUDA: the thread closes what it then has.
            self._future.add_done_callback(self._close)

    @staticmethod
    def _close(future: Future[Reader]) -> None:
        if future.exception() is None:  # an exception that is under way says more than one of closing
            unheard("the reader of weights", future.result().close)


def _read(layout: Layout, files: Sequence[Any], blocks: list[Any], library: _Torch | _Numpy, progress: Progress) -> dict[str, Any]:
    with Transfer(sum(span.length for span in layout.spans), progress, "weights") as transfer:
        for span in layout.spans:
            if span.block == len(blocks):
                blocks.append(library.allocate(layout.blocks[span.block]))  # meanwhile the link works on what was begun
            transfer.read(files[span.file], library.pointer(blocks[span.block]) + span.to, span.offset, span.length)
        # The last pieces arrive while the views are made.
        return {place.tensor.name: _view(place, blocks, library) for place in layout.places}


def _view(place: Place, blocks: Sequence[Any], library: _Torch | _Numpy) -> Any:
    tensor = place.tensor
    try:
        if tensor.length == 0:
            return library.empty(tensor)
        return library.view(blocks[place.block][place.offset : place.offset + tensor.length], tensor)
    except (RuntimeError, ValueError, TypeError, OverflowError) as err:
        raise FormatError(f"tensor {tensor.name!r} has the shape {list(tensor.shape)}, which no tensor can have: {err}") from None


def lay_out(headers: Sequence[Header]) -> Layout:
    """Packs the tensors of each file into blocks. Tensors that lie next to each other in the file do so in the block,
    and are read at once, unless alignment parts them."""
    layout = Layout([], [], [])
    for number, header in enumerate(headers):
        fresh, begin = True, 0  # no block of this file yet; where the span that grows begins in its block
        for tensor in header.tensors:
            if tensor.length == 0:
                layout.places.append(Place(tensor, -1, 0))
                continue
            size = 0 if fresh else layout.blocks[-1]
            follows = not fresh and layout.spans[-1].offset + size - begin == tensor.offset
            if fresh or size + tensor.length > BLOCK:
                layout.blocks.append(0)
                fresh, follows, size = False, False, 0
            if not follows or size % _alignment(tensor):
                size = begin = -(-size // 256) * 256
                layout.spans.append(Span(number, tensor.offset, len(layout.blocks) - 1, begin, 0))
            layout.places.append(Place(tensor, len(layout.blocks) - 1, size))
            layout.blocks[-1] = size + tensor.length
            layout.spans[-1] = layout.spans[-1]._replace(length=layout.blocks[-1] - begin)
    return layout


def _alignment(tensor: Tensor) -> int:
    return 16 if tensor.length >= ALIGNED else max(safetensors_header.BITS[tensor.dtype] // 8, 1)


def _headers(files: dict[str, set[str] | None], names: Iterable[str] | Callable[[str], bool] | None) -> list[Header]:
    """Reads the headers, and keeps of each what is wanted of it."""
    chosen = names if callable(names) or names is None else {names} if isinstance(names, str) else set(names)
    result, owners = [], dict[str, str]()
    for path, listed in files.items():
        header = safetensors_header.read(path)
        missing = (listed or set()) - {tensor.name for tensor in header.tensors}
        if missing:
            raise FormatError(f"{path} has no tensor {min(missing)!r}, though the index of its model says so")
        kept = []
        for tensor in header.tensors:
            name = tensor.name
            if listed is not None and name not in listed:
                continue
            if name in owners:
                raise FormatError(f"tensor {name!r} is in {owners[name]} and in {path}: write an index, or name one file")
            owners[name] = path
            if chosen is None or (chosen(name) if callable(chosen) else name in chosen):
                kept.append(tensor)
        result.append(header._replace(tensors=tuple(kept)))
    if chosen is not None and not callable(chosen) and chosen - owners.keys():
        raise NotFoundError(f"there is no tensor {min(chosen - owners.keys())!r} in {', '.join(files) or 'no file'}")
    return [header for header in result if header.tensors]


def _files(path: Path) -> dict[str, set[str] | None]:
    """The files that make up a model, each with the tensors that are taken from it, or None for all of them."""
    if not os.path.isdir(path):
        return _indexed(path) if path.name.endswith(".json") else {str(path): None}
    indexes = sorted(path.glob("*.safetensors.index.json"))
    if len(indexes) > 1:
        raise FormatError(f"{path} has {len(indexes)} indexes: name one of them, such as {indexes[0]}")
    if indexes:
        return _indexed(indexes[0])
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise NotFoundError(f"there is no .safetensors file in {path}")
    return {str(file): None for file in files}


def _indexed(index: Path) -> dict[str, set[str] | None]:
    fd = safetensors_header.open_regular(str(index))
    try:
        raw = safetensors_header.read_exactly(fd, str(index), MAX_INDEX + 1, 0)
    finally:
        os.close(fd)
    if len(raw) > MAX_INDEX:
        raise FormatError(f"{index} is longer than {MAX_INDEX} bytes: it is no index of safetensors files")
    try:
        weights = json.loads(raw)["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FormatError(f"{index} is damaged: expected a JSON object with a weight_map") from None
    if not isinstance(weights, dict):
        raise FormatError(f"{index} is damaged: weight_map must be an object of tensors' and files' names")
    listed: dict[str, set[str]] = {}
    for tensor, name in weights.items():
        if not isinstance(name, str) or (name not in listed and not _inside(name)):
            raise FormatError(f"{index} says that tensor {tensor!r} is in {name!r}, expected a file of the same directory")
        listed.setdefault(name, set()).add(tensor)
    files: dict[str, set[str] | None] = {}
    for name, tensors in sorted(listed.items()):
        path = str(index.parent / name)
        files[path] = (files.get(path) or set()) | tensors
    return files


def _inside(name: str) -> bool:
    """Whether a name stays in its directory. What a link there points to is whoever made the link's choice, as in the
    cache of huggingface_hub, which is made of links."""
    path = PurePosixPath(name)
    return bool(path.parts) and "\0" not in name and not path.is_absolute() and ".." not in path.parts


def _has_torch(device: int) -> bool:
    try:
        import torch  # noqa: F401
    except ImportError:
        if device == _device.CPU:
            return False
        raise UnavailableError("weights on a GPU are torch tensors, but torch is not installed: pip install torch") from None
    return True


class _Torch:
    """Memory and views as torch has them."""

    def __init__(self, device: int) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(_device.name(device))

    def check(self, tensor: Tensor) -> None:
        if not hasattr(self._torch, _TORCH.get(tensor.dtype, "none")):
            raise DtypeError(f"tensor {tensor.name!r} is of {tensor.dtype}, which torch {self._torch.__version__} does not have: leave it out by names")
        if tensor.dtype == "F4" and tensor.shape[-1] % 2:
            raise DtypeError(f"tensor {tensor.name!r} of F4 has the shape {list(tensor.shape)}, but torch packs two elements of a row in a byte")

    def allocate(self, size: int) -> Any:
        try:
            return self._torch.empty(size, dtype=self._torch.uint8, device=self._device)
        except self._torch.cuda.OutOfMemoryError as err:
            raise OutOfMemoryError(f"{self._device} has no {size} bytes left for weights: {str(err).split('. ')[0]}") from None
        except (RuntimeError, AssertionError) as err:
            if "can't allocate memory" in str(err):
                raise OutOfMemoryError(f"the host has no {size} bytes left for weights: load fewer by names") from None
            raise DeviceError(f"torch cannot use {self._device}: {str(err).splitlines()[0]}") from err

    def pointer(self, block: Any) -> int:
        return int(block.data_ptr())

    def view(self, data: Any, tensor: Tensor) -> Any:
        return data.view(getattr(self._torch, _TORCH[tensor.dtype])).view(self._shape(tensor))

    def empty(self, tensor: Tensor) -> Any:
        return self._torch.empty(self._shape(tensor), dtype=getattr(self._torch, _TORCH[tensor.dtype]), device=self._device)

    def _shape(self, tensor: Tensor) -> tuple[int, ...]:
        return (*tensor.shape[:-1], tensor.shape[-1] // 2) if tensor.dtype == "F4" else tensor.shape


class _Numpy:
    """Memory and views as NumPy has them."""

    def check(self, tensor: Tensor) -> None:
        if tensor.dtype not in _NUMPY:
            raise DtypeError(f"tensor {tensor.name!r} is of {tensor.dtype}, which NumPy does not have: install torch, or leave it out by names")

    def allocate(self, size: int) -> Any:
        try:
            block = np.empty(size + 256, np.uint8)
        except MemoryError:
            raise OutOfMemoryError(f"the host has no {size} bytes left for weights: load fewer by names") from None
        skew = -block.ctypes.data % 256
        return block[skew : skew + size]

    def pointer(self, block: Any) -> int:
        return int(block.ctypes.data)

    def view(self, data: Any, tensor: Tensor) -> Any:
        return data.view(_NUMPY[tensor.dtype]).reshape(tensor.shape)

    def empty(self, tensor: Tensor) -> Any:
        return np.empty(tensor.shape, _NUMPY[tensor.dtype])
