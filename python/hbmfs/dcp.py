"""Checkpoints of torch.distributed.checkpoint, read straight into the tensors that they are loaded to.

    torch.distributed.checkpoint.load(state, storage_reader=hbmfs.DCPReader("/mnt/ckpt/step-1000"))

It reads what torch's FileSystemWriter wrote (torch 2.9 to 2.11, torch/distributed/checkpoint/filesystem.py), on any
number of ranks, resharded or not. A tensor in such a file is a zip archive of torch.save with the elements in it as they
lie in memory, uncompressed. So where the target is contiguous and of the same dtype, the elements go from the file to
the target's memory and nowhere else; small ones are read many at a time. All else (other strides or dtypes, entries of
compressed streams, other forms of torch.save) takes the way through torch.load, with weights_only=True.

As with torch's own reader, .metadata and entries that are no tensors are pickles: load only what you trust.
torch.distributed.checkpoint wraps what goes wrong in its CheckpointException, which names the exception of each rank.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

try:
    import torch
except ModuleNotFoundError as err:
    raise ModuleNotFoundError("hbmfs.dcp loads torch's checkpoints, but torch is not installed: pip install torch", name=err.name) from None
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from . import _device
from ._transfer import Progress, Transfer, open_reader
from .errors import DeviceError, Error, FormatError, NotFoundError, OutOfMemoryError, UnavailableError
from .safetensors_header import open_regular
from .torch_save import Slice, Stored, find_tensor

if TYPE_CHECKING:
    from .reader import File, Reader

SMALL = 256 << 10
"""Bytes of a tensor that is read together with its neighbours."""
BATCH = 16 << 20
"""Most bytes of small tensors that are read together."""
GAP = 64 << 10
"""Most bytes between two small tensors that are read although nobody wants them."""


class DCPReader(FileSystemReader):
    """A storage reader for the checkpoint in the directory `path`.

    device    through which bytes come; None: each tensor's own, be it a GPU or the host
    method    the path into HBM that is wished for: see Reader
    progress  None: a bar where tqdm is installed and stderr is a terminal; True, False, or a function(done, total)
    reader    a Reader to read with, which stays open, through whose device all bytes come; by default they are made as needed
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        device: Any = None,
        *,
        method: str = "auto",
        progress: Progress = None,
        reader: Reader | None = None,
        _extension_registry: Any = None,
    ) -> None:
        if not hasattr(filesystem, "_StorageReaderTransforms"):
            raise UnavailableError(f"DCPReader needs the checkpoints of torch 2.7 or later, and this is {torch.__version__}: upgrade torch")
        super().__init__(path, _extension_registry)
        self._given = None if device is None else _device.parse(device)
        if reader is not None and self._given is None:
            self._given = reader.device
        if reader is not None and self._given != reader.device:
            raise DeviceError(f"the reader is for {_device.name(reader.device)} and the device is {device}: give a reader of that device")
        self._method = method
        self._progress = progress
        self._reader = reader

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        try:
            return super().read_metadata(*args, **kwargs)
        except FileNotFoundError as err:
            missing = os.path.basename(err.filename or ".metadata")
            error: Error = NotFoundError(f"{self.path} is no checkpoint: there is no {missing} in it")
            # torch asks for the metadata of all ranks first, and for a rank's own if there is none.
            last = "rank" in kwargs
        except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, ValueError, TypeError, KeyError) as err:
            error, last = FormatError(f"the metadata of the checkpoint {self.path} cannot be read: {err}"), True
        if last:
            # torch drops the exception, and fails with a bare assertion.
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)
        raise error

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        files: dict[str, list[tuple[Any, ReadItem]]] = {}
        total = 0
        for item in plan.items:
            info = self.storage_data.get(item.storage_index)
            if info is None:
                raise FormatError(f"the metadata of {self.path} does not say where {item.storage_index} is")
            files.setdefault(info.relative_path, []).append((info, item))
            total += info.length if item.type == LoadItemType.TENSOR else 0
        # Files are closed, and thereby all reads ended, before a scratch buffer or a target may go.
        with contextlib.ExitStack() as stack:
            sources = _Sources(stack, self._method, self._given, self._reader)
            with Transfer(total, self._progress, "checkpoint") as transfer:
                for name, items in files.items():
                    self._read_file(name, items, planner, sources, transfer)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read_file(self, name: str, items: list[tuple[Any, ReadItem]], planner: LoadPlanner, sources: _Sources, transfer: Transfer) -> None:
        inside = PurePosixPath(name)
        if not inside.parts or inside.is_absolute() or ".." in inside.parts:
            raise FormatError(f"the metadata of {self.path} names the file {name!r}, which is outside of the checkpoint")
        path = str(self.fs.concat_path(self.path, name))
        fd = open_regular(path)
        try:
            size = os.fstat(fd).st_size
            batch = _Batch(transfer, sources, path)
            for info, item in sorted(items, key=lambda entry: entry[0].offset):
                where = f"{item.storage_index.fqn!r} in {path}"
                if min(info.offset, info.length) < 0 or info.offset + info.length > size:
                    raise FormatError(f"entry {where} is at {info.offset} with {info.length} bytes, but the file has {size}")
                self._read_item(Slice(fd, info.offset, info.length), info, item, where, planner, batch)
            batch.flush()
        finally:
            os.close(fd)

    def _read_item(self, entry: Slice, info: Any, item: ReadItem, where: str, planner: LoadPlanner, batch: _Batch) -> None:
        transforms = getattr(info, "transform_descriptors", None) or ()
        if item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(self._stream(entry, item, transforms).read(-1)))
            return
        stored = None if transforms else find_tensor(entry)
        if stored is None:
            loaded = self._load(self._stream(entry, item, transforms), where)
            self._check(item, loaded.size(), where)
            loaded = narrow_tensor_by_index(loaded, item.storage_offsets, item.lengths)
            target = self._target(item, planner, where)
            target.copy_(loaded)
            planner.commit_tensor(item, target)
            return
        self._check(item, stored.size, where)
        part = stored.narrow(item.storage_offsets, item.lengths)
        if part.needs > entry.length:
            raise FormatError(f"tensor {where} needs {part.needs} bytes of its entry, which has {entry.length}")
        batch.add(part, info.offset, self._target(item, planner, where), lambda target: planner.commit_tensor(item, target))

    def _stream(self, entry: Slice, item: ReadItem, transforms: Any) -> IO[bytes]:
        entry.seek(0)
        return self.transforms.transform_load_stream(item, transforms, cast("IO[bytes]", io.BufferedReader(entry, 1 << 16)))

    def _load(self, stream: IO[bytes], where: str) -> torch.Tensor:
        try:
            seekable = stream if stream.seekable() else io.BytesIO(stream.read(-1))
            loaded = torch.load(seekable, map_location="cpu", weights_only=True)
        except Exception as err:
            raise FormatError(
                f"entry {where} is not what torch.save writes (for a checkpoint in safetensors form, use hbmfs.load_safetensors): "
                f"{str(err).splitlines()[0] if str(err) else type(err).__name__}"
            ) from err
        if not isinstance(loaded, torch.Tensor):
            raise FormatError(f"entry {where} is a {type(loaded).__name__}, expected a tensor")
        return loaded

    def _check(self, item: ReadItem, size: Any, where: str) -> None:
        offsets, lengths = item.storage_offsets, item.lengths
        if len(size) != len(lengths) or any(o < 0 or n < 0 or o + n > s for o, n, s in zip(offsets, lengths, size, strict=True)):
            raise FormatError(f"tensor {where} has the shape {list(size)}, expected {list(lengths)} from {list(offsets)} on to be in it")

    def _target(self, item: ReadItem, planner: LoadPlanner, where: str) -> torch.Tensor:
        target = planner.resolve_tensor(item).detach()
        if list(target.size()) != list(item.lengths):
            raise FormatError(f"tensor {where} is to be loaded with shape {list(item.lengths)} to a tensor of shape {list(target.size())}")
        return target


class _Sources:
    """The readers of the devices that tensors are on, and the files that they have open."""

    def __init__(self, stack: contextlib.ExitStack, method: str, given: int | None, reader: Reader | None) -> None:
        self._stack = stack
        self._method = method
        self._given = given
        self._readers: dict[int, Reader] = {} if given is None or reader is None else {given: reader}
        self._files: dict[tuple[int, str], File] = {}

    def device(self, target: torch.Tensor) -> int:
        """The device through which a tensor's bytes come."""
        if self._given is not None:
            return self._given
        if target.device.type != "cuda":
            return _device.CPU
        return target.device.index

    def file(self, device: int, path: str) -> File:
        if device not in self._readers:
            self._readers[device] = self._stack.enter_context(open_reader(device, self._method))
        if (device, path) not in self._files:
            self._files[device, path] = self._stack.enter_context(self._readers[device].open_file(path))
        return self._files[device, path]


class _Small(NamedTuple):
    """A tensor of a batch: its part of the file, and what to do with it."""

    part: Stored
    offset: int
    target: torch.Tensor
    commit: Callable[[torch.Tensor], object]


class _Batch:
    """Sends each tensor of one file on its way: straight to the target, through a buffer of its own, or with others."""

    def __init__(self, transfer: Transfer, sources: _Sources, path: str) -> None:
        self._transfer = transfer
        self._sources = sources
        self._path = path
        self._waiting: list[_Small] = []
        self._device = _device.CPU
        self._begin = self._end = 0

    def add(self, part: Stored, base: int, target: torch.Tensor, commit: Callable[[torch.Tensor], object]) -> None:
        """Reads a part of an entry, which begins at base of the file, to target."""
        if part.length == 0:
            commit(target)
            return
        device = self._sources.device(target)
        offset = base + part.offset
        if part.length > SMALL:
            self._read_alone(part, offset, device, target, commit)
            return
        end = max(self._end, offset + part.length)
        if self._waiting and (device != self._device or not self._begin <= offset <= self._end + GAP or end - self._begin > BATCH):
            self.flush()
        if not self._waiting:
            self._device, self._begin, end = device, offset, offset + part.length
        self._end = end
        self._waiting.append(_Small(part, offset, target, commit))

    def flush(self) -> None:
        """Begins reading the small tensors that have come together."""
        small, begin = self._waiting, self._begin
        if not small:
            return
        self._waiting = []
        room = _room(self._end - begin, self._device)

        def there() -> None:
            for part, offset, target, commit in small:
                data = room[offset - begin : offset - begin + part.length]
                if (offset - begin) % part.dtype.itemsize:
                    data = data.clone()
                target.copy_(part.view(data))
                commit(target)

        self._read(self._device, room, begin, room.numel(), there)

    def _read_alone(self, part: Stored, offset: int, device: int, target: torch.Tensor, commit: Callable[[torch.Tensor], object]) -> None:
        if _is_plain(target, part, device):
            self._read(device, target, offset, part.length, lambda: commit(target))
            return
        room = _room(part.length, device)

        def there() -> None:
            target.copy_(part.view(room))
            commit(target)

        self._read(device, room, offset, part.length, there)

    def _read(self, device: int, room: torch.Tensor, offset: int, length: int, then: Callable[[], object]) -> None:
        self._transfer.read(self._sources.file(device, self._path), room.data_ptr(), offset, length, then)


def _room(size: int, device: int) -> torch.Tensor:
    try:
        return torch.empty(size, dtype=torch.uint8, device=_device.name(device))
    except torch.cuda.OutOfMemoryError:
        raise OutOfMemoryError(f"{_device.name(device)} has no {size} bytes left to bring a checkpoint's elements into order: load to the CPU") from None


def _is_plain(target: torch.Tensor, part: Stored, device: int) -> bool:
    """Whether the target's memory is to hold the very bytes of the file."""
    return (
        type(target) is torch.Tensor
        and target.device == torch.device(_device.name(device))
        and target.layout == torch.strided
        and target.dtype == part.dtype
        and target.is_contiguous()
        and part.is_contiguous()
        and not target.is_conj()
        and not target.is_neg()
    )
