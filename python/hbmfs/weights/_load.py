"""Loading weights: help("hbmfs.weights") has the whole story."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from .._lib import _device
from .._lib._closing import unheard
from .._lib._transfer import REQUEST, Progress, Transfer, open_reader, uncache
from ..errors import DeviceError, DtypeError, FormatError, GroupError, OutOfMemoryError, UnavailableError
from . import _model_files, _parts
from ._model_files import Names
from ._parts import Cut, Layout, Part, Place, Read, Skip, Slices
from .safetensors_header import Header, Tensor

if TYPE_CHECKING:
    from .._lib.reader import File, Reader
    from ..group._group import Exchange, Team
    from ._columns import Matrix

T = TypeVar("T")

SHARE = REQUEST
"""Most exchanged bytes that each rank of a group reads at once."""
EVEN = 512
"""Bytes of which each rank's share of a block is a multiple."""

DTYPES = {
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


class Call(NamedTuple):
    """The arguments of load_safetensors."""

    path: str | os.PathLike[str]
    device: Any
    method: str = "auto"
    names: Names = None
    slices: Slices = None
    group: Any = None
    progress: Progress = None
    reader: Reader | None = None
    page_cache: str = "keep"

    def load(self) -> dict[str, Any]:
        return self.together(self.index(), self._run)

    def index(self) -> int:
        """The device of the call."""
        return _device.parse("cuda:0" if self.device is None else self.device)

    def together(self, device: int, run: Callable[[int, Team | None], T]) -> T:
        """Runs it alone, or with the ranks of the group, which hear of mistakes in any rank's arguments."""
        if self.group is None:
            return run(device, None)
        from ..group._board import Told
        from ..group._group import Team

        try:
            with Team(self.group, device, f"load_safetensors({os.fspath(self.path)!r})") as team:
                return run(device, team)
        except Told as told:
            failure = told.failure
        raise failure

    def _run(self, device: int, team: Team | None) -> dict[str, Any]:
        check_device(self.reader, device)
        library = Torch(_device.name(device)) if has_torch(device) else _Numpy()
        blocks: list[Any] = []
        try:
            with contextlib.ExitStack() as stack:
                reader = self.reader
                opening = None if reader is not None else stack.enter_context(Opening(device, self.method, team))
                headers = _model_files.headers(self.path, self.names)
                for header in headers:
                    for tensor in header.tensors:
                        library.check(tensor)
                loads = loads_of(headers, self.slices, team)
                blocks.extend(library.allocate(size) for load in loads[:1] for size in load.sizes()[:1])
                if opening is not None:
                    reader = opening.result()
                assert reader is not None
                files = open_files(stack, reader, headers)
                exchange = None if team is None else stack.enter_context(exchange_of(team))
                weights = _read(loads, files, blocks, library, self.progress, exchange)
                weights = {tensor.name: weights[tensor.name] for header in headers for tensor in header.tensors if tensor.name in weights}
                uncache(files, self.page_cache, team)
                if opening is not None:
                    close_behind(stack, self.path)
                return weights
        except BaseException:
            # The traceback keeps this frame, which must not keep the memory. The files are closed by now, which ends reads.
            blocks.clear()
            raise


def check_device(reader: Reader | None, device: int) -> None:
    if reader is not None and reader.device != device:
        raise DeviceError(f"the reader is for {_device.name(reader.device)} and the weights go to {_device.name(device)}: give one of that device")


def columns() -> Any:
    from . import _columns as module  # it needs torch.distributed

    return module


def exchange_of(team: Team) -> Exchange:
    from ..group._group import Exchange

    return Exchange(team)


def open_files(stack: contextlib.ExitStack, reader: Reader, headers: Sequence[Header]) -> list[File]:
    """Opens the files of headers, which must not have changed since."""
    files = [stack.enter_context(file) for file in reader.open_many([header.path for header in headers])]
    for header, file in zip(headers, files, strict=True):
        if file.size != header.size:
            raise FormatError(f"{header.path} changed while it was opened: load it again when its writer is done")
    return files


def close_behind(stack: contextlib.ExitStack, path: object) -> None:
    """Closes a reader and its files on a thread: that takes milliseconds, of unpinning. Only the end of Python waits for it."""
    threading.Thread(target=unheard, args=(f"the reader of {path}", stack.pop_all().close), name="hbmfs-close").start()


class Load(NamedTuple):
    """Parts that the same ranks want, and this rank's number among them. Of matrices each wants other columns."""

    layout: Layout
    ranks: tuple[int, ...]
    me: int
    matrices: list[Matrix]

    def sizes(self) -> list[int]:
        """The bytes of each block, of which every rank reads an equal share."""
        even = EVEN * len(self.ranks)
        return self.layout.blocks if len(self.ranks) == 1 or self.matrices else [-(-size // even) * even for size in self.layout.blocks]

    def windows(self, size: int) -> list[tuple[int, int]]:
        """The begins and ends of ranges that are exchanged at once."""
        step = SHARE * len(self.ranks) if len(self.ranks) > 1 else size
        return [(begin, min(begin + step, size)) for begin in range(0, size, step)]


def loads_of(headers: Sequence[Header], slices: Slices, team: Team | None, apart: bool = False) -> list[Load]:
    """Packs this rank's parts: first the shared ones, in the order that all ranks follow. apart: see Layout."""
    tensors = [tensor for header in headers for tensor in header.tensors]
    mine = _parts.wanted(tensors, slices)
    me = 0 if team is None else team.rank
    all_cuts = [mine] if team is None else _agreed(team, headers, mine, apart)
    loads: dict[tuple[bool, tuple[int, ...]], Load] = {}
    for number, (file, tensor) in enumerate((file, tensor) for file, header in enumerate(headers) for tensor in header.tensors):
        want = mine[number]
        if isinstance(want, Skip):
            continue
        shared: dict[int, Any] = {}
        ranks: tuple[int, ...] = (0,)
        if team is not None:
            cuts = {rank: said[number] for rank, said in enumerate(all_cuts) if not isinstance(said[number], Skip)}
            shared = {} if all(cut == want for cut in cuts.values()) else columns().shared(tensor, cuts)
            ranks = tuple(shared) if me in shared else tuple(rank for rank, cut in cuts.items() if cut == want)
        key = (me in shared, ranks)
        load = loads.get(key) or loads.setdefault(key, Load(Layout(apart), ranks, ranks.index(me), []))
        load.layout.add(file, _parts.part(tensor, want))
        if me in shared:
            load.matrices.append(columns().Matrix(file, tensor.offset, shared, load.layout.places[-1]))
    return [load for _, load in sorted(loads.items(), key=lambda item: (len(item[0][1]) == 1, item[0]))]


def _agreed(team: Team, headers: Sequence[Header], mine: list[Cut | Skip], apart: bool) -> list[list[Any]]:
    """The part of each tensor that each rank wants. All must see the same files, and load them in the same way."""
    seen = {os.path.basename(header.path): [header.size, hashlib.sha256(repr(header.tensors).encode()).hexdigest()] for header in headers}
    wants: Any = None if all(want is None for want in mine) else ["skip" if isinstance(want, Skip) else want for want in mine]
    cuts = []
    for rank, text in enumerate(team.gather(json.dumps({"files": seen, "wants": wants, "into": apart}))):
        said = json.loads(text)
        if said["into"] != apart:
            raise GroupError(f"rank {team.rank if apart else rank} gives into= and rank {rank if apart else team.rank} does not: all ranks must load alike")
        for name in sorted(seen.keys() | said["files"].keys()):
            here, there = seen.get(name), said["files"].get(name)
            if here != there:
                raise GroupError(
                    f"the ranks of the group do not see the same files: {name} is {_seen(here)} on rank {team.rank} and {_seen(there)} on rank {rank}: "
                    "give all of them the same path and names"
                )
        cuts.append([None] * len(mine) if said["wants"] is None else [_cut(want) for want in said["wants"]])
    return cuts


def _seen(file: list[Any] | None) -> str:
    return "not there" if file is None else f"of {file[0]} bytes with the header {file[1][:8]}"


def _cut(want: Any) -> Any:
    return _parts.SKIP if want == "skip" else want if want is None else tuple(tuple(dimension) for dimension in want)


class Opening:
    """A reader that another thread opens, which takes milliseconds of pinning, while headers are read and memory is
    allocated."""

    def __init__(self, device: int, method: str, team: Team | None) -> None:
        self._future: Future[Reader] = Future()
        readers = None if team is None or "LOCAL_WORLD_SIZE" in os.environ else team.size
        threading.Thread(target=self._open, args=(device, method, readers), name="hbmfs-open", daemon=True).start()

    def _open(self, device: int, method: str, readers: int | None) -> None:
        try:
            self._future.set_result(open_reader(device, method, readers))
        except BaseException as err:  # noqa: BLE001 (raised by who waits)
            self._future.set_exception(err)

    def result(self) -> Reader:
        return self._future.result()

    def __enter__(self) -> Opening:
        return self

    def __exit__(self, *_: object) -> None:
        if self._future.done():
            self._close(self._future)
        else:
            # Ctrl-C, or a bad header, does not wait for CUDA: the thread closes its reader.
            self._future.add_done_callback(self._close)

    @staticmethod
    def _close(future: Future[Reader]) -> None:
        if future.exception() is None:  # an exception that is under way says more than one of closing
            unheard("the reader of weights", future.result().close)


def _read(
    loads: Sequence[Load],
    files: Sequence[File],
    blocks: list[Any],
    library: Torch | _Numpy,
    progress: Progress,
    exchange: Exchange | None,
) -> dict[str, Any]:
    """Reads this rank's share of everything, and waits until the others' is here, too."""
    weights = dict[str, Any]()
    with Transfer(sum(map(_bytes, loads)), progress, "weights", None if exchange is None else exchange.check) as transfer:
        first = 0
        for load in loads:
            for block, size in enumerate(load.sizes(), first):
                if block == len(blocks):
                    blocks.append(library.allocate(size))  # meanwhile the link works on begun copies
                if not load.matrices:
                    _read_block(load, block - first, size, files, blocks[block], library, transfer, exchange)
            if load.matrices:
                assert exchange is not None
                columns().read(load.matrices, load.ranks, load.me, files, blocks[first:], library.allocate, transfer, exchange)
            first += len(load.layout.blocks)
        # The last bytes arrive while the views are made.
        first = 0
        for load in loads:
            weights |= {place.part.tensor.name: _view(place, blocks, first, library) for place in load.layout.places}
            first += len(load.layout.blocks)
    if exchange is not None:
        exchange.wait()
    return weights


def _read_block(
    load: Load, block: int, size: int, files: Sequence[File], memory: Any, library: Torch | _Numpy, transfer: Transfer, exchange: Exchange | None
) -> None:
    """Begins reading this rank's shares of a block, and gives them to the exchange."""
    for begin, end in load.windows(size):
        borders = _borders(load, begin, end)
        begin_reads(load.layout.within(block, borders[load.me], borders[load.me + 1]), library.pointer(memory), files, transfer)
        if len(load.ranks) > 1:
            assert exchange is not None
            transfer.then(functools.partial(_give, exchange, memory, f"{block}/{begin}", load.ranks, borders))


def begin_reads(reads: Iterable[Read], pointer: int, files: Sequence[File], transfer: Transfer) -> None:
    """Begins reads into a block, whose memory is at the pointer."""
    for read in reads:
        if len(read.offsets) == 1:
            transfer.read(files[read.file], pointer + read.to, int(read.offsets[0]), read.run)
        else:
            transfer.gather(files[read.file], pointer + read.to, read.offsets, read.run)


def _bytes(load: Load) -> int:
    """The bytes that this rank reads."""
    if load.matrices:
        return int(columns().size(load.matrices, load.ranks, load.me))
    total = 0
    for block, size in enumerate(load.sizes()):
        for begin, end in load.windows(size):
            borders = _borders(load, begin, end)
            total += sum(read.length for read in load.layout.within(block, borders[load.me], borders[load.me + 1]))
    return total


def _borders(load: Load, begin: int, end: int) -> tuple[int, ...]:
    """Where the shares of a window begin, and its end."""
    each = (end - begin) // len(load.ranks)
    return tuple(begin + each * number for number in range(len(load.ranks))) + (end,)


def _give(exchange: Exchange, memory: Any, name: str, ranks: tuple[int, ...], borders: tuple[int, ...]) -> None:
    """Gives a window that this rank has read its share of to the exchange."""
    from ..group._group import Unit, Wave

    begin = borders[0]
    unit = Unit(memory[begin : borders[-1]], ranks, tuple(border - begin for border in borders))
    exchange.have(Wave(f"{'+'.join(map(str, ranks))}/{name}", ranks, [unit]))


def _view(place: Place, blocks: Sequence[Any], first: int, library: Torch | _Numpy) -> Any:
    part = place.part
    try:
        if part.length == 0:
            return library.empty(part)
        return library.view(blocks[first + place.block][place.offset : place.offset + part.length], part)
    except (RuntimeError, ValueError, TypeError, OverflowError) as err:
        raise FormatError(f"tensor {part.tensor.name!r} has the shape {list(part.tensor.shape)}, which no tensor can have: {err}") from None


def has_torch(device: int) -> bool:
    try:
        import torch  # noqa: F401
    except ImportError:
        if device == _device.CPU:
            return False
        raise UnavailableError("weights on a GPU are torch tensors, but torch is not installed: pip install torch") from None
    return True


class Torch:
    """Memory and views as torch has them."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch = torch
        self.device = self._device = torch.device(device)
        self.is_cuda = self.device.type == "cuda"

    def check(self, tensor: Tensor) -> None:
        if not hasattr(self._torch, DTYPES.get(tensor.dtype, "none")):
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
            raise DeviceError(f'torch cannot use {self._device}: {str(err).splitlines()[0]}; or give device="cpu"') from err

    def pointer(self, block: Any) -> int:
        return int(block.data_ptr())

    def view(self, data: Any, part: Part) -> Any:
        return data.view(getattr(self._torch, DTYPES[part.tensor.dtype])).view(self._shape(part))

    def empty(self, part: Part) -> Any:
        return self._torch.empty(self._shape(part), dtype=getattr(self._torch, DTYPES[part.tensor.dtype]), device=self._device)

    def _shape(self, part: Part) -> tuple[int, ...]:
        return (*part.shape[:-1], part.shape[-1] // 2) if part.tensor.dtype == "F4" else part.shape


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

    def view(self, data: Any, part: Part) -> Any:
        return data.view(_NUMPY[part.tensor.dtype]).reshape(part.shape)

    def empty(self, part: Part) -> Any:
        return np.empty(part.shape, _NUMPY[part.tensor.dtype])
