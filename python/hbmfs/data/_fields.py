"""Finding the fields of a set of samples, as a mount shows them: fields/fields.json, and NumPy files beside it.

A dense field is an array (samples, *shape). A ragged field is values one sample after the other, and offsets of int64: sample i is
values[offsets[i]:offsets[i + 1]]. Offsets are kept in memory: 8 bytes a sample. Every number of these files is checked here.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._lib import _address
from ..errors import FormatError, InvalidError, NotFoundError, ReadError
from . import tokens
from ._types import Ints

FOLDER, LISTED = "fields", "fields.json"
_MOST_LISTED = 256 << 20  # bytes of fields.json
_MOST_SAMPLES = 1 << 62
_AT_ONCE = 1 << 20  # offsets that are checked at once


class Field(NamedTuple):
    """A field that can be read."""

    name: str
    found: tokens.Tokens  # the elements of all samples
    shape: tuple[int, ...]  # of a dense field's sample; of the rows that a ragged one's samples have
    offsets: Ints | None  # in elements; None: the field is dense

    @property
    def ragged(self) -> bool:
        """Whether samples have lengths of their own."""
        return self.offsets is not None

    @property
    def row(self) -> int:
        """Elements of a dense field's sample."""
        return math.prod(self.shape)

    def spans(self, numbers: Ints) -> tuple[Ints, Ints]:
        """The first element of each of these samples, and how many it has."""
        if self.offsets is None:
            return numbers * self.row, np.full(len(numbers), self.row, np.int64)
        starts = self.offsets[numbers]
        return starts, self.offsets[numbers + 1] - starts


class Fields(NamedTuple):
    """The fields of a set of samples."""

    folder: str
    samples: int
    each: dict[str, Field]
    missing: dict[str, str]  # fields that the mount does not show, with the reason
    shards: list[tuple[str, int]]  # names, and samples


def find(path: Any) -> str:
    """The directory that has fields.json: this one, its fields/, or that of its views in a mount."""
    name = os.fspath(path)
    if not isinstance(name, str):
        raise InvalidError(f"{name!r} is no path: give a str or an os.PathLike of str")
    _address.refuse(name)
    for folder in (name, os.path.join(name, FOLDER)):
        if os.path.exists(os.path.join(folder, LISTED)):
            return folder
    if (mounted := tokens.views_of(name)) is None:
        if os.path.exists(name):
            raise NotFoundError(f"{name} is in no hbmfs mount and has no {FOLDER}/{LISTED}: mount it with `hbmfs mount`, and open the mount")
        raise NotFoundError(f"{name} does not exist: give a directory of an hbmfs mount")
    found = []
    for at, below, _ in os.walk(mounted):
        if FOLDER in below and os.path.exists(os.path.join(at, FOLDER, LISTED)):
            found.append(at)
        below[:] = [n for n in below if n not in (FOLDER, "members", "tensors")]  # perhaps millions of files
    if len(found) == 1:
        return os.path.join(found[0], FOLDER)
    if not found:
        raise NotFoundError(f"{name} has no view of samples with fields: `hbmfs inspect` says why; hbmfs.open({name!r}) reads tokens")
    sets = sorted(os.path.relpath(at, mounted) for at in found)
    more = f" and {len(sets) - 8} more" if len(sets) > 8 else ""
    raise InvalidError(f"{name} holds {len(sets)} sets of samples ({', '.join(sets[:8])}{more}): name one, as in {os.path.normpath(os.path.join(mounted, sets[0], FOLDER))!r}")


def read(folder: str) -> Fields:
    """Reads fields.json and the offsets, and checks all of their numbers against the files."""
    name = os.path.join(folder, LISTED)
    try:
        if os.path.getsize(name) > _MOST_LISTED:
            raise FormatError(f"{name} has more than {_MOST_LISTED >> 20} MiB, which no list of fields has")
        with open(name, "rb") as file:
            listed = json.loads(file.read())
    except FileNotFoundError as err:
        raise NotFoundError(f"{name} does not exist: {folder} shows no fields of samples") from err
    except OSError as err:
        raise ReadError(f"{name} cannot be read: {err.strerror}") from err
    except (ValueError, RecursionError) as err:
        raise FormatError(f"{name} is no list of fields: {err}") from err
    try:
        samples = _count(listed["samples"])
        shards = [(str(shard["name"]), _count(shard["samples"])) for shard in listed.get("shards", [])]
        given = [(str(field["name"]), field) for field in listed["fields"]]
        missing = {own: str(field["missing"]) for own, field in given if field.get("missing")}
        each = {own: _field(folder, own, samples, field) for own, field in given if own not in missing}
    except (ValueError, TypeError, LookupError, AttributeError) as err:
        if isinstance(err, FormatError):
            raise
        raise FormatError(f"{name} is no list of fields: {err!r}") from err
    if len({own for own, _ in given}) < len(given):
        raise FormatError(f"{name} lists a field twice")
    if shards and sum(n for _, n in shards) != samples:
        raise FormatError(f"{name} lists shards of {sum(n for _, n in shards)} samples, and has {samples}")
    return Fields(folder, samples, each, missing, shards)


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST_SAMPLES:
        raise ValueError(f"{value!r} is no count")
    return value


def _field(folder: str, name: str, samples: int, listed: dict[str, Any]) -> Field:
    base = listed["file"]
    if not isinstance(base, str) or not base or os.path.basename(base) != base or base in (".", "..") or "\0" in base:
        raise ValueError(f"{base!r} is no name of a file")
    kind, dtype = listed["kind"], tokens.parse_dtype(listed["dtype"])
    if kind not in ("dense", "ragged"):
        raise ValueError(f"{kind!r} is no kind of a field")
    path = os.path.join(folder, f"{base}.npy" if kind == "dense" else f"{base}.values.npy")
    found = tokens.find(path)
    if found.dtype != dtype:
        raise FormatError(f"{path} holds {found.dtype}, and {LISTED} beside it says {dtype}")
    shape = tuple(_count(n) for n in listed["shape"])
    if kind == "ragged":
        return Field(name, found, shape, offsets_of(os.path.join(folder, f"{base}.offsets.npy"), samples, found.length))
    if found.length != samples * math.prod(shape):
        raise FormatError(f"{path} has {found.length} elements, and {LISTED} beside it says {samples} samples of shape {list(shape)}")
    return Field(name, found, shape, None)


def offsets_of(path: str, samples: int, values: int) -> Ints:
    """The offsets of a ragged field, which go from 0 up to the number of its values."""
    found = tokens.find(path)
    if found.dtype != np.int64 or found.length != samples + 1:
        raise FormatError(f"{path} has {found.length} numbers of {found.dtype}: {samples} samples have {samples + 1} offsets of int64")
    try:
        with open(path, "rb") as file:
            offsets = np.fromfile(file, np.int64, found.length, offset=found.offset)
    except OSError as err:
        raise ReadError(f"{path} cannot be read: {err.strerror}") from err
    if len(offsets) != samples + 1:
        raise FormatError(f"{path} ended early: it was cut off after it was opened")
    if offsets[0] != 0:
        raise FormatError(f"{path} begins with {offsets[0]}: the first offset is 0")
    for first in range(0, samples, _AT_ONCE):
        some = offsets[first : first + _AT_ONCE + 1]
        if (falls := some[1:] < some[:-1]).any():
            at = int(np.argmax(falls))
            raise FormatError(f"{path} falls from {some[at]} to {some[at + 1]} at sample {first + at}: offsets must not decrease")
    if offsets[-1] != values:
        raise FormatError(f"{path} ends with {offsets[-1]}, but there are {values} values")
    return offsets


def shards_of(fields: Fields) -> Sequence[tuple[str, int]]:
    """The shards with their samples; the whole set is one where they are not listed."""
    return fields.shards or [(os.path.basename(fields.folder), fields.samples)]
