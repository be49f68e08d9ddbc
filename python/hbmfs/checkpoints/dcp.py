"""Checkpoints of torch.distributed.checkpoint, read straight into the tensors that they are loaded to.

    torch.distributed.checkpoint.load(state, storage_reader=hbmfs.DCPReader("/mnt/ckpt/step-1000"))

It reads checkpoints of torch's FileSystemWriter (torch 2.9 to 2.11, torch/distributed/checkpoint/filesystem.py), on any
number of ranks, resharded or not. A tensor in such a file is a zip archive of torch.save with the elements in it as they
lie in memory, uncompressed. So where the target is contiguous and of the same dtype, the elements go from the file to
the target's memory and nowhere else; small ones are read many at a time. All else (other strides or dtypes, entries of
compressed streams, other forms of torch.save) takes the way through torch.load, with weights_only=True.

    hbmfs.DCPReader("/mnt/ckpt/step-1000", group=group)

With a group, one rank reads each byte of the tensors. Elements that several ranks want are divided among them, and NCCL
brings the rest over NVLink while the next are read. Ranks that want columns of the same rows exchange whole rows, if a row
has less than 2 MiB. Entries that take the way through torch.load are read by each rank. A checkpoint of any ranks is read by
any others, with any placements.

As with torch's own reader, .metadata and entries that are no tensors are pickles: load only checkpoints that you trust.
torch.distributed.checkpoint wraps errors in its CheckpointException, which names the exception of each rank.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any, cast

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

from .._lib import _device
from .._lib._arguments import Device, checked
from .._lib._transfer import Progress, Transfer
from .._lib._warn import warn
from .._lib.reader import PageCache
from ..errors import DeviceError, Error, FormatError, GroupError, NotFoundError, UnavailableError
from ..weights.safetensors_header import open_regular
from ._dcp_reads import Batch, Sources, Want, wants
from .torch_save import Slice, find_tensor

if TYPE_CHECKING:
    from .._lib.reader import Reader
    from ..group._group import Team


class DCPReader(FileSystemReader):
    """A storage reader for the checkpoint in the directory `path`.

    device    through which bytes come; None: each tensor's own, be it a GPU or the host
    method    the path into HBM that is wished for: see Reader
    group     a process group of torch.distributed, whose ranks all make the same loads: NCCL for GPUs, gloo for the CPU. It
              may be another one than the process_group of torch.distributed.checkpoint.load. It shares the bytes that come
              through `device`: None is the current GPU where the group has NCCL, and else the CPU
    progress  None: a bar where tqdm is installed and stderr is a terminal; True, False, or a function(done, total)
    reader    a Reader to read with, which stays open, through whose device all bytes come; by default they are made as needed
    page_cache  "keep", "drop" or "auto": whether the files' pages stay in the page cache after each load, see load_safetensors
    """

    @checked
    def __init__(
        self,
        path: str | os.PathLike[str],
        device: Device = None,
        *,
        method: str = "auto",
        group: Any = None,
        progress: Progress = None,
        reader: Reader | None = None,
        page_cache: PageCache = "keep",
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
        self._group = group
        self._progress = progress
        self._reader = reader
        self._page_cache = page_cache
        self._save: str | None = None

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
            warn(str(error), RuntimeWarning)
        raise error

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        super().set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)
        # Where ranks have metadata of their own, each save of a rank has a name of its own.
        self._save = getattr(metadata.storage_meta, "save_id", None) if getattr(self, "use_collectives", True) else None

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads the items of a plan. With a group, every rank of it must call this."""
        if self._group is None:
            self._read(plan, planner, None)
        else:
            self._read_together(plan, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read_together(self, plan: LoadPlan, planner: LoadPlanner) -> None:
        from ..group._board import Told
        from ..group._group import Team
        from . import _dcp_shared

        try:
            with Team(self._group, _dcp_shared.device(self._group, self._given), f"DCPReader({str(self.path)!r})") as team:
                self._read(plan, planner, team)
            return
        except Told as told:
            failure = told.failure
        except GroupError as err:
            failure = err
        if isinstance(failure, GroupError):
            # Where a rank is gone, torch drops the exception: it asks all ranks for theirs, and that fails.
            warn(str(failure), RuntimeWarning)
        raise failure

    def _read(self, plan: LoadPlan, planner: LoadPlanner, team: Team | None) -> None:
        # Files are closed, and thereby all reads ended, before a scratch buffer or a target may go.
        with contextlib.ExitStack() as stack:
            sources = Sources(stack, self._method, self._given, self._reader, None if team is None or "LOCAL_WORLD_SIZE" in os.environ else team.size)
            load = _Load(self, planner, sources, team is not None)
            files: dict[str, list[tuple[Any, ReadItem]]] = {}
            total = 0
            for item in plan.items:
                info = self.storage_data.get(item.storage_index)
                if info is None:
                    raise FormatError(f"the metadata of {self.path} does not say where {item.storage_index} is")
                files.setdefault(info.relative_path, []).append((info, item))
                total += info.length if item.type == LoadItemType.TENSOR else 0
            if team is not None:
                self._share(load, files, sources, team, stack)
                sources.uncache(self._page_cache, team)
                return
            with Transfer(total, self._progress, "checkpoint") as transfer:
                for name, items in files.items():
                    batch = Batch(transfer, sources)
                    for want in load.file(name, items):
                        batch.add(want)
                    batch.flush()
            sources.uncache(self._page_cache, None)

    def _share(self, load: _Load, files: dict[str, list[tuple[Any, ReadItem]]], sources: Sources, team: Team, stack: contextlib.ExitStack) -> None:
        from ..group._group import Exchange
        from . import _dcp_shared

        found = [want for name, items in files.items() for want in load.file(name, items)]
        agreed = _dcp_shared.Agreement(team, self._save, load.sizes, load.names, found)
        exchange = stack.enter_context(Exchange(team))
        with Transfer(_dcp_shared.size(team, agreed), self._progress, "checkpoint", exchange.check) as transfer:
            _dcp_shared.read(team, agreed, exchange, transfer, sources)
            batch = Batch(transfer, sources, agreed.free)
            for want in agreed.alone:
                batch.add(want)
            batch.flush()
        exchange.wait()


class _Load:
    """The parts of files that one load wants. Entries for torch.load are loaded at once."""

    def __init__(self, reader: DCPReader, planner: LoadPlanner, sources: Sources, shared: bool) -> None:
        self._reader, self._planner, self._sources, self._shared = reader, planner, sources, shared
        self.sizes: dict[str, int] = {}
        """Of files, by their names in the checkpoint."""
        self.names: dict[str, str] = {}
        """Of files, by path."""

    def file(self, name: str, items: list[tuple[Any, ReadItem]]) -> Iterator[Want]:
        """The wanted parts of one file, in its order."""
        where = self._reader.path
        inside = PurePosixPath(name)
        if not inside.parts or inside.is_absolute() or ".." in inside.parts:
            raise FormatError(f"the metadata of {where} names the file {name!r}, which is outside of the checkpoint")
        path = str(self._reader.fs.concat_path(where, name))
        fd = open_regular(path)
        try:
            size = os.fstat(fd).st_size
            self.sizes[name], self.names[path] = size, name
            for info, item in sorted(items, key=lambda entry: entry[0].offset):
                what = f"{item.storage_index.fqn!r} in {path}"
                if min(info.offset, info.length) < 0 or info.offset + info.length > size:
                    raise FormatError(f"entry {what} is at {info.offset} with {info.length} bytes, but the file has {size}")
                yield from self._item(Slice(fd, info.offset, info.length), info, item, path, what)
        finally:
            os.close(fd)

    def _item(self, entry: Slice, info: Any, item: ReadItem, path: str, where: str) -> list[Want]:
        transforms = getattr(info, "transform_descriptors", None) or ()
        if item.type == LoadItemType.BYTE_IO:
            self._planner.load_bytes(item, io.BytesIO(self._stream(entry, item, transforms).read(-1)))
            return []
        stored = None if transforms else find_tensor(entry)
        if stored is None:
            loaded = self._load(self._stream(entry, item, transforms), where)
            self._check(item, loaded.size(), where)
            loaded = narrow_tensor_by_index(loaded, item.storage_offsets, item.lengths)
            target = self._target(item, where)
            target.copy_(loaded)
            self._planner.commit_tensor(item, target)
            return []
        self._check(item, stored.size, where)
        part = stored.narrow(item.storage_offsets, item.lengths)
        if part.needs > entry.length:
            raise FormatError(f"tensor {where} needs {part.needs} bytes of its entry, which has {entry.length}")
        target = self._target(item, where)

        def commit() -> None:
            self._planner.commit_tensor(item, target)

        if part.length == 0:
            commit()
            return []
        return wants(path, info.offset, stored, item.storage_offsets, item.lengths, self._sources.device(target), target, commit, self._shared)

    def _stream(self, entry: Slice, item: ReadItem, transforms: Any) -> IO[bytes]:
        entry.seek(0)
        return self._reader.transforms.transform_load_stream(item, transforms, cast("IO[bytes]", io.BufferedReader(entry, 1 << 16)))

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

    def _target(self, item: ReadItem, where: str) -> torch.Tensor:
        target = self._planner.resolve_tensor(item).detach()
        if list(target.size()) != list(item.lengths):
            raise FormatError(f"tensor {where} is to be loaded with shape {list(item.lengths)} to a tensor of shape {list(target.size())}")
        return target
