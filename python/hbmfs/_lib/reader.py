"""Readers and files: the base of everything else in this package.

A :class:`Reader` owns the threads and the pinned memory for one device. Datasets and weights open one for themselves;
make one to share it between several, or to read bytes into memory of your own::

    with hbmfs.Reader("cuda:0") as reader:
        file = reader.open_file("/mnt/pile/.hbmfs/views/tokens.bin")
        x = torch.empty(file.size, dtype=torch.uint8, device="cuda:0")
        file.read_into(x.data_ptr(), 0, file.size).wait()
"""

import ctypes
import operator
import os
import sysconfig
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from .. import errors
from . import _device, _native
from ._arguments import Device, Path, checked
from ._handle import Owner, opened
from ._memory import Place, place
from ._warn import warn
from .request import Request

_METHODS = ("auto", "direct", "mapped", "staged", "compat", "host")

PageCache = Literal["keep", "drop", "auto"]
"""Whether a file's pages stay in the page cache after reading."""

T = TypeVar("T")


class Reader(Owner):
    """Reads files into the memory of one device. It may be used from many threads at once.

    method: "auto", or the path that is wished for: "direct", "mapped", "staged", "compat", "host". Where it does not
        work another one is taken, and one warning says why.
    require: a path that must work; otherwise :class:`UnavailableError`.
    threads, arena, pinned, slot: bounds of its memory and threads; arena, pinned and slot are bytes. 0 takes the best measured
        value.
    readers: how many readers share this host: eight ranks of a machine are eight. None: as torchrun says it in
        LOCAL_WORLD_SIZE, else one.
    reuse: whether the same bytes will be read again, so that keeping them registered with the GPU pays.
    page_cache: "keep"; "drop" to drop a file's pages from the page cache when it is closed; "auto" to do that where the files
        opened so far exceed what the page cache could have in this process's control group and on this machine.
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
        threads: int = 0,
        arena: int = 0,
        pinned: int = 0,
        slot: int = 0,
        readers: int | None = None,
        reuse: bool = False,
        page_cache: PageCache = "keep",
        libraries: dict[str, str] | None = None,
        command: str | None = None,
    ) -> None:
        self.device = _device.parse(device)
        for path in (method, require):
            if path is not None and path not in _METHODS:
                raise errors.InvalidError(f"{path!r} is no path: use one of {', '.join(_METHODS)}")
        for name, number in (("threads", threads), ("arena", arena), ("pinned", pinned), ("slot", slot), ("readers", 0 if readers is None else readers)):
            _check(name, number)
        if libraries is not None and (not isinstance(libraries, dict) or not libraries.keys() <= {"cuda", "cufile", "nvml"}):
            raise errors.InvalidError(f"libraries are {libraries!r}: give a dict that names files for 'cuda', 'cufile' or 'nvml'")
        self._arguments = {
            "method": method, "require": require, "threads": threads, "arena": arena, "pinned": pinned, "slot": slot,
            "readers": readers, "reuse": reuse, "page_cache": page_cache, "libraries": libraries, "command": command,
        }  # fmt: skip
        self.method = method
        libraries = libraries or {}
        options = _native.ReaderOptions(
            device=self.device, method=method.encode(), require=require.encode() if require else None,
            threads=threads, readers=_ranks() if readers is None else readers, arena_bytes=arena, pinned_bytes=pinned, slot_bytes=slot, reuse=int(reuse),
            page_cache=_native.PAGE_CACHE[page_cache],
            libcuda=_path(libraries.get("cuda")), libcufile=_path(libraries.get("cufile")), libnvml=_path(libraries.get("nvml")),
            hbmfs=_path(command or _installed()), client=b"hbmfs.py",
        )  # fmt: skip
        self._open("reader", options)
        self._warned = threading.Lock()  # held for ever once the warning was given
        self._place: Place | None = None
        self._note(self.info()["note"])

    @checked
    def open_file(self, path: Path) -> "File":
        """Opens a file of a mount, whose bytes are then read from where they really lie, or any other."""
        name = os.fspath(path)
        handle = opened(self._library, "file_open", "file_close", self._handle, os.fsencode(name))
        return File(self, name, handle)

    @checked
    def open_many(self, paths: Sequence[Path]) -> "list[File]":
        """Opens files, hundreds in a round trip to their mount. If one cannot be opened none is, and its error is raised."""
        names = [os.fspath(path) for path in paths]
        count = len(names)
        handles, codes = (ctypes.c_uint64 * count)(), (ctypes.c_int32 * count)()
        encoded = (ctypes.c_char_p * count)(*[os.fsencode(name) for name in names])
        try:
            self._library.ask("file_open_many", self._handle, encoded, count, handles, codes)
        except BaseException:
            for handle in handles:
                if handle:
                    self._library.drop("file_close", handle)
            raise
        return [File(self, name, handle) for name, handle in zip(names, handles, strict=True)]

    def info(self) -> dict[str, Any]:
        """Describes the device: name, uuid, pci, numa; the method in force, and why it is not the wished one."""
        info = _native.ReaderInfo()
        self._library.ask("reader_get_info", self._handle, info)
        text = {name: getattr(info, name).decode(errors="replace") for name in ("name", "uuid", "pci", "method", "note")}
        return {"device": _device.name(info.device), "numa": info.numa, **text}

    def stats(self) -> dict[str, Any]:
        """Counts reads so far: bytes by path, reads, the last path and why, files and requests that are open; bytes that went from
        the page cache by this reader's advice (dropped_bytes)."""
        stats = _native.ReaderStats()
        self._library.ask("reader_get_stats", self._handle, stats)
        return {
            "device": _device.name(self.device),
            "bytes": stats.moved.by_name(),
            "reads": stats.reads,
            "path": stats.path.decode(),
            "reason": stats.reason.decode(errors="replace"),
            "pinned_bytes": stats.pinned_bytes,
            "dropped_bytes": stats.dropped_bytes,
            "files": stats.files,
            "requests": stats.requests,
        }

    @property
    def chooses(self) -> bool:
        """Whether it chooses the path of each request: none was wished for or required."""
        return self.method == "auto" and self._arguments["require"] is None

    def close(self) -> None:
        """Closes its files, cancels their requests, and gives everything back. Arrays stay.

        :class:`WaitTimeoutError`: a read hangs in the kernel or the driver, so that its memory must stay. Close it again later.
        """
        super().close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Opens another one like it, for multiprocessing's spawn."""
        return _again, (_device.name(self.device), self._arguments)

    def __repr__(self) -> str:
        return f"<hbmfs.Reader {_device.name(self.device)} method={self.method}{' closed' if self._closed else ''}>"

    def _memory(self) -> Place:
        if self._place is None:
            self._place = place(self._library, self._handle, self.device)
        return self._place

    @property
    def _ended(self) -> Callable[[_native.Result], None] | None:
        """The listener of a request's end, if there is one."""
        return None if self.method == "auto" else self._saw

    def _saw(self, result: _native.Result) -> None:
        """Warns when a request took another path than the wished one."""
        path = result.path.decode()
        if path != self.method:
            self._note(f"read by {path}: {result.reason.decode(errors='replace')}")

    def _note(self, why: str) -> None:
        """Warns that reading is slower than was asked for, once for a reader."""
        if why and self._warned.acquire(blocking=False):
            asked = "the fastest path" if self.method == "auto" else self.method
            warn(f"hbmfs: not {asked}: {why}", errors.SlowPathWarning)


class File(Owner):
    """An open file of a :class:`Reader`. It may be used from many threads at once."""

    def __init__(self, reader: Reader, path: str, handle: int) -> None:
        self.path = path
        self._reader = reader
        self._own("file", reader._library, handle)
        self._end.atexit = False  # the reader's end closes it
        info = self._info()
        self.size: int = info.size
        reader._note(info.note.decode(errors="replace"))

    @checked
    def read_into(self, pointer: int, offset: int, length: int, stream: int | None = None) -> Request[int]:
        """Starts reading ``length`` bytes from ``offset`` on to an address of the reader's device.

        The memory must stay until the request has ended; the request gives the number of bytes. On a GPU nothing is
        written before the work on ``stream`` (a CUstream as a number; None: the caller's current one) is done.
        """
        offset, length = operator.index(offset), operator.index(length)
        if not (0 <= pointer < 1 << 64 and 0 <= offset < 1 << 63 and 0 <= length < 1 << 63):  # ctypes would cut bits off
            raise errors.OutOfRangeError(f"{length} bytes from {offset} of {self.path} to address {pointer:#x} are more than there can be")
        if stream is None:
            stream = self._reader._memory().stream()
        arguments = (self._handle, pointer, length, offset, length, stream)
        return Request.begin(self._library, "read_begin", arguments, length, ended=self._reader._ended, owner=self)

    def stream(self) -> int:
        """The caller's current stream, as gather_into takes it."""
        return self._reader._memory().stream()

    def gather_into(
        self,
        value: T,
        pointer: int,
        room: int,
        offsets: "np.ndarray[Any, Any]",
        length: int,
        *,
        widen: int,
        stream: int,
        finish: Callable[[T], Any] | None = None,
    ) -> Request[T]:
        """Starts reading spans of ``length`` bytes at ``offsets`` (int64, in C order) one after the other to ``pointer``."""
        arguments = (self._handle, pointer, room, _native.address(offsets), len(offsets), length, widen, stream)
        return Request.begin(self._library, "gather_begin", arguments, value, finish=finish, ended=self._reader._ended, owner=self)

    @property
    def seen(self) -> bool:
        """Whether the last read found all its bytes in memory that the device reads: then prefetch does nothing."""
        return bool(self._info().seen)

    @checked
    def prefetch(self, offsets: Any, lengths: Any) -> None:
        """Says which byte ranges will be read, in their order. It is advice: nothing waits, and nothing may come of it."""
        try:
            at, n = np.ascontiguousarray(offsets, np.int64), np.ascontiguousarray(lengths, np.int64)
        except (TypeError, ValueError, OverflowError) as err:
            raise errors.ArgumentError(f"offsets and lengths must be lists of whole numbers: {err}") from err
        if at.ndim != 1 or at.shape != n.shape:
            raise errors.InvalidError(f"offsets and lengths must be as many, not {at.shape} and {n.shape}")
        self._library.ask("prefetch", self._handle, at.ctypes.data, n.ctypes.data, len(at))

    @checked
    def uncache(self, page_cache: PageCache = "drop") -> int:
        """Ends the reader's mappings of the file, then drops its pages from the page cache as ``page_cache`` says, and gives the bytes that went.

        The kernel keeps pages that any process has mapped or pinned, and dirty ones. Processes that read the same file first all call
        ``uncache("keep")``, wait for each other, and then drop it. The file can still be read.
        """
        dropped = ctypes.c_int64()
        self._library.ask("file_uncache", self._handle, _native.PAGE_CACHE[page_cache], dropped)
        return dropped.value

    def stats(self) -> dict[str, Any]:
        """Bytes of this file so far by path, whether it is of a mount, and why it is read through the mount if it is."""
        info = self._info()
        return {"bytes": info.moved.by_name(), "mounted": bool(info.mounted), "runs": info.runs, "note": info.note.decode(errors="replace")}

    def close(self) -> None:
        """Cancels its requests and closes the file. WaitTimeoutError as of the reader."""
        super().close()

    def __repr__(self) -> str:
        return f"<hbmfs.File {self.path} {self.size} bytes on {_device.name(self._reader.device)}{' closed' if self._closed else ''}>"

    def _info(self) -> _native.FileInfo:
        info = _native.FileInfo()
        self._library.ask("file_get_info", self._handle, info)
        return info


def _again(device: str, arguments: dict[str, Any]) -> Reader:
    return Reader(device, **arguments)


_LARGEST = {"threads": 1 << 31, "readers": 1 << 31}


def _check(name: str, number: Any) -> None:
    """Refuses numbers that the library would never see: ctypes cuts off bits that do not fit."""
    try:
        fits = 0 <= operator.index(number) < _LARGEST.get(name, 1 << 63)
    except TypeError:
        fits = False
    if not fits:
        raise errors.InvalidError(f"{name} is {number!r}: give a whole number from 1 on, or 0 for what was measured to be best")


def _ranks() -> int:
    """The ranks on this host, if torchrun started them; else 0, which is not known."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(said) if said.isdecimal() and len(said) < 4 else 0  # no host has thousands


def _installed() -> str | None:
    """The command that came with this package: its environment need not be in PATH, where the library would look."""
    command = os.path.join(sysconfig.get_path("scripts"), "hbmfs")
    return command if os.access(command, os.X_OK) else None


def _path(name: str | None) -> bytes | None:
    return os.fsencode(name) if name else None
