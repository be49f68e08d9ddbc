"""Samples that are put together of pieces of a dataset: what to read for them, and where it goes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ._scatter import Ints
from ._segments import Segments


class Pieces(NamedTuple):
    """Documents, or parts of them, that fill samples, one sample after another."""

    starts: Ints
    lengths: Ints
    documents: Ints
    samples: Ints  # pieces in each sample

    def segments(self, room: int) -> tuple[Segments, Ints]:
        """The sequences of samples of `room` tokens, padding included, and how many each sample has."""
        padding = room - self._tokens()
        some = padding > 0
        each = self.samples + some
        last = (np.cumsum(each) - 1)[some]  # where padding goes
        own = np.ones(int(each.sum()), np.bool_)
        own[last] = False
        lengths, documents = np.empty(len(own), np.int64), np.full(len(own), -1)
        lengths[own], lengths[last], documents[own] = self.lengths, padding[some], self.documents
        return Segments(lengths, documents, np.zeros(len(own), np.bool_)), each

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
