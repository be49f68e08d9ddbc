"""A shuffled order of n things that needs no memory: the k-th of them is computed when it is asked for.

It is the generalized Feistel cipher of Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002,
section 5): an index below a*b is a pair (x, y) with x < a and y < b; a round adds a keyed function of the one to the
other, modulo a or b, which can be undone and so maps the pairs one to one. With a = ceil(sqrt(n)) there are fewer than
a pairs too many; an index that lands on one of them is encrypted again until it lands below n (cycle walking), which
keeps the map one to one and costs one more turn for one index in sqrt(n).

The order is for shuffling, not for secrets. It depends on n, the seed and the epoch alone: not on NumPy's generators,
which may change, nor on the machine. tests/suites/python/test_permutation.py pins some values, since a change would break
the resumption of runs that are under way.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

ROUNDS = 6  # Luby and Rackoff need 4; two more, since small domains mix badly
LARGEST = 1 << 62

# Multipliers of Stafford's variant 13 of MurmurHash3's 64-bit finalizer, as in SplitMix64.
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_SHIFT = np.uint64(29)


class Permutation:
    """The numbers 0 to n-1 in an order chosen by a seed and an epoch.

    Permutation(n, seed, epoch)(k) is the k-th number of that order; k may be an array, and the answer is then an int64
    array of its shape. seed and epoch are integers of any size. n is at most 2**62.
    """

    def __init__(self, n: int, seed: int, epoch: int = 0) -> None:
        if not 1 <= n <= LARGEST:
            raise ValueError(f"cannot permute {n} things: give a number from 1 to {LARGEST}")
        self.n = n
        rows = math.isqrt(n - 1) + 1
        columns = -(-n // rows)
        self._rows, self._columns = np.uint64(rows), np.uint64(columns)
        self._keys = keys(seed, epoch)

    def __call__(self, k: ArrayLike) -> NDArray[np.int64]:
        k = np.asarray(k, np.int64)
        if k.size and (k.min() < 0 or k.max() >= self.n):
            raise IndexError(f"index out of range: the permutation has {self.n} places, 0 to {self.n - 1}")
        index = k.astype(np.uint64).reshape(-1)
        return self._here(index).view(np.int64).reshape(k.shape)

    def _here(self, index: NDArray[np.uint64]) -> NDArray[np.uint64]:
        index = self._turn(index)
        outside = np.flatnonzero(index >= self.n)
        while outside.size:
            index[outside] = walked = self._turn(index[outside])
            outside = outside[walked >= self.n]
        return index

    def _turn(self, index: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Encrypts indices below rows*columns once. Writes into arrays of its own: at these sizes a fresh array costs
        more than the arithmetic."""
        y, x = np.divmod(index, self._rows)
        scratch, mixed = np.empty_like(x), np.empty_like(x)
        for number, key in enumerate(self._keys):
            changed, other, size = (y, x, self._columns) if number % 2 else (x, y, self._rows)
            np.add(other, key, out=mixed)
            np.multiply(mixed, _MIX_1, out=mixed)
            np.right_shift(mixed, _SHIFT, out=scratch)
            np.bitwise_xor(mixed, scratch, out=mixed)
            np.multiply(mixed, _MIX_2, out=mixed)
            # The upper half times the size, divided by 2**32, is below the size (Lemire): no division.
            np.right_shift(mixed, _HALF, out=mixed)
            np.multiply(mixed, size, out=mixed)
            np.right_shift(mixed, _HALF, out=mixed)
            np.add(changed, mixed, out=changed)
            np.greater_equal(changed, size, out=scratch, casting="unsafe")
            np.multiply(scratch, size, out=scratch)
            np.subtract(changed, scratch, out=changed)
        np.multiply(y, self._rows, out=y)
        np.add(y, x, out=y)
        return y


def keys(seed: int, *epochs: int) -> NDArray[np.uint64]:
    """The keys of the rounds of each epoch, which are the same for any n."""
    each = (hashlib.blake2b(f"{int(seed)} {int(epoch)}".encode(), digest_size=8 * ROUNDS, person=b"hbmfs order").digest() for epoch in epochs)
    return np.frombuffer(b"".join(each), "<u8").astype(np.uint64)


def mixed(key: int, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A hash of 64 bits for each number: SplitMix64, begun with the key. It is for shuffling, too, and stays as it is."""
    x: NDArray[np.uint64] = np.uint64(key) + _STEP * (numbers.astype(np.uint64) + np.uint64(1))
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    x ^= x >> np.uint64(31)
    return x
