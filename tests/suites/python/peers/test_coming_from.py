"""docs/guide/coming-from.md: the lines before and after, run with the real packages; where both give the same, it is compared."""

import fcntl
import os
import re
import shutil
import warnings
from pathlib import Path

import hbmfs
import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("tensors")]
DOC = Path(__file__).resolve().parents[4] / "docs/guide/coming-from.md"


@pytest.fixture
def tensors(monkeypatch):
    monkeypatch.setattr("hbmfs._lib._device.torch_is_imported", lambda: True)


def blocks(section):
    """The blocks of Python below a heading."""
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", DOC.read_text(), re.DOTALL | re.MULTILINE)
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run(section, **given):
    """Runs the blocks one after another. Gives what each of them left."""
    names = {"hbmfs": hbmfs, "np": np, "os": os, "torch": torch, "device": "cpu", "batch_size": 2, "seq_len": 8, **given}
    left = []
    for block in blocks(section):
        with warnings.catch_warnings():  # of what is not installed, when packages are imported
            warnings.simplefilter("ignore")
            exec(compile(block, str(DOC), "exec"), names)
        left.append(dict(names))
    for opened in {id(v): v for names in left for v in names.values() if isinstance(v, (hbmfs.Dataset, hbmfs.SampleDataset))}.values():
        opened.close()
    return left


def test_nanogpt(source):
    torch.manual_seed(1)
    data_dir = str(source / "nanogpt")
    state = torch.get_rng_state()
    before, *_ = run("nanoGPT", data_dir=data_dir, block_size=8)
    torch.set_rng_state(state)
    after = {"hbmfs": hbmfs, "data_dir": data_dir, "block_size": 8, "batch_size": 2, "device": "cpu"}
    exec(blocks("nanoGPT")[1], after)
    assert torch.equal(before["x"], after["x"]) and torch.equal(before["y"], after["y"])
    after["get_batch"].close()
    *_, epochs = run("nanoGPT", data_dir=data_dir, block_size=8)
    assert epochs["x"].shape == (2, 8) and torch.equal(epochs["x"][:, 1:], epochs["y"][:, :-1])


def test_megatron(source):
    prefix = str(source / "megatron/corpus_text_document")
    before, after, mix = run("Megatron", prefix=prefix, data_path=["1", prefix])
    assert np.array_equal(before["document"], after["document"])
    assert mix["x"].shape == (2, 8) and mix["x"].dtype == torch.int64
    after["indexed"].close()
    for dataset in mix["mix"].datasets:
        dataset.close()


@pytest.fixture
def alone():
    """No other test has a StreamingDataset meanwhile, as in tests/suites/loaders/real.py."""
    fd = os.open("/dev/shm", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield
    os.close(fd)


def test_mosaicml(source, mount, alone):
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    with hbmfs.open(mount / "mds") as other:
        before, after, streams = run("MosaicML Streaming", local=str(source / "mds"), mounted=mount / "mds", other=other)
    assert np.array_equal(before["sample"], after["sample"])
    assert streams["batch"].tokens.shape == (2, 8)


def test_litdata(source, mount, tmp_path):
    local = str(shutil.copytree(source / "litdata-tokens", tmp_path / "litdata"))
    before, after = run("LitData", local=local, mounted=mount / "litdata-tokens", block_size=16)
    assert np.array_equal(before["block"], after["block"])


def test_torchtitan(mount):
    (left,) = run("torchtitan", mounted=mount / "nanogpt/train", dp_rank=0, dp_world_size=1, StatefulDataLoader=StatefulDataLoader)
    assert torch.equal(left["inputs"]["input"][:, 1:], left["labels"][:, :-1])


def test_the_trainer_of_hugging_face(source, mount):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=1 << 17, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1))
    before, after = run("Trainer of Hugging Face", saved=str(source / "arrow"), mounted=mount / "arrow", model=model)
    with hbmfs.open(mount / "arrow") as ds:
        assert before["row"] == ds.read(0, len(before["row"])).tolist()
    assert after["loss"].isfinite()
