"""A trainer with torch gets tensors on the CPU."""

import os
import subprocess
import sys

import hbmfs
import numpy as np
import pytest
import torch
from hbmfs._lib import _memory
from numpy_dataset import NumpyDataset



def test_batches_are_tensors_where_torch_is_imported():
    ds = NumpyDataset(np.arange(900, dtype=np.uint16), np.arange(0, 901, 9))
    both = hbmfs.Aligned({"tokens": ds, "mask": NumpyDataset(np.ones(900, np.uint8), ds.documents)})
    for options in ({}, {"targets": True}, {"packed": True}):
        for make in (lambda **o: hbmfs.TokenStream(ds, 4, 8, **o), lambda **o: hbmfs.Mixture({"a": (ds, 1), "b": (ds, 1)}, 4, 8, **o)):
            ours, arrays = next(iter(make(**options))), next(iter(make(tensors=False, **options)))
            for tensor, array in zip(*((b if isinstance(b, tuple) else (b,)) for b in (ours, arrays)), strict=True):
                assert (isinstance(tensor, torch.Tensor) and isinstance(array, np.ndarray) and np.array_equal(tensor.numpy(), array)) or tensor == array
    packed = next(iter(hbmfs.PackedStream(both, 4, 8)))
    assert isinstance(packed, hbmfs.Packed) and isinstance(packed.tokens, torch.Tensor) and isinstance(packed.beside["mask"], torch.Tensor)
    batch = next(iter(hbmfs.TokenStream(both, 4, 8, targets=True)))
    assert all(isinstance(t, torch.Tensor) for pair in batch.values() for t in pair)


def test_without_torch_batches_are_arrays(tmp_path):
    np.save(tmp_path / "tokens.npy", np.arange(100, dtype=np.uint16))
    program = "import hbmfs, sys; b = next(iter(hbmfs.TokenStream(hbmfs.open(sys.argv[1]), 2, 5))); print(type(b).__module__, 'torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", program, tmp_path / "tokens.npy"], check=True, capture_output=True, text=True, env=dict(os.environ))
    assert out.stdout.split() == ["numpy", "False"]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int32])
def test_embeddings_take_batches_of_int64(tmp_path, dtype):
    np.save(tmp_path / "tokens.npy", np.arange(300, dtype=dtype))
    embed = torch.nn.Embedding(300, 4)
    with hbmfs.open(tmp_path / "tokens.npy") as ds:
        for x, y in hbmfs.TokenStream(ds, 3, 10, epochs=1, targets=True, dtype="int64"):
            assert embed(x).shape == (3, 10, 4) and y.view(-1).dtype == torch.int64


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int32, np.int64, np.uint8])
def test_rows_come_into_their_order_as_on_the_host(dtype):
    """What a GPU's rows go through, made by torch on the CPU: torch indexes no unsigned numbers of more than a byte."""
    random = np.random.default_rng(1)
    value, rows = random.integers(0, 200, (9, 5)).astype(dtype), random.permutation(9)
    place = object.__new__(_memory.Torch)
    place._torch, place._device = torch, torch.device("cpu")
    ordered = place.order(torch.from_numpy(value.copy()), rows)
    assert np.array_equal(ordered.numpy(), _memory.Host().order(value, rows)) and ordered.numpy().dtype == dtype
    assert np.array_equal(place.rows(torch.from_numpy(value), 2, 4).numpy(), value[2:4])


def test_torch_that_another_thread_is_importing(tmp_path):
    (tmp_path / "torch.py").write_text("import builtins\nbuiltins.begun.set()\nbuiltins.asked()\nwhole = True\n")
    program = """
import builtins, threading
from hbmfs._lib._device import imported_torch
from waiting import main_is_in, until
assert imported_torch() is None
builtins.begun, builtins.asked = threading.Event(), lambda: until(lambda: main_is_in("imported_torch"))
threading.Thread(target=__import__, args=["torch"], daemon=True).start()
builtins.begun.wait()
assert imported_torch().whole
"""
    path = os.pathsep.join([str(tmp_path), os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": path})
