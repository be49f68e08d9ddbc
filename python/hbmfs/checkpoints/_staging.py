"""A state dict of which every tensor lies in the arena of a Writer, until it is written or forgotten.

Each stretch of a storage that tensors use is copied once, so tensors that share memory share it in the copy, too. Stretches that
do not fit into the arena stay where they are: a save writes them first, and says when they are taken.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .._lib._warn import warn
from ..errors import BusyError, ClosedError, OutOfMemoryError, SlowPathWarning, UnavailableError

if TYPE_CHECKING:
    from .._lib.writer import Snapshot, Writer

ALIGNMENT = 4096
"""The unit of a tensor's part of the arena."""
ROUND = 16
"""Stretches begin at a multiple of this in their storage, so that every element type is aligned in the copy, too."""
LOOK = 0.02
"""Seconds between two looks whether the thread that saves has ended."""

PATIENCE = 20.0
"""Seconds that a staged state may keep others waiting while no thread saves it."""

_stagings: weakref.WeakSet[Staging] = weakref.WeakSet()
"""All that somebody has."""


class Staging:
    """The memory that one call of stage() took. `state` is its copy."""

    def __init__(self, writer: Writer, state: Any) -> None:
        self._thread: threading.Thread | None = None
        self._taken = threading.Event()
        self._lock = threading.Lock()
        self._released = False
        self._snapshot: Snapshot | None = None
        self._left: set[int] = set()
        self._arena = range(0)
        # The memory that is being copied must not go to another tensor before it is copied.
        self._sources: list[torch.Tensor] | None = list(_tensors(state, set()))
        self._taken.set()
        self._fit = _stretches(self._sources)
        self.room = sum(map(_rounded, self._fit))
        """Bytes of the arena."""
        self.left = 0
        """Bytes that stay where they are until they are written."""
        taken, large = 0, set[_Stretch]()
        for stretch in self._fit:
            if writer.fits(taken + _rounded(stretch)):
                taken += _rounded(stretch)
            else:
                large.add(stretch)
        self._leave(large)

    def begin(self, writer: Writer, state: Any, timeout: float) -> Any:
        """Begins the copies, and gives the staged state. WaitTimeoutError: there was no room; it may be tried again. Where no memory can
        be pinned, all of the state stays where it is."""
        if self._fit:
            try:
                self._snapshot = writer.snapshot([stretch.flat() for stretch in self._fit], timeout)
            except OutOfMemoryError as err:
                with contextlib.suppress(SlowPathWarning):  # where warnings are errors
                    warn(f"hbmfs: training waits until its state is written: {err}", SlowPathWarning)
                self._leave(set(self._fit))
        try:
            return self._stage(state)
        except BaseException:
            self.release()
            raise

    def _leave(self, stretches: set[_Stretch]) -> None:
        """Has stretches stay where they are."""
        self._fit = [stretch for stretch in self._fit if stretch not in stretches]
        self._left |= {stretch.storage.data_ptr() for stretch in stretches}
        self.left += sum(stretch.nbytes for stretch in stretches)
        self.room -= sum(_rounded(stretch) for stretch in stretches)
        if self._left:
            self._taken.clear()

    def _stage(self, state: Any) -> Any:
        if self._snapshot is not None:
            room = _Room(self._snapshot)
            # Everything that was staged is forgotten: nobody reads the room any more.
            weakref.finalize(room, _release, weakref.ref(self), self._snapshot)
            for stretch, there in zip(self._fit, self._snapshot.tensors, strict=True):
                stretch.copy = torch.from_numpy(np.asarray(_Range(room, there.data_ptr(), stretch.nbytes)))
            tensors = self._snapshot.tensors
            self._arena = range(tensors[0].data_ptr(), tensors[-1].data_ptr() + tensors[-1].nbytes)
        if self._arena or self._left:
            _stagings.add(self)
        for device in {tensor.device for tensor in self._sources or () if tensor.is_cuda} if self._left else ():
            torch.cuda.current_stream(device).synchronize()  # the thread that writes them has another stream
        with torch.no_grad():
            found = _Copy(self._fit).of(state)
        self._fit = []
        return found

    def note(self) -> None:
        """Notes that the current thread saves the staged state."""
        self._thread = threading.current_thread()

    def saver(self) -> str | None:
        """The name of the thread that saves the staged state; None where there is none."""
        return self._thread.name if self._thread is not None and runs(self._thread) else None

    def keeps(self, tensor: Any) -> bool:
        """Whether a tensor of the staged state is not in the arena."""
        return isinstance(tensor, torch.Tensor) and _is_plain(tensor) and tensor.untyped_storage().data_ptr() in self._left

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a plain tensor is of the staged state."""
        address = tensor.untyped_storage().data_ptr()
        return address in self._arena or address in self._left

    def wait(self) -> None:
        """Waits for the copies into the arena."""
        if self._snapshot is not None:
            try:
                self._snapshot.wait()
            except ClosedError:
                if not self._released:
                    raise
                # The save has ended meanwhile, and has given the room back. Its future says why.
        self._sources = None if not self._left else self._sources

    def taken(self) -> None:
        """Says that tensors outside of the arena are written."""
        self._sources = None
        self._taken.set()

    def wait_taken(self) -> None:
        """Waits until all of the state is copied or written, or the save has ended without it."""
        self.wait()
        start = time.monotonic()
        while not self._taken.wait(LOOK) and not self.ended():
            if self._thread is None and time.monotonic() - start > PATIENCE:
                self.release()  # its tensors may change from now on
                raise BusyError(f"{self.left} bytes of the staged state did not fit into the stager's memory, and nobody saves it: save it first")

    def ended(self) -> bool:
        """Whether the room is free again. It becomes so, too, when the thread that saved has ended without writing."""
        if not self._released and self._thread is not None and not runs(self._thread):
            self.release()
        return self._released

    def release(self) -> None:
        """Gives the room back: the staged tensors are not to be read any more."""
        with self._lock:
            if self._released:
                return
            self._released = True
        if self._snapshot is not None:
            self._snapshot.release()
        self.taken()


def runs(thread: threading.Thread) -> bool:
    """Whether a thread has not ended. Where Ctrl-C ended its join(), is_alive() says before Python 3.13 that it has."""
    return thread.is_alive() or os.path.exists(f"/proc/self/task/{thread.native_id}")


def staging_of(state: Any) -> Staging | None:
    """The staging that a state dict of a planner comes from, if it does."""
    there = [staging for staging in _stagings if not staging.ended()]
    return next((staging for tensor in _tensors(state, set()) for staging in there if staging.has(tensor)), None) if there else None


class _Room:
    """Lives as long as a tensor in a snapshot's memory."""

    def __init__(self, snapshot: Snapshot) -> None:
        pass


class _Range:
    """A stretch of a snapshot's memory, for NumPy, which keeps it as long as somebody uses the memory."""

    def __init__(self, room: _Room, address: int, length: int) -> None:
        self._room = room
        self.__array_interface__ = {"version": 3, "shape": (length,), "typestr": "|u1", "data": (address, False)}


def _release(staging: weakref.ref[Staging], snapshot: Snapshot) -> None:
    found = staging()
    if found is not None:
        found.release()
    else:
        snapshot.release()


class _Stretch:
    """Bytes [begin, end) of a storage that some tensors use, and their copy."""

    def __init__(self, tensor: torch.Tensor, begin: int, end: int) -> None:
        self._tensor = tensor
        self.storage = tensor.untyped_storage()
        self.begin, self.end = begin, end
        self.copy: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        return self.end - self.begin

    def flat(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8, device=self._tensor.device).set_(self.storage, self.begin, (self.nbytes,), (1,))


def _rounded(stretch: _Stretch) -> int:
    """The bytes of the arena that a stretch takes."""
    return -(-stretch.nbytes // ALIGNMENT) * ALIGNMENT


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage that a tensor uses."""
    begin = int(tensor.storage_offset()) * tensor.itemsize
    elements = 1 + sum((int(size) - 1) * int(stride) for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return begin // ROUND * ROUND, begin + elements * tensor.itemsize


def _stretches(tensors: list[torch.Tensor]) -> list[_Stretch]:
    """The stretches of all storages that tensors use, in their order."""
    spans: dict[tuple[str, int], list[tuple[int, int, torch.Tensor]]] = {}
    for tensor in tensors:
        if tensor.numel():
            spans.setdefault(_key(tensor), []).append((*_span(tensor), tensor))
    found = []
    for uses in spans.values():
        merged: list[_Stretch] = []
        for begin, end, tensor in sorted(uses, key=lambda use: use[:2]):
            if merged and begin < merged[-1].end:
                merged[-1].end = max(merged[-1].end, end)
            else:
                merged.append(_Stretch(tensor, begin, end))
        found += merged
    return found


def _key(tensor: torch.Tensor) -> tuple[str, int]:
    return str(tensor.device), tensor.untyped_storage().data_ptr()


def _is_wrapper(tensor: torch.Tensor) -> bool:
    return bool(is_traceable_wrapper_subclass(tensor))


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is strided memory and nothing else. Others are rare, and copied one by one."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_meta
    )


def _inside(tensor: Any) -> Iterator[tuple[str, Any]]:
    """The tensors that one of a wrapper class (DTensor, torchao's) is made of."""
    for name in tensor.__tensor_flatten__()[0]:
        yield name, _there(getattr(tensor, name))


def _there(tensor: Any) -> Any:
    """A tensor itself, where it is the promise of a collective."""
    return tensor.wait() if type(tensor).__name__ == "AsyncCollectiveTensor" else tensor


def _tensors(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """All plain tensors of a state."""
    if id(value) in seen:
        return
    if isinstance(value, torch.Tensor):
        value = _there(value)
        if isinstance(value, ShardedTensor):
            raise UnavailableError("DCPStager does not take a ShardedTensor: save DTensors (FSDP2, or get_model_state_dict), or save with dcp.save")
        if _is_wrapper(value):
            for _, inside in _inside(value):
                yield from _tensors(inside, seen)
        elif _is_plain(value):
            yield value
    elif isinstance(value, dict):
        seen.add(id(value))
        for inside in value.values():
            yield from _tensors(inside, seen)
    elif isinstance(value, (list, tuple)):
        seen.add(id(value))
        for inside in value:
            yield from _tensors(inside, seen)


class _Copy:
    """Rebuilds a state around copies of its storages."""

    def __init__(self, stretches: list[_Stretch]) -> None:
        self._memo: dict[int, Any] = {}
        self._kept: list[Any] = []  # the identity of a seen object must not go to another one
        self._stretches: dict[tuple[str, int], list[_Stretch]] = {}
        for stretch in stretches:
            self._stretches.setdefault((str(stretch._tensor.device), stretch.storage.data_ptr()), []).append(stretch)

    def of(self, value: Any) -> Any:
        if id(value) in self._memo:
            return self._memo[id(value)]
        made: Any
        if isinstance(value, torch.Tensor):
            made = self._tensor(_there(value))
        elif type(value) is dict or (isinstance(value, dict) and type(value).__name__ == "OrderedDict"):
            made = self._memo[id(value)] = type(value)()
            for key, inside in value.items():
                made[key] = self.of(inside)
        elif type(value) is list:
            made = self._memo[id(value)] = []
            made.extend(self.of(inside) for inside in value)
        elif isinstance(value, tuple):
            inside = [self.of(item) for item in value]
            made = type(value)(*inside) if hasattr(value, "_fields") else type(value)(inside)
        else:
            made = copy.deepcopy(value, self._memo)
        self._memo[id(value)] = made
        self._kept.append(value)
        return made

    def _tensor(self, tensor: Any) -> Any:
        if _is_wrapper(tensor):
            inside = {name: self.of(value) for name, value in _inside(tensor)}
            return type(tensor).__tensor_unflatten__(inside, tensor.__tensor_flatten__()[1], tensor.size(), tensor.stride())
        if tensor.is_meta:
            return tensor  # DCPWriter names it
        if not _is_plain(tensor):
            return tensor.detach().clone().cpu()
        return self._plain(tensor.detach())

    def _plain(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.numel():
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
        begin, end = _span(tensor)
        for stretch in self._stretches.get(_key(tensor), ()):
            if stretch.begin <= begin and end <= stretch.end:
                assert stretch.copy is not None
                offset = tensor.storage_offset() - stretch.begin // tensor.itemsize
                made = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(stretch.copy.untyped_storage(), offset, tensor.size(), tensor.stride())
                made = made.conj() if tensor.is_conj() else made
                return torch._neg_view(made) if tensor.is_neg() else made
        return tensor


def room(state: Any) -> int:
    """The bytes of an arena that a whole state takes."""
    return sum(map(_rounded, _stretches(list(_tensors(state, set())))))
