"""Which bytes of a tensor a caller wants, and where they come to lie: parts of tensors, packed into blocks of memory.

A part is a number of runs of equal length in the file. A whole tensor, or some of its rows, is one run; some of its
columns are a run for each row. The parts of a block follow each other in the order of their files.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..errors import InvalidError
from . import safetensors_header
from .safetensors_header import Tensor

BLOCK = 4 << 30
"""Most bytes of one block that holds more than one tensor."""
SMALL, PACK = 1 << 20, 16 << 20
"""Bytes of a part that is read together with its neighbours where parts have blocks of their own, and of such a block: a request costs as much as a MiB."""
ALIGNED = 64 << 10
"""Tensors from this size on begin at 16 bytes' alignment, which fast kernels want; smaller ones at their element's."""
APART = 256
"""Bytes to which a span of a block is aligned."""

Offsets = np.ndarray[Any, np.dtype[np.int64]]


class Skip:
    """The type of SKIP."""

    def __repr__(self) -> str:
        return "hbmfs.SKIP"


SKIP = Skip()
"""Says of a tensor, in slices=, that it is not wanted at all."""

Wanted = None | tuple[slice, ...] | Skip
Slices = Mapping[str, Wanted] | Callable[[str], Wanted] | None
"""The wanted part of each tensor, by name: None for all of it, a slice for each dimension, or SKIP."""

Cut = tuple[tuple[int, int, int], ...] | None
"""The first index, the number of indices and their step in each dimension; None: the whole tensor."""


class Part(NamedTuple):
    """The wanted elements of a tensor: their shape, and runs of so many bytes at offsets of the file."""

    tensor: Tensor
    shape: tuple[int, ...]
    run: int
    offsets: Offsets

    @property
    def length(self) -> int:
        return self.run * len(self.offsets)


def wanted(tensors: Iterable[Tensor], slices: Slices) -> list[Cut | Skip]:
    """The slices of each tensor, checked."""
    if slices is None:
        return [None for _ in tensors]
    ask = slices if callable(slices) else slices.get
    tensors = list(tensors)
    if not callable(slices) and slices.keys() - {tensor.name for tensor in tensors}:
        unknown = min(slices.keys() - {tensor.name for tensor in tensors})
        raise InvalidError(f"slices name the tensor {unknown!r}, which is not loaded")
    return [_cut(tensor, ask(tensor.name)) for tensor in tensors]


def _cut(tensor: Tensor, want: Wanted) -> Cut | Skip:
    if want is None or isinstance(want, Skip):
        return want
    if not isinstance(want, tuple) or len(want) != len(tensor.shape) or not all(isinstance(part, slice) for part in want):
        raise InvalidError(
            f"slices of {tensor.name!r} are {want!r}: its shape is {list(tensor.shape)}, so give {len(tensor.shape)} slices in a tuple, None or hbmfs.SKIP"
        )
    cut = []
    for part, size in zip(want, tensor.shape, strict=True):
        start, stop, step = part.indices(size)
        if step < 1:
            raise InvalidError(f"slices of {tensor.name!r} have a step of {step}: torch has no views with negative steps, so flip it after loading")
        cut.append((start, len(range(start, stop, step)), step))
    return None if all(count == size and step == 1 for (_, count, step), size in zip(cut, tensor.shape, strict=True)) else tuple(cut)


def part(tensor: Tensor, cut: Cut) -> Part:
    """The runs of bytes of a cut."""
    if cut is None:
        return Part(tensor, tensor.shape, tensor.length, np.array([tensor.offset], np.int64))
    shape = tuple(count for _, count, _ in cut)
    bits = safetensors_header.BITS[tensor.dtype]
    run, offsets, strided = bits, np.zeros(1, np.int64), False
    inner = bits  # bits of one index of the dimension
    for (start, count, step), size in zip(reversed(cut), reversed(tensor.shape), strict=True):
        if not strided and step == 1:
            offsets, run = offsets + start * inner, count * inner
            strided = count != size
        else:
            offsets = np.add.outer(np.arange(count, dtype=np.int64) * step * inner + start * inner, offsets).ravel()
            strided = True
        inner *= size
    if math.prod(shape) and (run % 8 or (offsets % 8).any()):
        raise InvalidError(f"slices of {tensor.name!r} begin or end inside of a byte: its elements of {tensor.dtype} have {bits} bits, so cut at whole bytes")
    return Part(tensor, shape, run // 8, offsets // 8 + tensor.offset if math.prod(shape) else np.empty(0, np.int64))


class Read(NamedTuple):
    """Runs of a file that become consecutive bytes of a block, from `to` on."""

    to: int
    file: int
    run: int
    offsets: Offsets

    @property
    def length(self) -> int:
        return self.run * len(self.offsets)

    def within(self, begin: int, end: int) -> Iterator[Read]:
        """The pieces of it in [begin, end) of the block: the rest of a run, whole runs, and the beginning of one."""
        first, last = max(begin - self.to, 0), min(end - self.to, self.length)
        while first < last:
            number, skip = divmod(first, self.run)
            whole = 0 if skip else (last - first) // self.run
            if whole:
                yield Read(self.to + first, self.file, self.run, self.offsets[number : number + whole])
                first += whole * self.run
            else:
                size = min(self.run - skip, last - first)
                yield Read(self.to + first, self.file, size, self.offsets[number : number + 1] + skip)
                first += size


class Place(NamedTuple):
    """Where a part comes to lie: at an offset of a block. A part of no bytes has no block."""

    part: Part
    block: int
    offset: int


class Layout:
    """Parts packed into blocks: the blocks' sizes, the reads into each in the order of its bytes, and the parts' places.

    Parts that lie next to each other in a file do so in the block, and are read at once, unless alignment parts them.
    """

    def __init__(self, apart: bool = False) -> None:
        """apart: each part is a block of its own, but for small ones that follow each other in a file."""
        self._most = PACK if apart else BLOCK
        self._apart = apart
        self._small = False  # the last part is
        self.blocks: list[int] = []
        self.reads: list[list[Read]] = []
        self.places: list[Place] = []

    def add(self, file: int, part: Part) -> None:
        """Packs a part of a file behind those before it."""
        length = part.length
        if length == 0:
            self.places.append(Place(part, -1, 0))
            return
        reads = self.reads[-1] if self.reads else []
        before = reads[-1] if reads else None
        follows = (
            before is not None
            and before.file == file
            and len(before.offsets) == len(part.offsets) == 1
            and before.offsets[0] + before.run == part.offsets[0]
            and self.blocks[-1] % _alignment(part) == 0
        )
        small = length <= SMALL
        alone = self._apart and not (follows and small and self._small)
        if before is None or alone or self.blocks[-1] + length > self._most:
            reads, follows = [], False
            self.blocks.append(0)
            self.reads.append(reads)
        self._small = small
        size = self.blocks[-1]
        if follows and before is not None:
            reads[-1] = Read(before.to, file, before.run + length, before.offsets)
        else:
            size = -(-size // APART) * APART
            reads.append(Read(size, file, part.run, part.offsets))
        self.places.append(Place(part, len(self.blocks) - 1, size))
        self.blocks[-1] = size + length

    def within(self, block: int, begin: int, end: int) -> Iterator[Read]:
        """The reads into [begin, end) of a block."""
        reads = self.reads[block]
        first = max(bisect_right(reads, begin, key=lambda read: read.to) - 1, 0)
        for read in reads[first:]:
            if read.to >= end:
                break
            yield from read.within(begin, end)


def _alignment(part: Part) -> int:
    return 16 if part.length >= ALIGNED else max(safetensors_header.BITS[part.tensor.dtype] // 8, 1)
