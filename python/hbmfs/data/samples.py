"""Samples of any fields, such as images, audio, latents or embeddings: read by number, as a map-style dataset.

    ds = hbmfs.SampleDataset("/mnt/imagenet", fields={"jpg": "cpu", "latent": "cuda:0"})
    ds[7]                              # {"jpg": uint8 [103_211], "latent": float16 [4, 32, 32]}
    ds.gather([7, 1, 7])               # {"jpg": Ragged(values, offsets), "latent": float16 [3, 4, 32, 32]}

A mount shows the fields of WebDataset, MosaicML's MDS, LitData, Arrow and Parquet shards, and of folders of NumPy files. Bytes arrive as they are
stored: what decodes JPEGs is up to you. hbmfs.SampleStream reads batches in a shuffled order, ahead.

**Fields.** A field with one shape and type is dense. Any other one is ragged: its bytes, or numbers, are as many as each sample has. A sample that
lacks a ragged field has 0 of them.

**Memory.** A ragged field keeps 8 bytes for each sample: 80 MB for 10 million.
"""

from __future__ import annotations

import copy
import math
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._lib import _device
from .._lib._arguments import Path, checked, shown
from .._lib.reader import Reader
from ..errors import ArgumentError, InvalidError, OutOfRangeError
from ._fields import shards_of
from ._joined import Batch, Joined
from ._open_fields import PINNED, Opened, OpenField
from ._sample_rows import SampleRows
from ._scatter import Spans
from ._types import Ints, starts_of
from .part import chosen, digest_of

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["SampleDataset"]


class SampleDataset:
    """Samples by number, with the fields that were chosen; help("hbmfs.data.samples") has the whole story.

    path     a directory of a mount whose samples it shows, or a directory that has fields.json
    fields   None: all fields that the mount shows, to "cpu". A list of names: these. A mapping of names to places: "cpu"; "pinned", which is
             page-locked memory of the host (torch with a GPU gives it; elsewhere it is like "cpu", and a warning says so); or a GPU, as "cuda:0".
             The current GPU copies to "pinned"; threads do with reader=Reader("cpu")
    reader   a reader to share for the fields on its device; it is not closed with the dataset
    tensors  on the CPU True gives tensors of torch, and False NumPy arrays. None: tensors where torch is imported

    It may be used from many threads at once, and in DataLoader workers: with "cpu" after fork, with any place after spawn. ``len(ds)`` counts
    samples. A field that is not there is an InvalidError, which has the mount's reason. Damaged offsets are a FormatError that names the file.
    """

    @checked
    def __init__(
        self, path: Path, fields: Sequence[str] | Mapping[str, Any] | None = None, *, reader: Reader | None = None, tensors: bool | None = None
    ) -> None:
        self._files = Opened(os.fspath(path), reader)
        self.path = self._files.path
        self._tensors = tensors
        self.numbers: Ints | None = None
        """Of a part: the samples of the whole set; None: all."""
        self.digest: str | None = None
        self._places = self._chosen(fields, dict.fromkeys(self._files.fields.each, "cpu"))

    def _chosen(self, fields: Sequence[str] | Mapping[str, Any] | None, before: Mapping[str, str]) -> dict[str, str]:
        """The places of these fields, which are all opened."""
        if isinstance(fields, str):
            fields = [fields]
        if fields is None:
            places = dict(before)
        elif isinstance(fields, Mapping):
            places = {name: PINNED if device == PINNED else _device.name(_device.parse(device)) for name, device in fields.items()}
        else:
            places = {name: before.get(name, "cpu") for name in fields}
        known, missing = self._files.fields.each, self._files.fields.missing
        for name in places:
            if name in missing:
                raise InvalidError(f"field {name!r} of {self.path} is not shown: {missing[name]}")
            if name not in known:
                raise InvalidError(f"{self.path} has no field {name!r}: it has {', '.join(known) or 'none'}")
        if not places:
            raise InvalidError(f"no field of {self.path} is chosen: it has {', '.join(known) or 'none'}")
        for name, device in places.items():
            self._files.open(name, device)
        return places

    # --- what it is -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._files.fields.samples if self.numbers is None else len(self.numbers)

    @property
    def fields(self) -> dict[str, dict[str, Any]]:
        """The chosen fields: kind ("dense" or "ragged"), dtype, shape (of a dense sample, or of a ragged one's rows), device, and bytes of all samples."""
        return {
            name: {
                "kind": "ragged" if f.ragged else "dense",
                "dtype": f.found.dtype,
                "shape": f.shape,
                "device": device,
                "bytes": f.found.size,
            }
            for name, device in self._places.items()
            for f in [self._files.fields.each[name]]
        }

    @property
    def missing(self) -> dict[str, str]:
        """Fields that the mount does not show, with the reason."""
        return dict(self._files.fields.missing)

    @property
    def tensors(self) -> bool:
        """Whether arrays on the CPU are torch tensors."""
        return _device.torch_is_imported() if self._tensors is None else self._tensors

    @property
    def sample_bytes(self) -> int:
        """The bytes of an average sample, with the fields that were chosen."""
        files = self._files.fields
        return math.ceil(sum(files.each[name].found.size for name in self._places) / max(1, files.samples))

    @property
    def device(self) -> str:
        """The places of the fields."""
        return ", ".join(dict.fromkeys(self._places.values()))

    documents = None

    # --- parts ------------------------------------------------------------------------------------------------------

    @checked
    def select(self, fields: Sequence[str] | Mapping[str, Any] | None = None, *, tensors: bool | None = None) -> SampleDataset:
        """The same samples with other fields or places, or another kind of arrays. They are closed with this dataset."""
        other = copy.copy(self)
        other._places = self._chosen(fields, self._places)
        other._tensors = self._tensors if tensors is None else tensors
        return other

    @checked
    def subset(self, samples: Any) -> SampleDataset:
        """Some samples, by their numbers or by a mask of all, in this order. They are closed with this dataset."""
        numbers = np.asarray(samples)
        if numbers.dtype == np.bool_ and numbers.shape == (len(self),):
            numbers = np.flatnonzero(numbers)
        elif numbers.ndim != 1 or not (numbers.dtype.kind in "iu" or not len(numbers)):
            raise InvalidError(f"samples are {shown(samples)}: give the numbers of some, or a mask of all {len(self)}")
        else:
            numbers = numbers.astype(np.int64)  # the caller may change its array
        other = copy.copy(self)
        other.numbers = self.numbers_of(self._inside(numbers))
        other.digest = digest_of(other.numbers)
        return other

    @checked
    def split(self, name: str, shares: Mapping[str, float] | None = None, seed: int = 0) -> SampleDataset:
        """The samples of a split: "train" (0.99) or "val" (0.01), or of other shares. As of a dataset of tokens, a sample's share depends on its
        shard's name, its number there and the seed."""
        if self.numbers is not None:
            raise InvalidError(f"{self!r} is a part already: split the whole, and then take a subset")
        return self.subset(chosen(shards_of(self._files.fields), name, shares, seed, f"sample of {self.path}"))

    def numbers_of(self, samples: Ints) -> Ints:
        """The numbers that samples of this part have in the whole set."""
        return samples if self.numbers is None else self.numbers[samples]

    def opened(self, name: str) -> OpenField:
        """A chosen field."""
        return self._files.open(name, self._places[name])

    # --- reading ----------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> dict[str, Any]:
        """A sample, {field: array}; or those of a list or slice, as gather() gives them."""
        if hasattr(key, "__index__") and not isinstance(key, bool) and not getattr(key, "ndim", 0):
            at = operator.index(key)
            if not -len(self) <= at < len(self):
                raise OutOfRangeError(f"sample {at} is not in {self.path}, which has {len(self)}")
            return self.__getitems__([at % len(self)])[0]
        if isinstance(key, slice):
            key = np.arange(*key.indices(len(self)))
        elif not isinstance(key, (list, np.ndarray)) and not hasattr(key, "__array__"):
            raise ArgumentError(f"{self!r}[{shown(key)}]: give a sample's number, a slice, or a list of numbers")
        return self.gather(key)

    def __getitems__(self, numbers: Any) -> list[dict[str, Any]]:
        """Several samples, read at once: the call of torch's DataLoader for a batch. Each is a dict of views of one array for each field."""
        batch = self.gather(numbers)
        each = {name: value.rows() if hasattr(value, "rows") else value for name, value in batch.items()}
        return [{name: rows[i] for name, rows in each.items()} for i in range(len(numbers))]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[i] for i in range(len(self)))

    def gather(self, numbers: Any) -> dict[str, Any]:
        """A batch of these samples, in any order: an array [batch, *shape] of each dense field, and Ragged(values, offsets) of each ragged one."""
        batch: dict[str, Any] = self.begin_gather(numbers).wait()
        return batch

    def begin_gather(self, numbers: Any) -> Joined:
        """Starts a gather and returns at once; ``wait()`` gives the batch."""
        where = self._inside(starts_of(numbers, "numbers of samples"))
        return SampleRows([self]).begin_gather(Batch(Spans(len(where), where)))

    def prefetch(self, numbers: Any, length: Any = None) -> None:
        """Says which samples will be read, in their order, so that slow storage can be asked early. It is advice. length means nothing here."""
        del length
        where = self.numbers_of(self._inside(starts_of(numbers, "numbers of samples")))
        for name in self._places:
            opened = self.opened(name)
            opened.dataset.prefetch(*opened.field.spans(where))

    def _inside(self, numbers: Ints) -> Ints:
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(self)):
            wrong = next(n for n in numbers.tolist() if not 0 <= n < len(self))
            raise OutOfRangeError(f"sample {wrong} is not in {self.path}, which has {len(self)}")
        return numbers

    def stats(self) -> dict[str, Any]:
        """Counts of reads of each field: its bytes by path, and the rest as of a dataset of tokens. ``bytes`` are those of all fields by path."""
        fields = {name: {**self.opened(name).dataset.stats(), "device": device} for name, device in self._places.items()}
        paths = sorted({path for own in fields.values() for path in own["bytes"]})
        return {
            "path": self.path,
            "bytes": {path: sum(own["bytes"].get(path, 0) for own in fields.values()) for path in paths},
            "mounted": any(own.get("mounted") for own in fields.values()),
            "fields": fields,
        }

    def close(self) -> None:
        """Cancels running requests and gives everything back, also of parts and selections. Arrays stay."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __copy__(self) -> SampleDataset:
        """Another one of the same open files."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        """Opens the samples again, for multiprocessing's spawn."""
        return _reopen, (self.path, self._places, self._files.given, self._tensors, self.numbers)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name} on {device}" for name, device in self._places.items())
        some = "" if self.numbers is None else f" of {self._files.fields.samples}"
        return f"<hbmfs.SampleDataset {self.path} {len(self)}{some} samples: {fields}{' closed' * self._files.closed}>"


def _reopen(path: str, places: dict[str, str], reader: Reader | None, tensors: bool | None, numbers: Ints | None) -> SampleDataset:
    whole = SampleDataset(path, places, reader=reader, tensors=tensors)
    return whole if numbers is None else whole.subset(numbers)


def words_of(dataset: SampleDataset) -> int:
    """The memory of an average sample, in words of 8 bytes."""
    return max(1, dataset.sample_bytes // 8)
