"""Samples that are put together of pieces of a dataset: what to read for them, and where it goes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ._segments import Ints, Segments

if TYPE_CHECKING:
    from .request import Request


class Pieces(NamedTuple):
    """Documents, or parts of them, that fill samples, one sample after another."""

    starts: Ints
    lengths: Ints
    documents: Ints
    samples: Ints  # pieces in each sample

    def take(self, which: Any, samples: Ints) -> Pieces:
        """Some pieces, and how many of them each sample has."""
        return Pieces(self.starts[which], self.lengths[which], self.documents[which], samples)

    def segments(self, room: int) -> tuple[Segments, Ints]:
        """The sequences of samples of `room` tokens, padding included, and how many each sample has."""
        ends = np.cumsum(self.samples)
        padding = room - self._tokens()
        lengths, documents = np.insert(self.lengths, ends, padding), np.insert(self.documents, ends, -1)
        some = lengths > 0
        return Segments(lengths[some], documents[some], np.zeros(int(some.sum()), np.bool_)), self.samples + (padding > 0)

    def places(self, room: int) -> Ints:
        """Where each piece goes, in samples of `room` tokens."""
        tokens = self._tokens()
        skipped = np.arange(len(tokens)) * room - (np.cumsum(tokens) - tokens)
        places: Ints = np.cumsum(self.lengths) - self.lengths + np.repeat(skipped, self.samples)
        return places

    def _tokens(self) -> Ints:
        """The tokens in each sample."""
        tokens: Ints = np.diff(np.append(0, np.cumsum(self.lengths))[np.append(0, np.cumsum(self.samples))])
        return tokens

    def batches(self, rows: int) -> list[Pieces]:
        """Those of batches of so many samples."""
        at = np.append(0, np.cumsum(self.samples))[:: max(1, rows)].tolist()
        return [self.take(slice(a, b), self.samples[i * rows : (i + 1) * rows]) for i, (a, b) in enumerate(itertools.pairwise(at))]


class Samples:
    """Begins batches of such samples, as a queue asks for them."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def begin_gather(self, pieces: Pieces, length: int, *, dtype: Any = None) -> Request[Any]:
        """Starts reading a batch: samples of `length` tokens, where padding is anything."""
        request: Request[Any] = self._dataset.begin_pieces(pieces.starts, pieces.lengths, pieces.places(length), (len(pieces.samples), length), dtype=dtype)
        return request
