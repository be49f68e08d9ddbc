"""Batches for attention that does not cross documents.

    for batch in hbmfs.TokenStream(ds, 32, 4096, packed=True): ...        # the stream cut where it comes; so does Mixture
    for batch in hbmfs.PackedStream(ds, 32, 4096): ...                    # best-fit: documents are not cut

A batch is a Packed. flash-attention takes tokens.view(-1) with cu_seqlens and max_seqlen, torch's nested tensors
cu_seqlens as offsets, flex_attention a mask of document_ids. Shapes do not change: padding is a sequence of its own.

**Best-fit packing** takes documents in an order that the seed decides, `window` of them at a time, and puts each into a sample
that it fits into; the samples of a window come in an order of their own. Only documents longer than a sample are cut, in
whole samples and a rest. No token is left out, or comes twice in an epoch. The borders of documents are read as they are
needed; `window` bounds the memory. With the default the free part is mostly below 0.1 %: fill_rate has it.

With targets=True a batch has labels: the next token of the same document, and -100 where the sample has none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, overload

import numpy as np

from .._lib._arguments import checked
from ..errors import InvalidError
from ._ahead import begun
from ._joined import Batch, Rows
from ._packing import Packing, count, pack
from ._queue import Queue
from ._scatter import Spans
from ._segments import Packed, Segments, Sequences, borders_of, next_tokens, rows_and_labels
from ._stream import _WINDOW_SAMPLES, DEPTH, NEVER, STATE_VERSION, Stream, at_least
from ._types import A, Dataset, Ints
from .part import Aligned, part_of, whole_of
from .tokens import parse_dtype

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._types import StreamOptions

    class Options(StreamOptions, total=False):
        window: int
        pad: int
        epochs: int | None
        targets: bool

    class Others(Options, total=False):
        tensors: bool | None


__all__ = ["Packed", "PackedStream"]

_PACKED_AHEAD = 4
"""Windows that are packed beside each other, each by one thread, before their samples are needed. Packing one takes twice as long as a GPU takes for its
samples."""


class _Window:
    """Documents that were packed together."""

    def __init__(self, number: int, first: int, packing: Packing) -> None:
        self.number, self.first = number, first  # the position of its first sample
        self.samples = len(packing.borders) - 1
        self.tokens = packing.tokens
        self._packing = packing

    @property
    def end(self) -> int:
        return self.first + self.samples

    def part(self, first: int, end: int) -> tuple[Ints, Segments]:
        """The samples at these positions: where their sequences begin in the file, and the sequences."""
        borders = self._packing.borders
        a, b = int(borders[max(first, self.first) - self.first]), int(borders[min(end, self.end) - self.first])
        return self._packing.starts[a:b], self._packing.segments.part(a, b)

    def batches(self, firsts: Ints, rows: int, length: int, pad: int) -> list[Batch]:
        """Batches of so many samples, which this window has, from these positions on: ascending, and not over each other."""
        starts, segments, borders, _ = self._packing
        at = np.stack((borders[firsts - self.first], borders[firsts - self.first + rows]), axis=1)
        longest = np.maximum.reduceat(segments.lengths[: at[-1, 1]], at.reshape(-1)[:-1])[::2]
        places = at.tolist()
        each = segments.cut(places, (rows, length), longest.tolist())
        return [Batch(Spans(rows, starts[a:b], None, own.lengths, pad), own) for (a, b), own in zip(places, each, strict=True)]


class PackedStream(Stream["Packed[A]"], Generic[A]):
    """An iterable over batches of whole documents; help("hbmfs.packed") has the whole story.

    window      documents that are packed together: more of them leave less free, and take longer to begin with
    pad         the token of places that stay free
    depth       as in TokenStream, but up to 16 on a GPU with None
    The rest is as in TokenStream. A state may be loaded with another rank, world_size and batch_size, and nothing else.

    len(stream) is exact with epochs=. The first call in a pass packs all of its documents, without reading them, which takes
    about a second for 10 million.
    """

    pass_samples = None
    _endless = "give epochs=1"
    _deepest = 2 * DEPTH  # on an H100, batches of 3,000 documents came at 0.76 of the rate of TokenStream with 15, and at 0.69 with 8

    @overload
    def __init__(self, dataset: Dataset[A], batch_size: int, seq_len: int, **o: Unpack[Options]) -> None: ...
    @overload
    def __init__(self: PackedStream[Any], dataset: Dataset[Any] | Aligned, batch_size: int, seq_len: int, **o: Unpack[Others]) -> None: ...
    @checked
    def __init__(
        self,
        dataset: Dataset[Any] | Aligned,
        batch_size: int,
        seq_len: int,
        *,
        window: int = 1 << 17,
        pad: int = 0,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        dtype: Any = None,
        depth: int | None = None,
        ahead: int = 16,
        shuffle: bool = True,
        epochs: int | None = None,
        drop_last: bool = True,
        targets: bool = False,
        tensors: bool | None = None,
    ) -> None:
        super().__init__(
            dataset, batch_size, seq_len, seed=seed, rank=rank, world_size=world_size, dtype=dtype, depth=depth, ahead=ahead, shuffle=shuffle,
            drop_last=drop_last, targets=targets, tensors=tensors,
        )  # fmt: skip
        whole: Any = dataset
        self.dataset = whole
        self.pad = pad
        self.epochs = None if epochs is None else at_least(1, "epochs", epochs)
        self.window = at_least(1, "window", window)
        self._borders = borders_of(self.dataset)
        self._documents = len(self._borders) - 1
        if len(dataset) == 0:
            raise InvalidError(f"{dataset.path} has no tokens")
        self._of_epoch = -(-self._documents // self.window)
        self._whole, self._begins = whole_of(dataset)
        self._rows = Rows([self._whole], dtype)
        given = self._whole.dtype if dtype is None else parse_dtype(dtype)
        if given.kind in "iu" and not (isinstance(pad, (int, np.integer)) and np.iinfo(given).min <= pad <= np.iinfo(given).max):
            raise InvalidError(f"pad is {pad}, which no {given} is: give a token")
        self._row = self.seq_len
        self._began_with = 0  # the window with which this pass began
        self._counted: tuple[int, int] | None = None  # such a window, and the samples of its pass
        self._known: deque[_Window] = deque([_Window(0, 0, self._pack(0))])
        self._gone = (0, 0)  # tokens, and samples, of windows that were forgotten
        self._coming: dict[int, Callable[[], Packing]] = {}  # windows that are being packed, by number

    def _said(self) -> str:
        return repr(self.dataset)

    @property
    def fill_rate(self) -> float:
        """The part of the samples' tokens that documents fill, of the windows that were packed so far."""
        tokens, samples = (old + sum(n) for old, n in zip(self._gone, zip(*((w.tokens, w.samples) for w in self._known), strict=True), strict=True))
        return float(tokens / (samples * self.seq_len)) if samples else 1.0  # a window may have only documents without tokens

    def _count(self) -> int | None:
        if self.epochs is None:
            return None
        first, windows = self._began_with, self.epochs * self._of_epoch
        if self._counted is None or self._counted[0] != first:
            if not self.shuffle:  # all epochs are packed alike
                windows = self._of_epoch
            samples = sum(count(*self._documents_of(number)) for number in range(first, first + windows))
            self._counted = first, samples * (self.epochs * self._of_epoch // windows)
        return self._counted[1]

    # --- windows ----------------------------------------------------------------------------------------------------

    def _documents_of(self, number: int) -> tuple[Ints, Ints, range, int, tuple[int, int, int] | None]:
        """A window as pack() takes it."""
        epoch, at = divmod(number, self._of_epoch)
        places = range(at * self.window, min((at + 1) * self.window, self._documents))
        return self._borders, self._begins, places, self.seq_len, (self.seed, epoch, -1 - number) if self.shuffle else None

    def _pack(self, number: int) -> Packing:
        """A window's documents in samples."""
        return pack(*self._documents_of(number))

    def _come(self, number: int, end: int) -> Callable[[], Packing]:
        """Has a window packed, and those behind it. Gives the object that waits for it."""
        coming, ahead = self._coming, range(number, min(number + 1 + _PACKED_AHEAD, end))
        self._coming = {n: coming.get(n) or begun(self._pack, n) for n in ahead}
        return self._coming[number]

    def _reach(self, position: int) -> bool:
        """Packs windows until they go up to `position`. Returns whether they go to the end of the pass."""
        known, end = self._known, NEVER if self.epochs is None else self._began_with + self.epochs * self._of_epoch
        while (number := known[-1].number + 1) < end and known[-1].end < position:
            known.append(_Window(number, known[-1].end, self._come(number, end)()))
        return number >= end

    def _end_by(self, position: int) -> int | None:
        if self.epochs is None or not self._reach(position):
            return None
        end = self._known[-1].end
        return end if end <= position else None

    def _finish(self, end: int) -> None:
        super()._finish(end)
        self._began_with = self._known[-1].number + 1
        self._reach(end + 1)

    def _forget(self) -> None:
        while len(self._known) > 1 and self._known[0].end <= self._position:
            window = self._known.popleft()
            self._gone = (self._gone[0] + window.tokens, self._gone[1] + window.samples)

    _skips = _WINDOW_SAMPLES
    _moved = _forget

    def _twin(self) -> Any:
        twin = super()._twin()
        twin._known = deque(self._known)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_coming": {}}

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
        window = next(w for w in self._known if self._position <= w.end)
        return {**super().state_dict(), "packed": [window.number, window.first, self._began_with]}

    def _accept(self, state: dict[str, Any], consumed: int, began: int) -> None:
        packed = state.get("packed")
        if not (isinstance(packed, list) and len(packed) == 3 and all(isinstance(n, int) and n >= 0 for n in packed)):
            raise InvalidError(f"the state says that window {packed!r} comes next: it was not made by state_dict()")
        window = _Window(packed[0], packed[1], self._pack(packed[0]))
        if not window.first <= consumed <= window.end:
            raise InvalidError(f"the state stands at sample {consumed}, but its window has {window.first} to {window.end}: it is of other documents")
        self._began_with = packed[2]
        self._known, self._gone = deque([window]), (0, 0)

    # --- reading ----------------------------------------------------------------------------------------------------

    def _batches(self, firsts: Ints, rows: int) -> Callable[[], list[Batch]]:
        self._forget()
        self._reach(int(firsts[-1]) + rows if rows else 0)
        windows, made = list(self._known), list[Batch]()
        while len(made) < len(firsts):
            first = int(firsts[len(made)]) if rows else windows[0].first
            window = next((w for w in windows if w.first <= first and first + rows <= w.end), None)
            if window is None or not rows:
                made.append(self._batch(windows, first, rows))
            else:
                of_window = firsts[len(made) : np.searchsorted(firsts, window.end - rows, side="right")]
                made += window.batches(of_window, rows, self.seq_len, self.pad)
        return lambda: made

    def _batch(self, windows: list[_Window], first: int, rows: int) -> Batch:
        """The samples from a position on."""
        parts = [w.part(first, first + rows) for w in windows if w.first < first + max(rows, 1) and w.end > first]
        starts, segments = parts[0]
        if len(parts) > 1:
            starts = np.concatenate([starts for starts, _ in parts])
            segments = Segments(*map(np.concatenate, zip(*(segments for _, segments in parts), strict=True)))
        longest = int(segments.lengths.max(initial=0))
        return Batch(Spans(rows, starts, None, segments.lengths, self.pad), Sequences((rows, self.seq_len), *segments, longest))

    def _queue(self) -> Queue:
        self._whole.stats()  # an error if it is closed
        return Queue(self._rows, self.depth)

    def _read(self) -> Sequence[Any]:
        return [self._whole]

    def _tell(self, window: list[Batch]) -> None:
        starts = np.concatenate([batch.spans.starts for batch in window])
        lengths = np.concatenate([batch.spans.lengths for batch in window])
        self._whole.prefetch(starts[starts >= 0], lengths[starts >= 0])

    def _shape(self, batch: Any, plan: Batch) -> Packed[Any]:
        (rows, expanded), sequences = batch, plan.sequences
        assert sequences is not None
        tokens, _, beside = rows_and_labels(rows, False)
        if not self.targets:
            return sequences.pack(expanded, tokens, None, beside)
        return sequences.pack(expanded, tokens, next_tokens(tokens), beside and {name: next_tokens(other) for name, other in beside.items()})
