"""What a caller can do wrong: a documented exception with one sentence, and the process goes on."""

import os
import signal
import subprocess
import sys

import hbmfs
import numpy as np
import pytest
from waiting import until


def fails(kind, words, action):
    with pytest.raises(kind, match=words) as caught:
        action()
    assert isinstance(caught.value, hbmfs.Error)
    assert "\n" not in str(caught.value)


def test_paths(mount, source, tmp_path):
    (tmp_path / "odd.bin").write_bytes(b"abc")
    damaged = (source / "npy/tokens_00000.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(damaged[:-1])
    (tmp_path / "head.npy").write_bytes(damaged[:20])
    (tmp_path / "version.npy").write_bytes(damaged[:6] + b"\x09\x00" + damaged[8:])
    np.save(tmp_path / "text.npy", np.array(["a", "b"]))
    for name, shape in [("negative", "(-2, -3)"), ("open", "(5, "), ("deep", "(" * 5000)]:
        header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        (tmp_path / f"{name}.npy").write_bytes(damaged[:6] + b"\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64))
    os.mkfifo(tmp_path / "pipe")
    for kind, words, path, options in [
        (FileNotFoundError, "does not exist", tmp_path / "none.npy", {}),
        (hbmfs.NotFoundError, "no view of its tokens", mount / "safetensors", {}),
        (hbmfs.NotFoundError, r"samples with fields: hbmfs.SampleDataset\('", mount / "tar", {}),
        (hbmfs.NotFoundError, "no/such does not exist: .* has no such file", mount / "no/such", {}),
        (hbmfs.NotFoundError, "train.bin does not exist", mount / "train.bin", {}),
        (hbmfs.InvalidError, "outside of any hbmfs mount", tmp_path, {}),
        (hbmfs.InvalidError, r"2 streams of tokens \(train, val\): name one", mount / "nanogpt", {}),
        (hbmfs.InvalidError, "and [0-9]+ more", mount, {}),
        (hbmfs.InvalidError, "must be a path", b"bytes", {}),
        (hbmfs.DtypeError, "give dtype=", tmp_path / "odd.bin", {}),
        (hbmfs.FormatError, "no multiple", tmp_path / "odd.bin", {"dtype": "uint16"}),
        (hbmfs.DtypeError, "not known", tmp_path / "odd.bin", {"dtype": "u17"}),
        (hbmfs.DtypeError, "not uint32: leave dtype= out$", source / "npy/tokens_00000.npy", {"dtype": "uint32"}),
        (hbmfs.DtypeError, "not int64: leave dtype= out, and give it to gather or the stream", source / "npy/tokens_00000.npy", {"dtype": "int64"}),
        (hbmfs.DtypeError, "byte order", source / "npy-bigendian/tokens.npy", {}),
        (hbmfs.DtypeError, "are no tokens", tmp_path / "text.npy", {}),
        (hbmfs.FormatError, "Fortran order", source / "npy-fortran/batch.npy", {}),
        (hbmfs.FormatError, "cut off", tmp_path / "cut.npy", {}),
        (hbmfs.FormatError, "damaged", tmp_path / "head.npy", {}),
        (hbmfs.FormatError, "version 9.0", tmp_path / "version.npy", {}),
        (hbmfs.FormatError, "negative.npy has a damaged NumPy header: .*-2", tmp_path / "negative.npy", {}),
        (hbmfs.FormatError, "open.npy has a damaged NumPy header", tmp_path / "open.npy", {}),
        (hbmfs.FormatError, "deep.npy has a damaged NumPy header", tmp_path / "deep.npy", {}),
        (hbmfs.InvalidError, "no regular file", tmp_path / "pipe", {"dtype": "uint16"}),
    ]:
        fails(kind, words, lambda path=path, options=options: hbmfs.open(path, **options))


def test_arguments(opened, tokens):
    path, _ = tokens
    ds = opened(path)
    n = len(ds)
    for kind, words, action in [
        (IndexError, "starts go from 0 to", lambda: ds.gather([0, n - 3], 4)),
        (hbmfs.OutOfRangeError, "not inside", lambda: ds.gather([-1], 4)),
        (hbmfs.OutOfRangeError, f"which has {n}: these are fewer than one sample of {n + 5}", lambda: ds.gather([0], n + 5)),
        (hbmfs.OutOfRangeError, "fewer than one sample", lambda: ds.gather([-1], n + 1)),
        (hbmfs.OutOfRangeError, "not inside.*starts go from 0 to 0", lambda: ds.gather([1], n)),
        (hbmfs.OutOfRangeError, "not inside", lambda: ds.gather([2**62], 1)),
        (hbmfs.OutOfRangeError, "negative", lambda: ds.gather([0], -1)),
        (hbmfs.OutOfRangeError, "negative", lambda: ds.read(-1, 1)),
        (hbmfs.DtypeError, "must be an integer", lambda: ds.gather([0], 1.5)),
        (TypeError, "must be integers", lambda: ds.gather([0.5], 1)),
        (hbmfs.DtypeError, "must be integers", lambda: ds.gather([2**63], 1)),
        (ValueError, "must be a list", lambda: ds.gather(3, 1)),
        (hbmfs.InvalidError, "must be a list", lambda: ds.gather([[1, 2]], 1)),
        (hbmfs.DtypeError, "cannot be read as int16", lambda: ds.gather([0], 1, dtype="int16")),
        (hbmfs.DtypeError, "not known", lambda: ds.gather([0], 1, dtype="nonsense")),
        (hbmfs.InvalidError, "depth", lambda: ds.queue(0)),
    ]:
        fails(kind, words, action)
    assert opened.numpy(ds.gather([0], 2)).shape == (1, 2)


def test_out_that_does_not_fit(tokens):
    import torch

    with hbmfs.open(tokens[0]) as ds:
        read_only = np.zeros((2, 4), np.uint16)
        read_only.flags.writeable = False
        for kind, words, out in [
            (hbmfs.InvalidError, "shape", np.zeros((2, 3), np.uint16)),
            (hbmfs.DtypeError, "must be of uint16", np.zeros((2, 4), np.int64)),
            (hbmfs.InvalidError, "writable", read_only),
            (hbmfs.InvalidError, "C order", np.zeros((4, 2), np.uint16).T),
            (hbmfs.InvalidError, "list", [0, 0]),
            (hbmfs.DeviceError, "on meta", torch.empty((2, 4), dtype=torch.uint16, device="meta")),
            (hbmfs.InvalidError, "contiguous", torch.zeros((4, 2), dtype=torch.uint16).T),
            (hbmfs.InvalidError, "a lazy conjugate or negative", torch._neg_view(torch.zeros((2, 4), dtype=torch.uint16))),
            (hbmfs.DtypeError, "int32", torch.zeros((2, 4), dtype=torch.int32)),
        ]:
            fails(kind, words, lambda out=out: ds.gather([1, 2], 4, out=out))


def test_out_on_another_device(shared_gpu, tokens):
    class Array:
        def __init__(self, **interface):
            self.__cuda_array_interface__ = {"shape": (1, 4), "typestr": "<u2", "data": (4096, False), "strides": None, **interface}

    with hbmfs.open(tokens[0], reader=shared_gpu) as ds:
        fails(hbmfs.DeviceError, "not on cuda:0", lambda: ds.gather([1], 4, out=np.zeros((1, 4), np.uint16)))
        fails(hbmfs.InvalidError, "writable", lambda: ds.gather([1], 4, out=Array(data=(4096, True))))
        fails(hbmfs.InvalidError, "gaps", lambda: ds.gather([1], 4, out=Array(strides=(16, 4))))
        fails(hbmfs.InvalidError, "shape", lambda: ds.gather([1], 4, out=Array(shape=(4,))))
        fails(hbmfs.DtypeError, "of int64", lambda: ds.gather([1], 4, out=Array(typestr="<i8")))
        fails(hbmfs.Error, None, lambda: ds.gather([1], 4, out=Array()))  # no memory of this GPU


def test_devices(gpu, tokens):
    path, _ = tokens
    for device in ("gpu", "cuda:x", "cuda:-1", -1, -7, 1.5, True):
        fails(hbmfs.DeviceError, "device", lambda device=device: hbmfs.open(path, device))
    fails(hbmfs.DeviceError, "gpu 7 does not exist", lambda: hbmfs.Reader("cuda:7", libraries=gpu.libraries))
    fails(hbmfs.DeviceError, "install the NVIDIA driver", lambda: hbmfs.Reader(0, libraries={"cuda": "libnone.so"}))
    fails(hbmfs.InvalidError, "is no path", lambda: hbmfs.Reader("cpu", method="teleport"))
    with gpu.reader() as reader:
        for device in ("cpu", "cuda:1"):
            fails(hbmfs.DeviceError, f"is for cuda:0 and the dataset goes to {device}", lambda device=device: hbmfs.open(path, device, reader=reader))
        for device in (None, "cuda:0", 0):
            with hbmfs.open(path, device, reader=reader) as ds:
                assert ds.device == "cuda:0"
    with hbmfs.Reader("cpu") as host:
        fails(hbmfs.DeviceError, "is for cpu and the dataset goes to cuda:0", lambda: hbmfs.open(path, "cuda:0", reader=host))
    with hbmfs.open(path) as ds:
        assert ds.device == "cpu"
    fails(hbmfs.DeviceError, "cannot be used", lambda: hbmfs.open(path, reader=reader))


def test_numbers_that_no_reader_can_have(tokens):
    for words, options in [
        ("threads", {"threads": 2**32 + 1}),
        ("threads", {"threads": None}),
        ("threads", {"threads": "4"}),
        ("arena", {"arena": 2**64}),
        ("pinned", {"pinned": 1.5}),
        ("slot", {"slot": -(2**63) - 1}),
        ("readers", {"readers": -2}),
        ("readers", {"readers": 2**32}),
        ("libraries.*'cuda'", {"libraries": {"libcuda": "x"}}),
        ("libraries", {"libraries": "libcuda.so"}),
    ]:
        fails(hbmfs.InvalidError, words, lambda options=options: hbmfs.Reader("cpu", **options))
    room = np.zeros(16, np.uint8)
    with hbmfs.Reader("cpu") as reader, reader.open_file(tokens[0]) as file:
        for pointer, offset, length in [(room.ctypes.data, 2**64, 16), (room.ctypes.data, 0, 2**64 + 1), (room.ctypes.data + 2**64, 0, 16), (room.ctypes.data, -1, 1)]:
            fails(hbmfs.OutOfRangeError, None, lambda p=pointer, o=offset, n=length: file.read_into(p, o, n).wait())
        for offset, length in [(-1, 1), (0, file.size + 1), (file.size + 1, 0), (1, 2**63 - 1), (2**63 - 1, 1)]:
            for ask in (
                lambda o=offset, n=length: file.read_into(room.ctypes.data, o, n).wait(),
                lambda o=offset, n=length: file.gather_into(None, room.ctypes.data, room.nbytes, np.array([o]), n, widen=0, stream=0).wait(),
                lambda o=offset, n=length: file.prefetch([o], [n]),
            ):
                fails(hbmfs.OutOfRangeError, None, ask)
        fails(hbmfs.OutOfRangeError, None, lambda: file.prefetch([0], [-1]))
    assert not room.any()


def test_what_a_given_reader_decides(tokens):
    with hbmfs.Reader("cpu") as reader:
        for options in ({"method": "host"}, {"require": "direct"}):
            fails(hbmfs.InvalidError, "reader=.*method", lambda options=options: hbmfs.open(tokens[0], reader=reader, **options))


def test_out_of_memory(gpu, tokens, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_MEMORY", str(8 << 20))
    fails(MemoryError, None, lambda: gpu.reader(arena=1 << 30))
    with gpu.reader() as reader, hbmfs.open(tokens[0], reader=reader) as ds:
        fails(hbmfs.OutOfMemoryError, None, lambda: ds.gather(np.zeros(100, np.int64), 100_000))
        assert ds.gather([0], 10).shape == (1, 10)


def test_closed(opened, tokens):
    ds = opened(tokens[0])
    queue = ds.queue(2)
    queue.put([1], 2)
    ds.close()
    ds.close()
    assert ds.closed
    for action in (lambda: ds.gather([0], 1), lambda: ds.read(0, 1), lambda: ds.queue(1), lambda: ds.prefetch([0], 1), ds.stats, lambda: ds.documents):
        fails(hbmfs.ClosedError, "is closed", action)
    with pytest.raises(hbmfs.Error):
        queue.put([1], 2)
    queue.close()
    fails(hbmfs.ClosedError, "queue is closed", queue.get)


def test_closed_reader(tokens):
    reader = hbmfs.Reader("cpu")
    ds = hbmfs.open(tokens[0], reader=reader)
    reader.close()
    fails(hbmfs.ClosedError, None, lambda: ds.gather([0], 1))
    ds.close()


def test_a_file_that_shrinks(tmp_path):
    path = tmp_path / "tokens.bin"
    path.write_bytes(bytes(1 << 20))
    with hbmfs.open(path, dtype="uint16") as ds:
        os.truncate(path, 1000)
        with pytest.raises(hbmfs.Error):
            ds.gather([100_000], 10)
        try:
            assert not np.asarray(ds.gather([0], 10)).any()
        except hbmfs.StaleError as stale:  # the reader has noticed meanwhile, and no request succeeds any more
            assert "tokens.bin" in str(stale)


def test_a_daemon_that_dies_between_batches(source, tmp_path, tokens):
    """What the reader holds goes on; what it must ask for is an exception. Nothing hangs."""
    hbmfs_binary, point, log = os.environ["HBMFS_BINARY"], tmp_path / "mnt", tmp_path / "log"
    point.mkdir()
    subprocess.run([hbmfs_binary, "mount", "--no-keeper", source / "olmo", point], check=True, timeout=120, stdout=log.open("w"), stderr=subprocess.STDOUT)
    try:
        ds = hbmfs.open(point)
        want = ds.read(0, len(ds))
        pids = [pid for pid in os.listdir("/proc") if pid.isdigit() and _serves(pid, point)]
        assert len(pids) == 1
        os.kill(int(pids[0]), signal.SIGKILL)
        try:
            assert np.array_equal(ds.read(0, len(ds)), want)
        except hbmfs.Error as err:
            assert "\n" not in str(err)
        ds.close()
        until(lambda: not _answers(point))
        fails(hbmfs.Error, None, lambda: hbmfs.open(point))
    finally:
        subprocess.run(["umount", "-l", point] if os.geteuid() == 0 else ["fusermount3", "-u", "-z", point], check=True, timeout=60)
    with hbmfs.open(tokens[0]) as other:
        assert np.array_equal(other.read(0, 10), tokens[1][:10])


def _answers(point):
    """Whether a mount has a daemon: the one question that no cache answers."""
    try:
        os.statvfs(point)
    except OSError:
        return False
    return True


def _serves(pid, point):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.fsencode(point) in file.read().split(b"\0")
    except OSError:
        return False
