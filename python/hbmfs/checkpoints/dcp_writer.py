"""Checkpoints of torch.distributed.checkpoint that are complete or not there, written straight from the tensors.

    dcp.save(state, storage_writer=hbmfs.DCPWriter("/ckpt/step-1000"))

    stager = hbmfs.DCPStager(memory=40 << 30)       # once; its memory is pinned in the background
    future = dcp.async_save(state, storage_writer=hbmfs.DCPWriter(path, writer=stager.writer), async_stager=stager)

torch's FileSystemReader and DCPReader read its files: one for each rank (`__0_0.distcp`) and .metadata. Each tensor is in the
form of torch.save; the elements of those of 64 KiB or more begin at a multiple of 4096 bytes in the file. The
CRC-32 that a zip has of them is left 0, as with torch.serialization.set_crc32_options(False): torch checks none. `hbmfs
checkpoint verify` checks the sums of every byte that the manifest has.

Tensors on a GPU go to the file without passing Python. Those with gaps between their elements are copied to host memory first.

**Order.** The coordinator begins a draft, `.step-1000.hbmfs.tmp`, when the plan is made. Ranks write into it. When all have,
the coordinator adds .metadata and the manifest, and renames the draft to its name. A checkpoint that is there is never
overwritten: ExistsError. When a rank fails, dcp raises CheckpointException on all, and the draft is gone. When a rank is
killed, dcp ends by the timeout of its process group; the draft goes with drop(), with the DCPWriter that is forgotten, with the
next save of the same name in this process, or with the process (`hbmfs checkpoint clean`).

**Checkpoint volumes.** Where the path lies in one (hbmfs checkpoint mount), all ranks of a node write past FUSE, into descriptors that the
volume's daemon gives, and `way` is "volume". Nothing of a save is left when its coordinator's process ends. Where the daemon cannot be
asked, that is the save's exception: it never goes through FUSE instead.

**Nodes with disks of their own.** DCPWriter(path, node_local=True) writes a part on each node: its ranks' files, a .metadata
that names files of this node wherever they have the tensor, and a manifest, "part 2 of 4". dcp.save publishes the coordinator's
node; then each rank calls publish with the metadata that dcp.save returned:

    metadata = dcp.save(state, storage_writer=writer)
    writer.publish(metadata)

Parts of all nodes in one directory (any .metadata of them) are a checkpoint that any ranks can load.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import pickle
import threading
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

try:
    import torch
except ModuleNotFoundError as err:
    raise ModuleNotFoundError("hbmfs.dcp_writer saves torch's checkpoints, but torch is not installed: pip install torch", name=err.name) from None
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from .._lib import _device
from .._lib._arguments import Device, checked
from .._lib._transfer import Progress, shower
from .._lib.writer import FilePart, OutFile, Writer, WrittenFile
from ..errors import BusyError, DeviceError, Error, InvalidError, NotFoundError, UnavailableError
from . import _dcp_nodes
from ._dcp_layout import dense, lay
from ._publishing import Draft, Shared
from ._saves import saves
from ._staging import Staging, staging_of

_MINE = "_hbmfs_parts"
"""The attribute of the Metadata of dcp.save that carries the data of its manifest to each node."""

_here = threading.local()
"""Of a thread: the DCPWriter of its last save."""


class Published(NamedTuple):
    """The data with which a node publishes its part."""

    files: list[WrittenFile]
    storage: dict[MetadataIndex, Any]


@dataclasses.dataclass(frozen=True)
class _Sums(WriteResult):
    """Travels to finish() with the results of a rank."""

    files: tuple[WrittenFile, ...]
    node: int


class _Failed:
    """Rides in an exception. Where dcp unpickles that, within the save, the rank's draft is dropped: no hook of torch says that
    another rank failed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _hear, ()


def _hear() -> _Failed:
    writer = getattr(_here, "writer", lambda: None)()
    if writer is not None:
        writer.drop()
    return _Failed()


class DCPWriter(FileSystemWriter):
    """A storage writer for the checkpoint `path`, which must not be there yet.

    device      of the tensors; None: that of the first one on a GPU, or the CPU
    writer      a Writer to write with, which stays open; by default one is opened for each save
    method, require, threads, rate  of the Writer that is opened: see there
    memory      bytes of pinned memory, into which async_save copies where it is given no stager; better, make a DCPStager
    node_local  True: each node has a disk of its own, and torchrun's environment (GROUP_RANK, GROUP_WORLD_SIZE, LOCAL_RANK) says
                which node this is. Or (node, nodes, leader), where exactly one rank of each node, its leader, has True
    progress    None: a bar where tqdm is installed and stderr is a terminal; True, False, or a function(done, total)
    overwrite   is not followed: a checkpoint that is there stays (ExistsError); remove it first
    """

    @checked
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        device: Device = None,
        writer: Writer | None = None,
        node_local: bool | tuple[int, int, bool] = False,
        method: str = "auto",
        require: str | None = None,
        threads: int | None = None,
        rate: float | None = None,
        memory: int = 0,
        progress: Progress = None,
        overwrite: bool = False,
    ) -> None:
        if not hasattr(filesystem, "_StorageWriterTransforms"):
            raise UnavailableError(f"DCPWriter needs the checkpoints of torch 2.7 or later, and this is {torch.__version__}: upgrade torch")
        super().__init__(_absolute(path))
        options: dict[str, Any] = {"method": method, "require": require, "threads": threads, "rate": rate, "memory": memory}
        if writer is not None and options != {"method": "auto", "require": None, "threads": None, "rate": None, "memory": 0}:
            raise InvalidError("method, require, threads, rate and memory are those of the writer that is given: leave them out")
        self.overwrite = overwrite
        self._device = None if device is None else _device.name(_device.parse(device))
        self._given = writer
        self._options = options
        self._node = _dcp_nodes.parse(node_local)
        self._progress = progress
        self._stager: Any = None
        self._opened: Writer | None = None
        self._draft: Draft | None = None
        self._thread: threading.Thread | None = None
        self._coordinator = self._alone = self._dropped = False
        self.way: str | None = None
        """How this rank's last files went: "directory", or "volume", past FUSE into a checkpoint volume."""

    # The methods that torch calls, in its order.

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._end_earlier()
        super().reset(None if checkpoint_id is None else _absolute(checkpoint_id))

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise UnavailableError("DCPWriter publishes a checkpoint when all ranks have written theirs, so use_collectives=False is not possible")
        self._end_earlier()
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        self._coordinator, self._alone, self._dropped = is_coordinator, False, False
        _here.writer = weakref.ref(self)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if self._node is None:
            return plan
        if self._node.leader and not self._coordinator:
            with self._telling():
                self._begin()
        return dataclasses.replace(plan, storage_data=_dcp_nodes.Offer(self._node, plan.items))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        self._alone = len(plans) == 1
        with self._telling():
            plans = _dcp_nodes.divide(plans, self._node is not None)
            self._begin()
        prepared: list[SavePlan] = super().prepare_global_plan(plans)
        return prepared

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        done: Future[list[WriteResult]] = Future()
        with self._telling():
            done.set_result(self._write(plan, planner))
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Publishes the checkpoint; of one in parts, the part of the coordinator's node. There the metadata, which dcp.save returns on
        all ranks, gets the data of the other nodes."""
        with self._telling():
            self._finish(metadata, results)

    def _finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        try:
            parts: dict[int, Published] = {}
            for result in (result for rank in results for result in rank if isinstance(result, _Sums)):
                parts.setdefault(result.node, Published([], {})).files.extend(result.files)
            everything: dict[MetadataIndex, Any] = {}
            for rank in results:
                node = next(result.node for result in rank if isinstance(result, _Sums))
                found = {result.index: result.storage_data for result in rank if not isinstance(result, _Sums)}
                parts[node].storage.update(found)
                everything.update(found)
            if self._node is None:
                metadata = dataclasses.replace(metadata)  # dcp.save need not send all of it to all ranks
            metadata.storage_data = everything
            metadata.storage_meta = self.storage_meta()
            self._publish(metadata, parts[self._number()])
            if self._node is not None:
                setattr(metadata, _MINE, parts)
        except BaseException:
            self.drop()
            raise
        finally:
            self._close()

    # The methods for callers.

    def publish(self, metadata: Metadata) -> None:
        """Publishes this node's part, where the checkpoint is written in parts. Every rank may call it, with the result of
        dcp.save or of the future of async_save; only the leaders of nodes do something."""
        if self._draft is None:
            if self._dropped:
                raise NotFoundError(f"this node's part of {self.path} was dropped, by drop() or since the save failed: save again")
            return
        parts = getattr(metadata, _MINE, None)
        if not parts or self._number() not in parts:
            self.drop()
            raise InvalidError(f"the metadata says nothing of node {self._number()}: give publish what dcp.save returned in this process")
        try:
            self._publish(metadata, parts[self._number()])
        except BaseException:
            self.drop()
            raise
        finally:
            self._close()

    def drop(self) -> None:
        """Removes the leftovers of a failed save. Harmless where there is nothing."""
        draft, self._draft = self._draft, None
        if draft is not None:
            self._dropped = True
            draft.drop()
        self._close()

    # torch's AsyncStager: async_save takes the storage writer for the stager where it is given none.

    def stage(self, state_dict: Any) -> Any:
        if not self._options["memory"]:
            return super().stage(state_dict)
        from .dcp_stager import DCPStager

        self._stager = self._stager or DCPStager(writer=self._writer(self._device or ("cuda" if torch.cuda.is_available() else "cpu")))
        return self._stager.stage(state_dict)

    @property
    def should_synchronize_after_execute(self) -> bool:
        return self._stager is not None

    def synchronize_staging(self) -> None:
        if self._stager is not None:
            self._stager.synchronize_staging()

    def close(self) -> None:
        """Gives back the memory of staging, where no stager was given. Not needed after saves."""
        if self._stager is not None:
            self._stager.close()
            self._stager = None
        self._close()

    def __reduce__(self) -> Any:
        raise UnavailableError("DCPWriter writes from memory of this process: use AsyncCheckpointerType.THREAD")

    # How it is done.

    def _number(self) -> int:
        return 0 if self._node is None else self._node.number

    def _begin(self) -> None:
        path = str(self.path)
        earlier = saves.get(path)
        if earlier is not None:
            earlier._end_earlier()
        part = (0, 1) if self._node is None else (self._node.number, self._node.nodes)
        self._draft = Draft.begin(path, part)
        self._thread = threading.current_thread()
        saves[path] = self

    def _end_earlier(self) -> None:
        """Drops the draft of a save that failed without a word to this rank."""
        if self._draft is None:
            return
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            raise BusyError(f"{self.path} is being saved by thread {thread.name} of this process: wait for its future, or call drop() when it has failed")
        self.drop()

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Lets an exception tell the ranks that have a draft to drop it."""
        try:
            yield
        except BaseException as err:
            if self._alone:
                self.drop()
            told = err
            try:
                pickle.loads(pickle.dumps(err))
            except Exception:  # dcp would fail to send it, and leave the other ranks waiting
                told = Error(f"{type(err).__name__}: {err}")
            told.__dict__["_hbmfs_failed"] = _Failed()
            if told is err:
                raise
            raise told from err

    def _write(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        draft = self._draft or Shared.of(str(self.path))
        staging = staging_of(getattr(planner, "state_dict", None))
        try:
            return self._write_items(plan, planner, draft, staging)
        finally:
            if staging is not None:
                staging.release()
            if draft is not self._draft:
                draft.leave()
            if self._draft is None:  # the rank that has one still writes .metadata
                self._close()

    def _write_items(self, plan: SavePlan, planner: SavePlanner, draft: Shared, staging: Staging | None) -> list[WriteResult]:
        if staging is not None:
            staging.wait()
        waiting: list[tuple[WriteItem, bytes | torch.Tensor]] = []
        staged: list[tuple[WriteItem, bytes | torch.Tensor]] = []
        for item in plan.items:
            data: Any = planner.resolve_data(item)
            if item.type == WriteItemType.BYTE_IO:
                staged.append((item, data.getvalue() if isinstance(data, io.BytesIO) else bytes(data)))
            elif staging is not None and staging.keeps(data):
                waiting.append((item, dense(data)))
            elif data.device.type not in ("cpu", "cuda"):
                raise DeviceError(f"tensor {item.index.fqn} is on {data.device}: move it to a GPU or to the host, or leave it out")
            else:
                staged.append((item, dense(data)))
        results: list[WriteResult] = []
        written: list[WrittenFile] = []
        total = sum(len(data) if isinstance(data, bytes) else data.nbytes for _, data in waiting + staged)
        with contextlib.closing(_Shown(self._progress, total)) as shown:
            if staging is not None and not waiting:
                staging.taken()
            for number, items in enumerate(items for items in (waiting, staged) if items):
                file, places = lay(f"{plan.storage_data.prefix}{number}{filesystem.DEFAULT_SUFFIX}", [data for _, data in items])
                written += self._write_file(draft, file, shown)
                for (item, _), place in zip(items, places, strict=True):
                    results.append(WriteResult(item.index, place.length, _StorageInfo(file.name, place.offset, place.length)))
                if items is waiting and staging is not None:
                    staging.taken()
        return [*results, _Sums(MetadataIndex(""), 0, None, tuple(written), self._number())]

    def _write_file(self, draft: Shared, file: OutFile, shown: Any = False) -> list[WrittenFile]:
        device = self._device or next((str(part.data.device) for part in file.parts if isinstance(part.data, torch.Tensor) and part.data.is_cuda), "cpu")
        written = draft.write(self._writer(device), [file], shown).wait()
        self.way = written.way
        return list(written.files)

    def _publish(self, metadata: Metadata, part: Published) -> None:
        if self._draft is None:
            raise InvalidError(f"the draft of {self.path} is not this rank's: rank 0 of the process group must be the leader of its node")
        # A copy without our attributes, which torch can load without hbmfs.
        own = dataclasses.replace(metadata, storage_data={**metadata.storage_data, **part.storage})
        if hasattr(filesystem, "CURRENT_DCP_VERSION"):
            own = dataclasses.replace(own, version=filesystem.CURRENT_DCP_VERSION)
        data = pickle.dumps(own)
        files = self._write_file(self._draft, OutFile(filesystem._metadata_fn, len(data), [FilePart(0, data)]))
        self._draft.publish([*part.files, *files])
        self._draft = None

    def _writer(self, device: str) -> Writer:
        if self._given is not None:
            return self._given
        if self._opened is None:
            self._opened = Writer(device, **self._options)
        return self._opened

    def _close(self) -> None:
        if self._opened is not None and self._stager is None:
            self._opened.close()
            self._opened = None


def _absolute(path: str | os.PathLike[str]) -> str:
    """A directory's path, which stays the same when the process goes to another directory."""
    name = os.fspath(path)
    if "://" in name:
        raise InvalidError(f"{name} is an address: DCPWriter writes to directories")
    return os.path.abspath(name)


class _Shown:
    """Sums up the progress of several files."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._show, self.close = shower(progress, total, "checkpoint")
        self._done = 0
        self._left = total

    def __call__(self, done: int, total: int) -> None:
        step = min(done - self._done, self._left)
        if step > 0:
            self._show(step)
            self._left -= step
        self._done = 0 if done >= total else done
