"""Writers: files made of memory, summed on the way, and snapshots that let training go on.

A :class:`Writer` owns the threads and the pinned memory for one device::

    writer = hbmfs.Writer("cuda:0", memory=16 << 30)   # pinned in the background
    snapshot = writer.snapshot(tensors)                # copies behind the current stream
    snapshot.wait()                                    # from now on the tensors may change
    files = [hbmfs.OutFile("weights", size, [hbmfs.FilePart(offset, t) for offset, t in zip(offsets, snapshot.tensors)])]
    written = writer.write(directory, files).wait()    # on disk, with a CRC-32C of every 4 MiB
    snapshot.release()

It makes the files and syncs them. It does not sync the directory, and leaves the files of a write that failed to the caller.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import operator
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import errors
from . import _device, _native
from ._arguments import Device, Path, checked, shown
from ._handle import Owner
from ._memory import Place, place
from ._warn import warn
from .device_array import DeviceArray
from .reader import _check, _installed, _path
from .request import Request

if TYPE_CHECKING:
    from ._transfer import Progress

_METHODS = ("auto", "direct", "mapped", "staged", "buffered")
_SLICE = 0.1  # seconds in the library at a time: Python looks for signals in between


class FilePart(NamedTuple):
    """Bytes of a file from ``offset`` on: a bytes-like object, a NumPy array, or a contiguous tensor on the GPU or the CPU."""

    offset: int
    data: Any


class OutFile(NamedTuple):
    """A file to be made. Its parts are disjoint and in order; bytes that no part covers are zeros."""

    name: str
    size: int
    parts: Sequence[FilePart]


class WrittenFile(NamedTuple):
    """A file that is on storage. ``crc32c`` has the CRC-32C (Castagnoli) of each 4 MiB of it."""

    name: str
    size: int
    crc32c: tuple[int, ...]


class Written(NamedTuple):
    """The result of a write.

    moved: bytes by path: "direct", "mapped", "staged", "buffered".
    path, reason: the path that was chosen, and why.
    seconds: from the call of write() until all files were synced.
    prepared: of these, the seconds until pages of the files were there and registered with CUDA; "mapped" only.
    released: of these, the seconds in which they were unregistered; likewise.
    way: "directory", or "volume": the files are a checkpoint volume's, and were written past FUSE.
    """

    files: list[WrittenFile]
    moved: dict[str, int]
    path: str
    reason: str
    seconds: float
    prepared: float = 0.0
    released: float = 0.0
    way: str = "directory"


class Writer(Owner):
    """Writes memory of one device, and of the host, to files. It may be used from many threads at once.

    method: "auto", or the path that is wished for: "direct", "mapped", "staged", "buffered". Where it does not work another
        one is taken, and one warning says why.
    require: a path that must work; otherwise :class:`UnavailableError`, as a rule of the write, since the directory's
        filesystem decides.
    memory: bytes of pinned memory for snapshots. They are pinned in the background: see ``ready``.
    threads: that copy, sum and write; None takes the best measured number.
    rate: most bytes a second to storage; None means no bound.
    libraries: other files to load "cuda", "cufile" or "nvml" from.
    command: the hbmfs command, which proves "direct" in a process of its own. None means the one in PATH.
    """

    @checked
    def __init__(
        self,
        device: Device = "cuda",
        *,
        method: str = "auto",
        require: str | None = None,
        memory: int = 0,
        threads: int | None = None,
        rate: float | None = None,
        libraries: dict[str, str] | None = None,
        command: str | None = None,
    ) -> None:
        self.device = _device.parse(device)
        for path in (method, require):
            if path is not None and path not in _METHODS:
                raise errors.InvalidError(f"{path!r} is no path: use one of {', '.join(_METHODS)}")
        self._rate = _rate(rate)
        for name, number in (("memory", memory), ("threads", threads or 0)):
            _check(name, number)
        if libraries is not None and (not isinstance(libraries, dict) or not libraries.keys() <= {"cuda", "cufile", "nvml"}):
            raise errors.InvalidError(f"libraries are {libraries!r}: give a dict that names files for 'cuda', 'cufile' or 'nvml'")
        self.method = method
        self.memory = operator.index(memory)
        libraries = libraries or {}
        options = _native.WriterOptions(
            device=self.device, method=method.encode(), require=require.encode() if require else None,
            threads=threads or 0, arena_bytes=self.memory, rate=self._rate,
            libcuda=_path(libraries.get("cuda")), libcufile=_path(libraries.get("cufile")), libnvml=_path(libraries.get("nvml")),
            hbmfs=_path(command or _installed()),
        )  # fmt: skip
        self._open("writer", options)
        self._place: Place | None = None
        self._warned = False
        self._volume = 0

    @property
    def ready(self) -> bool:
        """Whether all memory for snapshots is pinned. Where it cannot be, this stays False, and snapshot() says why."""
        return bool(self._stats().ready)

    @checked
    def wait_ready(self, timeout: float | None = None) -> None:
        """Waits until all memory for snapshots is pinned. :class:`OutOfMemoryError` says why it cannot be."""
        if not _wait(lambda slice_ns: self._library.ask("writer_wait_ready", self._handle, slice_ns), timeout):
            raise errors.WaitTimeoutError(f"the memory for snapshots was not pinned after {timeout} s: wait again")

    @checked
    def fits(self, nbytes: int) -> bool:
        """Whether a snapshot of so many bytes fits into the whole arena. Each tensor of one begins at a multiple of 4096."""
        return -(-nbytes // 4096) * 4096 <= -(-self.memory // 4096) * 4096

    @checked
    def snapshot(self, tensors: Iterable[Any], timeout: float | None = None) -> Snapshot:
        """Starts copying tensors into the arena, behind the work on the caller's current stream.

        tensors: contiguous torch tensors, on the GPU or the CPU, NumPy arrays or DeviceArrays. Waits for room that earlier
        snapshots give back, at most ``timeout`` seconds: then :class:`WaitTimeoutError`. :class:`TooLargeError` says that there can
        never be room, :class:`OutOfMemoryError` that the arena could not be pinned.
        """
        sources = list(tensors)
        rows = [_memory(data) for data in sources]
        memory = np.array([(*row, 0) for row in rows], _native.MEMORY)
        copies = np.zeros(len(rows), np.uint64)
        room = _Room(self._library)
        room.keep = sources  # until they are copied
        stream = self._stream() if any(row[2] for row in rows) or "torch" in sys.modules else _native.NO_STREAM

        def begin(slice_ns: int) -> int:
            return self._library.ask("snapshot_begin", self._handle, memory.ctypes.data, len(rows), stream, slice_ns, copies.ctypes.data, room.handle)

        if not _wait(begin, timeout):
            raise errors.WaitTimeoutError(f"there was no room for {sum(row[1] for row in rows)} bytes after {timeout} s: release earlier snapshots")
        return Snapshot(room, sources, copies.tolist(), memory["length"].tolist())

    @checked
    def write(self, directory: Path, files: Iterable[OutFile], progress: Progress = None) -> Write:
        """Starts writing files into a directory that is there. Their data must stay unchanged until the write has ended.

        Data on the GPU is read behind the work on the caller's current stream. progress: None shows a bar while the write is waited
        for, where tqdm is installed and stderr is a terminal; True wherever tqdm is installed; False never. Otherwise it is called
        with the bytes that are written and their total.
        """
        return self._begin("write_begin", os.fsencode(os.fsdecode(directory)), files, progress)

    def _begin(self, function: str, where: Any, files: Iterable[OutFile], progress: Progress, way: str = "directory") -> Write:
        listed = list(files)
        if wrong := [file for file in listed if not isinstance(file, OutFile)]:
            raise errors.ArgumentError(f"files has {shown(wrong[0])}: give each as a hbmfs.OutFile")
        table = (_native.WriteFile * len(listed))()
        for row, file in zip(table, listed, strict=True):
            name = os.fsencode(file.name)
            if b"\0" in name:
                raise errors.InvalidError(f"file {file.name!r} cannot be written: no name has a zero byte")
            row.name, row.size, row.parts = name, _whole(file.size, file.name), len(file.parts)
        parts = [(_whole(part.offset, file.name), *_memory(part.data), 0) for file in listed for part in file.parts]
        array = np.array(parts, _native.WRITE_PART)
        stream = self._stream() if any(part[3] for part in parts) else _native.NO_STREAM
        arguments = (self._handle, where, table, len(listed), array.ctypes.data, len(parts), stream)
        nothing = Written([], {}, "", "", 0.0, way=way)  # until it is done
        write = Write.begin(self._library, function, arguments, nothing, owner=self, files=listed, progress=progress)
        assert isinstance(write, Write)
        return write

    def stats(self) -> dict[str, Any]:
        """Counts writes so far: bytes by path, and those that went into a checkpoint volume, past FUSE; writes, the last path and why; the
        bytes of the arena."""
        stats = self._stats()
        return {
            "device": _device.name(self.device),
            "bytes": stats.moved.by_name(),
            "volume": self._volume,
            "writes": stats.writes,
            "path": stats.path.decode(),
            "reason": stats.reason.decode(errors="replace"),
            "memory": stats.arena_bytes,
            "ready": bool(stats.ready),
        }

    def close(self) -> None:
        """Cancels its writes, waits for them, and gives everything back. Tensors of snapshots stay until they are released.

        :class:`WaitTimeoutError`: a call into the kernel or the driver hangs, so that memory must stay. Close it again later.
        """
        super().close()

    def __repr__(self) -> str:
        return f"<hbmfs.Writer {_device.name(self.device)} method={self.method}{' closed' if self._closed else ''}>"

    def _stats(self) -> _native.WriterStats:
        stats = _native.WriterStats()
        self._library.ask("writer_get_stats", self._handle, stats)
        return stats

    def _stream(self) -> int:
        """The caller's current stream."""
        if self.device == _device.CPU:
            return _native.NO_STREAM
        if self._place is None:
            self._place = place(self._library, self._handle, self.device)
        return self._place.stream()

    def _saw(self, written: Written) -> None:
        """Counts bytes that went into a volume. Warns, once for a writer, when files took another path than the wished one."""
        if written.way == "volume":
            self._volume += sum(written.moved.values())
        if self.method not in ("auto", written.path) and not self._warned:
            self._warned = True
            warn(f"hbmfs: not {self.method}: written by {written.path}: {written.reason}", errors.SlowPathWarning)


class _Room:
    """The room of a snapshot in the arena. Its tensors hold it, so that it goes with the last of them."""

    def __init__(self, library: _native.Library) -> None:
        self.library = library
        self.handle = ctypes.c_uint64()
        self.keep: list[Any] = []

    def release(self) -> None:
        if self.handle.value:
            handle, self.handle = self.handle.value, ctypes.c_uint64()
            keep, self.keep = self.keep, []
            if keep and not self.library.forked and not _copied(self.library, handle, 0):
                with contextlib.suppress(RuntimeError):  # the interpreter ends, and all memory with it
                    threading.Thread(target=_release, args=(self.library, handle, keep), name="hbmfs-release", daemon=True).start()
                return
            self.library.drop("snapshot_release", handle)

    def __del__(self) -> None:
        if hasattr(self, "handle"):  # an interrupt may end __init__ before its first line
            self.release()


def _copied(library: _native.Library, handle: int, slice_ns: int) -> bool:
    """Whether nothing reads the sources of a snapshot any more."""
    try:
        return library.ask("snapshot_wait", handle, slice_ns, None) == _native.OK
    except errors.Error:
        return True


def _release(library: _native.Library, handle: int, _keep: list[Any]) -> None:
    """Keeps the sources of a snapshot until they are copied, and gives its room back."""
    while not _copied(library, handle, int(_SLICE * 1e9)):
        pass
    library.drop("snapshot_release", handle)


class Snapshot:
    """A copy of tensors in the arena of a :class:`Writer`, to be written while training changes the tensors.

    tensors: CPU tensors, or arrays, of the same shapes and dtypes, in order. They are there after wait(), and valid until
        release(): then their memory is given to other snapshots. A snapshot that is forgotten with all its tensors is released.
    """

    def __init__(self, room: _Room, sources: list[Any], addresses: list[int], lengths: list[int]) -> None:
        self._room = room
        self._seconds: float | None = None
        self._error: errors.Error | None = None
        self.nbytes = sum(lengths)
        self.tensors = _copies(room, sources, addresses, lengths)

    @property
    def done(self) -> bool:
        """Whether wait() would return, or raise, at once."""
        try:
            return self._look(0) != _native.TIMEOUT
        except errors.Error:
            return True

    def wait(self, timeout: float | None = None) -> None:
        """Waits until all is copied, so that the tensors may change. After ``timeout`` seconds :class:`WaitTimeoutError`."""
        if not _wait(self._look, timeout):
            raise errors.WaitTimeoutError(f"the snapshot was not copied after {timeout} s: wait again")

    @property
    def seconds(self) -> float:
        """The seconds from the call of snapshot() until all was copied."""
        self.wait()
        assert self._seconds is not None
        return self._seconds

    def release(self) -> None:
        """Gives the room back, once all is copied. Releasing twice does nothing."""
        if self._seconds is None and self._error is None:
            with contextlib.suppress(errors.Error):  # how long it took is worth knowing later, too
                self._look(0)
            if self._seconds is None and self._error is None:
                self._error = errors.ClosedError("the snapshot was released")
        self._room.release()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _look(self, slice_ns: int) -> int:
        if self._error is not None:
            raise self._error
        if self._seconds is not None:
            return _native.OK
        took = ctypes.c_int64()
        try:
            code = self._room.library.ask("snapshot_wait", self._room.handle, slice_ns, took)
        except errors.Error as err:
            self._error = err
            raise
        if code == _native.OK:
            self._seconds = took.value / 1e9
            self._room.keep = []
        return code


class Write(Request[Written]):
    """Files that are being written. wait() gives :class:`Written`; a write that is forgotten is cancelled.

    written, total: bytes.
    """

    _LATE = "the files were not on storage after {} s: wait again, or cancel the write"
    _CANCELLED = "the write was cancelled before its files were on storage"

    def __init__(self, library: _native.Library, value: Written, *, owner: Writer, files: list[OutFile], progress: Progress) -> None:
        super().__init__(library, value, owner=owner)
        self._files = [(file.name, operator.index(file.size)) for file in files]
        self.total = sum(size for _, size in self._files)
        self._keep: list[OutFile] | None = files  # with the data, until nothing reads it any more
        self._progress = progress
        self._written = 0
        self._shown: tuple[Callable[[int], object], Callable[[], object]] | None = None

    @property
    def written(self) -> int:
        """The bytes that are written by now."""
        if self._handle.value and self._library is not None:
            written = ctypes.c_int64()
            with contextlib.suppress(errors.ClosedError):
                self._library.ask("write_progress", self._handle, written)
                self._written = written.value
        return self._written

    def wait(self, timeout: float | None = None) -> Written:
        """Waits until all files are on storage, at most ``timeout`` seconds.

        When the time is up it raises :class:`WaitTimeoutError` and the write goes on. Any other exception, also KeyboardInterrupt,
        cancels it first.
        """
        if self._shown is None:
            from ._transfer import shower

            self._shown = shower(self._progress, self.total, "checkpoint")
        try:
            return super().wait(timeout)
        finally:
            if not self._handle.value:
                self._shown[1]()

    def _look(self, seconds: float) -> int:
        assert self._library is not None
        result = _native.WriteResult()
        counts = [-(-size // _native.CHUNK) for _, size in self._files]
        sums = np.zeros(sum(counts), np.uint32)
        try:
            code = self._library.ask("write_wait", self._handle, int(seconds * 1e9), result, sums.ctypes.data, len(sums))
        except errors.Error as err:
            self._handle.value, self._error, self._keep = 0, err, None
            raise
        before = self._written
        if code == _native.OK:
            self._handle.value, self._keep, self._written = 0, None, self.total
            ends = list(itertools.accumulate(counts, initial=0))
            files = [WrittenFile(*file, tuple(sums[a:b].tolist())) for file, a, b in zip(self._files, ends, ends[1:], strict=False)]
            took, prepared, released = (ns / 1e9 for ns in (result.took_ns, result.prepared_ns, result.released_ns))
            self._value = Written(
                files, result.moved.by_name(), result.path.decode(), result.reason.decode(errors="replace"), took, prepared, released, self._value.way
            )
            self._owner._saw(self._value)  # type: ignore[attr-defined]
        if self._shown is not None and self.written > before:
            self._shown[0](self._written - before)
        return code


def _wait(look: Callable[[int], int], timeout: float | None) -> bool:
    """Asks the library again and again, so that Ctrl-C works in between, and tells whether it said OK in time."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _SLICE if end is None else end - time.monotonic()
        if look(int(max(0.0, min(left, _SLICE)) * 1e9)) == _native.OK:
            return True
        if left <= 0:
            return False


def _memory(data: Any) -> tuple[int, int, int]:
    """The address of data, its bytes, and whether it is on a GPU."""
    if hasattr(data, "data_ptr"):
        kind = data.device.type
        if kind not in ("cpu", "cuda"):
            raise errors.DeviceError(f"a tensor is on {data.device}: only those on the GPU or the CPU can be written")
        if not data.is_contiguous():
            raise errors.InvalidError("a tensor is not contiguous: give t.contiguous()")
        if data.is_conj() or data.is_neg():
            raise errors.InvalidError("a tensor is a lazy conjugate or negative of its memory: give t.resolve_conj().resolve_neg()")
        return data.data_ptr(), data.nbytes, int(kind == "cuda")
    if isinstance(data, np.ndarray):
        if not data.flags.c_contiguous:
            raise errors.InvalidError("an array is not in C order without gaps: give numpy.ascontiguousarray(a)")
        return data.__array_interface__["data"][0], data.nbytes, 0
    if isinstance(data, DeviceArray):
        return data.pointer, data.nbytes, 1
    try:
        view = np.frombuffer(data, np.uint8)
    except (TypeError, ValueError, BufferError) as err:
        raise errors.InvalidError(f"a {type(data).__name__} cannot be written: give a tensor, an array or bytes, without gaps") from err
    return view.__array_interface__["data"][0], view.nbytes, 0


class _Buffer:
    """Memory of the arena as NumPy sees it, which keeps its room."""

    def __init__(self, room: _Room, address: int, length: int) -> None:
        self.room = room
        self.__array_interface__ = {"version": 3, "shape": (length,), "typestr": "|u1", "data": (address, False)}


def _copies(room: _Room, sources: list[Any], addresses: list[int], lengths: list[int]) -> list[Any]:
    """Arrays of the copies, like the sources. They lie one after the other, so that one buffer has them all."""
    filled = [(address, address + length) for address, length in zip(addresses, lengths, strict=True) if length]
    first = filled[0][0] if filled else 0
    whole = np.asarray(_Buffer(room, first, filled[-1][1] - first)) if filled else np.empty(0, np.uint8)
    torch = _device.imported_torch()
    flat = torch.from_numpy(whole) if torch is not None else None
    copies: list[Any] = []
    for source, address, length in zip(sources, addresses, lengths, strict=True):
        at = address - first if length else 0
        if hasattr(source, "data_ptr"):
            assert flat is not None
            copies.append(flat[at : at + length].view(source.dtype).view(source.shape))
        else:
            array = source if isinstance(source, (np.ndarray, DeviceArray)) else np.frombuffer(source, np.uint8)
            copies.append(whole[at : at + length].view(array.dtype).reshape(array.shape))
    return copies


def _whole(number: Any, name: str) -> int:
    """Refuses numbers that the library would never see: ctypes cuts off bits that do not fit."""
    try:
        value = operator.index(number)
    except TypeError:
        value = -1
    if not 0 <= value < 1 << 63:
        raise errors.InvalidError(f"file {name!r} cannot be written: {number!r} is no size or offset")
    return value


def _rate(rate: float | None) -> int:
    if rate is None:
        return 0
    try:
        whole = int(rate)
    except (TypeError, ValueError, OverflowError):
        whole = 0
    if not 1 <= whole < 1 << 63:
        raise errors.InvalidError(f"rate is {rate!r}: give bytes a second, or None for no bound")
    return whole
