"""Which documents lie in which sample: best-fit packing of a window of documents.

The longest piece goes first, into the fullest sample that it still fits into (best-fit decreasing: Ding et al., "Fewer
Truncations Improve Language Modeling", 2024). Pieces of one length, and samples with one history, are handled at once: the
time follows the number of lengths, at most `room`, more than that of the pieces.
"""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from ._native import library

Ints = NDArray[np.int64]


def best_fit(lengths: Ints, room: int) -> tuple[Ints, int]:
    """Gives each piece of 1 to `room` tokens the number of a sample of `room` tokens, and the number of samples. A forked child
    has no library, and does it here."""
    if library().forked:
        return best_fit_here(lengths, room)
    lengths, sample, samples = np.ascontiguousarray(lengths, np.int64), np.empty(len(lengths), np.int64), ctypes.c_int64()
    library().ask("best_fit", lengths.ctypes.data, len(lengths), room, sample.ctypes.data, samples)
    return sample, samples.value


def best_fit_here(lengths: Ints, room: int) -> tuple[Ints, int]:
    """The same in Python."""
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
