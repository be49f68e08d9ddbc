"""Samples that are put together of pieces of a dataset: what to read for them, and where it goes.

A gather reads spans of one length, so a piece is some of these, and what is read beside it is left out on the device.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ._segments import Ints, Segments, counted, fill, picked, repeat, to_device


def span_for(tokens: int, documents: int, most: int) -> int:
    """How many tokens to read at once, of a dataset of so many: a few spans for a document, so that little is read in vain."""
    mean = tokens // max(1, documents)
    return max(1, min(most, tokens, 1 << max(4, mean.bit_length() - 2)))


class Pieces(NamedTuple):
    """Documents, or parts of them, that fill the samples of a batch, one sample after another."""

    starts: Ints
    lengths: Ints
    documents: Ints
    samples: Ints  # pieces in each sample

    def take(self, which: Any, samples: Ints) -> Pieces:
        """Some pieces, and how many of them each sample has."""
        return Pieces(self.starts[which], self.lengths[which], self.documents[which], samples)

    def spans(self, span: int, end: int) -> Ints:
        """Where to read `span` tokens each: a piece's last ones end with it, so that little is read twice, and nothing
        behind the dataset's end."""
        many = -(-self.lengths // span)
        piece = np.repeat(np.arange(len(many)), many)
        number = np.arange(len(piece)) - np.repeat(np.cumsum(many) - many, many)
        at = self.starts[piece] + np.minimum(number * span, np.maximum(self.lengths - span, 0)[piece])
        starts: Ints = np.minimum(at, end - span)
        return starts

    def places(self, span: int, end: int, room: int) -> Places:
        """How the tokens of the spans fill samples of `room` tokens."""
        many = -(-self.lengths // span)
        first = (np.cumsum(many) - many) * span
        head = (many - 1) * span
        # The last span of a piece holds tokens of the one before, too; that of a short one those behind it, or before it.
        short = self.starts - np.minimum(self.starts, end - span)
        tail = first + head + np.where(self.lengths < span, short, head + span - self.lengths)
        ends = np.cumsum(self.samples)
        total = np.concatenate([[0], np.cumsum(self.lengths)])[ends]
        padding = room - np.diff(total, prepend=0)
        lengths = np.insert(self.lengths, ends, padding)
        documents = np.insert(self.documents, ends, -1)
        runs = np.insert(np.stack([head, self.lengths - head], 1).reshape(-1), 2 * ends, padding)
        begins = np.insert(np.stack([first, tail], 1).reshape(-1), 2 * ends, 0)
        some = lengths > 0
        return Places(Segments(lengths[some], documents[some], np.zeros(int(some.sum()), np.bool_)), begins, runs, len(ends), room)


class Places(NamedTuple):
    """Where the tokens that were read go."""

    segments: Segments  # of the batch, padding included
    begins: Ints  # of each run of tokens, in those that were read
    runs: Ints  # its tokens
    samples: int
    room: int

    def fill(self, raw: Any, pad: int) -> Any:
        """The samples, made of what was read."""
        total = self.samples * self.room
        shifts, free = self.begins - (np.cumsum(self.runs) - self.runs), self.segments.documents < 0
        shift, runs, some, many = to_device([shifts, self.runs, free.astype(np.int64), self.segments.lengths], raw)
        read = raw.reshape(-1)
        tokens = picked(read, (counted(total, raw) + repeat(shift, runs, total)).clip(0, max(0, len(read) - 1)))
        if free.any():
            fill(tokens, repeat(some, many, total) > 0, pad)
        return tokens.reshape(self.samples, self.room)
