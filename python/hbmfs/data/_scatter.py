"""Spans of tokens of one dataset, or of several, to one array, and the documents that they are of: one request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._lib import _native
from .._lib._native import address
from .._lib.request import Request
from ._types import Ints

if TYPE_CHECKING:
    from .._lib._memory import Place
    from ._segments import Sequences


class Spans(NamedTuple):
    """The source of a batch's rows. Arrays are in C order."""

    rows: int
    starts: Ints  # of each span: its first token
    sources: NDArray[np.int32] | None = None  # of each span: the number of its dataset; None: the first
    lengths: Ints | None = None  # of each span, which lie one behind the other in the batch; None: a row is a span
    pad: int | None = None  # spans that begin at -1 are not read: they become this token; None: they stay as they are
    targets: bool = False  # a batch is a pair: all tokens of each row but the last one, and all but the first

    def of(self, source: int) -> Ints:
        """The numbers of the spans of a dataset."""
        return np.arange(len(self.starts)) if self.sources is None else np.flatnonzero(self.sources == source)


class Scatter:
    """Begins such requests on datasets of one type of tokens, and one device. wide is the type that the library makes of it."""

    def __init__(self, datasets: Sequence[Any], wide: np.dtype[Any] | None = None) -> None:
        self._datasets = list(datasets)
        self._files = [dataset._file for dataset in datasets]
        self._handles = np.array([file._handle for file in self._files if file], np.uint64)
        self._begins = np.array([dataset._tokens.offset for dataset in datasets], np.int64)
        self._dtype = datasets[0].dtype if wide is None else wide
        self._batch = bytes(
            _native.Batch(
                element=datasets[0].dtype.itemsize,
                files=address(self._handles),
                begins=address(self._begins),
                file_count=len(datasets),
                widen=0 if wide is None else _native.WIDEN[datasets[0].dtype, wide],
            )  # fmt: skip
        )

    @classmethod
    def of(cls, datasets: Sequence[Any], wide: np.dtype[Any] | None = None) -> Scatter | None:
        """None where they are no files, of several types, or of readers that each may have a warning of their own."""
        readers = {id(getattr(dataset, "_reader", None)): getattr(dataset, "_reader", None) for dataset in datasets}
        warns = len(readers) > 1 and any(reader is not None and reader.method != "auto" for reader in readers.values())
        if warns or any(getattr(dataset, "_file", None) is None for dataset in datasets) or len({dataset.dtype for dataset in datasets}) > 1:
            return None
        return cls(datasets, wide)

    def works(self) -> bool:
        """Whether this process may use it. An error if one of them is closed."""
        return None not in [dataset._open() for dataset in self._datasets]

    def begin(
        self,
        array: tuple[Any, int, int],
        room: int,
        spans: Spans,
        length: int,
        sequences: Sequences | None = None,
        finish: Callable[[Any], Any] | None = None,
        targets: tuple[Any, int, int] | None = None,
        place: Place | None = None,
    ) -> Request[Any]:
        """Starts reading spans to the array's `room` tokens; array is of Place.allocate. With sequences, the request gives the
        array, and the arrays of Sequences.expanded(), which place allocates; None: the first dataset's. With targets, an array like the first one,
        it gives both."""
        value, pointer, stream = array
        batch = _native.Batch.from_buffer_copy(self._batch)
        lengths, documents = 0, 0
        if sequences is not None:
            lengths, documents = sequences.where or (address(sequences.lengths), address(sequences.documents))
        if len(spans.starts):
            batch.count, batch.starts, batch.length = len(spans.starts), address(spans.starts), length
            batch.dst, batch.dst_length = pointer, room * self._dtype.itemsize
            if spans.sources is not None:
                batch.sources = address(spans.sources)
            if spans.lengths is not None:
                batch.lengths = lengths if sequences is not None and spans.lengths is sequences.lengths else address(spans.lengths)
            if spans.pad is not None:
                batch.pad = int.from_bytes(np.array(spans.pad, self._dtype).tobytes(), "little") if spans.pad else 0
                if sequences is None:  # numbers of documents are as starts are: below 0 for padding
                    batch.sequence_count, batch.sequence_lengths, batch.sequence_documents, batch.elements = batch.count, batch.lengths, batch.starts, room
            if targets is not None:
                batch.targets, batch.targets_length = targets[1], batch.dst_length
        batch.stream = stream
        if targets is not None:
            value = value, targets[0]
        if sequences is not None:
            n, shape = len(sequences.lengths), sequences.shape
            place = place or self._datasets[0].place()
            expanded, (batch.cu_seqlens, batch.position_ids, batch.document_ids), batch.stream = place.allocate_expanded(n, shape)
            batch.sequence_count, batch.elements = n, shape[0] * shape[1]
            batch.sequence_lengths, batch.sequence_documents = lengths, documents
            value = value, expanded
        file = self._files[0]
        assert file is not None
        owner = (self, spans, sequences)  # whose arrays are read while the request is under way
        return Request.begin(file._library, "batch_begin", (batch,), value, finish=finish, ended=file._reader._ended, owner=owner)
