"""Modules by the names that they had before this package had sub-packages: hbmfs.mixture is hbmfs.data.mixture, one module under two names.

Plugins of vLLM, LMCache and SGLang, scripts and pickles have the older names. Nothing here imports a module before somebody asks for it.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

MOVED = {
    f"hbmfs.{name}": f"hbmfs.{package}.{name}"
    for package, names in {
        "_lib": "_closing _device _handle _memory _native _transfer device_array reader request writer",
        "data": "_ahead _blend _chairman _forked _joined _packing _queue _samples _scatter _segments _stream "
        "dataset mixture packed part permutation token_stream tokens",
        "group": "_board _group _ranks",
        "weights": "_columns _model_files _parts safetensors_header",
        "checkpoints": "_dcp_layout _dcp_nodes _dcp_reads _dcp_shared _publishing _staging _torch_object _torch_zip "
        "dcp dcp_stager dcp_writer safetensors_save torch_save",
        "integrations": "deepspeed fastsafetensors lmcache megatron nanogpt sglang transformers vllm",
    }.items()
    for name in names.split()
}


class Finder:
    """Finds them for the import system, which asks it when there is no file of that name."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, cls) if name in MOVED else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        return None

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(MOVED[module.__name__])

    @staticmethod
    def get_code(name: str) -> CodeType:
        return compile(f"import {MOVED[name]}", name, "exec")  # for python -m
