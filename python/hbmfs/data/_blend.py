"""The sources of a mixture as people have them written: Megatron's --data-path, or a file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._lib._arguments import Device, Path, checked
from ..errors import FormatError, InvalidError, UnavailableError
from ._megatron_index import Index
from .dataset import Dataset
from .dataset import open as open_dataset

if TYPE_CHECKING:
    from ._types import Array

Spec = dict[str, tuple[str, Any]]


@checked
def sources(given: Path | Sequence[object] | Mapping[str, object], device: Device = None, **options: Any) -> dict[str, tuple[Dataset[Array], Any]]:
    """Opens the sources of a mixture: {name: (dataset, weight)}. options go to hbmfs.open.

    given is what Megatron takes as --data-path, a list or a string of weights and prefixes (["0.7", "/data/web_document",
    "0.3", "/data/code_document"]; without weights each source has as much as it has tokens), a dict of them, or the name of
    a .yaml or .json file:

        web:  {path: /mnt/web, weight: 0.7}
        code: {path: /data/code_document, weight: 0.3}

    A path is one of hbmfs.open, or the prefix of a Megatron dataset.
    """
    spec = _read(given)
    opened: dict[str, tuple[Dataset[Array], Any]] = {}
    try:
        for name, (path, weight) in spec.items():
            dataset = _open(path, device, options)
            opened[name] = (dataset, len(dataset) if weight is None else weight)
    except BaseException:
        for dataset, _ in opened.values():
            dataset.close()
        raise
    return opened


def _open(path: str, device: Any, options: dict[str, Any]) -> Dataset[Array]:
    if os.path.exists(f"{path}.idx") and os.path.exists(f"{path}.bin") and not os.path.isfile(path):
        return open_dataset(f"{path}.bin", device, **{"dtype": Index(f"{path}.idx").dtype, **options})
    return open_dataset(path, device, **options)


def _read(given: Any) -> Spec:
    if isinstance(given, (str, os.PathLike)):
        name = os.fspath(given)
        if name.endswith((".yaml", ".yml", ".json")):
            return _of_mapping(_load(name), name)
        return _of_path(name.split())
    return _of_mapping(given, "the mixture") if isinstance(given, Mapping) else _of_path([str(word) for word in given])


def _of_path(words: Sequence[str]) -> Spec:
    """Reads --data-path as megatron/training/utils.py (get_blend_and_blend_per_split) and core's get_blend_from_list do."""
    if not words:
        raise InvalidError("the data path is empty: give weights and prefixes")
    weighted = len(words) % 2 == 0 and all(_is_number(word) for word in words[::2])
    paths = list(words[1::2] if weighted else words)
    weights: list[Any] = list(words[::2]) if weighted else [None] * len(paths)
    if len(set(paths)) < len(paths):
        raise InvalidError(f"the data path names {max(paths, key=paths.count)} twice: add the weights up")
    return {path: (path, weight) for path, weight in zip(paths, weights, strict=True)}


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _of_mapping(given: Any, where: str) -> Spec:
    if not isinstance(given, Mapping) or not given:
        raise FormatError(f"{where} is no mapping of names to path and weight, such as web: {{path: /mnt/web, weight: 0.7}}")
    out: Spec = {}
    for name, entry in given.items():
        if not isinstance(entry, Mapping) or not {"path"} <= set(entry) <= {"path", "weight"} or not isinstance(entry["path"], (str, os.PathLike)):
            raise FormatError(f"{where}: {name} is {entry!r}: give it a path and a weight")
        out[str(name)] = (os.fspath(entry["path"]), entry.get("weight"))
    return out


def _load(name: str) -> Any:
    with open(name, encoding="utf-8") as file:
        text = file.read()
    if name.endswith(".json"):
        try:
            return json.loads(text)
        except ValueError as err:
            raise FormatError(f"{name} cannot be read: {err}") from err
    try:
        import yaml
    except ImportError:
        raise UnavailableError(f"{name} needs PyYAML, which is not installed: pip install pyyaml, or write it as .json") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as err:
        raise FormatError(f"{name} cannot be read: {err}") from err
