"""What all tests of the Python package share. `go test ./tests/suites/python` runs them: it mounts, builds and compiles.

source and mount are the golden datasets, as they are and mounted. A fake GPU is a libcuda whose device memory is host
memory, which runs everything late and checks every address (cufile/fakegpu).
"""

import ctypes
import gc
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import hbmfs
import numpy as np
import pytest


collect_ignore = [] if os.geteuid() == 0 else ["test_volume.py", "test_kv.py", "test_stream_faults.py", "test_thin_disk.py"]
"""Replacing a daemon needs root, and so does a disk that runs full."""
if not os.path.exists("/dev/loop-control"):
    collect_ignore.append("test_thin_disk.py")


def _named(variable):
    value = os.environ.get(variable)
    if not value:
        raise pytest.UsageError(f"{variable} is not set: run `go test ./tests/suites/python`, which prepares what these tests need")
    return Path(value)


@pytest.fixture(scope="session")
def source():
    return _named("HBMFS_TEST_SOURCE")


@pytest.fixture(scope="session")
def mount():
    return _named("HBMFS_TEST_MOUNT")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


@pytest.fixture(scope="session")
def fakes():
    return _named("HBMFS_TEST_FAKES")


@pytest.fixture(scope="session")
def expect(source):
    return json.loads((source / "expect.json").read_text())


@pytest.fixture(scope="session", autouse=True)
def interrupts():
    """Ctrl-C interrupts, also where a shell started the tests in the background, with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def imported():
    """Lets collections of garbage pass over what torch and Megatron made when they were imported: they are many here."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seeded():
    """Random data is the same each time: what no test seeds follows from HBMFS_SEED."""
    seed = int(os.environ.get("HBMFS_SEED") or 1)
    np.random.seed(seed % (1 << 32))
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


@pytest.fixture(autouse=True)
def arrays(request, monkeypatch):
    """Streams give NumPy arrays on the CPU, as where nobody has imported torch, but in test_tensors.py."""
    if request.module.__name__ != "test_tensors":
        monkeypatch.setattr("hbmfs._lib._device.torch_is_imported", lambda: False)


class FakeGPU:
    """A fake libcuda of its own, and what it counted."""

    def __init__(self, fakes, folder):
        self.libraries = {name: str(shutil.copy(fakes / f"lib{name}.so", folder)) for name in ("cuda", "cufile", "nvml")}
        self._cuda = ctypes.CDLL(self.libraries["cuda"])

    def ask(self, what):
        function = self._cuda[f"fake_cuda_{what}"]
        function.restype = ctypes.c_uint64
        return function()

    def pin(self, memory):
        """Registers whole pages of the host."""
        self._within("cuMemHostRegister_v2", ctypes.c_uint64(memory.ctypes.data), ctypes.c_size_t(memory.nbytes), 0)

    def unpin(self, memory):
        """Ends that."""
        self._within("cuMemHostUnregister", ctypes.c_uint64(memory.ctypes.data))

    def _within(self, function, *arguments):
        context = ctypes.c_void_p()
        assert not self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) and not self._cuda.cuCtxPushCurrent_v2(context)
        assert not self._cuda[function](*arguments)
        assert not self._cuda.cuCtxPopCurrent_v2(ctypes.byref(context)) and not self._cuda.cuDevicePrimaryCtxRelease_v2(0)

    def reader(self, **options):
        options = {"threads": 2, "slot": 64 << 10, "arena": 4 << 20, "pinned": 1 << 20, "command": os.environ["HBMFS_BINARY"], **options}
        return hbmfs.Reader("cuda:0", libraries=self.libraries, **options)


@pytest.fixture
def gpu(fakes, tmp_path):
    """A fake GPU that must have everything back when the test ends, and must not have been misused."""
    fake = FakeGPU(fakes, tmp_path)
    yield fake
    gc.collect()
    assert {what: fake.ask(what) for what in ("violations", "pinned", "hbm", "retained")} == {"violations": 0, "pinned": 0, "hbm": 0, "retained": 0}


@pytest.fixture(scope="session")
def shared_gpu(fakes, tmp_path_factory):
    """A reader of a fake GPU for all tests that only read."""
    with FakeGPU(fakes, tmp_path_factory.mktemp("gpu")).reader() as reader:
        yield reader


@pytest.fixture(params=["cpu", "cuda"])
def opened(request):
    """Opens datasets on the CPU or on the fake GPU, closes them, and gives arrays as NumPy's."""
    with Opened(request.getfixturevalue("shared_gpu") if request.param == "cuda" else None) as opened:
        yield opened


class Opened:
    def __init__(self, reader):
        self.reader, self.datasets = reader, []

    def __call__(self, path, **options):
        self.datasets.append(hbmfs.open(path, reader=self.reader, **options))
        return self.datasets[-1]

    @staticmethod
    def numpy(array):
        return array if isinstance(array, np.ndarray) else array.to_numpy()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for dataset in self.datasets:
            dataset.close()


@pytest.fixture
def tokens(tmp_path):
    """A plain file of 500,000 random u16 tokens, and the tokens."""
    data = np.random.default_rng(7).integers(0, 1 << 16, 500_000, np.uint16)
    np.save(tmp_path / "tokens.npy", data)
    return tmp_path / "tokens.npy", data
