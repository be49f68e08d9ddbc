"""Batches for attention that does not cross documents.

    for batch in hbmfs.TokenStream(ds, 32, 4096, packed=True): ...        # the stream cut where it comes; so does Mixture
    for batch in hbmfs.PackedStream(ds, 32, 4096): ...                    # best-fit: documents are not cut

A batch is a Packed. flash-attention takes tokens.view(-1) with cu_seqlens and max_seqlen, torch's nested tensors
cu_seqlens as offsets, flex_attention a mask of document_ids. Shapes do not change: padding is a sequence of its own.

**Best-fit packing** takes documents in an order that the seed decides, `window` of them at a time, and puts each into a sample
that it fits into; the samples of a window come in an order of their own. Only documents longer than a sample are cut, in
whole samples and a rest. No token is left out, or comes twice in an epoch. The borders of documents are read as they are
needed; `window` bounds the memory. With the default what stays free is mostly below 0.1 %: fill_rate has it.

With targets=True a batch has labels: the next token of the same document, and -100 where the sample has none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ._ahead import begun
from ._joined import Batch, Rows
from ._packing import Packing, pack
from ._queue import Queue
from ._scatter import Spans
from ._segments import Packed, Segments, Sequences, borders_of, fill, next_tokens, rows_and_labels
from ._stream import STATE_VERSION, Stream, at_least
from .device_array import DeviceArray
from .errors import InvalidError
from .part import part_of, whole_of
from .permutation import Permutation

if TYPE_CHECKING:
    from .dataset import Dataset

__all__ = ["Packed", "PackedStream"]


class _Window:
    """Documents that were packed together."""

    def __init__(self, number: int, first: int, packing: Packing, room: int) -> None:
        self.number, self.first, self.room, self.packing = number, first, room, packing  # first is the position of its first sample
        self._pieces_to, self._sequences_to = (np.append(0, np.cumsum(n)) for n in (packing.pieces, packing.sequences))  # samples' borders in the two
        self._padding = packing.segments.padding()

    @property
    def end(self) -> int:
        return self.first + len(self.packing.pieces)

    @property
    def filled(self) -> tuple[int, int]:
        """Its tokens, and its samples."""
        return int(self.packing.lengths.sum()), len(self.packing.pieces)

    def part(self, first: int, end: int, row: int) -> tuple[list[Any], Segments]:
        """The samples at these positions as rows of a batch from `row` on: starts, lengths and places of their pieces, and the places of
        padding; and their sequences."""
        first, end = first - self.first, end - self.first
        a, b, c, d = (int(to[n]) for to in (self._pieces_to, self._sequences_to) for n in (first, end))
        free = self._padding[slice(*np.searchsorted(self._padding, (first * self.room, end * self.room)))]
        moved = (row - first) * self.room
        pieces = [self.packing.starts[a:b], self.packing.lengths[a:b], self.packing.places[a:b] + moved, free + moved]
        return pieces, self.packing.segments.part(c, d)


class PackedStream(Stream):
    """An iterable over batches of whole documents; help("hbmfs.packed") has the whole story.

    window      documents that are packed together: more of them leave less free, and take longer to begin with
    pad         the token of places that stay free
    The rest is as in TokenStream. A state may be loaded with another rank, world_size and batch_size, and nothing else.
    """

    pass_samples = None
    _endless = "the samples that documents fill are known when they are packed"

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        seq_len: int,
        *,
        window: int = 1 << 17,
        pad: int = 0,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        dtype: Any = None,
        depth: int = 2,
        ahead: int = 16,
        shuffle: bool = True,
        epochs: int | None = None,
        drop_last: bool = True,
        targets: bool = False,
        tensors: bool | None = None,
    ) -> None:
        super().__init__(
            batch_size, seq_len, seed=seed, rank=rank, world_size=world_size, dtype=dtype, depth=depth, ahead=ahead, shuffle=shuffle,
            drop_last=drop_last, targets=targets, tensors=tensors,
        )  # fmt: skip
        self.dataset, self.pad = dataset, pad
        self.epochs = None if epochs is None else at_least(1, "epochs", epochs)
        self.window = at_least(1, "window", window)
        self._borders = borders_of(dataset)
        self._documents = len(self._borders) - 1
        if len(dataset) == 0:
            raise InvalidError(f"{dataset.path} has no tokens")
        self._of_epoch = -(-self._documents // self.window)
        self._whole, self._begins = whole_of(dataset)
        self._rows = Rows([self._whole], dtype)
        self._row = self.seq_len
        self._began_with = 0  # the window with which this pass began
        self._windows_known: deque[_Window] = deque([self._pack(0, 0)])
        self._filled = [0, 0]  # tokens, and samples, of windows

    @property
    def fill_rate(self) -> float:
        """The part of the samples' tokens that documents fill, of the windows that were packed so far."""
        known = [w.filled for w in self._windows_known]
        tokens, samples = (sum(n) + old for n, old in zip(zip(*known, strict=True), self._filled, strict=True))
        return float(tokens / (samples * self.seq_len))

    # --- windows ----------------------------------------------------------------------------------------------------

    def _pack(self, number: int, first: int) -> _Window:
        epoch, at = divmod(number, self._of_epoch)
        documents = np.arange(at * self.window, min((at + 1) * self.window, self._documents))
        if self.shuffle:
            documents = Permutation(self._documents, self.seed, epoch)(documents)
        packing = pack(self._borders, self._begins, documents, self.seq_len, (self.seed, -1 - number) if self.shuffle else None)
        return _Window(number, first, packing, self.seq_len)

    def _more(self, last: _Window, position: int) -> tuple[list[_Window], bool]:
        """Packs windows behind the last one until they go up to `position`. Says whether they go to the end of the pass."""
        more: list[_Window] = []
        while True:
            ends = self.epochs is not None and last.number + 1 >= self._began_with + self.epochs * self._of_epoch
            if ends or last.end >= position:
                return more, ends
            last = self._pack(last.number + 1, last.end)
            more.append(last)

    def _reach(self, position: int) -> bool:
        """Packs until the windows go up to `position`. Returns whether they go to the end of the pass."""
        more, ends = self._more(self._windows_known[-1], position)
        self._windows_known.extend(more)
        return ends

    def _end_by(self, position: int) -> int | None:
        if self.epochs is None or not self._reach(position):
            return None
        end = self._windows_known[-1].end
        return end if end <= position else None

    def _finish(self, end: int) -> None:
        super()._finish(end)
        self._began_with = self._windows_known[-1].number + 1
        self._reach(end + 1)

    def _forget(self) -> None:
        while len(self._windows_known) > 1 and self._windows_known[0].end <= self._position:
            gone = self._windows_known.popleft()
            self._filled = [old + n for old, n in zip(self._filled, gone.filled, strict=True)]

    # --- state ------------------------------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "seq_len": self.seq_len,
            "window": self.window,
            "tokens": len(self.dataset),
            "documents": self._documents,
            **part_of(self.dataset),
        }

    def state_dict(self) -> dict[str, Any]:
        self._reach(self._position)
        window = next(w for w in self._windows_known if self._position <= w.end)
        return {**super().state_dict(), "packed": [window.number, window.first, self._began_with]}

    def _accept(self, state: dict[str, Any], consumed: int, began: int) -> None:
        packed = state.get("packed")
        if not (isinstance(packed, list) and len(packed) == 3 and all(isinstance(n, int) and n >= 0 for n in packed)):
            raise InvalidError(f"the state says that window {packed!r} comes next: it was not made by state_dict()")
        window = self._pack(packed[0], packed[1])
        if not window.first <= consumed <= window.end:
            raise InvalidError(f"the state stands at sample {consumed}, but its window has {window.first} to {window.end}: it is of other documents")
        self._began_with = packed[2]
        self._windows_known, self._filled = deque([window]), [0, 0]

    # --- reading ----------------------------------------------------------------------------------------------------

    def _batches(self, positions: NDArray[np.int64]) -> Callable[[], list[Batch]]:
        self._forget()
        last = self._windows_known[-1]
        more = begun(self._more, last, int(positions[-1, -1]) + 1 if positions.size else 0)

        def batches() -> list[Batch]:
            packed, _ = more()
            if self._windows_known[-1] is last:
                self._windows_known.extend(packed)
            return [self._batch(int(own[0]), len(own)) if len(own) else self._batch(self._windows_known[0].first, 0) for own in positions]

        return batches

    def _batch(self, first: int, rows: int) -> Batch:
        """The samples from a position on."""
        some = [w for w in self._windows_known if w.first <= first + rows and w.end > first]
        parts = [w.part(max(first, w.first), min(first + rows, w.end), max(w.first - first, 0)) for w in some]
        starts, lengths, places, padding = (_joined(fields) for fields in zip(*(pieces for pieces, _ in parts), strict=True))
        segments = Segments(*(_joined(fields) for fields in zip(*(said for _, said in parts), strict=True)))
        longest = int(segments.lengths.max(initial=0))
        return Batch(Spans(rows, starts, None, lengths, places), Sequences((rows, self.seq_len), *segments, longest, padding))

    def _queue(self) -> Queue:
        self._whole.stats()  # an error if it is closed
        return Queue(self._rows, self.depth)

    def _tell(self, window: list[Batch]) -> None:
        self._whole.prefetch(*(np.concatenate(fields) for fields in zip(*((b.spans.starts, b.spans.lengths) for b in window), strict=True)))

    def _told(self) -> bool:
        return bool(self.dataset.stats().get("mounted"))

    def _shape(self, batch: Any, plan: Batch) -> Packed:
        (rows, expanded), sequences = batch, plan.sequences
        assert sequences is not None
        tokens, _, beside = rows_and_labels(rows, False)
        if isinstance(tokens, DeviceArray):
            raise InvalidError("places that stay free on a GPU are padded by torch, which is not installed: install it")
        packed = sequences.pack(expanded, tokens, next_tokens(tokens) if self.targets else None, beside)
        for values, value in ((tokens, self.pad), *((other, 0) for other in (beside or {}).values())):
            fill(values, sequences.padding, value)
        if beside and self.targets:
            packed = packed._replace(beside={name: next_tokens(other) for name, other in beside.items()})
        return packed


def _joined(arrays: tuple[NDArray[Any], ...]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
