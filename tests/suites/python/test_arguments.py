"""What Python people expect of the package: names, arrays, streams that end, and errors that say what was given and what is expected."""

import os
import queue
import subprocess
import sys

import hbmfs
import numpy as np
import pytest
import torch
import typed
from hbmfs._lib._arguments import ANYTHING
from torch.utils.data import DataLoader
from wrong_calls import Calls, outcome

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # as where it is not installed
import hbmfs
names = {}
exec("from hbmfs import *", names)
assert set(hbmfs.__all__) <= set(names) & set(dir(hbmfs)) and all(hasattr(hbmfs, name) for name in hbmfs.__all__)
for use in (lambda: hbmfs.DCPReader("x"), lambda: hbmfs.Checkpoints.load, lambda: hbmfs.deepspeed.CheckpointEngine()):
    try:
        use()
    except hbmfs.UnavailableError as err:
        print(err)
assert not hasattr(hbmfs.DCPWriter, "reset") and not hasattr(hbmfs.deepspeed, "CheckpointEngine") and isinstance(hbmfs.DCPStager, type)
"""


def test_names_that_need_torch_are_there_without_it():
    said = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=True, timeout=120, capture_output=True, text=True)
    assert said.stdout.splitlines() == [
        f"hbmfs.{name} needs torch, which is not installed: pip install torch" for name in ("DCPReader", "Checkpoints", "deepspeed")
    ]


def test_nobody_imports_torch_by_listing_names():
    program = "import sys, hbmfs; assert set(hbmfs.__all__) <= set(dir(hbmfs)); hbmfs.TokenStream, hbmfs.Mixture; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_wrong_arguments_are_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    callables, wrong = set(), 0
    for name, parameter, value, kind, call, arguments in Calls(tmp_path):
        err = outcome(call, arguments)
        callables.add(name)
        if isinstance(err, (queue.Empty, queue.Full)):
            continue
        if err is not None:
            wrong += 1
            assert isinstance(err, hbmfs.Error), f"{name}({parameter}={value!r}): {type(err).__name__}: {err}"
            assert "\n" not in str(err) and len(str(err)) > 10, f"{name}({parameter}={value!r}): {err}"
        if kind is not ANYTHING and not kind.takes(value):
            assert isinstance(err, (TypeError, hbmfs.InvalidError)) and parameter in str(err), f"{name}({parameter}={value!r}): {err!r}"
    assert len(callables) > 50 and wrong > 3500


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda ds, at: hbmfs.TokenStream(at / "tokens.npy", 2, 8), r"TokenStream\(dataset=PosixPath.*an open dataset, as hbmfs.open\(path\) gives"),
        (lambda ds, at: hbmfs.Mixture({"a": ds}, 2, 8), r"sources=\{'a': <hbmfs.Dataset .* must be a mapping of a str to \(an open dataset"),
        (lambda ds, at: hbmfs.TokenStream(ds, 2, 8, seed="x"), r"seed='x'\): seed must be a whole number"),
        (lambda ds, at: hbmfs.Checkpoints(at / "tokens.npy"), "tokens.npy is no directory"),
        (lambda ds, at: hbmfs.Checkpoints(at / "tokens.npy/below"), "is no directory, or lies below a file"),
        (lambda ds, at: hbmfs.TokenStream(ds, 2, 10**8), "has only 500000 tokens, fewer than the 100000000 tokens of one sample"),
        (lambda ds, at: hbmfs.load_safetensors(at / "model"), 'give device="cpu"'),
        (lambda ds, at: hbmfs.open(at / "tokens.npy", "cuda"), 'give device="cpu"'),
        (lambda ds, at: hbmfs.nanogpt.batches({"train": at / "tokens.npy"}, 8, 2)("train"), 'give device="cpu"'),
        (lambda ds, at: hbmfs.Checkpoints(at / "run", memory=4096, device="cuda"), 'give device="cpu"'),
        (lambda ds, at: hbmfs.KVStore(at, "x", 4096, device="cuda"), 'not below an hbmfs mount|give device="cpu"'),
    ],
)
def test_the_mistakes_of_a_first_hour(tokens, tmp_path, monkeypatch, call, words):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    hbmfs.save_safetensors({"w": np.zeros(3)}, tmp_path / "model", progress=False)
    with hbmfs.open(tokens[0]) as ds, pytest.raises(hbmfs.Error, match=words) as caught:
        call(ds, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_dataset_is_indexed_like_an_array(opened, tokens):
    path, data = tokens
    ds = opened(path)
    for key in (slice(5, 9), slice(-3, None), slice(9, 5), slice(None, None, 100_000), slice(9, 2, -3), [7, 2, -0], np.array([1, 499_999])):
        assert np.array_equal(opened.numpy(ds[key]), data[key]), key
    for key in (0, -1, 499_999, np.int32(7)):
        token = ds[key]
        assert np.shape(token) == () or token.shape == ()
        assert int(token if np.isscalar(token) else token.to_numpy()) == data[key]
    for key in (500_000, -500_001):
        with pytest.raises(IndexError, match="which has 500000"):
            ds[key]
    for key in ("x", None, 1.5, (1, 2), True, [1.5]):
        with pytest.raises((hbmfs.ArgumentError, hbmfs.DtypeError)):
            ds[key]
    assert np.array_equal(np.fromiter(ds, np.uint16), data) and len(ds) == len(data)
    if ds.device == "cpu":
        assert np.array_equal(np.asarray(ds), data) and np.asarray(ds, np.int64).dtype == np.int64 and data[3] in ds
    else:
        with pytest.raises(hbmfs.DeviceError, match='device="cpu"'):
            np.asarray(ds)


def test_a_data_loader_over_a_dataset_says_what_to_do(tokens):
    with hbmfs.open(tokens[0]) as ds:
        with pytest.raises(hbmfs.InvalidError, match=r"DataLoader\(hbmfs.TokenStream"):
            next(iter(DataLoader(ds, batch_size=4)))
        stream = hbmfs.TokenStream(ds, 4, 16, epochs=1)
        for workers in (0, 1):
            with pytest.raises(hbmfs.InvalidError, match="pass it batch_size=None"):
                next(iter(DataLoader(stream, num_workers=workers)))
        assert next(iter(DataLoader(stream, batch_size=None))).shape == (4, 16)
        assert next(iter(DataLoader(stream, batch_size=1, collate_fn=lambda batches: batches[0]))).shape == (4, 16)


@pytest.mark.parametrize("dtype", [None, "int64"])
def test_gather_and_batches_are_of_one_kind(tokens, monkeypatch, dtype):
    def kinds(ds, **options):
        stream = hbmfs.TokenStream(ds, 2, 8, dtype=dtype, **options)
        part = ds.subset([0, 2, 1])
        arrays = [ds.gather([0], 4, dtype=dtype), ds.read(0, 4, dtype=dtype), ds[0:3], ds[[1]], ds.begin_gather([1], 2, dtype=dtype).wait()]
        arrays += [part.gather([0], 4, dtype=dtype), part.gather([90], 40, dtype=dtype), next(iter(hbmfs.TokenStream(part, 2, 30, dtype=dtype)))]
        arrays += [*next(iter(hbmfs.TokenStream(ds, 2, 8, dtype=dtype, targets=True)))]
        streamed = [next(iter(stream)), next(iter(hbmfs.Mixture({"a": (ds, 1), "b": (part, 1)}, 2, 8, dtype=dtype, **options)))]
        return {type(array) for array in arrays}, {type(array) for array in streamed}

    borders = np.arange(0, 500_001, 100)
    for tensors, imported, kind in ((None, True, torch.Tensor), (None, False, np.ndarray), (True, False, torch.Tensor), (False, True, np.ndarray)):
        monkeypatch.setattr("hbmfs._lib._device.torch_is_imported", lambda imported=imported: imported)
        with hbmfs.open(tokens[0], tensors=tensors) as ds:
            ds._documents = borders
            assert kinds(ds) == ({kind}, {kind})
            for wished, other in ((True, torch.Tensor), (False, np.ndarray)):
                assert kinds(ds, tensors=wished)[1] == {other} or not imported and not wished
            out = np.empty((1, 4), np.uint16)
            assert ds.gather([3], 4, out=out) is out and np.array_equal(out[0], tokens[1][3:7])


def test_a_stream_has_a_length_an_end_and_a_with(tokens):
    with hbmfs.open(tokens[0]) as ds:
        with hbmfs.TokenStream(ds, 4, 1000, epochs=1) as stream:
            batches = iter(stream)
            next(batches)
        with pytest.raises(StopIteration):
            next(batches)
        assert stream.position == 4 and len(stream) == 125 and len([*stream]) == 124
        with pytest.raises(TypeError, match="give epochs=1, which is 125 steps"):
            len(hbmfs.TokenStream(ds, 4, 1000))
        mix = hbmfs.Mixture({"a": (ds, 1), "b": (ds, 3)}, 4, 1000, epochs=1)
        assert len(mix) == 250 and len([*mix]) == 250 and {c["epochs"] for c in mix.counts.values()} == {1.0}
        with pytest.raises(TypeError, match="give epochs=1"):
            len(hbmfs.Mixture({"a": (ds, 1)}, 4, 1000))
        named = hbmfs.Mixture({"a": (ds, 1), "b": (ds, 3)}, 4, 1000, epochs={"a": 2})
        assert named._ends == ["drop", "repeat"]


def test_what_is_printed_is_one_line(tokens, tmp_path):
    with hbmfs.open(tokens[0]) as ds, hbmfs.Checkpoints(tmp_path / "run") as checkpoints, hbmfs.Reader("cpu") as reader:
        request = ds.begin_gather([0], 2)
        request.wait()
        ds._documents = np.arange(0, 500_001, 100)
        packed = hbmfs.PackedStream(ds, 2, 128, epochs=2, targets=True)
        path = tokens[0]
        dataset = f"<hbmfs.Dataset {path} 500000 uint16 tokens on cpu>"
        for thing, text in (
            (next(iter(packed)), "<hbmfs.Packed [2, 128] uint16 tokens, 4 sequences of 100 at most with labels>"),
            (packed, f"<hbmfs.PackedStream 2 epochs of [2, 128] at sample 2, of {dataset}>"),
            (hbmfs.TokenStream(ds, 2, 100, rank=1, world_size=2), f"<hbmfs.TokenStream endless of [2, 100] of rank 1 of 2 at sample 0, of {dataset}>"),
            (hbmfs.Mixture({"a": (ds, 1), "b": (ds, 1)}, 2, 100, epochs=1), "<hbmfs.Mixture 5000 steps of [2, 100] at sample 0, of 2 sources: a, b>"),
            (hbmfs.Aligned({"a": ds, "b": ds}), "<hbmfs.Aligned a, b: 500000 tokens each on cpu>"),
            (checkpoints, f"<hbmfs.Checkpoints {tmp_path}/run on cpu, keep=3>"),
            (reader.open_file(path), f"<hbmfs.File {path} 1000128 bytes on cpu>"),
            (request, "<hbmfs.Request done>"),
        ):
            assert repr(thing) == text


def test_the_program_for_type_checkers_runs(source, tmp_path):
    (tmp_path / "views/.hbmfs/views").mkdir(parents=True)
    np.save(tmp_path / "views/.hbmfs/views/tokens.npy", np.arange(1000, dtype=np.uint16))
    np.save(tmp_path / "views/.hbmfs/views/documents.npy", np.arange(0, 1001, 10))
    typed.main(tmp_path / "views/.hbmfs/views/tokens.npy", tmp_path)
    assert os.path.exists(tmp_path / "run/step-1")
