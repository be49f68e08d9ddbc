"""The samples of one dataset: how many there are, in which order an epoch has them, and where each begins."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidError
from ._types import Dataset
from .part import part_of
from .permutation import Permutation


class Samples:
    """Rows of `row` tokens, `seq_len` apart, of a dataset; with documents=True none crosses the border of a document."""

    def __init__(self, dataset: Dataset[Any], seq_len: int, row: int, documents: bool) -> None:
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

    def starts(self, places: NDArray[np.int64], seed: int | None) -> NDArray[np.int64]:
        """The token offsets of the samples at places (ascending) of the order of all epochs, by a seed; None: as they lie."""
        samples = np.empty_like(places)
        begin = 0
        while begin < len(places):
            epoch = int(places[begin]) // self.count
            end = int(np.searchsorted(places, (epoch + 1) * self.count))
            here = places[begin:end] - epoch * self.count
            samples[begin:end] = here if seed is None else Permutation(self.count, seed, epoch)(here)
            begin = end
        if self._borders is None:
            return samples * self.seq_len
        document = np.searchsorted(self._first, samples, side="right") - 1
        starts: NDArray[np.int64] = self._borders[document] + (samples - self._first[document]) * self.seq_len
        return starts
