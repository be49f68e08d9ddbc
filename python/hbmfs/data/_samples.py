"""The samples of datasets: how many there are, in which order an epoch has them, and where each begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._lib._native import EPOCHS, address, library
from ..errors import InvalidError
from ._types import Counted, Ints
from .part import part_of
from .permutation import ROUNDS, Permutation, keys


class Samples:
    """Rows of `row` tokens, `seq_len` apart, of a dataset; with documents=True none crosses the border of a document."""

    def __init__(self, dataset: Counted, seq_len: int, row: int, documents: bool) -> None:
        self.dataset, self.seq_len = dataset, seq_len
        self._borders: NDArray[np.int64] | None = None
        if documents:
            if dataset.documents is None:
                raise InvalidError(f"{dataset.path} has no document borders: open a dataset that has, or pass documents=False")
            self._borders = np.asarray(dataset.documents, np.int64)
            self._first = np.zeros(len(self._borders), np.int64)  # the number of each document's first sample, and the end
            tokens = np.diff(self._borders)
            if tokens.min(initial=0) < 0:
                raise InvalidError(f"the documents of {dataset.path} do not lie one behind the other")
            np.cumsum(np.maximum(0, tokens - (row - seq_len)) // seq_len, out=self._first[1:])
            self.count = int(self._first[-1])
        else:
            self.count = max(0, len(dataset) - (row - seq_len)) // seq_len
        if self.count == 0:
            where = f"no document of {dataset.path} has" if documents else f"{dataset.path} has only {len(dataset)} tokens, fewer than"
            raise InvalidError(f"{where} the {row} tokens of one sample: give a smaller seq_len")

    def identity(self) -> dict[str, Any]:
        """Numbers that tell this dataset from others."""
        return {"tokens": len(self.dataset), "samples": self.count, **part_of(self.dataset)}

    def epochs(self, given: int, first: int, end: int, seed: int | None) -> tuple[tuple[int, ...], Any]:
        """An hbmfs_epochs of the samples [first, end), and the array of its keys, which must stay."""
        borders = (0, 0, 0) if self._borders is None else (len(self._borders) - 1, address(self._borders), address(self._first))
        epoch = first // self.count
        epochs = range(epoch, max(first, end - 1) // self.count + 1)
        own = None if seed is None else keys(seed, *epochs)
        return (self.count, self.seq_len, given, epoch, len(epochs), 0 if own is None else address(own), *borders), own

    def starts_here(self, places: Ints, seed: int | None) -> Ints:
        """The token offsets of the samples at places (ascending) of the order of all epochs, by NumPy."""
        samples, epochs = np.empty_like(places), places // self.count
        for epoch in np.unique(epochs).tolist():
            own = epochs == epoch
            here = places[own] - epoch * self.count
            samples[own] = here if seed is None else Permutation(self.count, seed, epoch)(here)
        if self._borders is None:
            return samples * self.seq_len
        document = np.searchsorted(self._first, samples, side="right") - 1
        starts: Ints = self._borders[document] + (samples - self._first[document]) * self.seq_len
        return starts


def places_of(firsts: Ints, rows: int) -> Ints:
    """The places of the samples of batches of so many, given the place of each one's first."""
    places: Ints = (firsts[:, None] + np.arange(rows)).reshape(-1)
    return places


Seeds = Sequence[int | None]
"""Of each dataset; None: its samples come as they lie."""


def starts_of_order(samples: Samples, seed: int | None, places: Ints) -> Ints:
    """Where the samples at places (ascending) of the order of all epochs begin."""
    if library().forked or not len(places):
        return samples.starts_here(places, seed)
    of = [samples.epochs(0, int(places[0]), int(places[-1]) + 1, seed)]
    return _ask(of, None, places)[0]


def starts_of_drawn(samples: Sequence[Samples], seeds: Seeds, given: Sequence[int], drawn: NDArray[Any], places: Ints) -> tuple[Ints, NDArray[np.int32]]:
    """Where samples of a mixture begin, and the numbers of their datasets. drawn has the datasets of consecutive samples, before which each had
    given so many; places (ascending) say which are asked for."""
    if library().forked or len(samples) > 256:
        return starts_of_drawn_here(samples, seeds, given, drawn, places)
    many = np.bincount(drawn, minlength=len(samples)).tolist()
    return _ask([s.epochs(n, n, n + more, seed) for s, seed, n, more in zip(samples, seeds, given, many, strict=True)], drawn, places)


def _ask(of: list[tuple[tuple[int, ...], Any]], drawn: NDArray[Any] | None, places: Ints) -> tuple[Ints, NDArray[np.int32]]:
    epochs, places = np.array([fields for fields, _ in of], EPOCHS), np.ascontiguousarray(places)
    starts, sources = np.empty(len(places), np.int64), np.empty(len(places), np.int32)
    which, n = (None, 0) if drawn is None else (address(drawn), len(drawn))
    library().ask("starts", address(epochs), len(of), ROUNDS, which, n, address(places), len(places), address(starts), address(sources))
    return starts, sources


def starts_of_drawn_here(samples: Sequence[Samples], seeds: Seeds, given: Sequence[int], drawn: NDArray[Any], places: Ints) -> tuple[Ints, NDArray[np.int32]]:
    """The same by NumPy, in a forked child, which has no library, and of more datasets than it takes."""
    starts, sources = np.empty(len(places), np.int64), drawn[places].astype(np.int32)
    for source, (s, seed, n) in enumerate(zip(samples, seeds, given, strict=True)):
        own = np.flatnonzero(sources == source)
        if len(own):
            starts[own] = s.starts_here(n + np.searchsorted(np.flatnonzero(drawn == source), places[own]), seed)
    return starts, sources
