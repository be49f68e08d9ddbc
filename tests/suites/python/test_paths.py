"""Which way bytes took: counted, warned about once, or refused."""

import os
import subprocess
import sys
import warnings

import hbmfs
import numpy as np
import pytest
from hbmfs._lib._native import Library


@pytest.mark.parametrize("method", ["staged", "mapped", "compat", "direct"])
def test_a_required_path_is_taken_and_counted(gpu, tokens, method, monkeypatch, tmp_path):
    # Go took its copy of the environment when the library was loaded, so that the command must be told by itself.
    monkeypatch.setenv("FAKE_CUFILE_MOVED", "nvfs")
    command = tmp_path / "hbmfs"
    command.write_text(f'#!/bin/sh\nFAKE_CUFILE_MOVED=nvfs exec "{os.environ["HBMFS_BINARY"]}" "$@"\n')
    command.chmod(0o755)
    path, data = tokens
    with gpu.reader(method=method, require=method, command=str(command)) as reader, hbmfs.open(path, reader=reader) as ds:
        assert np.array_equal(ds.read(3, 400_000).to_numpy(), data[3:400_003])
        stats = ds.stats()
        assert (stats["bytes"], stats["choice"], stats["reads"], stats["mounted"]) == ({method: 800_000}, method, 1, False)
        assert (stats["path"], stats["device"]) == (str(path), "cuda:0")


@pytest.mark.parametrize("method", ["staged", "mapped", "compat"])
def test_past_the_mount(gpu, mount, method):
    want = np.load(mount / ".hbmfs/views/olmo/tokens.npy")
    with gpu.reader(require=method) as reader, hbmfs.open(mount / "olmo", reader=reader) as ds:
        assert np.array_equal(ds.read(0, len(ds)).to_numpy(), want)
        assert (ds.stats()["bytes"], ds.stats()["mounted"], ds.stats()["note"]) == ({method: want.nbytes}, True, "")


def test_a_wish_that_cannot_be_had_is_said_once(gpu, tokens, monkeypatch):
    monkeypatch.setenv("FAKE_CUFILE_MOVED", "posix")
    with pytest.warns(hbmfs.SlowPathWarning, match="hbmfs: not direct: ") as caught:
        with gpu.reader(method="direct") as reader, hbmfs.open(tokens[0], reader=reader) as ds:
            for _ in range(3):
                assert np.array_equal(ds.read(5, 9).to_numpy(), tokens[1][5:14])
            assert "direct" not in ds.stats()["bytes"]
    assert len(caught) == 1 and "\n" not in str(caught[0].message)


def test_a_requirement_that_cannot_be_had_is_refused(gpu, tokens, monkeypatch):
    monkeypatch.setenv("FAKE_CUFILE_MOVED", "posix")

    def opens():
        with gpu.reader(require="direct") as reader, hbmfs.open(tokens[0], reader=reader):
            pass

    with pytest.raises(hbmfs.UnavailableError):
        opens()
    with pytest.raises(hbmfs.UnavailableError):
        hbmfs.open(tokens[0], require="staged")


def test_the_fastest_path_is_no_reason_to_warn(gpu, mount, tokens):
    with warnings.catch_warnings():
        warnings.simplefilter("error", hbmfs.SlowPathWarning)
        for path in (mount / "olmo", tokens[0]):
            with gpu.reader() as reader, hbmfs.open(path, reader=reader) as ds:
                ds.read(0, 10)
            with hbmfs.open(path) as ds:
                ds.read(0, 10)
                assert ds.stats()["bytes"] == {"host": 10 * ds.dtype.itemsize}


def test_info(gpu):
    with gpu.reader() as reader:
        info = reader.info()
        assert (info["device"], info["name"], info["method"], info["note"]) == ("cuda:0", "Fake GPU 0", "auto", "")
        assert "cuda:0" in repr(reader)
    assert "closed" in repr(reader)


def test_the_first_batch_needs_numpy_only(tokens):
    code = """
import sys, hbmfs
before = set(sys.modules)
with hbmfs.open(sys.argv[1]) as ds:
    print(len(ds.gather([1, 2], 3)))
assert not {"torch", "tqdm", "safetensors"} & set(sys.modules), "something large was imported"
"""
    done = subprocess.run([sys.executable, "-c", code, tokens[0]], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_libraries_that_are_not_ours(fakes, tmp_path):
    other = tmp_path / "other.c"
    other.write_text("unsigned hbmfs_abi(void) { return 999; }")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "other.so", other], check=True, timeout=120)
    with pytest.raises(hbmfs.LibraryError, match="has ABI 999 and this package needs 2"):
        Library(str(tmp_path / "other.so"))
    for path in (fakes / "libcuda.so", tmp_path / "none.so", other):
        with pytest.raises(ImportError, match="install the package again"):
            Library(str(path))
