"""Which documents lie in which sample: best-fit packing of a window of documents.

The longest piece goes first, into the fullest sample that it still fits into (best-fit decreasing: Ding et al., "Fewer
Truncations Improve Language Modeling", 2024). Pieces of one length, and samples with one history, are handled at once: the
time follows the number of lengths, at most `room`, more than that of the pieces.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._lib._native import PackedSamples, address, library
from ._segments import Segments
from .permutation import Permutation, keys

Ints = NDArray[np.int64]


class Packing(NamedTuple):
    """Documents, or parts of them, in samples: the sequences of one sample after another, which are these and the padding behind them."""

    starts: Ints  # of each sequence: its first token; -1 for padding
    segments: Segments
    borders: Ints  # of each sample: how many sequences come before it; and in all
    tokens: int  # of documents


def pack(borders: Ints, begins: Ints, window: range, room: int, shuffle: tuple[int, int, int] | None) -> Packing:
    """Packs documents into samples of `room` tokens. borders are those of all documents, begins where each begins in the file, window the
    places of those that are packed. shuffle is the seed, the epoch of the documents' order, and that of the samples'; None: documents come
    as they are numbered, and samples as they were begun. A forked child has no library, and does it here."""
    if library().forked:
        return pack_here(borders, begins, window, room, shuffle)
    many = len(window)
    packed = PackedSamples(sequences=many + 2 * many * int(borders[-1]) // ((len(borders) - 1) * room) + 64)  # mostly enough
    while packed.sequences > packed.capacity:
        n = packed.capacity = packed.sequences
        whole = np.empty(4 * n + 1, np.int64)
        starts, lengths, documents, of_samples = whole[:n], whole[n : 2 * n], whole[2 * n : 3 * n], whole[3 * n :]
        packed.starts, packed.lengths, packed.documents, packed.borders = map(address, (starts, lengths, documents, of_samples))
        _ask(borders, begins, window, room, shuffle, packed)
    n = packed.sequences
    return Packing(starts[:n], Segments(lengths[:n], documents[:n], np.zeros(n, np.bool_)), of_samples[: packed.samples + 1], packed.tokens)


def count(borders: Ints, begins: Ints, window: range, room: int, shuffle: tuple[int, int, int] | None) -> int:
    """The number of samples that pack() fills."""
    if library().forked:
        return len(pack_here(borders, begins, window, room, shuffle).borders) - 1
    packed = PackedSamples()  # without arrays
    _ask(borders, begins, window, room, shuffle, packed)
    return int(packed.samples)


def _ask(borders: Ints, begins: Ints, window: range, room: int, shuffle: tuple[int, int, int] | None, packed: PackedSamples) -> None:
    borders, begins = np.ascontiguousarray(borders, np.int64), np.ascontiguousarray(begins, np.int64)
    rounds = np.empty(0, np.uint64) if shuffle is None else keys(*shuffle)
    library().ask("pack", address(borders), len(borders), address(begins), window.start, len(window), room, address(rounds), len(rounds) // 2, packed)


def pack_here(borders: Ints, begins: Ints, window: range, room: int, shuffle: tuple[int, int, int] | None) -> Packing:
    """The same by NumPy."""
    documents = np.arange(window.start, window.stop)
    if shuffle is not None and len(window):
        documents = Permutation(len(borders) - 1, *shuffle[:2])(documents)
    first = np.asarray(begins[documents])
    whole = np.asarray(borders[documents + 1]) - np.asarray(borders[documents])
    many = -(-whole // room)
    part = np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)
    lengths = np.minimum(np.repeat(whole, many) - part * room, room)
    sample, samples = best_fit_here(lengths, room)
    if shuffle is not None and samples:
        sample = Permutation(samples, shuffle[0], shuffle[2])(np.arange(samples))[sample]
    free = room - np.bincount(sample, weights=lengths, minlength=samples).astype(np.int64)
    padded = np.flatnonzero(free)
    sample = np.append(sample, padded)  # behind the pieces of each sample comes its padding
    order = np.argsort(sample, kind="stable")
    starts = np.append(np.repeat(first, many) + part * room, np.full(len(padded), -1))[order]
    numbers = np.append(np.repeat(documents, many), np.full(len(padded), -1))[order]
    segments = Segments(np.append(lengths, free[padded])[order], numbers, np.zeros(len(order), np.bool_))
    return Packing(starts, segments, np.append(0, np.cumsum(np.bincount(sample, minlength=samples))), int(whole.sum()))


def best_fit_here(lengths: Ints, room: int) -> tuple[Ints, int]:
    """Gives each piece of 1 to `room` tokens the number of a sample of `room` tokens, and the number of samples."""
    count: list[int] = np.bincount(lengths, minlength=room + 1).tolist()
    free: list[list[tuple[int, int]]] = [[] for _ in range(room + 1)]  # by tokens left: (first sample, how many)
    some = 0  # bit r: free[r] is not empty
    samples = 0
    placed: list[tuple[int, int, int]] = []  # (pieces, first sample, pieces in each sample), longest pieces first

    def put(left: int, first: int, many: int) -> None:
        nonlocal some
        if left and many:
            free[left].append((first, many))
            some |= 1 << left

    for length in range(room, 0, -1):
        rest = count[length]
        while rest:
            if fitting := some >> length:
                left = length + (fitting & -fitting).bit_length() - 1
                first, many = free[left].pop()
                if not free[left]:
                    some ^= 1 << left
            else:
                left, first, many = room, samples, -(-rest // (room // length))
                samples += many
            each = left // length
            filled = min(many, rest // each)
            if filled:
                placed.append((filled * each, first, each))
                put(left - each * length, first, filled)
                rest -= filled * each
            first, many = first + filled, many - filled
            if rest and many:  # too few for one more full sample
                placed.append((rest, first, rest))
                put(left - rest * length, first, 1)
                rest, first, many = 0, first + 1, many - 1
            put(left, first, many)
    pieces, first_of, each_of = np.array(placed, np.int64).reshape(-1, 3).T
    within = np.arange(len(lengths)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    sample = np.empty(len(lengths), np.int64)
    sample[np.argsort(-lengths, kind="stable")] = np.repeat(first_of, pieces) + within // np.repeat(each_of, pieces)
    return sample, samples
