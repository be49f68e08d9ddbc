"""Readers of projects whose packages cannot be imported here: their own modules, out of their wheels, without the rest.

A project's package imports all that its models need. Its reader needs little of that, so that the packages around it are
stood in for by empty ones, and what the reader names and never calls by something of that name. Each function returns
the reader's module, whose code is the project's own.
"""

import importlib
import importlib.metadata
import importlib.util
import sys
from types import ModuleType


def wheel(distribution, path):
    """Path of a file of an installed distribution."""
    return str(importlib.metadata.distribution(distribution).locate_file(path))


def package(name, path, **contents):
    """Puts an empty package into sys.modules whose modules lie below path."""
    module = sys.modules.setdefault(name, ModuleType(name))
    module.__path__ = [path]
    vars(module).update(contents)


def automodel():
    """NeMo Automodel's reader of .bin shards, which is modded-nanogpt's with an index of documents."""
    path = wheel("nemo-automodel", "nemo_automodel/components/datasets/llm/nanogpt_dataset.py")
    spec = importlib.util.spec_from_file_location("automodel_nanogpt_dataset", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


def modalities():
    """Modalities' readers of .pbin files."""
    for name in ("modalities", "modalities.dataloader", "modalities.tokenization"):
        package(name, wheel("modalities", name.replace(".", "/")))
    sys.modules["modalities.tokenization.tokenizer_wrapper"] = wrapper = ModuleType("tokenizer_wrapper")
    wrapper.TokenizerWrapper = object
    return importlib.import_module("modalities.dataloader.dataset")


def fairseq():
    """fairseq's readers and writers of indexed datasets."""
    import torch

    package("fairseq", wheel("fairseq", "fairseq"))
    package("fairseq.dataclass", wheel("fairseq", "fairseq/dataclass"))
    package("fairseq.data", wheel("fairseq", "fairseq/data"), FairseqDataset=torch.utils.data.Dataset)
    sys.modules["fairseq.data.huffman"] = huffman = ModuleType("fairseq.data.huffman")
    huffman.HuffmanMMapIndexedDataset = huffman.HuffmanMMapIndex = object
    return importlib.import_module("fairseq.data.indexed_dataset")
