"""Saves onto a thinly provisioned disk that runs full below its filesystem: a save fails, or its bytes are right once the page cache has forgotten them."""

import array
import fcntl
import os
import random
import struct
import subprocess
import threading

import hbmfs
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hbmfs.checkpoints import _publishing
from hbmfs.checkpoints import Checkpoints
from test_checkpoints import loaded, state
from waiting import PATIENCE

pytestmark = [pytest.mark.filterwarnings("ignore:torch.distributed is disabled"), pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"), pytest.mark.filterwarnings("ignore:hbmfs. step")]

SIZE = 64 << 20


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs root, a loop device and mkfs.ext4: {words}: {done.stderr}")


def extents(path):
    """Where a file's bytes lie on its device: FS_IOC_FIEMAP of linux/fiemap.h, 56 bytes an extent."""
    ask = array.array("B", struct.pack("=QQIIII", 0, 1 << 62, 1, 0, 512, 0) + bytes(56 * 512))
    with open(path, "rb") as file:
        fcntl.ioctl(file, 0xC020660B, ask)
    (found,) = struct.unpack_from("=I", ask, 20)
    assert 0 < found < 512
    return [struct.unpack_from("=QQQ", ask, 32 + 56 * number)[1:] for number in range(found)]


class Thin:
    """A filesystem on a loop device, whose file lies on a tmpfs and lacks the place of new files. Names and small directories lie in inodes, which it has."""

    def __init__(self, folder):
        self.memory, self.path = folder / "memory", folder / "disk"
        self.memory.mkdir()
        self.path.mkdir()
        self.image, self.filler = self.memory / "image", self.memory / "filler"
        run("mount", "-t", "tmpfs", "-o", f"size={SIZE + (1 << 20)}", "thin", self.memory)
        self.image.touch()
        os.truncate(self.image, SIZE)
        options = "nodiscard,lazy_itable_init=0,lazy_journal_init=0"
        run("mkfs.ext4", "-q", "-b", "4096", "-m", "0", "-I", "1024", "-O", "inline_data", "-E", options, self.image)
        run("mount", "-o", "loop", self.image, self.path)
        self.requests("4")
        blob = self.path / "blob"
        with open(blob, "wb") as file:
            free = os.fstatvfs(file.fileno()).f_bavail * 4096
            os.posix_fallocate(file.fileno(), 0, free - (1 << 20))
            os.fsync(file.fileno())
        places = extents(blob)
        blob.unlink()
        os.sync()
        with open(self.image, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, SIZE)
            for at, length in places:
                subprocess.run(["fallocate", "--punch-hole", "-o", str(at), "-l", str(length), self.image], check=True)

    def full(self):
        with open(self.filler, "ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def fed(self):
        self.filler.unlink(missing_ok=True)

    def forget(self):
        """Has the kernel write all back, and drop what it has cached."""
        subprocess.run(["sync", "-f", self.path], check=False)  # it tells of lost bytes
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("3")

    def requests(self, kib):
        """Bounds the requests to the loop device. Where a file takes a part of a request only, Linux 6.18 loses the rest and reports no error."""
        device = os.stat(self.path).st_dev
        with open(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/queue/max_sectors_kb", "w") as file:
            file.write(kib)

    def close(self):
        self.fed()
        self.requests("1280")  # as it was: the device outlives the mount
        subprocess.run(["umount", "-l", self.path], check=False)
        subprocess.run(["umount", "-l", self.memory], check=False)


@pytest.fixture
def thin(tmp_path):
    disk = Thin(tmp_path)
    yield disk
    disk.close()


def dcp_save(method):
    def save(path, step):
        dcp.save(state(step), storage_writer=hbmfs.DCPWriter(path / f"step-{step}", device="cpu", method=method), no_dist=True)

    return save


def checkpoints_save(path, step):
    with Checkpoints(path, keep=None) as ck:
        ck.save(step, state(step)).wait(PATIENCE)


SAVES = {"DCPWriter": dcp_save("auto"), "DCPWriter, buffered": dcp_save("buffered"), "Checkpoints": checkpoints_save}


def right(path):
    """The steps that are complete, each of which must be what was saved."""
    steps = [int(entry.name.removeprefix("step-")) for entry in _publishing.complete(path)]
    for entry in _publishing.complete(path):
        _publishing.verify(entry.path)
    with Checkpoints(path, keep=None) as ck:
        for step in steps:
            assert loaded(ck, step) == step
    return sorted(steps)


@pytest.mark.parametrize("save", SAVES)
def test_full_for_a_while(thin, save):
    """A save onto the full disk fails, the next one of the same step is right, and nothing else is there."""
    path = thin.path / "run"
    SAVES[save](path, 1)
    thin.full()
    for _ in range(2):
        with pytest.raises((OSError, hbmfs.Error, dcp.api.CheckpointException)):
            SAVES[save](path, 2)
    thin.fed()
    thin.forget()
    assert right(path) == [1]
    SAVES[save](path, 2)
    thin.forget()
    assert right(path) == [1, 2]


@pytest.mark.parametrize("save", SAVES)
def test_full_at_any_moment(thin, save):
    """The disk runs full, and gets room again, while it is written to: what is complete is right, and what was said to be saved is complete."""
    path, seed, over = thin.path / "run", random.Random(5), threading.Event()
    path.mkdir()

    def churn():
        while not over.wait(seed.random() / 50):
            thin.full()
            over.wait(seed.random() / 50)
            thin.fed()

    other = threading.Thread(target=churn)
    other.start()
    said = []
    try:
        for step in range(1, 25):
            try:
                SAVES[save](path, step)
                said.append(step)
            except (OSError, hbmfs.Error, dcp.api.CheckpointException):
                pass
    finally:
        over.set()
        other.join()
    thin.fed()
    thin.forget()
    assert set(said) <= set(right(path))


@pytest.mark.parametrize("method", ["auto", "buffered"])
def test_files_of_a_writer(thin, method):
    """A Writer that was told of no error has written what it was given."""
    data = torch.randint(0, 256, (6 << 20,), dtype=torch.uint8)
    with hbmfs.Writer("cpu", method=method) as writer:
        files = [hbmfs.OutFile("a", data.nbytes, [hbmfs.FilePart(0, data)])]
        thin.full()
        with pytest.raises((OSError, hbmfs.Error)):
            writer.write(thin.path, files, False).wait()
        thin.fed()
        for entry in thin.path.iterdir():
            if entry.name == "a":
                entry.unlink()
        writer.write(thin.path, files, False).wait()
    thin.forget()
    assert (thin.path / "a").read_bytes() == data.numpy().tobytes()
