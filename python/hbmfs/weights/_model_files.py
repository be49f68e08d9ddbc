"""The files that make up a model, and the tensors in them that a caller wants."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from .._lib import _address
from ..errors import FormatError, NotFoundError
from . import safetensors_header
from .safetensors_header import Header

MAX_INDEX = 100_000_000

Names = Iterable[str] | Callable[[str], bool] | None
"""Names of tensors, or a function that says of a name whether it is wanted; None: all."""


Files = dict[str, set[str] | None]
"""Paths of files, each with the tensors that are taken from it, or None for all of them."""


def headers(path: str | os.PathLike[str], names: Names) -> list[Header]:
    """The headers of a model's files, each with the wanted tensors only. A file without any is left out."""
    _address.refuse(path)
    return headers_of(_files(Path(path)), names)


def headers_of(files: Files, names: Names) -> list[Header]:
    """The headers of some files, likewise."""
    chosen = names if callable(names) or names is None else {names} if isinstance(names, str) else set(names)
    result, owners = [], dict[str, str]()
    for file, listed in files.items():
        try:
            header = safetensors_header.read(file)
        except NotFoundError:
            if listed is None:
                raise
            raise NotFoundError(f"there is no file {file}, though the index of its model says that {min(listed)!r} is in it: bring the whole model") from None
        missing = (listed or set()) - {tensor.name for tensor in header.tensors}
        if missing:
            raise FormatError(f"{file} has no tensor {min(missing)!r}, though the index of its model says so")
        wanted = []
        for tensor in header.tensors:
            name = tensor.name
            if listed is not None and name not in listed:
                continue
            if name in owners:
                raise FormatError(f"tensor {name!r} is in {owners[name]} and in {file}: write an index, or name one file")
            owners[name] = file
            if chosen is None or (chosen(name) if callable(chosen) else name in chosen):
                wanted.append(tensor)
        result.append(header._replace(tensors=tuple(wanted)))
    if chosen is not None and not callable(chosen) and chosen - owners.keys():
        raise NotFoundError(f"there is no tensor {min(chosen - owners.keys())!r} in {', '.join(files) or 'no file'}")
    return [header for header in result if header.tensors]


def chosen_by(index: Path, files: Iterable[str]) -> Files:
    """An index's entries of some files in its directory, and of missing ones. Without the index, all of the files."""
    if not index.exists():
        return dict.fromkeys(sorted(files))
    known = {os.path.abspath(file) for file in files}
    return {file: listed for file, listed in _indexed(index).items() if os.path.abspath(file) in known or not os.path.exists(file)}


def _files(path: Path) -> Files:
    """The files of a model."""
    if not os.path.isdir(path):
        return _indexed(path) if path.name.endswith(".json") else {str(path): None}
    indexes = sorted(path.glob("*.safetensors.index.json"))
    if len(indexes) > 1:
        raise FormatError(f"{path} has {len(indexes)} indexes: name one of them, such as {indexes[0]}")
    if indexes:
        return _indexed(indexes[0])
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise NotFoundError(f"there is no .safetensors file in {path}")
    return {str(file): None for file in files}


def _indexed(index: Path) -> Files:
    fd = safetensors_header.open_regular(str(index))
    try:
        raw = safetensors_header.read_exactly(fd, str(index), MAX_INDEX + 1, 0)
    finally:
        os.close(fd)
    if len(raw) > MAX_INDEX:
        raise FormatError(f"{index} is longer than {MAX_INDEX} bytes: it is no index of safetensors files")

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len(found := dict(pairs)) != len(pairs):
            raise FormatError(f"{index} is damaged: it has a name twice, and readers differ in which one they take")
        return found

    try:
        weights = json.loads(raw, object_pairs_hook=once)["weight_map"]
    except FormatError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FormatError(f"{index} is damaged: expected a JSON object with a weight_map") from None
    if not isinstance(weights, dict):
        raise FormatError(f"{index} is damaged: weight_map must be an object of tensors' and files' names")
    listed: dict[str, set[str]] = {}
    for tensor, name in weights.items():
        if not isinstance(name, str) or (name not in listed and not _inside(name)):
            raise FormatError(f"{index} says that tensor {tensor!r} is in {name!r}, expected a file of the same directory")
        listed.setdefault(name, set()).add(tensor)
    files: Files = {}
    for name, tensors in sorted(listed.items()):
        path = str(index.parent / name)
        files[path] = (files.get(path) or set()) | tensors
    return files


def _inside(name: str) -> bool:
    """Whether a name stays in its directory. A link there may point anywhere, as in the cache of huggingface_hub."""
    path = PurePosixPath(name)
    return bool(path.parts) and "\0" not in name and not path.is_absolute() and ".." not in path.parts
