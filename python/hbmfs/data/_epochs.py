"""A stream of the samples of one dataset, each of them once in every epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import InvalidError
from ._joined import Batch
from ._samples import Samples, places_of, starts_of_order
from ._stream import STATE_VERSION, Stream, at_least
from ._types import B, Ints


class Epochs(Stream[B]):
    """The common part of TokenStream and SampleStream."""

    _borders: Ints | None = None  # of documents, where batches say where they begin

    def _take(self, dataset: Any, samples: Samples, epochs: int | None) -> None:
        """Takes the dataset, and counts its samples."""
        self.dataset = dataset
        self._samples, self.samples = samples, samples.count
        self.epochs = None if epochs is None else at_least(1, "epochs", epochs)
        self.pass_samples = None if self.epochs is None else self.epochs * self.samples
        if self.drop_last and self.pass_samples is not None and self.pass_samples < self._step:
            raise InvalidError(
                f"{self.epochs} epochs of {self.samples} samples do not fill one step of {self.batch_size} samples on "
                f"{self.world_size} ranks: give a smaller batch_size, or drop_last=False"
            )

    @property
    def _endless(self) -> str:
        return f"give epochs=1, which is {self.samples // self._step} steps"

    def _said(self) -> str:
        return repr(self.dataset)

    @property
    def epoch(self) -> int:
        """The epoch of the next sample, from 0."""
        return self._position // self.samples

    def _identity(self) -> dict[str, Any]:
        return {"version": STATE_VERSION, "seed": self.seed, "shuffle": self.shuffle}

    def _batches(self, firsts: Ints, rows: int) -> Callable[[], list[Batch]]:
        seed, places = self.seed if self.shuffle else None, places_of(firsts, rows)
        borders = None if self._borders is None else [self._borders]
        return self._of_rows(borders, (len(firsts), rows), lambda: (starts_of_order(self._samples, seed, places), None))

    def _read(self) -> Sequence[Any]:
        return [self.dataset]

    def _tell(self, window: list[Batch]) -> None:
        self.dataset.prefetch(np.concatenate([batch.spans.starts for batch in window]), self._row)
