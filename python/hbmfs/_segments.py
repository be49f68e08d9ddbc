"""The sequences that a batch holds: documents, parts of them, and padding; as attention of variable lengths takes them.

On the host it is made by NumPy, on a device by torch: numbers for each sequence go over, those for each token are made there.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._memory import signed
from ._native import library
from .device_array import DeviceArray
from .errors import InvalidError

if TYPE_CHECKING:
    from .dataset import Dataset

Ints = NDArray[np.int64]

NO_LABEL = -100
"""What torch's cross_entropy leaves out."""

_GROUP, _GROUP_TOKENS = 8, 10 << 20  # batches, and tokens of them, whose numbers are made together on a device: 16 bytes each


class Packed(NamedTuple):
    """A batch of samples that hold several documents. Sequences are documents, or parts of them, or padding."""

    tokens: Any
    """[batch_size, seq_len]"""
    cu_seqlens: Any
    """int32 [sequences + 1]: where each begins in tokens.view(-1), and the end"""
    max_seqlen: int
    """tokens of the longest sequence"""
    position_ids: Any
    """int64 [batch_size, seq_len]: each token's place in its sequence"""
    document_ids: Any
    """int64 [batch_size, seq_len]: the number of each token's document in its dataset, -1 for padding"""
    labels: Any
    """int64 [batch_size, seq_len] with targets=True, else None"""
    beside: dict[str, Any] | None = None
    """what lies beside the tokens of an Aligned, by name: as labels with targets=True, else as tokens"""


class Segments(NamedTuple):
    """The sequences of a batch, one after another."""

    lengths: Ints
    documents: Ints
    goes_on: NDArray[np.bool_]  # whether the document goes on in the token behind the row's last one

    def until(self, end: int) -> Segments:
        """The first so many."""
        return Segments(self.lengths[:end], self.documents[:end], self.goes_on[:end])

    def batches(self, each: Ints, rows: int) -> list[Sequences]:
        """The sequences of batches of so many rows, which have `each` of them."""
        at = np.append(0, np.cumsum(each))[::rows].tolist() if rows else [0, 0]
        batches = [Segments(self.lengths[a:b], self.documents[a:b], self.goes_on[a:b]) for a, b in itertools.pairwise(at)]
        tokens = int(batches[0].lengths.sum()) if batches else 0
        size = max(1, min(_GROUP, _GROUP_TOKENS // max(1, tokens)))
        groups = [_Group(batches[i : i + size]) for i in range(0, len(batches), size)]
        return [Sequences(segments, groups[i // size], i % size) for i, segments in enumerate(batches)]


class Sequences(NamedTuple):
    """The sequences of a batch, one of several that are made together."""

    segments: Segments
    group: _Group
    number: int

    def pack(self, tokens: Any, labels: Any, beside: dict[str, Any] | None = None) -> Packed:
        """Puts what they say beside tokens, where these are. labels are those that ignore sequences, or None."""
        segments = self.segments
        borders, position, document = _expanded(segments, tokens) if isinstance(tokens, np.ndarray) else self.group.expanded(self.number, tokens)
        if labels is not None and len(segments.lengths):
            (last,) = to_device([np.cumsum(segments.lengths)[~segments.goes_on] - 1], tokens)  # the places that have no label
            labels.reshape(-1)[last] = NO_LABEL
            if (segments.documents < 0).any():
                fill(labels, document < 0, NO_LABEL)
        return Packed(tokens, borders, int(segments.lengths.max(initial=0)), position, document, labels, beside)


def _expanded(segments: Segments, tokens: Any) -> tuple[Any, Any, Any]:
    """cu_seqlens, position_ids and document_ids."""
    borders = np.append(0, np.cumsum(segments.lengths)).astype(np.int32)
    position = np.arange(borders[-1], dtype=np.int64) - np.repeat(borders[:-1], segments.lengths)
    return borders, position.reshape(tokens.shape), np.repeat(segments.documents, segments.lengths).reshape(tokens.shape)


class _Group:
    """Batches of one shape. A call on a device takes the CPU as long as the device many tokens, so what is made there is made for
    several batches at once: by one copy, and five kernels."""

    def __init__(self, batches: list[Segments]) -> None:
        self._batches = batches
        self._made: dict[int, tuple[Any, Any, Any]] = {}
        self._made_by: Any = None

    def expanded(self, number: int, tokens: Any) -> tuple[Any, Any, Any]:
        """The same where tokens are. What another stream of the device made is made again, since that one may not be done."""
        import torch

        by = torch.cuda.current_stream(tokens.device) if tokens.is_cuda else None
        if number not in self._made or self._made_by != by:
            self._make(number, tokens)
            self._made_by = by
        return self._made.pop(number)

    def _make(self, number: int, tokens: Any) -> None:
        import torch

        batches, total, where = self._batches[number:], tokens.numel(), tokens.device
        borders = np.append(0, np.cumsum(np.concatenate([b.lengths for b in batches]))).astype(np.int32)
        own = [np.append(0, np.cumsum(b.lengths)).astype(np.int32) for b in batches]
        parts = [np.concatenate([b.documents for b in batches]), borders, *own]
        there = torch.from_numpy(np.concatenate([part.view(np.uint8) for part in parts])).to(where, non_blocking=True)
        documents, borders_there, *own_there = torch.split(there, [part.nbytes for part in parts])
        begins = borders_there.view(torch.int32)
        place = torch.arange(total * len(batches), dtype=torch.int32, device=where)
        sequence = torch.searchsorted(begins[1:], place, right=True, out_int32=True)
        position = torch.sub(place, begins.index_select(0, sequence), out=torch.empty(len(place), dtype=torch.int64, device=where))
        document = documents.view(torch.int64).index_select(0, sequence)
        shape = (len(batches), *tokens.shape)
        made = zip((o.view(torch.int32) for o in own_there), position.view(shape), document.view(shape), strict=True)
        self._made = dict(enumerate(made, number))


def of_rows(borders: Ints, starts: Ints, length: int) -> tuple[Segments, Ints]:
    """The sequences of rows of consecutive tokens, and how many each row has. borders are those of the dataset's documents. A
    forked child has no library, and does it here."""
    if library().forked or not len(starts) or not length:
        return of_rows_here(borders, starts, length)
    borders, starts = np.ascontiguousarray(borders, np.int64), np.ascontiguousarray(starts, np.int64)
    each, total = np.empty(len(starts), np.int64), ctypes.c_int64()
    room = len(starts) * (2 + 2 * length * len(borders) // int(borders[-1] or 1))  # mostly enough
    while True:
        lengths, documents, goes_on = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.bool_)
        library().ask(
            "cut", borders.ctypes.data, len(borders), starts.ctypes.data, len(starts), length, each.ctypes.data, lengths.ctypes.data,
            documents.ctypes.data, goes_on.ctypes.data, room, total,
        )  # fmt: skip
        if total.value <= room:
            return Segments(lengths, documents, goes_on).until(total.value), each
        room = total.value


def of_rows_here(borders: Ints, starts: Ints, length: int) -> tuple[Segments, Ints]:
    """The same by NumPy."""
    first = np.searchsorted(borders, starts, side="right") - 1
    count = np.searchsorted(borders, starts + length, side="left") - first
    row = np.repeat(np.arange(len(starts)), count)
    document = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + first[row]
    begin = np.maximum(borders[document], starts[row])
    end = np.minimum(borders[document + 1], starts[row] + length)
    some = end > begin
    segments = Segments((end - begin)[some], document[some], (borders[document + 1] > starts[row] + length)[some])
    return segments, np.bincount(row[some], minlength=len(starts))


def merged(parts: list[tuple[Ints, Segments, Ints]], rows: int) -> tuple[Segments, Ints]:
    """The sequences of rows that several datasets give, and how many each row has: of (rows, their sequences, how many each row
    has) of each."""
    row = np.concatenate([np.repeat(where, count) for where, _, count in parts] or [np.empty(0, np.int64)])
    order = np.argsort(row, kind="stable")
    none = Segments(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_))
    lengths, documents, goes_on = (np.concatenate(fields)[order] for fields in zip(none, *(segments for _, segments, _ in parts), strict=True))
    return Segments(lengths, documents, goes_on), np.bincount(row, minlength=rows)


def borders_of(dataset: Dataset) -> Ints:
    """Where the documents of a dataset begin, and the end."""
    if dataset.documents is None:
        raise InvalidError(f"{dataset.path} has no document borders: open a dataset that has")
    borders = dataset.documents
    if len(borders) == 0 or borders[0] != 0 or borders[-1] != len(dataset):
        raise InvalidError(f"the documents of {dataset.path} do not go from its first token to its last")
    return np.asarray(borders)


def rows_and_labels(batch: Any, targets: bool) -> tuple[Any, Any, dict[str, Any] | None]:
    """Tokens, labels, and what lies beside them, of rows of consecutive tokens; with targets they are one longer."""
    if isinstance(batch, dict):
        (_, first), *others = batch.items()
        tokens, labels, _ = rows_and_labels(first, targets)
        return tokens, labels, {name: shifted(rows)[1] if targets else rows for name, rows in others}
    if isinstance(batch, DeviceArray):
        raise InvalidError("packed batches on a GPU are made by torch, which is not installed: install it")
    if not targets:
        return batch, None, None
    tokens, labels = shifted(batch)
    return tokens, labels.astype(np.int64) if isinstance(labels, np.ndarray) else labels.long(), None


def shifted(batch: Any) -> tuple[Any, Any]:
    """Splits rows of seq_len + 1 tokens into inputs and targets. Copies, since a loss does targets.view(-1)."""
    if isinstance(batch, DeviceArray):
        raise InvalidError("targets=True splits batches on a GPU with torch, which is not installed: install it, or leave targets out")
    x, y = batch[:, :-1], batch[:, 1:]
    if isinstance(batch, np.ndarray):
        return np.ascontiguousarray(x), np.ascontiguousarray(y)
    return x.contiguous(), y.contiguous()


def as_tensors(batch: Any) -> Any:
    """The same memory as tensors of torch, of all NumPy arrays in a batch."""
    if isinstance(batch, np.ndarray):
        import torch

        return torch.from_numpy(batch)
    if isinstance(batch, dict):
        return {name: as_tensors(value) for name, value in batch.items()}
    if isinstance(batch, Packed):
        return Packed(*map(as_tensors, batch))
    return tuple(map(as_tensors, batch)) if isinstance(batch, tuple) else batch


# --- NumPy on the host, torch on a device --------------------------------------------------------------------------


def to_device(arrays: list[Ints], like: Any) -> list[Any]:
    """The arrays where `like` is: by one copy, since each takes its time."""
    if isinstance(like, np.ndarray):
        return list(arrays)
    import torch

    together = torch.from_numpy(np.concatenate(arrays)).to(like.device, non_blocking=True)
    return list(torch.split(together, [len(array) for array in arrays]))


def repeat(values: Any, many: Any, total: int) -> Any:
    """Each value so many times, `total` in all."""
    if isinstance(values, np.ndarray):
        return np.repeat(values, many)
    return values.repeat_interleave(many, output_size=total)  # said, so that nobody waits for the device


def counted(n: int, like: Any) -> Any:
    """The numbers from 0 to n-1, where `like` is."""
    if isinstance(like, np.ndarray):
        return np.arange(n)
    import torch

    return torch.arange(n, device=like.device)


def picked(values: Any, places: Any) -> Any:
    """values[places] of one axis."""
    return values[places] if isinstance(values, np.ndarray) else signed(values)[places].view(values.dtype)


def fill(values: Any, where: Any, value: int) -> None:
    """values[where] = value, which wraps around in signed numbers."""
    if isinstance(values, np.ndarray):
        values[where] = value
        return
    moved = signed(values)
    moved.masked_fill_(where, int(np.array(value).astype(str(moved.dtype).removeprefix("torch."))))


def next_tokens(tokens: Any) -> Any:
    """The token behind each one."""
    if isinstance(tokens, np.ndarray):
        return np.roll(tokens.astype(np.int64).reshape(-1), -1).reshape(tokens.shape)
    return tokens.long().view(-1).roll(-1).view(tokens.shape)
