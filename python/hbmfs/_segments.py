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

    def pack(self, tokens: Any, labels: Any, beside: dict[str, Any] | None = None) -> Packed:
        """Puts what they say beside tokens, where these are. labels are those that ignore sequences, or None."""
        borders = np.zeros(len(self.lengths) + 1, np.int32)
        np.cumsum(self.lengths, out=borders[1:])
        expand = _expanded if isinstance(tokens, np.ndarray) else _expanded_on_device
        borders_there, position, document = expand(borders, self.documents, tokens)
        if labels is not None and borders[-1]:
            (last,) = to_device([borders[1:][~self.goes_on] - 1], tokens)  # the places that have no label
            labels.reshape(-1)[last] = NO_LABEL
            if (self.documents < 0).any():
                fill(labels, document < 0, NO_LABEL)
        return Packed(tokens, borders_there, int(self.lengths.max(initial=0)), position, document, labels, beside)

    def until(self, end: int) -> Segments:
        """The first so many."""
        return Segments(self.lengths[:end], self.documents[:end], self.goes_on[:end])

    def batches(self, each: Ints, rows: int) -> list[Segments]:
        """The sequences of batches of so many rows, which have `each` of them."""
        at = np.append(0, np.cumsum(each))[::rows].tolist() if rows else [0]
        return [Segments(self.lengths[a:b], self.documents[a:b], self.goes_on[a:b]) for a, b in itertools.pairwise(at)]


def _expanded(borders: NDArray[np.int32], documents: Ints, tokens: Any) -> tuple[Any, Any, Any]:
    """cu_seqlens, position_ids and document_ids."""
    many = np.diff(borders)
    position = np.arange(borders[-1], dtype=np.int64) - np.repeat(borders[:-1], many)
    return borders, position.reshape(tokens.shape), np.repeat(documents, many).reshape(tokens.shape)


def _expanded_on_device(borders: NDArray[np.int32], documents: Ints, tokens: Any) -> tuple[Any, Any, Any]:
    """The same by few calls, since each takes as long as many tokens: one copy, and five kernels."""
    import torch

    total, wide, where = int(borders[-1]), documents.nbytes, tokens.device
    together = torch.from_numpy(np.concatenate([documents.view(np.uint8), borders.view(np.uint8)])).to(where, non_blocking=True)
    documents_there, borders_there = together[:wide].view(torch.int64), together[wide:].view(torch.int32)
    place = torch.arange(total, dtype=torch.int32, device=where)
    sequence = torch.searchsorted(borders_there[1:], place, right=True, out_int32=True)
    position = torch.sub(place, borders_there.index_select(0, sequence), out=torch.empty(tokens.shape, dtype=torch.int64, device=where).view(-1))
    return borders_there, position.view(tokens.shape), documents_there.index_select(0, sequence).view(tokens.shape)


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
