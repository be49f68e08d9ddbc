"""vLLM's weights by load_safetensors: a plugin that vLLM finds where this package is installed.

    vllm serve /mnt/models/llama --load-format hbmfs

vLLM decides which files and tensors a model needs, and its own code puts them in, so quantized models and mixtures of
experts load as with its default loader. The model's index says which file a tensor is from, as for load_safetensors: copies of it
in other files are left out. The files are read in parts of 1 GiB, of which two are on the device beside the
model at most. The ranks of tensor parallelism read each byte once and share it, as with group=; with expert
parallelism's filter each rank reads its own experts.

Written for vLLM 0.33.0, which looks for such plugins in the entry points of vllm.general_plugins.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .. import weights
from .._lib import _device
from .._lib._transfer import open_reader
from ..weights import _model_files
from ..weights.safetensors_header import Tensor

PART = 1 << 30
"""Most bytes that are read at once, if no tensor is larger."""
INDEX = "model.safetensors.index.json"
"""The index that a vLLM uses which names none to its loaders."""


def register() -> None:
    """Makes the load format "hbmfs" known. vLLM calls it in each of its processes, for any load format."""
    try:
        from vllm.model_executor.model_loader import register_model_loader

        loader = _loader()
    except ImportError as err:  # it must not keep vLLM from its other load formats
        warnings.warn(f"hbmfs is no load format of this vLLM, which has other loaders than 0.33.0: {err}", stacklevel=2)
        return
    register_model_loader("hbmfs")(loader)


def _loader() -> Any:
    """The class, which can be made only where vLLM is installed."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    class HBMFSModelLoader(DefaultModelLoader):  # type: ignore[misc, unused-ignore]
        """vLLM's default loader for safetensors, with other tensors from the same files."""

        def __init__(self, load_config: Any) -> None:
            config = copy.copy(load_config)
            config.load_format = "safetensors"  # by which the default loader chooses files
            super().__init__(config)

        def _get_weights_iterator(self, source: Any) -> Iterator[tuple[str, Any]]:
            where = (source.model_or_path, source.subfolder, source.revision, source.fall_back_to_pt, source.allow_patterns_overrides)
            folder, files, safetensors, *index = self._prepare_weights(*where)
            if not safetensors or self.load_config.safetensors_load_strategy == "torchao":
                return super()._get_weights_iterator(source)  # type: ignore[no-any-return, unused-ignore]
            if not self.counter_before_loading_weights:  # its log
                self.counter_before_loading_weights: float = time.perf_counter()
            device = self.load_config.device or _current_device()
            wanted = _experts(self.local_expert_ids)
            group = _ranks() if wanted is None else None
            chosen = _model_files.chosen_by(Path(folder, *(index[:1] or [INDEX])), files)
            return ((source.prefix + name, tensor) for name, tensor in stream(chosen, device, wanted, group))

    return HBMFSModelLoader


def stream(files: _model_files.Files, device: Any, wanted: Callable[[str], bool] | None, group: Any) -> Iterator[tuple[str, Any]]:
    """The wanted tensors of files by name, a part of them on the device at a time."""
    headers = _model_files.headers_of(files, wanted)
    with open_reader(_device.parse(device), "auto", None if group is None else group.size()) as reader:
        for header in headers:
            for names in _parts(header.tensors):
                yield from weights.load_safetensors(header.path, device, names=names, group=group, progress=False, reader=reader).items()


def _parts(tensors: Sequence[Tensor]) -> Iterator[list[str]]:
    """Names of tensors that follow each other, for each part."""
    names, size = list[str](), 0
    for tensor in tensors:
        if names and size + tensor.length > PART:
            yield names
            names, size = [], 0
        names.append(tensor.name)
        size += tensor.length
    if names:
        yield names


def _current_device() -> str:
    """The device that vLLM has set for this process."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _experts(ids: set[int] | None) -> Callable[[str], bool] | None:
    """Whether this rank needs a tensor, where it has some of the experts only."""
    if ids is None:
        return None
    from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight

    return lambda name: not should_skip_weight(name, ids)


def _ranks() -> Any:
    """The group of the ranks of tensor parallelism, which all load the same tensors."""
    from vllm.distributed import get_tp_group

    ranks = get_tp_group()
    return ranks.device_group if ranks.world_size > 1 else None
