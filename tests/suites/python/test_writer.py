"""Writers: files out of memory, and snapshots, on the CPU and on a fake GPU."""

import contextlib
import ctypes
import errno
import functools
import gc
import os
import pathlib
import sys
import tempfile
import threading
import warnings
import weakref

import hbmfs
import numpy as np
import pytest
from hbmfs import OutFile, FilePart
from hbmfs._lib import _native
from hbmfs._lib.device_array import DeviceArray, Memory
from waiting import PATIENCE, interrupt_when, main_is_in, until, when

CHUNK = 4 << 20


@functools.cache
def table():
    entries = []
    for i in range(256):
        c = i
        for _ in range(8):
            c = c >> 1 ^ (0x82F63B78 if c & 1 else 0)
        entries.append(c)
    return entries


def crc32c(data):
    """CRC-32C by the definition of RFC 3720, a byte at a time."""
    entries = table()
    c = 0xFFFFFFFF
    for byte in data:
        c = entries[(c ^ byte) & 255] ^ c >> 8
    return c ^ 0xFFFFFFFF


def random_bytes(n, seed=1):
    return np.random.default_rng(seed).integers(0, 256, n, np.uint8)


def content(folder, name):
    return (folder / name).read_bytes()


@pytest.fixture(params=["disk", "tmpfs"])
def folder(request, tmp_path):
    """An empty directory on a disk, or in memory."""
    if request.param == "disk":
        (tmp_path / "out").mkdir()
        yield tmp_path / "out"
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield pathlib.Path(name)


@pytest.fixture
def writer():
    with hbmfs.Writer("cpu", memory=8 << 20) as writer:
        yield writer


def test_sums_are_castagnoli():
    assert crc32c(b"123456789") == 0xE3069283


def test_files(writer, folder):
    data = random_bytes(CHUNK + 5000)
    files = [
        OutFile("array", len(data), [FilePart(0, data)]),
        OutFile("parts", 10_000, [FilePart(3, b"abc"), FilePart(6, bytearray(b"de")), FilePart(100, memoryview(data)[:50]), FilePart(5000, data[:64].view(np.float64))]),
        OutFile("zeros", 9, []),
        OutFile("empty", 0, []),
    ]
    seen = []
    write = writer.write(folder, files, progress=lambda done, total: seen.append((done, total)))
    written = write.wait()
    parts = bytearray(10_000)
    parts[3:8], parts[100:150], parts[5000:5064] = b"abcde", data[:50].tobytes(), data[:64].tobytes()
    want = [data.tobytes(), bytes(parts), bytes(9), b""]
    for file, told, expected in zip(files, written.files, want, strict=True):
        assert content(folder, file.name) == expected
        assert (told.name, told.size) == (file.name, len(expected))
        assert told.crc32c == tuple(crc32c(expected[at : at + CHUNK]) for at in range(0, len(expected), CHUNK))
    total = sum(file.size for file in files)
    assert sum(written.moved.values()) == total == write.total == write.written and write.done
    assert seen[-1] == (total, total)
    assert written.path in ("staged", "buffered", "mapped") and written.reason and written.seconds > 0
    assert write.wait() is written
    assert writer.stats()["bytes"] == written.moved and writer.stats()["writes"] == 1


def test_tensors(writer, folder):
    torch = pytest.importorskip("torch")
    tensors = [torch.randn(100, 30), torch.randn(50_000).to(torch.bfloat16), torch.tensor(7), torch.zeros(0, 4), torch.arange(12).reshape(3, 4) > 5]
    tensors.append(torch.randn(3, 3, dtype=torch.complex64))
    snapshot = writer.snapshot(tensors)
    snapshot.wait()
    assert snapshot.done and snapshot.seconds > 0
    for got, tensor in zip(snapshot.tensors, tensors, strict=True):
        assert got.dtype == tensor.dtype and got.shape == tensor.shape and torch.equal(got, tensor)
        assert got.data_ptr() % 4096 == 0 or not got.nbytes
    kept = [t.clone() for t in tensors]
    for tensor in tensors:
        tensor.zero_()
    ends = np.cumsum([0] + [t.nbytes for t in kept]).tolist()
    written = writer.write(folder, [OutFile("a", ends[-1], [FilePart(at, t) for at, t in zip(ends, snapshot.tensors)])]).wait()
    assert content(folder, "a") == b"".join(t.reshape(-1).view(torch.uint8).numpy().tobytes() for t in kept)
    assert written.files[0].size == ends[-1]
    snapshot.release()
    snapshot.release()
    with pytest.raises(hbmfs.InvalidError, match="contiguous"):
        writer.snapshot([torch.zeros(4, 4).t()])
    z = torch.randn(4, dtype=torch.complex64)
    for lazy in (z.conj(), torch._neg_view(z)):
        with pytest.raises(hbmfs.InvalidError, match="give t.resolve_conj"):
            writer.snapshot([lazy])
        with pytest.raises(hbmfs.InvalidError, match="give t.resolve_conj"):
            writer.write(folder, [OutFile("lazy", lazy.nbytes, [FilePart(0, lazy)])])
    assert not (folder / "lazy").exists()
    with pytest.raises(hbmfs.DeviceError, match="meta"):
        writer.snapshot([torch.zeros(4, device="meta")])


def test_data_that_cannot_be(writer, tmp_path):
    for data, message in (
        (np.zeros((4, 4)).T, "C order"),
        (3, "cannot be written"),
        ("text", "cannot be written"),
        (memoryview(b"abcd")[::2], "cannot be written"),
    ):
        with pytest.raises(hbmfs.InvalidError, match=message):
            writer.write(tmp_path, [OutFile("a", 100, [FilePart(0, data)])])
    for file in (OutFile("a/b", 1, []), OutFile("", 1, []), OutFile("a\0b", 1, []), OutFile("a", -1, []), OutFile("a", 1.5, []), OutFile("a", 1 << 63, []),
                 OutFile("a", 3, [FilePart(1, b"abc")]), OutFile("a", 9, [FilePart(1, b"abc"), FilePart(3, b"d")]), OutFile("a", 9, [FilePart(-1, b"abc")])):  # fmt: skip
        with pytest.raises(hbmfs.InvalidError, match="cannot be written"):
            writer.write(tmp_path, [file])
    assert list(tmp_path.iterdir()) == []


def test_arguments_that_cannot_be():
    for arguments in ({"memory": -1}, {"memory": 1.5}, {"threads": -1}, {"threads": 1 << 20}, {"rate": 0}, {"rate": "fast"}, {"method": "mapped "},
                      {"require": "compat"}, {"libraries": {"nccl": "x"}}):  # fmt: skip
        with pytest.raises(hbmfs.InvalidError):
            hbmfs.Writer("cpu", **arguments)
    with pytest.raises(hbmfs.UnavailableError, match="needs a GPU"):
        hbmfs.Writer("cpu", require="direct")


def test_errors_name_the_file_and_the_call(writer, tmp_path):
    (tmp_path / "there").write_bytes(b"old")
    with pytest.raises(hbmfs.WriteError, match="there: open: file exists") as caught:
        writer.write(tmp_path, [OutFile("there", 1, [])]).wait()
    assert caught.value.errno == errno.EEXIST and isinstance(caught.value, OSError)
    assert content(tmp_path, "there") == b"old"
    with pytest.raises(hbmfs.WriteError, match="missing: open: no such file") as caught:
        writer.write(tmp_path / "missing", [OutFile("a", 1, [])])
    assert caught.value.errno == errno.ENOENT


def test_paths(folder):
    with hbmfs.Writer("cpu", method="direct") as writer, pytest.warns(hbmfs.SlowPathWarning, match="not direct"):
        written = writer.write(folder, [OutFile("a", 5, [])]).wait()
        with warnings.catch_warnings(record=True) as more:
            writer.write(folder, [OutFile("b", 5, [])]).wait()
        assert written.path != "direct" and not more
    in_memory = str(folder).startswith("/dev/shm")
    with hbmfs.Writer("cpu", require="staged" if in_memory else "mapped") as writer, pytest.raises(hbmfs.UnavailableError):
        writer.write(folder, [OutFile("c", 5, [])]).wait()
    with hbmfs.Writer("cpu", require="mapped" if in_memory else "buffered") as writer:
        assert writer.write(folder, [OutFile("d", 5, [])]).wait().moved == {"mapped" if in_memory else "buffered": 5}


def test_room(writer):
    writer.wait_ready(PATIENCE)
    assert writer.ready and writer.fits(8 << 20) and not writer.fits((8 << 20) + 1)
    with pytest.raises(hbmfs.TooLargeError, match="does not fit"):
        writer.snapshot([np.zeros(9 << 20, np.uint8)])
    with hbmfs.Writer("cpu") as none, pytest.raises(hbmfs.TooLargeError, match="no arena"):
        assert none.ready and not none.fits(1)
        none.snapshot([np.zeros(1)])
    half = np.full(5 << 20, 3, np.uint8)
    first = writer.snapshot([half])
    released = threading.Event()
    when(lambda: main_is_in("Writer.snapshot", "_wait"), lambda: (released.set(), first.release()))
    second = writer.snapshot([half])  # waits until the first is released
    assert released.is_set()
    tensor = second.tensors[0]
    del second
    gc.collect()
    assert (tensor == 3).all()  # which keeps its room
    del tensor
    gc.collect()
    third = writer.snapshot([half])  # the second was forgotten with its tensors
    third.wait()
    writer.close()
    assert (third.tensors[0] == 3).all()  # the room goes with the snapshot, not with the writer


def test_a_snapshot_of_nothing(writer):
    snapshot = writer.snapshot([])
    snapshot.wait()
    assert snapshot.tensors == [] and snapshot.nbytes == 0
    snapshot.release()


@pytest.mark.parametrize("waits", ["snapshot", "write"])
def test_ctrl_c(tmp_path, waits):
    with hbmfs.Writer("cpu", memory=1 << 20, rate=1 << 20) as writer:
        held = writer.snapshot([np.zeros(1 << 20, np.uint8)])
        write = writer.write(tmp_path, [OutFile("a", 64 << 20, [])])
        interrupt_when(lambda: main_is_in("Write.wait", "Write._look") or main_is_in("Writer.snapshot", "_wait"))
        with pytest.raises(KeyboardInterrupt):
            if waits == "write":
                write.wait()
            else:
                writer.snapshot([np.zeros(1 << 20, np.uint8)])
        if waits == "write":
            with pytest.raises(hbmfs.CancelledError, match="before its files were on storage"):
                write.wait()
        held.release()


def test_cancel_and_close(tmp_path):
    with hbmfs.Writer("cpu", rate=1 << 20) as writer:
        write = writer.write(tmp_path, [OutFile("a", 64 << 20, [])])
        with pytest.raises(hbmfs.WaitTimeoutError, match="not on storage"):
            write.wait(0.05)
        assert not write.done and write.written < write.total
        write.cancel()
        write.cancel()
        with pytest.raises(hbmfs.CancelledError):
            write.wait()
        other = writer.write(tmp_path, [OutFile("b", 64 << 20, [])])
    with pytest.raises((hbmfs.CancelledError, hbmfs.ClosedError)):
        other.wait()
    with pytest.raises(hbmfs.ClosedError):
        writer.write(tmp_path, [OutFile("c", 1, [])])
    writer.close()


def test_a_forgotten_write_ends(tmp_path):
    with hbmfs.Writer("cpu", rate=1 << 20) as writer:
        data = random_bytes(64 << 20)
        references = sys.getrefcount(data)
        write = writer.write(tmp_path, [OutFile("a", len(data), [FilePart(0, data)])])
        assert sys.getrefcount(data) > references
        del write
        gc.collect()
        assert sys.getrefcount(data) == references


def test_rate(tmp_path):
    with hbmfs.Writer("cpu", rate=40e6) as writer:
        assert writer.write(tmp_path, [OutFile("a", 24_000_000, [])]).wait().seconds > 0.3


def test_fork(writer, tmp_path):
    snapshot = writer.snapshot([np.arange(10)])
    snapshot.wait()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for action in (lambda: writer.snapshot([np.zeros(1)]), lambda: writer.write(tmp_path, [OutFile("a", 1, [])]), lambda: hbmfs.Writer("cpu")):
                with pytest.raises(hbmfs.ForkedError):
                    action()
            snapshot.release()
            writer.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (snapshot.tensors[0] == np.arange(10)).all()
    assert list(tmp_path.iterdir()) == []
    snapshot.release()


@pytest.fixture
def gpu_writer(gpu):
    with hbmfs.Writer("cuda:0", threads=2, memory=8 << 20, libraries=gpu.libraries, command=os.environ["HBMFS_BINARY"]) as writer:
        yield writer


def on_gpu(gpu, data):
    """An array on the fake GPU with these bytes."""
    with gpu.reader() as reader:
        memory = Memory(reader._library, reader._handle, data.nbytes)
    ctypes.memmove(memory.pointer, data.ctypes.data, data.nbytes)  # its memory is the host's
    return DeviceArray(memory, 0, data.shape, data.dtype)


def test_a_gpu(gpu, gpu_writer, folder):
    data = random_bytes(2 * CHUNK - 4096).view(np.int32)
    array = on_gpu(gpu, data)
    snapshot = gpu_writer.snapshot([array, np.arange(3)])
    snapshot.wait()
    assert np.array_equal(snapshot.tensors[0], data) and np.array_equal(snapshot.tensors[1], np.arange(3))
    files = [OutFile(name, 8 + data.nbytes, [FilePart(0, b"8 bytes "), FilePart(8, part)]) for name, part in (("straight", array), ("copy", snapshot.tensors[0]))]
    written = gpu_writer.write(folder, files).wait()
    for file in files:
        assert content(folder, file.name) == b"8 bytes " + data.tobytes()
    assert written.files[0].crc32c == written.files[1].crc32c
    snapshot.release()


@pytest.mark.parametrize("how", ["released", "forgotten", "interrupted"])
def test_sources_stay_until_they_are_copied(how, gpu, gpu_writer, monkeypatch):
    gpu_writer.wait_ready(PATIENCE)
    array, source = on_gpu(gpu, random_bytes(4096)), np.ones(1 << 20, np.uint8)
    there, ask = weakref.ref(source), _native.Library.ask

    def interrupted(self, name, *arguments):
        code = ask(self, name, *arguments)
        if name == "snapshot_begin":
            raise KeyboardInterrupt
        return code

    gpu.ask("hold")
    try:
        if how == "interrupted":
            with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
                patch.setattr(_native.Library, "ask", interrupted)
                gpu_writer.snapshot([array, source])
        else:
            snapshot = gpu_writer.snapshot([array, source])
            if how == "released":
                snapshot.release()
            del snapshot
        del source
        gc.collect()
        assert there() is not None
    finally:
        gpu.ask("go_on")
    until(lambda: there() is None)
    with gpu_writer.snapshot([np.zeros(8 << 20, np.uint8)], PATIENCE) as whole:  # the room came back
        whole.wait(PATIENCE)


def test_direct_is_proven_by_the_command(gpu, tmp_path):
    with hbmfs.Writer("cuda:0", threads=2, require="direct", libraries=gpu.libraries, command=os.environ["HBMFS_BINARY"]) as writer:
        array = on_gpu(gpu, random_bytes(CHUNK))
        with pytest.raises(hbmfs.UnavailableError, match="cuFile counted 0 DMA writes"):
            writer.write(tmp_path, [OutFile("a", CHUNK, [FilePart(0, array)])]).wait()
        assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("lib")] == []


def test_an_arena_that_cannot_be_pinned(gpu, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_PINNABLE", str(30 << 20))
    with hbmfs.Writer("cuda:0", threads=2, memory=64 << 20, libraries=gpu.libraries) as writer:
        with pytest.raises(hbmfs.OutOfMemoryError, match="give the writer less memory"):
            writer.wait_ready()
        assert not writer.ready
        with pytest.raises(hbmfs.OutOfMemoryError, match="ulimit"):
            writer.snapshot([np.zeros(1)])


def test_nothing_is_left(gpu):
    """Rounds of everything keep descriptors and threads flat."""

    def usage():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def one(folder, number):
        with hbmfs.Writer("cuda:0", threads=2, memory=1 << 20, libraries=gpu.libraries) as writer:
            snapshot = writer.snapshot([np.zeros(1000)])
            writer.write(folder, [OutFile(f"a{number}", 8000, [FilePart(0, snapshot.tensors[0])])]).wait()
            with pytest.raises(hbmfs.WriteError):
                writer.write(folder, [OutFile(f"a{number}", 8000, [])]).wait()

    with tempfile.TemporaryDirectory() as folder:
        for number in range(10):
            one(folder, number)
        before = usage()
        for number in range(20):
            one(folder, 10 + number)
        after = usage()
    assert after[0] <= before[0] and after[1] <= before[1] + 8, (before, after)  # the Go runtime keeps threads that it may use again
