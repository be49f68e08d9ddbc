"""Checkpoints as directories that are complete or not there: drafts, publishing, listing, verifying.

    draft = Draft.begin("/ckpt/step_100")
    written = draft.write(writer, files).wait()   # in this process; in others: Shared.of("/ckpt/step_100").write(...)
    draft.publish(written.files)                  # of all processes: each has a name, a size and crc32c, the sums of every 4 MiB

Where the path lies in a checkpoint volume (hbmfs checkpoint mount), the files are written past FUSE, into descriptors that the
volume's daemon gives: `way` is "volume" then, and "directory" elsewhere. There is no falling back from one to the other.

cmd/libhbmfs/libhbmfs.h describes each call; internal/volume/checkpoint does the work.
"""

import contextlib
import ctypes
import datetime
import os
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .. import errors
from .._lib import _closing, _native

if TYPE_CHECKING:
    from typing_extensions import Self

    from .._lib._transfer import Progress
    from .._lib.writer import OutFile, Write, Writer

_SLICE = 0.1  # seconds in the library at a time: Python looks for signals in between
_PATIENCE = 2.0  # seconds that an interrupted verification waits for its reads
_NAMES = 1 << 20  # bytes for the names of removed files


class Summed(Protocol):
    """A file of a draft: its name below the draft, its bytes, and the CRC-32C of every 4 MiB of them."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def crc32c(self) -> Iterable[int]: ...


@dataclass(frozen=True)
class Entry:
    """A complete checkpoint. ``part`` counts from 0. ``created`` is by the writer's clock, which may be wrong."""

    name: str
    path: str
    part: int
    parts: int
    files: int
    size: int
    created: datetime.datetime


class Shared:
    """A draft as any process writes files of it, which it or another one has begun.

    way: "directory", or "volume" in a checkpoint volume.
    directory: the draft's; in a volume it has none, and this is empty.
    """

    def __init__(self, path: str, directory: str, handle: ctypes.c_uint64) -> None:
        self.path = path
        self.directory = directory
        self._library = _native.library()
        self._handle = handle
        self._end = weakref.finalize(self, self._library.drop, "draft_drop", handle)

    @property
    def way(self) -> str:
        return "directory" if self.directory else "volume"

    @classmethod
    def of(cls, path: Any) -> "Shared":
        """Where to write files of the draft that another process, of this user, has begun at ``path``.

        :class:`NotFoundError`, :class:`StaleError`: none has.
        """
        try:
            return cls._open(os.fspath(path), "draft_attach")
        except errors.NotFoundError as err:
            raise errors.NotFoundError(f"{err}: give all ranks the same path, on a shared filesystem, or node_local=True") from None

    @classmethod
    def _open(cls, name: str, call: str, *arguments: int) -> "Self":
        """Opens a draft. The library decides whether it is one of a volume."""
        library, handle, inside = _native.library(), ctypes.c_uint64(), ctypes.c_int32()
        try:
            library.ask(call, os.fsencode(name), *arguments, handle)
            library.ask("draft_is_in_volume", handle, inside)
        except BaseException:
            if handle.value:  # an interrupt came after it was made
                library.drop("draft_drop", handle)
            raise
        return cls(name, "" if inside.value else Draft.directory_of(name), handle)

    def write(self, writer: "Writer", files: "Iterable[OutFile]", progress: "Progress" = None) -> "Write":
        """Starts writing files, as :meth:`Writer.write` does."""
        return writer._begin("draft_write_begin", self._handle, files, progress, self.way)

    def leave(self) -> None:
        """Ends the publishing of of(), and leaves the draft. Of a Draft, it drops that."""
        if self._end.detach() is not None:
            with contextlib.suppress(errors.ClosedError):  # Ctrl-C came when it was published already
                self._library.ask("draft_drop", self._handle)

    def __enter__(self) -> "Shared":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


class Draft(Shared):
    """A checkpoint that is being written. A draft that is forgotten is dropped."""

    @classmethod
    def begin(cls, path: Any, part: tuple[int, int] = (0, 1)) -> "Draft":
        """Makes the draft of the checkpoint at ``path``, and the directory around it. ``part`` is (which, of how many).

        Leftovers of a dead writer under this name are removed. :class:`ExistsError`: something is at ``path``.
        :class:`BusyError`: a living process writes it.
        """
        name = os.fspath(path)
        which, of = part
        for number in (which, of):
            if not 0 <= number < 2**31:
                raise errors.InvalidError(f"part {which} of {of} cannot be: parts are counted from 0")
        return cls._open(name, "draft_begin", which, of)

    @staticmethod
    def directory_of(path: Any) -> str:
        """The directory of a checkpoint's draft, where it has one: outside of checkpoint volumes."""
        room = 2 * 4096
        to = ctypes.create_string_buffer(room)
        _native.library().ask("draft_directory", os.fsencode(os.fspath(path)), to, room)
        return os.fsdecode(to.value)

    def publish(self, files: Iterable[Summed]) -> None:
        """Makes it the checkpoint, on the disk when this returns. ``files`` are all that are in the draft.

        After an exception the checkpoint is not there, and the draft can be published again, or dropped: unless Ctrl-C came when it was
        published already.
        """
        listed = list(files)
        sums = [np.fromiter(file.crc32c, np.uint32) for file in listed]
        table = (_native.DraftFile * len(listed))()
        for entry, file, own in zip(table, listed, sums, strict=True):
            entry.name, entry.size, entry.crc32c, entry.sums = os.fsencode(file.name), file.size, own.ctypes.data, len(own)
        self._library.ask("draft_publish", self._handle, table, len(listed))
        self._end.detach()

    def drop(self) -> None:
        """Removes the draft. A published one stays; dropping twice does nothing."""
        self.leave()

    def __enter__(self) -> "Draft":
        return self


def in_volume(path: Any) -> bool:
    """Whether a checkpoint at ``path`` is, or would be, one of a checkpoint volume.

    :class:`InvalidError`: ``path`` lies in one, but checkpoints are the directories at its top. :class:`UnavailableError`: its daemon cannot be
    asked.
    """
    inside = ctypes.c_int32()
    _native.library().ask("checkpoint_in_volume", os.fsencode(os.fspath(path)), inside)
    return bool(inside.value)


def complete(directory: Any) -> list[Entry]:
    """The complete checkpoints in a directory, in the natural order of their names: step_9 before step_10."""
    where = os.fspath(directory)
    count, room = ctypes.c_int64(), 64
    while True:
        infos = (_native.CheckpointInfo * room)()
        _native.library().ask("checkpoint_list", os.fsencode(where), infos, room, count)
        if count.value <= room:
            break
        room = 2 * count.value
    found = []
    for info in infos[: count.value]:
        name = os.fsdecode(info.name)
        created = datetime.datetime.fromtimestamp(info.created / 1e9, datetime.timezone.utc)
        found.append(Entry(name, os.path.join(where, name), info.part, info.parts, info.files, info.size, created))
    return found


def verify(path: Any, progress: Callable[[int, int], None] | None = None, threads: int = 0) -> int:
    """Compares all bytes of a checkpoint with their sums, and gives how many there are.

    progress: is called with the bytes that were read, and those in all.

    :class:`FormatError` names the first damage: file, chunk, offset, and both sums. :class:`ReadError`: a file cannot be read.
    """
    library, handle, state = _native.library(), ctypes.c_uint64(), _native.Verified()
    try:
        library.ask("verify_begin", os.fsencode(os.fspath(path)), threads, handle)
        while library.ask("verify_wait", handle, int(_SLICE * 1e9), state) == _native.TIMEOUT:
            if progress is not None:
                progress(state.done, state.total)
    except BaseException:
        if handle.value:
            _closing.unheard("a verification", _cancel, library, handle)
        raise
    if progress is not None:
        progress(state.done, state.total)
    return int(state.done)


def _cancel(library: _native.Library, handle: ctypes.c_uint64) -> None:
    try:
        if library.ask("verify_cancel", handle, int(_PATIENCE * 1e9)) == _native.TIMEOUT:
            raise errors.WaitTimeoutError("a read hangs in the system")
    except errors.ClosedError:
        pass  # it had ended


def remove(path: Any) -> None:
    """Removes a checkpoint. It is renamed first, so that it is never half there."""
    _native.library().ask("checkpoint_remove", os.fsencode(os.fspath(path)))


def clean(directory: Any) -> list[str]:
    """Removes the drafts of dead writers and the remains of removed checkpoints, and gives their paths."""
    names, length = ctypes.create_string_buffer(_NAMES), ctypes.c_int64()
    _native.library().ask("checkpoint_clean", os.fsencode(os.fspath(directory)), names, _NAMES, length)
    return [os.fsdecode(name) for name in names.raw[: min(length.value, _NAMES)].split(b"\0")[:-1]]
