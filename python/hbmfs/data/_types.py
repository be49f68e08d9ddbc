"""Arrays of numbers, and what the parts of this package need of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .._lib._memory import Place
    from .._lib.reader import File
    from .tokens import Tokens

Ints = NDArray[np.int64]


class Dataset(Protocol):
    """What reads like a dataset: a Dataset, a Part, or an Aligned."""

    @property
    def path(self) -> str: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def device(self) -> str: ...
    @property
    def documents(self) -> NDArray[Any] | None: ...
    def __len__(self) -> int: ...
    def place(self) -> Place: ...
    def stats(self) -> dict[str, Any]: ...
    def begin_gather(self, starts: Any, length: int, *, out: Any = None, dtype: Any = None) -> Any: ...
    def begin_pieces(self, starts: Any, lengths: Any, shape: tuple[int, ...], *, pad: int = 0, out: Any = None, dtype: Any = None) -> Any: ...
    def prefetch(self, starts: Any, length: Any) -> None: ...


class OpenDataset(Dataset, Protocol):
    """A dataset whose file the library reads, as a Scatter takes it."""

    _file: File | None
    _tokens: Tokens

    def _open(self) -> File | None: ...
