"""Parts of datasets, and datasets side by side: each is read like a dataset, by a stream, a mixture or a gather.

    train, val = ds.split("train"), ds.split("val")                # by a hash of the shard's name and the document's number
    some = ds.subset(documents=numbers)                            # these documents, one behind the other
    both = hbmfs.Aligned({"tokens": ds, "mask": mask})             # the same samples of both
    for batch in hbmfs.TokenStream(both, 32, 4096): batch["mask"]

**Splits** depend on the seed, the shards' names and the numbers of documents in them alone: a document stays where it is when
shards are added. No token is read for them, only where documents begin.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from .._lib._arguments import checked
from .._lib._memory import Place
from .._lib.request import Request
from ..errors import FormatError, InvalidError, OutOfRangeError
from ._joined import Joined
from ._queue import Queue
from ._segments import borders_of, of_rows
from ._types import A, Dataset, Ints, Whole, count_of, starts_of
from .permutation import mixed

SHARES = {"train": 0.99, "val": 0.01}
_AT_ONCE = 1 << 18
"""Hashes that are made at once. Several arrays have 8 bytes for each."""


class Part(Generic[A]):
    """Some documents of a dataset, one behind the other, as a dataset. Made by Dataset.subset and split."""

    @checked
    def __init__(self, whole: Whole[A], numbers: Any) -> None:
        borders = borders_of(whole)
        self.whole = whole
        self.numbers: Ints = np.asarray(numbers)
        if self.numbers.dtype == np.bool_ and self.numbers.shape == (len(borders) - 1,):
            self.numbers = np.flatnonzero(self.numbers)
        if self.numbers.ndim != 1 or self.numbers.dtype.kind not in "iu" or not len(self.numbers):
            raise InvalidError(f"documents are {numbers!r}: give the numbers of some, or a mask of all {len(borders) - 1}")
        if self.numbers.min() < 0 or self.numbers.max() >= len(borders) - 1:
            wrong = next(n for n in self.numbers.tolist() if not 0 <= n < len(borders) - 1)
            raise InvalidError(f"document {wrong} is not in {whole.path}, which has {len(borders) - 1}")
        self.numbers = self.numbers.astype(np.int64)  # 255 of uint8 and 1 are 0; and the caller may change its array
        self.begins: Ints = borders[self.numbers]
        self.documents: Ints = np.zeros(len(self.numbers) + 1, np.int64)
        np.cumsum(borders[self.numbers + 1] - self.begins, out=self.documents[1:])
        self.digest = digest_of(self.numbers)

        self.path = f"a part of {whole.path}"
        self.dtype, self.device = whole.dtype, whole.device

    @property
    def tensors(self) -> bool | None:
        """As of the dataset."""
        return getattr(self.whole, "tensors", None)

    def __len__(self) -> int:
        return int(self.documents[-1])

    def place(self) -> Place:
        """As of a dataset."""
        return self.whole.place()

    def stats(self) -> dict[str, Any]:
        """Of the whole dataset."""
        return self.whole.stats()

    def queue(self, depth: int) -> Queue:
        """As of a dataset."""
        self.whole.stats()  # an error if it is closed
        return Queue(self, depth)

    def gather(self, starts: Any, length: int, *, out: Any = None, dtype: Any = None) -> A:
        """As of a dataset."""
        return self.begin_gather(starts, length, out=out, dtype=dtype).wait()

    def begin_gather(self, starts: Any, length: int, *, out: Any = None, dtype: Any = None) -> Request[A]:
        """As of a dataset. Rows that lie within a document each are read as they are; others are put together on the device."""
        starts, length = starts_of(starts), count_of("length", length)
        pieces, lengths = self._pieces(starts, length)
        if len(pieces) == len(starts) and length:
            return self.whole.begin_gather(pieces, length, out=out, dtype=dtype)
        return self.whole.begin_pieces(pieces, lengths, (len(starts), length), out=out, dtype=dtype)

    def prefetch(self, starts: Any, length: int) -> None:
        """As of a dataset."""
        self.whole.prefetch(*self._pieces(starts_of(starts), count_of("length", length)))

    def _pieces(self, starts: Ints, length: int) -> tuple[Ints, Ints]:
        """Where the pieces of documents begin in the file that rows hold, and their tokens."""
        if len(starts) and (starts.min() < 0 or starts.max() > len(self) - length):
            wrong = next(start for start in starts.tolist() if not 0 <= start <= len(self) - length)
            raise OutOfRangeError(f"a row of {length} tokens from {wrong} on is not inside of {self.path}, which has {len(self)}")
        segments, each = of_rows([self.documents], None, starts, length)
        first = np.cumsum(segments.lengths) - segments.lengths  # in the rows one behind the other
        row = np.repeat(np.arange(len(starts)), each)
        at = starts[row] + first - row * length
        return self.begins[segments.documents] + at - self.documents[segments.documents], segments.lengths

    def __repr__(self) -> str:
        return f"<hbmfs.Part {len(self.numbers)} documents, {len(self)} tokens of {self.whole!r}>"


class Aligned:
    """Datasets of as many tokens each, whose samples are read together: a batch is a dict by name. Borders of documents, and the
    type that dtype= is for, are those of the first one."""

    @checked
    def __init__(self, datasets: Mapping[str, Dataset[Any]]) -> None:
        self.datasets: dict[str, Any] = dict(datasets)
        if not self.datasets or len({(len(d), d.device) for d in self.datasets.values()}) > 1:
            said = ", ".join(f"{name} has {len(d)} tokens on {d.device}" for name, d in self.datasets.items())
            raise InvalidError(f"the datasets are not aligned: {said or 'there are none'}")
        self.first = next(iter(self.datasets.values()))
        if len({part_of(d).get("part") for d in self.datasets.values()}) > 1:
            raise InvalidError("the datasets are different parts: take the same documents of each")
        self.path, self.device, self.dtype = self.first.path, self.first.device, self.first.dtype
        if isinstance(self.first, Part):
            self.whole, self.begins, self.digest = Aligned({name: d.whole for name, d in self.datasets.items()}), self.first.begins, self.first.digest

    @property
    def documents(self) -> Ints | None:
        """Of the first one."""
        borders: Ints | None = self.first.documents
        return borders

    @property
    def tensors(self) -> bool | None:
        """As of the first one."""
        return getattr(self.first, "tensors", None)

    def __len__(self) -> int:
        return len(self.first)

    def stats(self) -> dict[str, Any]:
        """Of the first one."""
        stats: dict[str, Any] = self.first.stats()
        return stats

    def queue(self, depth: int) -> Queue:
        """As of a dataset."""
        self.stats()  # an error if it is closed
        return Queue(self, depth)

    def begin_gather(self, starts: Any, length: int, *, dtype: Any = None) -> Joined:
        """As of a dataset; gives a dict."""
        return self._begin(lambda dataset, **options: dataset.begin_gather(starts, length, **options), dtype=dtype)

    def begin_pieces(self, starts: Any, lengths: Any, shape: tuple[int, ...], *, pad: int = 0, dtype: Any = None) -> Joined:
        """As of a dataset; gives a dict. pad is of the first one, 0 of the others."""
        return self._begin(lambda dataset, **options: dataset.begin_pieces(starts, lengths, shape, **options), pad=pad, dtype=dtype)

    def _begin(self, begin: Callable[..., Any], **of_first: Any) -> Joined:
        begun: list[Any] = []
        try:
            for dataset in self.datasets.values():
                begun.append(begin(dataset, **({} if begun else of_first)))
        except BaseException:
            for request in begun:
                request.cancel()
            raise
        return Joined(begun, lambda results: dict(zip(self.datasets, results, strict=True)))

    def prefetch(self, starts: Any, length: int) -> None:
        """As of a dataset."""
        for dataset in self.datasets.values():
            dataset.prefetch(starts, length)

    def __repr__(self) -> str:
        return f"<hbmfs.Aligned {', '.join(self.datasets)}: {len(self)} tokens each on {self.device}>"


def whole_of(dataset: Any) -> tuple[Any, Ints]:
    """The dataset that a part is of, and where the part's documents begin in it; a dataset is its own part."""
    return getattr(dataset, "whole", dataset), dataset.begins if hasattr(dataset, "begins") else borders_of(dataset)[:-1]


def part_of(dataset: Any) -> dict[str, Any]:
    """The mark that tells a part from others, for states: nothing of a whole dataset."""
    digest = getattr(dataset, "digest", None)
    return {} if digest is None else {"part": digest}


def split(dataset: Whole[A], name: str, shares: Mapping[str, float] | None, seed: int) -> Part[A]:
    """The documents of a dataset whose hash falls into the share of `name`."""
    return Part(dataset, chosen(shards_of(dataset), name, shares, seed, f"document of {dataset.path}"))


def chosen(shards: Sequence[tuple[str, int]], name: str, shares: Mapping[str, float] | None, seed: int, what: str) -> NDArray[np.bool_]:
    """Which things, of so many in each shard, fall into the share of `name` by their hash."""
    shares = SHARES if shares is None else shares
    exact = {key: Fraction(str(share)) for key, share in shares.items()}
    if name not in exact or sum(exact.values()) != 1 or min(exact.values()) < 0:
        raise InvalidError(f"split {name!r} of {dict(shares)}: name one of them, and let their shares sum to 1")
    borders, end = [0], Fraction(0)
    for share in exact.values():
        end += share
        borders.append(int(end * (1 << 64)))
    at = list(exact).index(name)
    mask, begin = np.zeros(sum(many for _, many in shards), np.bool_), 0
    for shard, many in shards:
        for first in range(0, many if borders[at] < borders[at + 1] else 0, _AT_ONCE):
            hashes = mixed(_key(seed, shard), np.arange(first, min(first + _AT_ONCE, many)))
            mask[begin + first :][: len(hashes)] = (hashes >= np.uint64(borders[at])) & (hashes <= np.uint64(borders[at + 1] - 1))
        begin += many
    if not mask.any():
        raise InvalidError(f"no {what} falls into {name!r}: give it a larger share")
    return mask


def shards_of(dataset: Dataset[Any]) -> Sequence[tuple[str, int]]:
    """The shards of a view's dataset by name, with their documents; a file that is none is a shard of its own."""
    documents = len(borders_of(dataset)) - 1
    beside = os.path.join(os.path.dirname(dataset.path), "shards.json")
    if not os.path.exists(beside):
        return [(os.path.basename(dataset.path), documents)]
    try:
        with open(beside, encoding="utf-8") as file:
            listed = [(str(shard["name"]), int(shard["documents"])) for shard in json.load(file)]
    except (ValueError, TypeError, KeyError) as err:
        raise FormatError(f"{beside} is no list of shards: {err!r}") from err
    if sum(n for _, n in listed) != documents or any(n < 0 for _, n in listed):
        raise FormatError(f"{beside} lists other documents than the {documents} that are known")
    return listed


def digest_of(numbers: Ints) -> str:
    """A mark of these numbers, for states."""
    return hashlib.blake2b(np.ascontiguousarray(numbers, "<i8").data, digest_size=8).hexdigest()


def _key(seed: int, shard: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {shard}".encode("utf-8", "surrogateescape"), digest_size=8, person=b"hbmfs split").digest(), "little")
