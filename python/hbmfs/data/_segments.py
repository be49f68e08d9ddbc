"""The sequences that a batch holds: documents, parts of them, and padding; as attention of variable lengths takes them.

What they say of each token the library writes beside the tokens (_scatter.py), and NumPy in a forked child. Labels are made by NumPy on
the host, by torch on a device.
"""

from __future__ import annotations

import ctypes
import itertools
from collections import namedtuple
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._lib._device import array_on_host
from .._lib._memory import signed
from .._lib._native import address, library
from .._lib.device_array import DeviceArray
from ..errors import InvalidError
from ._types import A, Counted, Ints

NO_LABEL = -100
"""The label that torch's cross_entropy leaves out."""


if TYPE_CHECKING:

    class _Fields(NamedTuple, Generic[A]):
        tokens: A
        cu_seqlens: A
        max_seqlen: int
        position_ids: A
        document_ids: A
        labels: A | None
        beside: dict[str, A] | None = None

    class Packed(_Fields[A]):
        """A batch of packed samples."""

else:

    class Packed(namedtuple("Packed", "tokens cu_seqlens max_seqlen position_ids document_ids labels beside", defaults=[None])):
        """A batch of samples that hold several documents. Sequences are documents, or parts of them, or padding.

        tokens        [batch_size, seq_len]
        cu_seqlens    int32 [sequences + 1]: where each begins in tokens.view(-1), and the end
        max_seqlen    tokens of the longest sequence
        position_ids  int64 [batch_size, seq_len]: each token's place in its sequence
        document_ids  int64 [batch_size, seq_len]: the number of each token's document in its dataset, -1 for padding
        labels        int64 [batch_size, seq_len] with targets=True, else None
        beside        what lies beside the tokens of an Aligned, by name: as labels with targets=True, else as tokens
        """

        __slots__ = ()

        def __repr__(self) -> str:
            labels = "" if self.labels is None else " with labels"
            kind = str(self.tokens.dtype).removeprefix("torch.")
            return f"<hbmfs.Packed {list(self.tokens.shape)} {kind} tokens, {len(self.cu_seqlens) - 1} sequences of {self.max_seqlen} at most{labels}>"


class Segments(NamedTuple):
    """The sequences of rows, one after another."""

    lengths: Ints
    documents: Ints
    goes_on: NDArray[np.bool_]  # whether the document goes on in the token behind the row's last one

    def part(self, first: int, end: int) -> Segments:
        """Some of them."""
        return Segments(self.lengths[first:end], self.documents[first:end], self.goes_on[first:end])

    def batches(self, each: Ints, rows: int, length: int) -> list[Sequences]:
        """The sequences of batches of so many rows, which have `each` of them, and `length` tokens."""
        if not rows:
            return [Sequences((0, length), *self, 0)]
        at = np.append(0, np.cumsum(each))[::rows]
        longest = np.maximum.reduceat(self.lengths, at[:-1]).tolist() if len(at) > 1 else []
        return self.cut(itertools.pairwise(at.tolist()), (rows, length), longest)

    def cut(self, at: Iterable[Sequence[int]], shape: tuple[int, int], longest: Sequence[int]) -> list[Sequences]:
        """The sequences of batches of this shape, which go from one place to another."""
        (lengths, documents, goes_on), where = self, (address(self.lengths), address(self.documents))
        return [
            Sequences(shape, lengths[a:b], documents[a:b], goes_on[a:b], n, (where[0] + 8 * a, where[1] + 8 * a)) for (a, b), n in zip(at, longest, strict=True)
        ]


class Sequences(NamedTuple):
    """The sequences of a batch."""

    shape: tuple[int, int]  # rows, and tokens of each
    lengths: Ints
    documents: Ints
    goes_on: NDArray[np.bool_]
    longest: int
    where: tuple[int, int] | None = None  # the addresses of lengths and documents, if they are known

    def expanded(self) -> tuple[Any, Any, Any]:
        """cu_seqlens, position_ids and document_ids, as the library writes them."""
        borders = np.append(0, np.cumsum(self.lengths)).astype(np.int32)
        position = np.arange(borders[-1], dtype=np.int64) - np.repeat(borders[:-1], self.lengths)
        return borders, position.reshape(self.shape), np.repeat(self.documents, self.lengths).reshape(self.shape)

    def pack(self, expanded: tuple[Any, Any, Any], tokens: Any, labels: Any, beside: dict[str, Any] | None = None) -> Packed[Any]:
        """Puts the metadata of each token beside the tokens. labels are those that ignore sequences, or None."""
        borders, position, document = expanded
        if labels is not None and len(self.lengths):
            last = (np.cumsum(self.lengths) - 1)[~self.goes_on]
            fill(labels, np.append(last, tokens_of(self.lengths, self.documents < 0)), NO_LABEL)
        return Packed(tokens, borders, self.longest, position, document, labels, beside)


def of_rows(borders: Sequence[Ints], sources: NDArray[np.int32] | None, starts: Ints, length: int) -> tuple[Segments, Ints]:
    """The sequences of rows of consecutive tokens, and how many each row has. borders are those of the documents of each dataset, and
    sources the rows' datasets; None: the first. A forked child has no library, and does it here."""
    if library().forked or not len(starts) or not length:
        return of_rows_here(borders, sources, starts, length)
    borders, starts = [np.ascontiguousarray(b, np.int64) for b in borders], np.ascontiguousarray(starts, np.int64)
    where, counts = np.array([address(b) for b in borders], np.uint64), np.array([len(b) for b in borders], np.int64)
    each, total = np.empty(len(starts), np.int64), ctypes.c_int64()
    room = len(starts) * (2 + max(2 * length * len(b) // int(b[-1] or 1) for b in borders))  # mostly enough
    while True:
        lengths, documents, goes_on = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.bool_)
        library().ask(
            "cut", address(where), address(counts), len(borders), None if sources is None else address(sources), address(starts), len(starts), length,
            address(each), address(lengths), address(documents), address(goes_on), room, total,
        )  # fmt: skip
        if total.value <= room:
            return Segments(lengths, documents, goes_on).part(0, total.value), each
        room = total.value


def sequences_of(borders: Sequence[Ints], sources: NDArray[np.int32] | None, starts: Ints, rows: int, length: int) -> list[Sequences]:
    """The sequences of batches of so many rows of consecutive tokens."""
    segments, each = of_rows(borders, sources, starts, length)
    return segments.batches(each, rows, length)


def of_rows_here(borders: Sequence[Ints], sources: NDArray[np.int32] | None, starts: Ints, length: int) -> tuple[Segments, Ints]:
    """The same by NumPy."""
    if sources is None:
        return _of_one(borders[0], starts, length)
    parts = [(own, *_of_one(b, starts[own], length)) for i, b in enumerate(borders) for own in [np.flatnonzero(sources == i)]]
    row = np.concatenate([np.repeat(own, count) for own, _, count in parts])
    order = np.argsort(row, kind="stable")
    lengths, documents, goes_on = (np.concatenate(fields)[order] for fields in zip(*(segments for _, segments, _ in parts), strict=True))
    return Segments(lengths, documents, goes_on), np.bincount(row, minlength=len(starts))


def _of_one(borders: Ints, starts: Ints, length: int) -> tuple[Segments, Ints]:
    first = np.searchsorted(borders, starts, side="right") - 1
    count = np.searchsorted(borders, starts + length, side="left") - first
    row = np.repeat(np.arange(len(starts)), count)
    document = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + first[row]
    begin = np.maximum(borders[document], starts[row])
    end = np.minimum(borders[document + 1], starts[row] + length)
    some = end > begin
    segments = Segments((end - begin)[some], document[some], (borders[document + 1] > starts[row] + length)[some])
    return segments, np.bincount(row[some], minlength=len(starts))


def tokens_of(lengths: Ints, some: NDArray[np.bool_]) -> Ints:
    """The places of the tokens of some spans, of those of so many tokens that lie one behind the other."""
    own = lengths[some]
    skipped = np.cumsum(lengths)[some] - np.cumsum(own)
    places: Ints = np.repeat(skipped, own) + np.arange(int(own.sum()))
    return places


def borders_of(dataset: Counted) -> Ints:
    """Where the documents of a dataset begin, and the end."""
    if dataset.documents is None:
        raise InvalidError(f"{dataset.path} has no document borders: open a dataset that has")
    borders = dataset.documents
    if len(borders) == 0 or borders[0] != 0 or borders[-1] != len(dataset):
        raise InvalidError(f"the documents of {dataset.path} do not go from its first token to its last")
    return np.asarray(borders)


def rows_and_labels(batch: Any, targets: bool) -> tuple[Any, Any, dict[str, Any] | None]:
    """Tokens, labels, and arrays beside them, of rows of consecutive tokens; with targets they are one longer."""
    if isinstance(batch, dict):
        (_, first), *others = batch.items()
        tokens, labels, _ = rows_and_labels(first, targets)
        return tokens, labels, {name: shifted(rows)[1] if targets else rows for name, rows in others}
    if not targets:
        return batch, None, None
    tokens, labels = shifted(batch)
    return tokens, labels.astype(np.int64) if isinstance(labels, np.ndarray) else labels.long(), None


def shifted(batch: Any) -> Any:
    """Splits rows of seq_len + 1 tokens into inputs and targets. Copies, since a loss does targets.view(-1)."""
    if isinstance(batch, dict):
        return {name: shifted(rows) for name, rows in batch.items()}
    _refuse_bare(batch)
    x, y = batch[:, :-1], batch[:, 1:]
    if isinstance(batch, np.ndarray):
        return np.ascontiguousarray(x), np.ascontiguousarray(y)
    return x.contiguous(), y.contiguous()


def _refuse_bare(batch: Any) -> None:
    if isinstance(batch, DeviceArray):
        raise InvalidError("targets=True makes labels on a GPU with torch, which is not installed: install it, or leave targets out")


def as_kind(batch: Any, tensors: bool) -> Any:
    """The same memory of all arrays of a batch on the host, as tensors of torch or as NumPy arrays."""
    if isinstance(batch, dict):
        return {name: as_kind(value, tensors) for name, value in batch.items()}
    if isinstance(batch, tuple):
        each = [as_kind(value, tensors) for value in batch]
        return Packed(*each) if isinstance(batch, Packed) else tuple(each)
    return array_on_host(batch, tensors)


# --- NumPy on the host, torch on a device --------------------------------------------------------------------------


def fill(values: Any, places: Ints, value: int) -> None:
    """Sets the elements of a batch at some places to a value, which wraps around in signed numbers."""
    if not len(places):
        return
    if isinstance(values, np.ndarray):
        values.reshape(-1)[places] = value
        return
    import torch

    moved = signed(values).view(-1)
    where = torch.from_numpy(places).to(values.device, non_blocking=True)
    moved.index_fill_(0, where, int(np.array(value).astype(str(moved.dtype).removeprefix("torch."))))


def next_tokens(tokens: Any) -> Any:
    """The token behind each one."""
    _refuse_bare(tokens)
    if isinstance(tokens, np.ndarray):
        return np.roll(tokens.astype(np.int64).reshape(-1), -1).reshape(tokens.shape)
    return tokens.long().view(-1).roll(-1).view(tokens.shape)
