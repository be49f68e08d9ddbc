"""hbmfs.nanogpt.batches against nanoGPT's own get_batch, from the same state of torch's generator."""

import subprocess
import sys

import hbmfs
import hbmfs.nanogpt
import numpy as np
import pytest
import torch


def nanogpts_get_batch(path, block_size, batch_size):
    """The oracle: the lines of get_batch in karpathy/nanoGPT, train.py at commit 3adf61e, for device_type cpu."""
    data = np.memmap(path, dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy((data[i : i + block_size]).astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy((data[i + 1 : i + 1 + block_size]).astype(np.int64)) for i in ix])
    return x, y


@pytest.fixture
def data_dir(tmp_path):
    random = np.random.default_rng(5)
    random.integers(0, 1 << 16, 10_007).astype(np.uint16).tofile(tmp_path / "train.bin")
    random.integers(0, 50_257, 301).astype(np.uint16).tofile(tmp_path / "val.bin")
    return tmp_path


def test_the_batches_are_nanogpts(data_dir):
    with hbmfs.nanogpt.batches(data_dir, 64, 12, "cpu") as get_batch:
        for seed in range(10):
            for split in ("train", "val"):
                torch.manual_seed(seed)
                expected = nanogpts_get_batch(data_dir / f"{split}.bin", 64, 12)
                after = torch.get_rng_state()
                torch.manual_seed(seed)
                found = get_batch(split)
                assert torch.equal(torch.get_rng_state(), after), "another use of the generator than nanoGPT's"
                for ours, theirs in zip(found, expected, strict=True):
                    assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)
                    assert ours.view(-1).shape == (12 * 64,), "trainers flatten the targets with view"


@pytest.mark.parametrize("tensors", [False, True])
def test_batches_are_on_their_device_wherever_torchs_default_is(data_dir, tensors):
    with hbmfs.open(data_dir / "train.bin", dtype="uint16", tensors=tensors) as ds:
        get_batch = hbmfs.nanogpt.batches({"train": ds}, 64, 12, "cpu", generator=torch.Generator().manual_seed(9))
        expected = get_batch("train")
        get_batch = hbmfs.nanogpt.batches({"train": ds}, 64, 12, "cpu", generator=torch.Generator().manual_seed(9))
        starts = torch.randint(10_007 - 64, (12,), generator=torch.Generator().manual_seed(9))
        with torch.device("meta"), pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "randint", lambda *_, **__: starts)  # nobody can know those of this device
            assert all(map(torch.equal, get_batch("train"), expected))


def test_the_golden_dataset_in_a_mount(source, mount):
    torch.manual_seed(1)
    expected = nanogpts_get_batch(source / "nanogpt" / "train.bin", 16, 8)
    view = mount / ".hbmfs" / "views" / "nanogpt" / "train" / "tokens.npy"
    for place in (source / "nanogpt", mount / "nanogpt", {"train": view}):
        torch.manual_seed(1)
        with hbmfs.nanogpt.batches(place, 16, 8, "cpu") as get_batch:
            assert all(map(torch.equal, get_batch("train"), expected)), place


def test_a_generator_of_ones_own(data_dir):
    with hbmfs.nanogpt.batches(data_dir, 64, 12, "cpu", generator=torch.Generator().manual_seed(9)) as get_batch:
        before = torch.get_rng_state()
        x, _ = get_batch("train")
        assert torch.equal(torch.get_rng_state(), before)
    starts = torch.randint(10_007 - 64, (12,), generator=torch.Generator().manual_seed(9))
    data = np.fromfile(data_dir / "train.bin", np.uint16)
    assert np.array_equal(x.numpy(), np.stack([data[i : i + 64] for i in starts.tolist()]))


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_an_open_dataset_of_other_tokens(tmp_path, dtype):
    tokens = np.random.default_rng(2).integers(0, 100_000, 500).astype(dtype)
    np.save(tmp_path / "tokens.npy", tokens)
    with hbmfs.open(tmp_path / "tokens.npy") as ds:
        get_batch = hbmfs.nanogpt.batches({"train": ds}, 30, 5)
        for x, y in (get_batch("train") for _ in range(5)):
            assert x.dtype == torch.int64 and x.is_contiguous() and y.is_contiguous()
            assert torch.equal(x[:, 1:], y[:, :-1])
            at = [int(np.flatnonzero(tokens == first)[0]) for first in x[:, 0]]
            assert all(np.array_equal(row, tokens[i : i + 30]) for row, i in zip(x.numpy(), at))
        get_batch.close()
        assert not ds.closed


def test_bad_input(data_dir, tmp_path):
    with pytest.raises(ValueError, match="block_size is 0"):
        hbmfs.nanogpt.batches(data_dir, 0, 12, "cpu")
    with pytest.raises(ValueError, match="batch_size is -1"):
        hbmfs.nanogpt.batches(data_dir, 64, -1, "cpu")
    with hbmfs.nanogpt.batches(data_dir, 301, 12, "cpu") as get_batch:
        get_batch("train")
        with pytest.raises(ValueError, match="smaller block_size"):
            get_batch("val")
        with pytest.raises(ValueError, match="no split 'test'"):
            get_batch("test")
    with pytest.raises(FileNotFoundError):
        hbmfs.nanogpt.batches(tmp_path / "nothing", 64, 12, "cpu")("train")


def test_closing_and_going_on(data_dir):
    get_batch = hbmfs.nanogpt.batches(data_dir, 64, 12, "cpu")
    torch.manual_seed(3)
    first = get_batch("train")
    get_batch.close()
    torch.manual_seed(3)
    assert all(map(torch.equal, get_batch("train"), first))
    get_batch.close()
    get_batch.close()


def test_without_torch(data_dir):
    """torch is not there in a process of its own, as for who installed hbmfs alone."""
    hidden = "import sys, importlib.abc\nclass Hide(importlib.abc.MetaPathFinder):\n def find_spec(self, name, *_):\n  if name.split('.')[0] == 'torch': raise ModuleNotFoundError(name, name=name)\nsys.meta_path.insert(0, Hide())\n"
    for line, says in [
        (f"import hbmfs.nanogpt; hbmfs.nanogpt.batches({str(data_dir)!r}, 8, 2, 'cpu')", "nanoGPT's batches are torch tensors, but torch is not installed: pip install torch"),
        ("import hbmfs.dcp", "hbmfs.dcp loads torch's checkpoints, but torch is not installed: pip install torch"),
    ]:
        ended = subprocess.run([sys.executable, "-c", hidden + line], capture_output=True, text=True)
        assert ended.returncode == 1 and says in ended.stderr.splitlines()[-1], ended.stderr
