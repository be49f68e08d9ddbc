"""hbmfs.safe_open: tensors that are handed out as they arrive. tests/suites/python/peers compares it with safetensors 0.9."""

import os
import re
import subprocess
import threading

import hbmfs
import pytest
import safetensors.torch
import torch
from hbmfs._lib import _transfer
from hbmfs.weights import _arriving, _parts
from test_weights import random_model, same
from waiting import until


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Requests and allocations so small that a model has many."""
    monkeypatch.setattr(_transfer, "REQUEST", 50_000)
    monkeypatch.setattr(_transfer, "AHEAD", 200_000)
    monkeypatch.setattr(_parts, "BLOCK", 300_000)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model").mkdir()
    for number in range(3):
        tensors = {f"{number}.{name}": tensor for name, tensor in random_model(number).items()}
        safetensors.torch.save_file(tensors, tmp_path / "model" / f"model-{number}.safetensors", {"format": "pt", "number": str(number)})
    return tmp_path / "model"


def whole(folder):
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in safetensors.torch.load_file(file).items()}


@pytest.fixture
def gate(monkeypatch):
    """Lets reads arrive when it is set; holds has them arrive up to so many bytes."""
    opened, real = threading.Event(), _transfer.Transfer._finish_one
    opened.first = 0

    def finish_one(self):
        if opened.first > 0:
            opened.first -= 1
        else:
            assert opened.wait(60)
        real(self)

    monkeypatch.setattr(_transfer.Transfer, "_finish_one", finish_one)
    yield opened
    opened.set()


@pytest.mark.parametrize("of", [lambda folder: folder, lambda folder: sorted(folder.glob("*.safetensors")), lambda folder: [str(folder / "model-1.safetensors")]])
def test_all_tensors(folder, of):
    expected = whole(folder) if not isinstance(of(folder), list) or len(of(folder)) > 1 else safetensors.torch.load_file(folder / "model-1.safetensors")
    with hbmfs.safe_open(of(folder)) as f:
        assert f.keys() == sorted(expected) and set(f.offset_keys()) == set(expected)
        with f.prefetch() as loader:
            assert loader.names() == f.offset_keys() and len(loader) == len(expected)
            found = dict(loader)
        same(found, {name: expected[name] for name in loader.names()})
        same(f.get_tensors(), {name: expected[name] for name in loader.names()})
    assert [list(f"{name[0]}" for name in found)] == [sorted(name[0] for name in found)]  # file by file


def test_files_of_a_mount(folder, tmp_path):
    point = tmp_path / "mount"
    point.mkdir()
    subprocess.run([os.environ["HBMFS_BINARY"], "mount", folder, point], check=True, stdout=subprocess.DEVNULL)
    try:
        with hbmfs.safe_open(sorted(point.glob("*.safetensors"))) as f, f.prefetch() as loader:
            found = dict(loader)
        expected = whole(folder)
        same(found, {name: expected[name] for name in found})
    finally:
        subprocess.run([os.environ["HBMFS_BINARY"], "umount", point], check=True)


def test_a_plan(folder):
    """Only what is planned is read: whole tensors and rows."""
    expected, f = whole(folder), hbmfs.safe_open(folder)
    long, wide = "1.torch.float32.4", "2.torch.bfloat16.1"
    plan = {wide: slice(5, 20), long: slice(-7, None), "0.torch.int8.2": None, "0.torch.int8.3": None, "1.torch.int8.1": slice(3, 1), "1.torch.int8.4": slice(2, 2)}
    read, real = [], hbmfs.File.read_into
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hbmfs.File, "read_into", lambda self, pointer, at, size, *more: read.append(size) or real(self, pointer, at, size, *more))
        with f.prefetch(plan) as loader:
            assert set(loader.names()) == set(plan)
            assert [name[0] for name in loader.names()] == sorted(name[0] for name in plan)
            first = loader.take(long)
            rest = dict(loader)
    wanted = {name: expected[name] if rows is None else expected[name][rows] for name, rows in plan.items()}
    same({**rest, long: first}, {name: wanted[name] for name in [*rest, long]})
    assert sum(read) == sum(tensor.nbytes for tensor in wanted.values())


def test_a_tensor_is_there_before_the_others(folder, gate):
    """One tensor is taken while later bytes are still held back."""
    gate.first = 2
    with hbmfs.safe_open(folder / "model-0.safetensors").prefetch() as loader:
        first = loader.names()[0]
        assert torch.equal(loader.take(first), whole(folder)[first])
        assert not gate.is_set() and loader._arriving._done <= 100_000
        gate.set()
        assert len(dict(loader)) == len(loader) - 1


def test_each_tensor_is_handed_out_once(folder):
    with hbmfs.safe_open(folder).prefetch() as loader:
        names = loader.names()
        loader.take(names[3])
        with pytest.raises(hbmfs.InvalidError, match="was handed out before"):
            loader.take(names[3])
        assert [name for name, _ in loader] == names[:3] + names[4:]
        assert dict(loader) == {}
        with pytest.raises(hbmfs.InvalidError, match="'nothing' is not in the plan"):
            loader.take("nothing")


def test_memory_goes_with_its_tensors(folder):
    """A block's memory is gone with its last tensor, while the loader is open."""
    with hbmfs.safe_open(folder).prefetch() as loader:
        found = dict(loader)
        assert loader._arriving._tensors == {}
        assert len({tensor.untyped_storage().data_ptr() for tensor in found.values() if tensor.numel()}) > 5


def test_closing_stops_the_reads(folder, gate):
    gate.first = 1
    loader = hbmfs.safe_open(folder).prefetch()
    thread = loader._arriving._thread
    until(lambda: gate.first == 0)
    waiting = []

    def take():
        try:
            loader.take(loader.names()[-1])
        except hbmfs.ClosedError as err:
            waiting.append(err)

    taker = threading.Thread(target=take)
    taker.start()
    closer = threading.Thread(target=loader.close)
    arriving = loader._arriving
    closer.start()
    until(lambda: arriving._stopped)
    gate.set()
    closer.join()
    taker.join()
    assert not thread.is_alive() and len(waiting) == 1
    with pytest.raises(hbmfs.ClosedError, match="prefetch again"):
        loader.take(loader.names()[0])
    loader.close()


def test_tensors_live_on(folder):
    expected, f = whole(folder), hbmfs.safe_open(folder)
    with f, f.prefetch() as loader:
        name = loader.names()[0]
        tensor = loader.take(name)
    assert torch.equal(tensor, expected[name])
    for call in (f.keys, f.metadata, f.prefetch, f.__enter__, lambda: f.get_tensor(name), lambda: f.get_slice(name)):
        with pytest.raises(hbmfs.ClosedError, match="open them again"):
            call()


def test_a_read_that_fails(folder, monkeypatch):
    real = hbmfs.Request.wait

    def wait(self, *arguments):
        if self._owner.path.endswith("model-1.safetensors"):
            raise hbmfs.ReadError("model-1.safetensors cannot be read at byte 7: Input/output error")
        return real(self, *arguments)

    monkeypatch.setattr(hbmfs.Request, "wait", wait)
    with hbmfs.safe_open(folder).prefetch() as loader:
        for _ in range(2):
            with pytest.raises(hbmfs.ReadError, match="model-1"):
                loader.take(loader.names()[-1])
        assert loader._arriving._tensors == {}


def test_no_memory(folder, monkeypatch):
    def allocate(self, size):
        raise hbmfs.OutOfMemoryError(f"the host has no {size} bytes left for weights")

    monkeypatch.setattr(_arriving.Torch, "allocate", allocate)
    with hbmfs.safe_open(folder).prefetch() as loader, pytest.raises(hbmfs.OutOfMemoryError):
        next(iter(loader))


def test_a_file_that_changed(folder):
    f = hbmfs.safe_open(folder)
    with open(folder / "model-2.safetensors", "ab") as file:
        file.write(b"more")
    with f.prefetch() as loader, pytest.raises(hbmfs.FormatError, match=r"model-2\.safetensors changed"):
        dict(loader)


def test_wrong_calls(folder):
    with pytest.raises(hbmfs.InvalidError, match="framework is 'flax'"):
        hbmfs.safe_open(folder, "flax")
    with pytest.raises(hbmfs.NotFoundError):
        hbmfs.safe_open(folder / "nothing.safetensors")
    with pytest.raises(hbmfs.DeviceError, match="'mps' is not known"):
        hbmfs.safe_open(folder, device="mps")
    with hbmfs.Reader("cpu") as reader:
        f = hbmfs.safe_open(folder, reader=reader)
        assert len(dict(f.prefetch())) == len(f.keys()) and not reader.closed
        with pytest.raises(hbmfs.DeviceError, match="the reader is for cpu"):
            f.prefetch(device="cuda:0")
    safetensors.torch.save_file({"one": torch.ones(1), "0.torch.int8.2": torch.ones(1)}, folder / "other.safetensors")
    with pytest.raises(hbmfs.FormatError, match=re.escape("'0.torch.int8.2' is in")):
        hbmfs.safe_open(folder)
    with pytest.raises(hbmfs.FormatError):
        hbmfs.safe_open(__file__)
