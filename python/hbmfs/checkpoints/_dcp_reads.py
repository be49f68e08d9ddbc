"""How a rank reads parts of a checkpoint's entries: straight to the target, through a scratch buffer, or with others.

A Want is a part of a tensor in a file and the target that it goes to. Tensors that need a scratch buffer are cut into
parts of at most BATCH bytes, so that little memory is needed at once.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from .._lib import _device
from .._lib._transfer import Transfer, open_reader, uncache
from ..errors import OutOfMemoryError
from .torch_save import Stored

if TYPE_CHECKING:
    from .._lib.reader import File, Reader
    from ..group._group import Team

SMALL = 256 << 10
"""Bytes of a tensor that is read together with its neighbours."""
BATCH = 16 << 20
"""Most bytes of small tensors that are read together, and of one scratch buffer for a large one."""
GAP = 64 << 10
"""Most bytes between two small tensors, or between two runs of a large one, that are read although nobody wants them."""
ROW = 2 << 20
"""Rows of this size are parts of their own, if only some columns are wanted of each and several ranks load together."""


class Want(NamedTuple):
    """A part of the entry at `base` of a file, and its target. `block` is the part; of columns, it is their whole rows, so
    that ranks that want other columns of them have the same block."""

    path: str
    base: int
    part: Stored
    block: Stored
    device: int
    target: torch.Tensor
    commit: Callable[[], object]

    def is_plain(self) -> bool:
        """Whether the target's memory is to hold the very bytes of the file."""
        return self.part.is_contiguous() and _is_plain(self.target, self.part, self.device)

    def take(self, data: torch.Tensor, begin: int) -> None:
        """Copies it out of the bytes of its file from begin on."""
        at = self.base + self.part.offset - begin
        data = data[at : at + self.part.length]
        if data.data_ptr() % self.part.dtype.itemsize:
            data = data.clone()
        self.target.copy_(self.part.view(data))
        self.commit()


def wants(
    path: str,
    base: int,
    stored: Stored,
    offsets: Sequence[int],
    lengths: Sequence[int],
    device: int,
    target: torch.Tensor,
    commit: Callable[[], object],
    shared: bool,
) -> list[Want]:
    """Cuts a box of a stored tensor into parts. Ranks that share must cut alike, for any targets."""
    part = stored.narrow(offsets, lengths)
    boxes: list[tuple[Sequence[int], Sequence[int]]] = [(offsets, lengths)]
    if shared or not (part.is_contiguous() and _is_plain(target, part, device)):
        boxes = list(_boxes(stored, offsets, lengths, shared))
    left = len(boxes)

    def there() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            commit()

    found = []
    for at, size in boxes:
        inside = target
        for dimension, (begin, first, length) in enumerate(zip(at, offsets, size, strict=True)):
            inside = inside.narrow(dimension, begin - first, length)
        part = stored.narrow(at, size)
        found.append(Want(path, base, part, part if part.length == part.nbytes() else _block(stored, at, size), device, inside, there))
    return found


def _boxes(stored: Stored, offsets: Sequence[int], lengths: Sequence[int], shared: bool) -> Iterator[tuple[list[int], list[int]]]:
    """Cuts a box of a tensor along its outermost dimension in the file, to boxes that lie in at most BATCH bytes each."""
    at, size = list(offsets), list(lengths)
    outer = _outer(stored, lengths)
    if outer is None:
        yield at, size
        return
    row = stored.stride[outer] * stored.dtype.itemsize
    apart = shared and row >= ROW and stored.narrow(offsets, lengths).length != math.prod(lengths) * stored.dtype.itemsize
    rows = 1 if apart else max(BATCH // max(row, 1), 1)
    if rows >= lengths[outer]:
        yield at, size
        return
    end = offsets[outer] + lengths[outer]
    for begin in range(offsets[outer], end, rows):
        at[outer], size[outer] = begin, min(rows, end - begin)
        if rows == 1:
            yield from _boxes(stored, at, size, shared)
        else:
            yield at[:], size[:]


def _outer(stored: Stored, lengths: Sequence[int]) -> int | None:
    return next((dimension for dimension in stored.order() if lengths[dimension] > 1), None)


def _block(stored: Stored, offsets: Sequence[int], lengths: Sequence[int]) -> Stored:
    """A box with all of the inner dimensions."""
    at, size = list(offsets), list(lengths)
    order = stored.order()
    outer = _outer(stored, lengths)
    for dimension in order if outer is None else order[order.index(outer) + 1 :]:
        at[dimension], size[dimension] = 0, stored.size[dimension]
    return stored.narrow(at, size)


class Sources:
    """The readers of the devices that tensors are on, and the files that they have open."""

    def __init__(self, stack: contextlib.ExitStack, method: str, given: int | None, reader: Reader | None, readers: int | None) -> None:
        self._stack = stack
        self._method = method
        self._given = given
        self._sharing = readers
        self._readers: dict[int, Reader] = {} if given is None or reader is None else {given: reader}
        self._files: dict[tuple[int, str], File] = {}

    def device(self, target: torch.Tensor) -> int:
        """The device through which a tensor's bytes come."""
        if self._given is not None:
            return self._given
        if target.device.type != "cuda":
            return _device.CPU
        return int(target.device.index)

    def file(self, device: int, path: str) -> File:
        if device not in self._readers:
            self._readers[device] = self._stack.enter_context(open_reader(device, self._method, self._sharing))
        if (device, path) not in self._files:
            self._files[device, path] = self._stack.enter_context(self._readers[device].open_file(path))
        return self._files[device, path]

    def uncache(self, page_cache: str, team: Team | None) -> None:
        """Drops the pages of all files that were read."""
        uncache(list(self._files.values()), page_cache, team)


class Batch:
    """Sends each part on its way: straight to the target, through a buffer of its own, or with others."""

    def __init__(self, transfer: Transfer, sources: Sources, free: Callable[[str, int, int], bool] = lambda path, begin, end: True) -> None:
        """free says of a file's bytes that no other rank reads them."""
        self._transfer = transfer
        self._sources = sources
        self._free = free
        self._waiting: list[Want] = []
        self._begin = self._end = 0

    def add(self, want: Want) -> None:
        """Reads a part to its target."""
        part = want.part
        offset = want.base + part.offset
        if part.length != part.nbytes() and self._read_runs(want, offset):
            return
        if part.length > SMALL:
            self._read_alone(want, offset)
            return
        end = max(self._end, offset + part.length)
        if self._waiting:
            last = self._waiting[-1]
            near = self._begin <= offset <= self._end + GAP and end - self._begin <= BATCH
            if (want.device, want.path) != (last.device, last.path) or not near or not (offset <= self._end or self._free(want.path, self._end, offset)):
                self.flush()
        if not self._waiting:
            self._begin, end = offset, offset + part.length
        self._end = end
        self._waiting.append(want)

    def flush(self) -> None:
        """Begins reading the small parts that have come together."""
        small, begin = self._waiting, self._begin
        if not small:
            return
        self._waiting = []
        data = room(self._end - begin, small[0].device)

        def there() -> None:
            for want in small:
                want.take(data, begin)

        self._transfer.read(self._sources.file(small[0].device, small[0].path), data.data_ptr(), begin, data.numel(), there)

    def _read_alone(self, want: Want, offset: int) -> None:
        file = self._sources.file(want.device, want.path)
        if want.is_plain():
            self._transfer.read(file, want.target.data_ptr(), offset, want.part.length, want.commit)
            return
        data = room(want.part.length, want.device)
        self._transfer.read(file, data.data_ptr(), offset, want.part.length, lambda: want.take(data, offset))

    def _read_runs(self, want: Want, offset: int) -> bool:
        """Reads only the elements, if much lies between them, or bytes that others read."""
        part = want.part
        between = part.length - part.nbytes()
        runs = part.runs(between // max(GAP, 1) if self._free(want.path, offset, offset + part.length) else part.nbytes())
        if runs is None:
            return False
        run, offsets = runs
        file = self._sources.file(want.device, want.path)
        if part.order() == list(range(len(part.size))) and _is_plain(want.target, part, want.device):
            self._transfer.gather(file, want.target.data_ptr(), offsets + offset, run, want.commit)
            return True
        data = room(part.nbytes(), want.device)

        def there() -> None:
            want.target.copy_(part.view_runs(data))
            want.commit()

        self._transfer.gather(file, data.data_ptr(), offsets + offset, run, there)
        return True


def room(size: int, device: int) -> torch.Tensor:
    """A scratch buffer."""
    try:
        return torch.empty(size, dtype=torch.uint8, device=_device.name(device))
    except torch.cuda.OutOfMemoryError:
        raise OutOfMemoryError(f"{_device.name(device)} has no {size} bytes left to bring a checkpoint's elements into order: load to the CPU") from None


def _is_plain(target: torch.Tensor, part: Stored, device: int) -> bool:
    return (
        type(target) is torch.Tensor
        and target.device == torch.device(_device.name(device))
        and target.layout == torch.strided
        and target.dtype == part.dtype
        and target.is_contiguous()
        and not target.is_conj()
        and not target.is_neg()
    )
