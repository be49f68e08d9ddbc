"""Columns of matrices, of which each rank of a group wants others: every rank reads a share of the whole rows, and gives the
others their columns.

Alone, a rank would read a short run of each row, or all rows for a part of their bytes. So each byte is read once for the host
instead, in long reads. The rows come into scratch memory, SLOTS shares of it. Columns that go to others are copied into memory of
their own, so that a rank can be WAVES shares ahead of the slowest one. Its own columns, and those that come, land where they belong.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .._lib._transfer import REQUEST, Transfer
from .._lib.reader import File
from ..group._group import Exchange, Move, Wave
from . import safetensors_header
from ._parts import Cut, Place
from .safetensors_header import Tensor

WIDEST = REQUEST // 8
"""Longer rows are not read together."""
SHARE = 30 * WIDEST
"""Most bytes of rows that a rank reads for one wave, but for the rest of a row. A wave costs the exchange about a millisecond."""
SLOTS = 3
"""Shares of a rank that are read at once."""
WAVES = 5
"""Shares of a rank that are read, or exchanged, at once."""
SHORT = 64 << 10
"""Runs of so many bytes a rank reads alone as fast as with others."""
LEAST = 1 << 20
"""Smaller matrices are not worth the messages."""


class Columns(NamedTuple):
    """Some bytes of each of the rows that make up a tensor."""

    rows: int
    width: int  # bytes of a row
    skip: int  # bytes before them
    run: int


class Matrix(NamedTuple):
    """The rows of a tensor in a file, and where this rank's columns come to lie."""

    file: int
    offset: int
    columns: Mapping[int, Columns]  # of each rank
    place: Place

    @property
    def any(self) -> Columns:
        return next(iter(self.columns.values()))


class Rows(NamedTuple):
    """Rows of a matrix in a share."""

    matrix: Matrix
    first: int
    last: int
    at: int  # where in the share they begin

    @property
    def length(self) -> int:
        return (self.last - self.first) * self.matrix.any.width


def shared(tensor: Tensor, cuts: Mapping[int, Cut]) -> dict[int, Columns]:
    """The columns of each rank that takes part, where reading the rows together is better than each rank's own reads; else
    empty."""
    if tensor.length < LEAST:
        return {}
    found = {rank: _columns(tensor, cut) for rank, cut in cuts.items() if cut is not None}
    some = next((columns for columns in found.values() if columns is not None), None)
    if some is None or some.width > WIDEST:
        return {}
    found |= {rank: some._replace(skip=0, run=some.width) for rank, cut in cuts.items() if cut is None}
    mine = {rank: columns for rank, columns in sorted(found.items()) if columns is not None and columns.run > 0}
    alike = len({columns[:2] for columns in mine.values()}) == 1
    worth = len(mine) > 1 and min(columns.run for columns in mine.values()) < SHORT and 2 * sum(columns.run for columns in mine.values()) >= some.width
    return mine if alike and worth and len(set(mine.values())) > 1 else {}


def _columns(tensor: Tensor, cut: tuple[tuple[int, int, int], ...]) -> Columns | None:
    """The columns of a cut, if it is the same part of each row of a matrix."""
    inner = safetensors_header.BITS[tensor.dtype]
    dimensions = [number for number, ((_, count, step), size) in enumerate(zip(cut, tensor.shape, strict=True)) if count != size or step != 1]
    if len(dimensions) != 1:
        return None
    (number,) = dimensions
    start, count, step = cut[number]
    rows, inner = math.prod(tensor.shape[:number]), inner * math.prod(tensor.shape[number + 1 :])
    bits = (inner * tensor.shape[number], inner * start, inner * count)
    if step != 1 or rows < 2 or any(bit % 8 for bit in bits):
        return None
    width, skip, run = (bit // 8 for bit in bits)
    return Columns(rows, width, skip, run)


def windows(matrices: Sequence[Matrix], ranks: int) -> Iterator[list[list[Rows]]]:
    """Rows that are exchanged at once: a share for each rank. All shares are about equal."""
    total = sum(matrix.any.rows * matrix.any.width for matrix in matrices)
    count = -(-total // (SHARE * ranks)) * ranks
    all_shares, begin, number = [list[Rows]() for _ in range(count)], 0, 0
    for matrix in matrices:
        rows, width = matrix.any.rows, matrix.any.width
        first = 0
        while first < rows:
            border = total * (number + 1) // count  # of the share
            last = min(-(-(border - begin) // width), rows)
            if last > first:
                share = all_shares[number]
                share.append(Rows(matrix, first, last, share[-1].at + share[-1].length if share else 0))
                first = last
            if first < rows or begin + rows * width == border:
                number += 1
        begin += rows * width
    for index in range(0, count, ranks):
        yield all_shares[index : index + ranks]


class Swap(NamedTuple):
    """The parts that this rank gives of its share, and gets of the others'."""

    given: list[Move]
    copied: Any  # an event after the copies that made it; None on the CPU

    def moves(self, rank: int) -> Iterator[Move]:
        if self.copied is not None:
            self.copied.wait()
        yield from self.given


def swap(shares: Sequence[Sequence[Rows]], ranks: tuple[int, ...], me: int, scratch: Any, blocks: Sequence[Any], allocate: Callable[[int], Any]) -> Swap:
    """Copies this rank's columns out of its share, which is in scratch memory, and columns for others into memory of its own."""
    moves, rank = [], ranks[me]
    for owner, share in zip(ranks, shares, strict=True):
        for rows in share:
            mine, place, count = rows.matrix.columns[rank], rows.matrix.place, rows.last - rows.first
            into = blocks[place.block][place.offset + rows.first * mine.run :][: count * mine.run]
            if owner != rank:
                moves.append(Move(owner, into, False))
                continue
            data = scratch[rows.at : rows.at + rows.length]
            _take(data, mine, into)
            for other, columns in rows.matrix.columns.items():
                if other != rank:
                    packed = allocate(count * columns.run)
                    _take(data, columns, packed)
                    moves.append(Move(other, packed, True))
    stream: Any = torch.cuda.current_stream(scratch.device) if scratch.is_cuda else None
    return Swap(moves, None if stream is None else stream.record_event())


def _take(rows: Any, columns: Columns, into: Any) -> None:
    """Copies the columns of rows, in elements as wide as all of them allow."""
    places = (columns.width, columns.skip, columns.run, rows.storage_offset(), into.storage_offset())
    element = next(kind for kind in (torch.int64, torch.int32, torch.int16, torch.uint8) if all(place % kind.itemsize == 0 for place in places))
    size = element.itemsize
    columns_of = rows.view(element).view(-1, columns.width // size)[:, columns.skip // size : (columns.skip + columns.run) // size]
    into.view(element).view(-1, columns.run // size).copy_(columns_of)


def read(
    matrices: Sequence[Matrix],
    ranks: tuple[int, ...],
    me: int,
    files: Sequence[File],
    blocks: Sequence[Any],
    allocate: Callable[[int], Any],
    transfer: Transfer,
    exchange: Exchange,
) -> None:
    """Begins reading this rank's shares of the rows, and gives each window to the exchange when its share is there."""
    all_windows = list(windows(matrices, len(ranks)))
    most = max(sum(rows.length for rows in shares[me]) for shares in all_windows)
    free = [allocate(max(most, 1)) for _ in range(min(SLOTS, len(all_windows)))]
    whole = 0

    def is_whole() -> None:
        nonlocal whole
        whole += 1

    def room(number: int) -> bool:
        return bool(free) and number < whole + WAVES

    for number, shares in enumerate(all_windows):
        transfer.until(functools.partial(room, number))
        scratch, key = free.pop(0), f"columns {'+'.join(map(str, ranks))}/{number}"
        for file, to, offset, length in _reads(shares[me]):
            transfer.read(files[file], scratch.data_ptr() + to, offset, length)

        def arrived(shares: list[list[Rows]] = shares, scratch: Any = scratch, key: str = key) -> None:
            exchange.have(Wave(key, ranks, [swap(shares, ranks, me, scratch, blocks, allocate)], is_whole))
            free.append(scratch)  # the next read into it waits for the copies

        transfer.then(arrived)


def _reads(share: Sequence[Rows]) -> Iterator[tuple[int, int, int, int]]:
    """The reads of a share: a file, where they land, where they begin, their bytes. Rows that follow each other are read at once."""
    reads: list[tuple[int, int, int, int]] = []
    for rows in share:
        matrix = rows.matrix
        offset = matrix.offset + rows.first * matrix.any.width
        if reads and reads[-1][0] == matrix.file and reads[-1][2] + reads[-1][3] == offset:
            file, to, begin, length = reads[-1]
            reads[-1] = file, to, begin, length + rows.length
        else:
            reads.append((matrix.file, rows.at, offset, rows.length))
    yield from reads


def size(matrices: Sequence[Matrix], ranks: tuple[int, ...], me: int) -> int:
    """The bytes that a rank reads."""
    return sum(rows.length for shares in windows(matrices, len(ranks)) for rows in shares[me])
