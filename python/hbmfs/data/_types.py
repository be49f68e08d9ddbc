"""Types that several modules share: arrays of numbers, and objects that read like a dataset."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from .._lib.device_array import DeviceArray
from ..errors import DeviceError, DtypeError, InvalidError, OutOfRangeError

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeAlias, TypedDict

    from .._lib._memory import Place
    from .._lib.request import Request

    Array: TypeAlias = torch.Tensor | NDArray[Any] | DeviceArray

    class StreamOptions(TypedDict, total=False):
        """The arguments of all streams."""

        seed: int
        rank: int | None
        world_size: int | None
        dtype: Any
        depth: int | None
        ahead: int
        shuffle: bool
        drop_last: bool


A = TypeVar("A")
"""The kind of array that batches are: torch.Tensor, numpy.ndarray or DeviceArray; of aligned datasets a dict of them."""
B = TypeVar("B")
"""A batch of a stream: A, or (A, A) with targets, or Packed."""

Ints = NDArray[np.int64]


class Counted(Protocol):
    """An object with tokens, or samples, that have numbers."""

    @property
    def path(self) -> str: ...
    @property
    def documents(self) -> NDArray[Any] | None: ...
    def __len__(self) -> int: ...


class Dataset(Counted, Protocol[A]):
    """An object that reads like a dataset: a Dataset, or a Part."""

    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def device(self) -> str: ...
    def place(self) -> Place: ...
    def stats(self) -> dict[str, Any]: ...
    def begin_gather(self, starts: Any, length: int, *, out: Any = None, dtype: Any = None) -> Request[A]: ...
    def prefetch(self, starts: Any, length: Any) -> None: ...


class Whole(Dataset[A], Protocol[A]):
    """The source of parts."""

    def begin_pieces(self, starts: Any, lengths: Any, shape: tuple[int, ...], *, pad: int = 0, out: Any = None, dtype: Any = None) -> Request[A]: ...


def starts_of(starts: Any, what: str = "starts") -> Ints:
    """Offsets of tokens, as a caller gives them."""
    if getattr(starts, "is_cuda", False):
        raise DeviceError(f"starts are on {starts.device}: give them on the CPU, as in starts.cpu()")
    where = np.asarray(starts)
    if where.ndim != 1:
        raise InvalidError(f"{what} have shape {where.shape} and must be a list of token offsets")
    if where.size and (where.dtype.kind not in "iu" or (where.dtype == np.uint64 and int(where.max()) >= 1 << 63)):
        raise DtypeError(f"{what} are of {where.dtype} and must be integers of at most 64 bits")
    return np.ascontiguousarray(where, np.int64)


def count_of(what: str, n: Any) -> int:
    """A number of tokens, as a caller gives it."""
    given: Any = None if isinstance(n, bool) else n
    try:
        count = operator.index(given)
    except TypeError as err:
        raise DtypeError(f"{what} is a {type(n).__name__} and must be an integer") from err
    if not 0 <= count < 1 << 62:
        raise OutOfRangeError(f"{what} is {count} and must not be negative" + ", nor 2**62 or more" * (count > 0))
    return count
