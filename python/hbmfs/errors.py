"""The exceptions. All of them are :class:`Error`; each message is one sentence that names a remedy.

Where Python has an exception of the same meaning, ours is one of it, too: ``except IndexError`` catches
:class:`OutOfRangeError`, ``except FileNotFoundError`` catches :class:`NotFoundError`.
"""

from __future__ import annotations

import datetime
import re


class Error(Exception):
    """The base of all exceptions of hbmfs."""


class InvalidError(Error, ValueError):
    """An argument, or a combination of arguments, makes no sense."""


class TargetError(InvalidError):
    """Tensors that are to be filled are not as the file has them: nothing was changed. ``differences`` has a sentence for each."""

    differences: tuple[str, ...] = ()


class UndefinedError(Error):
    """Loading into tensors failed midway; the cause says why. ``undefined`` names those that have neither their old values nor the new ones."""

    undefined: tuple[str, ...] = ()


class ArgumentError(InvalidError, TypeError):
    """An argument is of another type than its parameter. The message names the given and the expected value."""


class ClosedError(Error, ValueError):
    """A dataset, reader or file was used after close()."""


class NotFoundError(Error, FileNotFoundError):
    """There is no such file, view or dataset."""


class AccessError(Error, PermissionError):
    """The file may not be read by this user."""


class StaleError(Error):
    """The file changed after it was opened. Open it again.

    ``first_batch`` is the number of the first batch of a stream's iteration, from 0, that may have wrong bytes of it, or None.
    """

    first_batch: int | None = None

    @property
    def since(self) -> float | None:
        """The time.time() from which on bytes of the file may be wrong. None where all that came are right, or nobody knows."""
        said = _SINCE.search(str(self))
        return datetime.datetime.fromisoformat(said[1] + "+00:00").timestamp() if said else None


_SINCE = re.compile(r"bytes of it that came since ([-0-9T:.]+)Z may be wrong")


class UnavailableError(Error):
    """The way into memory that was required cannot be had. The message says why."""


class OutOfMemoryError(Error, MemoryError):
    """The device or the host has too little memory left."""


class OutOfRangeError(Error, IndexError):
    """Tokens or bytes were asked for that the file does not have."""


class CancelledError(Error):
    """The request was cancelled before its bytes had arrived."""


class WaitTimeoutError(Error, TimeoutError):
    """The bytes had not arrived when the time was up. The request goes on; wait again or cancel it."""


class ExistsError(Error, FileExistsError):
    """The checkpoint, or something else of its name, is there already. Nothing is overwritten."""


class BusyError(Error):
    """A living process writes or removes the checkpoint. The message names it."""


class ReadError(Error, OSError):
    """The operating system could not read the file."""


class WriteError(Error, OSError):
    """The operating system could not write a file; ``errno`` says how."""


class TooLargeError(Error, ValueError):
    """One request is larger than the memory that the reader, or the writer's arena, was given."""


class ForkedError(Error):
    """A reader was used in a forked child of the process that opened it."""


class DeviceError(Error, ValueError):
    """The device does not exist, cannot be used, or is not the one that memory lies on."""


class DtypeError(Error, TypeError):
    """The elements are not of the type that is needed, or their type is not known."""


class FormatError(Error, ValueError):
    """A file is damaged: the message names the file, the place and the expected bytes."""


class GroupError(Error, RuntimeError):
    """A rank of the group failed or is gone, or the ranks do not agree. The message names the rank."""


class LibraryError(Error, ImportError):
    """libhbmfs cannot be loaded, or is of another version than this package."""


class InternalError(Error):
    """A mistake in hbmfs. Please report it with the message."""


class CloseWarning(RuntimeWarning):
    """Something could not be closed where there is nobody to raise an exception for: on a thread of hbmfs, or when it was
    forgotten instead of closed. ``close()`` of your own raises."""


class SlowPathWarning(UserWarning):
    """Bytes take a slower way than the one that was wished for. Given once for a reader; ``require=`` raises instead."""
