"""Finding the tokens behind a path, and their type: no bytes of them are read here, and no library is needed.

A path is a file (``.npy``, a view, or headerless tokens), or a directory of an hbmfs mount, which stands for its
``tokens.npy`` view.
"""

import contextlib
import errno
import fcntl
import os
import re
import stat
import struct
import tokenize
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from .._lib import _address
from .._lib._native import WIDEN
from ..errors import AccessError, DtypeError, FormatError, InvalidError, NotFoundError, ReadError, StaleError

_VIEW = "tokens.npy"

MANIFEST = "hbmfs-manifest.json"  # that hbmfs pack writes
_MAX_MANIFEST = 64 << 20

# The ioctl INFO and its struct, from docs/reference/control-protocol.md.
_INFO = 3 << 30 | 128 << 16 | ord("H") << 8 | 0xB0
_INFO_FORMAT = "<IIQIIqQQQ16s56x"

_GUESSED = 32  # of its flags

# The numbers of element types in the control channel that NumPy has a type for.
_DTYPES = {1: "u1", 2: "i1", 3: "<u2", 4: "<i2", 5: "<u4", 6: "<i4", 7: "<u8", 8: "<i8", 9: "<f2", 11: "<f4", 12: "<f8", 13: "?"}


class Tokens(NamedTuple):
    """Tokens in a file: ``length`` elements of ``dtype`` from byte ``offset`` on."""

    path: str
    offset: int
    length: int
    dtype: np.dtype[Any]
    runs: int  # of equal pieces that it is made of, 1 for a plain file
    identity: tuple[int, ...]  # of the file: other numbers mean another content
    guessed: bool = False  # the mount guessed dtype from the values of files without a header

    @property
    def size(self) -> int:
        """All tokens in bytes."""
        return self.length * self.dtype.itemsize

    def open(self) -> int:
        """Opens the file again, for a process that inherited nothing but this description."""
        with _told(self.path):
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            if _identity(os.fstat(fd)) == self.identity:
                return fd
            os.close(fd)
        raise StaleError(f"{self.path} changed since it was opened: open it again")


def find(path: Any, dtype: Any = None) -> Tokens:
    """Finds the tokens of a file or of a directory in a mount.

    ``dtype`` is the type of headerless tokens in a file that is no view; elsewhere it must agree with the known type.
    """
    name = os.fspath(path)
    if not isinstance(name, str):
        raise InvalidError(f"{name!r} is no path: give a str or an os.PathLike of str")
    _address.refuse(name)
    name = resolve(name)
    with _told(name), open(name, "rb", buffering=0, opener=_opener) as file:
        return _describe(name, file, parse_dtype(dtype) if dtype is not None else None)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would keep the caller waiting for its writer


def resolve(path: str) -> str:
    """Gives the file that a path stands for: itself, or the tokens view of a directory in a mount.

    A stream that is only a split of a directory's files, such as train, is named as if it were a directory of it. The prefix
    or the index of a Megatron dataset stands for its .bin file.
    """
    there = _is_directory(path)
    if there is False:
        return f"{path[:-4]}.bin" if path.endswith(".idx") and os.path.exists(f"{path[:-4]}.bin") else path
    prefix = there is None and all(os.path.exists(f"{path}{end}") for end in (".bin", ".idx"))
    found = _views_in_mount(path)
    if found is None:
        if prefix:
            return f"{path}.bin"
        if there:
            raise InvalidError(f"{path} is a directory outside of any hbmfs mount: mount it with `hbmfs mount`, or name a file of tokens in it")
        raise NotFoundError(f"{path} does not exist: give a file of tokens, or a directory of an hbmfs mount")
    root, views, directory = found
    if prefix and not os.path.isdir(directory):
        return f"{path}.bin"
    if there is None and not os.path.isdir(directory):
        raise NotFoundError(f"{path} does not exist: {root} has no such file and no such stream of tokens, see `ls {root}` and `ls {views}`")
    view = os.path.join(directory, _VIEW)
    return view if os.path.exists(view) else _only_view(path, directory, lambda: _hints(root, os.path.relpath(directory, views)))


def _is_directory(path: str) -> bool | None:
    """Whether a path is a directory; None where there is nothing."""
    with _told(path):
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return None


def _mount_of(path: str) -> tuple[str, str] | None:
    """The root of the hbmfs mount that a path lies in, and the rest of the path, which need not exist."""
    full = os.path.realpath(path)  # a link may lead into a mount
    at = full
    while True:
        if os.path.isdir(os.path.join(at, ".hbmfs", "views")):
            return at, os.path.relpath(full, at)
        if os.path.dirname(at) == at:
            return None
        at = os.path.dirname(at)


def _views_in_mount(path: str) -> tuple[str, str, str] | None:
    """The root of the hbmfs mount that a path lies in, its directory of views, and the one for the path, which need not exist."""
    found = _mount_of(path)
    if found is None:
        return None
    root, below = found
    views = os.path.join(root, ".hbmfs", "views")
    inside = os.path.join(root, below, "").startswith(os.path.join(views, ""))
    return root, views, os.path.normpath(os.path.join(root if inside else views, below))


def views_of(path: str) -> str | None:
    """The directory of views for a path in an hbmfs mount; None for any other path."""
    found = _views_in_mount(path)
    return None if found is None else found[2]


def _hints(root: str, below: str) -> list[str]:
    """A mount's hints about files below a directory that may hold tokens and have no view."""
    import json

    try:
        with open(os.path.join(root, ".hbmfs", "status"), "rb") as file:
            told = json.load(file).get("hints", [])
    except (OSError, ValueError):
        return []
    return [f"{hint['object']}: {hint['detail']}" for hint in told if below == "." or hint["object"].startswith(f"{below}/")]


def _only_view(path: str, directory: str, hints: Callable[[], list[str]]) -> str:
    """The tokens view below a directory of views, if there is one only."""
    found: list[str] = []
    samples = False
    for at, below, files in os.walk(directory):
        below[:] = [name for name in below if name not in ("members", "tensors")]  # members of archives, perhaps millions
        samples = samples or "fields.json" in files
        if _VIEW in files:
            found.append(os.path.join(at, _VIEW))
    if len(found) == 1:
        return found[0]
    if not found:
        if told := hints():
            raise NotFoundError(f"{path} has no view of its tokens. {told[0]} (a flag of hbmfs mount). Or open the file itself with dtype=")
        if samples:
            raise NotFoundError(f"{path} has no view of its tokens, but samples with fields: hbmfs.SampleDataset({path!r}) reads them")
        raise NotFoundError(f"{path} has no view of its tokens: `hbmfs inspect` says why, or name a file and its dtype")
    streams = sorted(os.path.relpath(os.path.dirname(f), directory) for f in found)
    more = f" and {len(streams) - 8} more" if len(streams) > 8 else ""
    raise InvalidError(f"{path} holds {len(streams)} streams of tokens ({', '.join(streams[:8])}{more}): name one, as in {os.path.join(path, streams[0])!r}")


_KINDS = {"u": "uint", "i": "int", "f": "float"}


def parse_dtype(dtype: Any) -> np.dtype[Any]:
    """Reads an element type: a NumPy type, one of torch, or a name as the command line takes it, such as u16, uint16, <u2 or np.uint16."""
    name = str(dtype) if type(dtype).__module__ == "torch" else dtype
    if isinstance(name, str):
        name = re.sub(r"^(np|numpy|torch|jnp|jax\.numpy)\.", "", name)
        if name in ("u8", "i8"):
            kind = _KINDS[name[0]]
            raise DtypeError(f"dtype {dtype!r} is {kind}8 for hbmfs and {kind}64 for NumPy: write {kind + '8'!r} or {kind + '64'!r}")
        if short := re.fullmatch(r"([uif])(16|32|64)", name):
            name = _KINDS[short[1]] + short[2]
    try:
        found = np.dtype(name)
        if found.kind in "biuf":
            return found
        cause = None
    except (TypeError, ValueError, SyntaxError) as err:
        cause = err
    raise DtypeError(f"dtype {dtype!r} is not known: give a name such as 'uint16', or a NumPy type such as numpy.uint16") from cause


def widens(narrow: np.dtype[Any], wide: np.dtype[Any]) -> bool:
    """Whether gather and the streams give tokens of one type as those of another."""
    return (narrow, wide) in WIDEN or (wide == np.int64 and narrow.kind in "iu")


def _type_beside(name: str, size: int) -> np.dtype[Any] | None:
    """The element type of a file without a header as a file beside it has it: Megatron's .idx, or the manifest of hbmfs pack."""
    if name.endswith(".bin") and os.path.exists(f"{name[:-4]}.idx"):
        from . import _megatron_index

        if found := _megatron_index.element_type(f"{name[:-4]}.idx", size):
            return found
    folder, base = os.path.split(name)
    manifest_name = os.path.join(folder, MANIFEST)
    try:
        if os.path.getsize(manifest_name) > _MAX_MANIFEST:
            return None
        import json

        with open(manifest_name, "rb") as file:
            manifest = json.load(file)
        if manifest["format"] == "nanogpt" and any(told["name"] == base and told["size"] == size for told in manifest["files"]):
            return parse_dtype(manifest["dtype"])
    except (OSError, ValueError, TypeError, LookupError):
        pass  # there is none that tells
    return None


def _describe(name: str, file: BinaryIO, wanted: np.dtype[Any] | None) -> Tokens:
    facts = os.fstat(file.fileno())
    if not stat.S_ISREG(facts.st_mode):
        raise InvalidError(f"{name} is no regular file: name a file of tokens")
    known, runs, guessed = _info(file)
    if name.endswith(".npy") and file.read(6) == b"\x93NUMPY":
        offset, count, dtype = _array(name, file)
    else:
        known = known or _type_beside(name, facts.st_size)
        given = known or wanted
        if given is None:
            raise DtypeError(
                f"{name} does not say what its tokens are: give dtype=, as in hbmfs.open(path, dtype='uint16'), or mount its directory and open the view"
            )
        offset, count, dtype = 0, facts.st_size // given.itemsize, given
        if known is None and facts.st_size % dtype.itemsize:
            raise FormatError(f"{name} has {facts.st_size} bytes, which is no multiple of the {dtype.itemsize} bytes of a {dtype}: give another dtype=")
    if dtype.kind not in "biuf" or not dtype.isnative:
        raise DtypeError(f"{name} holds {dtype.str} elements, which are no tokens in this machine's byte order: convert it first")
    if wanted is not None and wanted != dtype and guessed:
        raise DtypeError(f"{name} is of {dtype} by a guess of its mount: mount its source with --dtype {wanted}, or leave dtype= out")
    if wanted is not None and wanted != dtype:
        widen = ", and give it to gather or the stream, which widen" if widens(dtype, wanted) else ""
        raise DtypeError(f"{name} holds {dtype} tokens, not {wanted}: leave dtype= out{widen}")
    if offset + count * dtype.itemsize > facts.st_size:
        raise FormatError(f"{name} ends at byte {facts.st_size}, but its header promises {count} {dtype} tokens from byte {offset} on: it is cut off")
    return Tokens(name, offset, count, dtype, runs, _identity(facts), guessed)


def _array(name: str, file: BinaryIO) -> tuple[int, int, np.dtype[Any]]:
    """Where the elements of a .npy file begin, how many there are, and their type."""
    file.seek(0)
    form: Any = np.lib.format  # NumPy's stubs leave its functions untyped
    try:
        version = form.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = form.read_array_header_1_0(file)
        elif version in ((2, 0), (3, 0)):  # they differ in how names of fields are encoded, and tokens have none
            shape, fortran, dtype = form.read_array_header_2_0(file)
        else:
            raise ValueError(f"version {version[0]}.{version[1]} is not known")
        if any(n < 0 for n in shape):
            raise ValueError(f"the shape is {shape}")
    except (ValueError, SyntaxError, RecursionError, tokenize.TokenError) as err:  # all of which NumPy lets out
        raise FormatError(f"{name} has a damaged NumPy header: {err}") from err
    if fortran and len(shape) > 1:
        raise FormatError(f"{name} is an array in Fortran order, which is no stream of tokens: save it in C order")
    count = 1
    for n in shape:
        count *= int(n)
    return file.tell(), count, dtype


def _info(file: BinaryIO) -> tuple[np.dtype[Any] | None, int, bool]:
    """The element type of a view as its mount knows it, None for any other file; how many runs the file has; and whether the type is a guess."""
    try:
        answer = fcntl.ioctl(file.fileno(), _INFO, struct.pack(_INFO_FORMAT, 1, 0, 0, 0, 0, 0, 0, 0, 0, b""))
    except OSError as err:
        if err.errno in (errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            return None, 1, False
        raise
    fields = struct.unpack(_INFO_FORMAT, answer)
    name = _DTYPES.get(fields[3])
    return np.dtype(name) if name else None, fields[7], bool(fields[1] & _GUESSED)


def _identity(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


@contextlib.contextmanager
def _told(name: str) -> Iterator[None]:
    """Gives the operating system's errors as ours."""
    try:
        yield
    except FileNotFoundError as err:
        raise NotFoundError(f"{name} does not exist") from err
    except PermissionError as err:
        raise AccessError(f"{name} may not be read by this user: {err.strerror}") from err
    except IsADirectoryError as err:
        raise InvalidError(f"{name} is a directory: name a file of tokens") from err
    except OSError as err:
        if err.errno == errno.ESTALE:
            raise StaleError(f"{name} changed at the source of its mount: mount it again and open it again") from err
        if err.errno == errno.ENOTCONN:
            raise StaleError(f"{name} is in a mount whose daemon has ended: mount it again") from err
        raise ReadError(f"{name} cannot be opened: {err.strerror}") from err
