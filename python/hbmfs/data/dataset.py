"""A dataset is the tokens of one file, read in batches into the memory of a device."""

from __future__ import annotations

import math
import operator
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, overload

import numpy as np
from numpy.typing import NDArray

from .. import errors
from .._lib import _device, _native
from .._lib._arguments import Device, Path, checked, shown
from .._lib._memory import Host, Place
from .._lib._warn import warn
from .._lib.device_array import DeviceArray
from .._lib.reader import File, Reader
from .._lib.request import Request
from . import tokens
from ._forked import HostFile
from ._queue import Queue
from ._scatter import Scatter, Spans
from ._segments import fill, tokens_of
from ._types import A, count_of, starts_of

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypedDict, Unpack

    from ._types import Array
    from .part import Part

    class Options(TypedDict, total=False):
        method: str
        require: str | None
        dtype: Any
        reader: Reader | None


# A dataset that takes at most this part of the host's memory, in at most so many runs, is kept registered with the
# GPU once it was read: random batches then come at the link's speed. A registration is a mapping of this process, of
# which Linux allows 65,530.
_KEPT_PART, _KEPT_RUNS = 4, 1 << 18
_AT_ONCE = 1 << 16
"""Tokens that are read at once for who iterates."""


class Dataset(Generic[A]):
    """Tokens of a file, made by :func:`hbmfs.open`. It may be used from many threads at once.

    Results on the CPU are torch tensors where torch is imported, and else NumPy arrays; ``tensors=`` of open() says which. On a GPU they are
    torch tensors if torch is installed, and otherwise :class:`DeviceArray`, which CuPy, numba and JAX take without a copy.

    ``ds[i]``, ``ds[a:b]`` and ``ds[[i, j]]`` are tokens, as of an array; iterating gives them one by one. ``len(ds)`` counts them, and on the
    CPU ``np.asarray(ds)`` reads them all.

    ``starts`` are offsets of tokens: a sequence, a NumPy array or a torch tensor of the CPU, of integers, in any order.
    ``dtype`` is None, which keeps the type of the tokens, or int64, or int32 of 8 and 16 bits: it widens on the device. ``out`` is an array of
    the right shape and type to fill; it is the result then.
    """

    def __init__(self, found: tokens.Tokens, device: int, reader: Reader | None, *, own: bool, again: tuple[Any, ...], tensors: bool | None) -> None:
        self.path = found.path
        self.dtype = found.dtype
        self._tokens = found
        self._index = device
        self._reader = reader
        self._owns_reader = own
        self._again = again
        self._tensors = tensors
        self._closed = False
        self._documents: NDArray[Any] | None = None
        self._lock = threading.Lock()
        self._child: HostFile | None = None  # guarded by _lock
        self._process = _native.process()
        self._file: File | None = reader.open_file(found.path) if reader is not None else None
        self._scatter: Scatter | None = None

    def __len__(self) -> int:
        return self._tokens.length

    @overload
    def __getitem__(self, key: int) -> Any: ...
    @overload
    def __getitem__(self, key: slice | list[int] | NDArray[Any]) -> A: ...
    def __getitem__(self, key: Any) -> Any:
        """A token, the tokens of a slice, or those at some offsets: as of an array."""
        if hasattr(key, "__index__") and not isinstance(key, bool) and not getattr(key, "ndim", 0):
            at = operator.index(key)
            if not -len(self) <= at < len(self):
                raise errors.OutOfRangeError(f"token {at} is not in {self.path}, which has {len(self)}")
            token = self._begin(np.array([at % len(self)], np.int64), 1, (), None, None).wait()
            return token[()] if isinstance(token, np.ndarray) else token
        if isinstance(key, slice):
            first, end, step = key.indices(len(self))
            if step == 1:
                return self.read(first, max(end - first, 0))
            key = np.arange(first, end, step)
        elif not isinstance(key, (list, np.ndarray)) and not hasattr(key, "__array__"):
            raise errors.ArgumentError(f"{self!r}[{shown(key)}]: give a token's offset, a slice, or a list of offsets")
        where = starts_of(key)
        return self._begin(where, 1, where.shape, None, None).wait()

    def __getitems__(self, offsets: Any) -> Any:
        """The call of torch's DataLoader for a batch: single tokens are none."""
        raise errors.InvalidError(
            "a DataLoader over a dataset would make batches of single tokens: give it a stream, DataLoader(hbmfs.TokenStream(ds, batch_size, seq_len), batch_size=None)"
        )

    def __iter__(self) -> Iterator[Any]:
        for first in range(0, len(self), _AT_ONCE):
            some: Any = self[first : first + _AT_ONCE]
            yield from some.to_numpy() if isinstance(some, DeviceArray) else some

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if self._index != _device.CPU:
            raise errors.DeviceError(f'{self!r} is no array of the host: open it with device="cpu", or gather what you need')
        if copy is False:
            raise errors.InvalidError(f"{self!r} becomes an array by a copy only")
        array: NDArray[Any] = _device.array_on_host(self.read(0, len(self)), False)
        return array if dtype is None else array.astype(dtype, copy=False)

    @property
    def device(self) -> str:
        """Where results are: "cpu" or "cuda:0"."""
        return _device.name(self._index)

    @property
    def guessed(self) -> bool:
        """Whether the mount guessed dtype from the values of files without a header: ``hbmfs mount --dtype`` sets it."""
        return self._tokens.guessed

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    @property
    def tensors(self) -> bool:
        """Whether results on the CPU are torch tensors."""
        return _device.torch_is_imported() if self._tensors is None else self._tensors

    @property
    def documents(self) -> NDArray[Any] | None:
        """Where documents begin, in tokens, and behind the last one where it ends: int64. None where it is not known: it is of
        views of tokens, and of Megatron's .bin files."""
        if self._documents is None:
            self._open()
            folder, name = os.path.split(self.path)
            beside = os.path.join(folder, "documents.npy")
            if name.endswith(".bin") and os.path.exists(f"{self.path[:-4]}.idx"):
                from ._megatron_index import Index

                self._documents = Index(f"{self.path[:-4]}.idx").document_borders()
                return self._documents
            if not name.startswith("tokens.") or f"{os.sep}.hbmfs{os.sep}views" not in folder or not os.path.exists(beside):
                return None
            try:
                self._documents = np.asarray(np.load(beside, mmap_mode="r"))
            except (OSError, ValueError) as err:
                raise errors.ReadError(f"{beside} cannot be read: {err}") from err
        return self._documents

    def subset(self, documents: Any) -> Part[A]:
        """Some documents, by their numbers or by a mask of all, one behind the other: read like a dataset."""
        from .part import Part

        return Part(self, documents)

    @checked
    def split(self, name: str, shares: Mapping[str, float] | None = None, seed: int = 0) -> Part[A]:
        """The documents of a split: "train" (0.99) or "val" (0.01), or of other shares. See help("hbmfs.part")."""
        from .part import split

        return split(self, name, shares, seed)

    def gather(self, starts: Any, length: int, *, out: Any = None, dtype: Any = None) -> A:
        """Reads ``length`` tokens from each of ``starts`` on: an array of shape [len(starts), length]."""
        return self.begin_gather(starts, length, out=out, dtype=dtype).wait()

    def read(self, start: int, length: int, *, out: Any = None, dtype: Any = None) -> A:
        """Reads ``length`` tokens from ``start`` on: an array of shape [length]."""
        start, length = count_of("start", start), count_of("length", length)
        return self._begin(np.array([start], np.int64), length, (length,), out, dtype).wait()

    def begin_gather(self, starts: Any, length: int, *, out: Any = None, dtype: Any = None) -> Request[A]:
        """Starts a gather and returns at once; ``wait()`` of the request gives the array.

        On a GPU the read is ordered behind earlier work on the caller's current stream. When wait() returns, the
        tokens are there for every stream.
        """
        where, length = starts_of(starts), count_of("length", length)
        return self._begin(where, length, (len(where), length), out, dtype)

    def begin_pieces(self, starts: Any, lengths: Any, shape: tuple[int, ...], *, pad: int = 0, out: Any = None, dtype: Any = None) -> Request[A]:
        """Starts reading ``lengths`` tokens from ``starts`` on, one behind the other, to an array of that shape. From -1 on nothing is read:
        these tokens become ``pad``. Both are arrays of int64."""
        file = self._open()
        read = starts != -1
        self._inside(starts[read], lengths[read])
        wanted, place = self._result_type(dtype), self.place()
        if wide := wanted != self.dtype:
            if out is not None:
                place.accept(out, shape, wanted)
            array = place.allocate(shape, self.dtype)
        else:
            array = place.allocate(shape, wanted) if out is None else (out, *place.accept(out, shape, wanted))
        padding = tokens_of(lengths, ~read)
        late = wide or file is None  # else the library pads

        def finish(value: Any) -> Any:
            value = place.convert(value, wanted, out) if wide else value
            if late:
                fill(value, padding, pad)
            return value if out is not None else self._given(value)

        if file is None:
            size = self.dtype.itemsize
            self._forked().pieces(array[1], math.prod(shape) * size, np.where(read, starts * size + self._tokens.offset, -1), lengths * size)
            return Request(None, array[0], finish)
        if self._scatter is None:
            self._scatter = Scatter([self])
        spans = Spans(shape[0], starts, None, lengths, pad if len(padding) and not late else None)
        return self._scatter.begin(array, math.prod(shape), spans, 0, finish=finish)

    def queue(self, depth: int) -> Queue:
        """A queue of at most ``depth`` gathers under way, given out in order."""
        self._open()
        return Queue(self, depth)

    def place(self) -> Place:
        """Where results are, and how they are made there."""
        return self._reader._memory() if self._open() is not None and self._reader is not None else Host()

    def prefetch(self, starts: Any, length: Any) -> None:
        """Says which spans will be read, in their order, so that slow storage can be asked early. It is advice. length is of all
        spans, or an array."""
        where = starts_of(starts)
        lengths = starts_of(length, "length") if np.ndim(length) else np.full(where.shape, count_of("length", length))
        if lengths.shape != where.shape:
            raise errors.InvalidError(f"length has {len(lengths)} of them, and there are {len(where)} starts: give one, or as many")
        file = self._open()
        if file is None or not len(where) or file.seen:
            return
        self._inside(where, lengths)
        size = self.dtype.itemsize
        file.prefetch(where * size + self._tokens.offset, lengths * size)

    def stats(self) -> dict[str, Any]:
        """Counts of reads: ``bytes`` by path, ``reads``, the last ``choice`` and its ``reason``, and the reader's memory.

        In a forked child all bytes take the path "host" and are counted in the child.
        """
        file = self._open()
        if file is None or self._reader is None:
            child = self._forked()
            moved = {"host": child.moved} if child.moved else {}
            return {
                "path": self.path,
                "device": self.device,
                "bytes": moved,
                "reads": child.reads,
                "choice": "host",
                "reason": "a forked child reads by itself",
            }
        reader, own = self._reader.stats(), file.stats()
        return {
            "path": self.path,
            "device": self.device,
            "bytes": own["bytes"],
            "reads": reader["reads"],
            "choice": reader["path"],
            "reason": reader["reason"],
            "pinned_bytes": reader["pinned_bytes"],
            "mounted": own["mounted"],
            "note": own["note"] or self._reader.info()["note"],
        }

    def close(self) -> None:
        """Cancels running requests and gives everything back. Arrays that were given out stay.

        :class:`WaitTimeoutError`: a read hangs in the kernel or the driver, so that its memory must stay. Close it again later.
        """
        self._closed = True
        self._documents = None
        with self._lock:
            if self._child is not None:
                self._child.close()
        reader = self._reader if self._owns_reader else None
        try:
            if self._file is not None:
                self._file.close()
        except errors.WaitTimeoutError:
            raise  # the reader would wait for the same read
        except errors.Error:
            if reader is not None:
                reader.close()
            raise
        if reader is not None:
            reader.close()

    def __enter__(self) -> Dataset[A]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Opens the dataset again, for multiprocessing's spawn."""
        return _reopen, self._again

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        dtype = f"{self.dtype} (guessed)" if self.guessed else self.dtype
        return f"<hbmfs.Dataset {self.path} {len(self)} {dtype} tokens on {self.device}{state}>"

    def _begin(self, where: NDArray[Any], length: int, shape: tuple[int, ...], out: Any, dtype: Any) -> Request[A]:
        file = self._open()
        self._inside(where, length)
        wanted = self._result_type(dtype)
        wide = wanted != self.dtype
        widen = _native.WIDEN.get((self.dtype, wanted), _native.KEEP) if file is not None else _native.KEEP
        place = self.place()
        convert = wide and not widen  # of a type that the library does not widen: after reading
        if convert:
            if out is not None:
                place.accept(out, shape, wanted)
            value, pointer, stream = place.allocate(shape, self.dtype)
        elif out is not None:
            value, (pointer, stream) = out, place.accept(out, shape, wanted)
        else:
            value, pointer, stream = place.allocate(shape, wanted)
        finish: Callable[[Any], Any] | None = None
        if out is None and self._index == _device.CPU and self.tensors:
            finish = (lambda narrow: self._given(place.convert(narrow, wanted, None))) if convert else self._given
        elif convert:
            finish = lambda narrow: place.convert(narrow, wanted, out)  # noqa: E731
        size = self.dtype.itemsize
        offsets, span = where * size + self._tokens.offset, length * size
        if not span or not len(offsets):
            return Request(None, value, finish)
        if file is None:
            self._forked().gather(pointer, offsets, span)
            return Request(None, value, finish)
        room = len(offsets) * length * (wanted.itemsize if widen else size)
        return file.gather_into(value, pointer, room, offsets, span, widen=widen, stream=stream, finish=finish)

    def _given(self, value: Any) -> Any:
        """The form in which a result is handed out."""
        return _device.array_on_host(value, True) if self._index == _device.CPU and self.tensors else value

    def _open(self) -> File | None:
        """The open file, or None in a forked child, which must read by itself."""
        if self._closed:
            raise errors.ClosedError(f"the dataset {self.path} is closed: open it again")
        if self._file is not None and _native.process() == self._process:
            return self._file
        if self._index != _device.CPU:
            raise errors.ForkedError(_native.FORKED)
        return None

    def _forked(self) -> HostFile:
        with self._lock:
            if self._child is None or self._child.process != _native.process():
                self._child = HostFile(self._tokens)
            return self._child

    def _inside(self, where: NDArray[Any], length: Any) -> None:
        if not len(where):
            return
        if isinstance(length, np.ndarray):
            at = int(np.argmax(where + length))
            first, last, length = int(where.min()), int(where[at]), int(length[at])
        else:
            first, last = int(where.min()), int(where.max())
        if first < 0 or last > len(self) - length:
            wrong = first if first < 0 else last
            room = len(self) - length
            allowed = f"starts go from 0 to {room}" if room >= 0 else f"these are fewer than one sample of {length}, so give a smaller length"
            raise errors.OutOfRangeError(f"tokens {wrong} to {wrong + length} are not inside of {self.path}, which has {len(self)}: {allowed}")

    def _result_type(self, dtype: Any) -> np.dtype[Any]:
        if dtype is None:
            return self.dtype
        wanted = tokens.parse_dtype(dtype)
        if wanted != self.dtype and not tokens.widens(self.dtype, wanted):
            raise errors.DtypeError(
                f"{self.dtype} tokens cannot be read as {wanted}: leave dtype out, or widen integers with dtype='int64', or 'int32' where that has all of them"
            )
        return wanted


@overload
def open(path: Path, device: Device = None, *, tensors: Literal[True], **o: Unpack[Options]) -> Dataset[torch.Tensor]: ...
@overload
def open(path: Path, device: Device = None, *, tensors: Literal[False], **o: Unpack[Options]) -> Dataset[NDArray[Any]]: ...
@overload
def open(path: Path, device: Device = None, *, tensors: bool | None = None, **o: Unpack[Options]) -> Dataset[Array]: ...
@checked
def open(
    path: Path,
    device: Device = None,
    *,
    method: str = "auto",
    require: str | None = None,
    dtype: Any = None,
    reader: Reader | None = None,
    tensors: bool | None = None,
) -> Dataset[Any]:
    """Opens a dataset.

    path: a file of tokens (``.npy``, a view, Megatron's ``.bin`` beside its ``.idx``, or headerless with ``dtype``), or a
        directory of an hbmfs mount, which stands for its tokens view.
    dtype: the type of headerless tokens, as in ``hbmfs mount --dtype``: "uint16", "u16", "<u2", numpy.uint16 or torch.uint16.
    device: "cpu", "cuda", "cuda:1", an index, or a torch.device. None means the reader's, and "cpu" without one.
    method: "auto", or the path that is wished for. See :class:`Reader`.
    require: a path that must work, such as "direct"; otherwise :class:`UnavailableError`.
    reader: a reader to share, of this device. It has a method and a require of its own, and is not closed with the dataset.
    tensors: on the CPU True gives tensors of torch, and False NumPy arrays. None: tensors where torch is imported. Type checkers know which with
        True or False.
    """
    if reader is not None and (method != "auto" or require is not None):
        raise errors.InvalidError("reader= has a method and a require of its own: give method= and require= to the Reader instead")
    if device is None:
        index = _device.CPU if reader is None else reader.device
    else:
        index = _device.parse(device)
    if reader is not None and reader.device != index:
        raise errors.DeviceError(f"the reader is for {_device.name(reader.device)} and the dataset goes to {_device.name(index)}: give one of that device")
    if reader is not None and reader.closed:
        raise errors.DeviceError(f"{reader!r} cannot be used: give one that is open, or none")
    found = tokens.find(path, dtype)
    if found.guessed and dtype is None:
        dtype = found.dtype.name  # of which no copy of this dataset warns again
        warn(
            f"{found.path} is of {dtype} by a guess: its mount took the type from the values of files without a header. "
            f"Give dtype={dtype!r} if it is right, or mount its source with --dtype"
        )
    again = (os.fspath(path), _device.name(index), method, require, dtype, reader, tensors)
    if reader is None and not (index == _device.CPU and _native.library().forked):
        own = Reader(_device.name(index), method=method, require=require, **kept(found, index))
        try:
            return Dataset(found, index, own, own=True, again=again, tensors=tensors)
        except BaseException:
            own.close()
            raise
    return Dataset(found, index, reader, own=False, again=again, tensors=tensors)


def kept(found: tokens.Tokens, device: int) -> dict[str, Any]:
    """The advice to a reader about a dataset that will be read again, as in training."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fits = found.size <= memory // _KEPT_PART and found.runs <= _KEPT_RUNS
    return {"reuse": True} if device != _device.CPU and fits else {}


def _reopen(path: str, device: str, method: str, require: str | None, dtype: Any, reader: Reader | None, tensors: bool | None = None) -> Dataset[Any]:
    return open(path, device, method=method, require=require, dtype=dtype, reader=reader, tensors=tensors)
