"""Checkpoints in a volume (hbmfs checkpoint mount): written past FUSE, by one process and by ranks of gloo."""

import json
import os
import signal
import subprocess
import sys
import time

import hbmfs
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hbmfs.checkpoints import _publishing
from hbmfs.checkpoints import Checkpoints
from long import LONG
from safetensors.numpy import load_file
from test_checkpoints_ranks import split, together
from test_dcp_group import local, ranks, same, state
from test_dcp_writer_group import is_of, there
from waiting import until

pytestmark = [pytest.mark.filterwarnings("ignore:torch.distributed is disabled"), pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")]


class Volume:
    def __init__(self, folder):
        self.source, self.path = folder / "source", folder / "mnt"
        self.source.mkdir()
        self.path.mkdir()
        subprocess.run([os.environ["HBMFS_BINARY"], "checkpoint", "mount", self.source, self.path], check=True, stdout=subprocess.DEVNULL)

    def status(self):
        return json.loads((self.path / ".hbmfs" / "status").read_text())

    def kill(self):
        """Kills the daemon; the next one goes on."""
        os.kill(self.status()["pid"], signal.SIGKILL)

    def left(self):
        """What is on the disk beside checkpoints."""
        return sorted(name for name in os.listdir(self.source) if name.startswith("."))


@pytest.fixture
def volume(tmp_path):
    volume = Volume(tmp_path)
    yield volume
    left = volume.left()
    subprocess.run([os.environ["HBMFS_BINARY"], "unmount", volume.path], check=True, stdout=subprocess.DEVNULL)
    assert left == []


def test_safetensors(volume):
    tensors = {f"t{i}": np.random.default_rng(i).random(1000 * i + 1) for i in range(5)}
    with hbmfs.Writer("cpu") as writer:
        written = hbmfs.save_safetensors(tensors, volume.path / "weights", writer=writer, progress=False)
        assert written.way == "volume" and writer.stats()["volume"] == sum(written.moved.values()) > 0
    for where in (volume.path, volume.source):
        found = load_file(where / "weights" / "model.safetensors")
        assert {name: found[name].tobytes() for name in found} == {name: array.tobytes() for name, array in tensors.items()}
    assert there(volume.path) == ["weights"]
    with pytest.raises(hbmfs.ExistsError):
        hbmfs.save_safetensors(tensors, volume.path / "weights", progress=False)


def test_many_files(volume):
    """More than descriptors come in one message, or are open at once."""
    with hbmfs.Writer("cpu") as writer, _publishing.Draft.begin(volume.path / "many") as draft:
        files = [hbmfs.OutFile(f"d{i % 7}/{i}", i, [hbmfs.FilePart(0, bytes([i % 256]) * i)]) for i in range(300)]
        written = draft.write(writer, files, False).wait()
        draft.publish(written.files)
    assert there(volume.path) == ["many"]
    for i in (0, 1, 64, 299):
        assert (volume.path / "many" / f"d{i % 7}" / f"{i}").read_bytes() == bytes([i % 256]) * i


def test_elsewhere_in_a_mount(volume, mount, tmp_path):
    data = {"a": np.zeros(1)}
    with pytest.raises(hbmfs.InvalidError, match="directories at its top"):
        hbmfs.save_safetensors(data, volume.path / "run" / "weights")
    with pytest.raises(hbmfs.InvalidError, match="directories at its top"):
        Checkpoints(volume.path / "run")
    assert os.listdir(volume.path) == []
    with pytest.raises(hbmfs.AccessError, match="shows a dataset"):
        hbmfs.save_safetensors(data, mount / "weights")
    written = hbmfs.save_safetensors(data, tmp_path / "weights", progress=False)
    assert written.way == "directory" and os.listdir(tmp_path / "weights")


def test_alone(volume):
    writer = hbmfs.DCPWriter(volume.path / "a", progress=False)
    dcp.save({"x": torch.arange(100000), "n": 7}, storage_writer=writer)
    assert writer.way == "volume"
    found = {"x": torch.zeros(100000, dtype=torch.int64), "n": 0}
    dcp.load(found, storage_reader=hbmfs.DCPReader(volume.path / "a"))
    assert found["n"] == 7 and torch.equal(found["x"], torch.arange(100000))
    assert there(volume.path) == ["a"]


def round_trip(rank, size, path):
    writer = hbmfs.DCPWriter(path / "a")
    dcp.save(state(1, size), storage_writer=writer)
    is_of(path / "a", size, 1)
    return writer.way


def test_ranks_share_a_draft(volume):
    assert ranks(3, round_trip, volume.path).wait() == ["volume"] * 3
    assert {f"__{rank}_0.distcp" for rank in range(3)} < set(os.listdir(volume.path / "a"))
    assert there(volume.path) == ["a"]


def steps(rank, size, path):
    with Checkpoints(path, 2) as ck:
        for step in (1, 2, 3):
            save = ck.save(step, split(step, size))
        save.wait(60)
        assert ck.steps() == [2, 3] and together(ck, size) == 3
        return save.way


@pytest.mark.parametrize("size", [1, 2])
def test_steps(volume, size):
    assert ranks(size, steps, volume.path).wait() == ["volume"] * size
    assert there(volume.path) == ["step-2", "step-3"]


class Fails:
    def __reduce__(self):
        raise RuntimeError("this rank cannot save it")


def one_fails(rank, size, path):
    bad = {"bad": Fails()} if rank == 1 else {}
    try:
        dcp.save(state(1, size) | bad, storage_writer=hbmfs.DCPWriter(path / "a"))
    except dcp.api.CheckpointException:
        pass
    else:
        return "saved"
    dcp.save(state(2, size), storage_writer=hbmfs.DCPWriter(path / "a"))
    return "failed, and saved again"


def test_a_rank_that_fails(volume):
    assert ranks(2, one_fails, volume.path).wait() == ["failed, and saved again"] * 2
    assert there(volume.path) == ["a"]


def test_a_writer_that_is_killed(volume):
    code = f"""
import hbmfs, time
from hbmfs.checkpoints import _publishing
draft = _publishing.Draft.begin({str(volume.path / "a")!r})
write = draft.write(hbmfs.Writer("cpu", rate=8 << 20), [hbmfs.OutFile("f", 1 << 30, [])], False)
print("writes", flush=True)
write.wait()
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"writes\n"
    assert volume.left() == [".a.hbmfs.lock", ".a.hbmfs.tmp"]
    with pytest.raises(hbmfs.BusyError):
        _publishing.Draft.begin(volume.path / "a")
    child.kill()
    child.wait()
    until(lambda: not volume.left())
    assert os.listdir(volume.path) == []


def test_the_daemon_is_killed_at_each_step(volume):
    """The draft goes on with the next daemon: after BEGIN, while it is written, after SEAL, and before PUBLISH."""
    data = np.random.default_rng(1).bytes(40 << 20)
    with hbmfs.Writer("cpu", rate=40 << 20) as writer:
        draft = _publishing.Draft.begin(volume.path / "a")
        volume.kill()
        write = draft.write(writer, [hbmfs.OutFile("f", len(data), [hbmfs.FilePart(0, data)]), hbmfs.OutFile("d/empty", 0, [])], False)
        until(lambda: write.written)
        volume.kill()
        files = write.wait().files
        volume.kill()
        files += draft.write(writer, [hbmfs.OutFile("g", 3, [hbmfs.FilePart(0, b"abc")])], False).wait().files
        volume.kill()
        draft.publish(files)
    volume.kill()
    assert there(volume.path) == ["a"]
    assert (volume.path / "a" / "f").read_bytes() == data and (volume.path / "a" / "g").read_bytes() == b"abc"
    assert volume.status()["handover"]["count"] >= 4


def test_the_daemon_is_upgraded_at_each_step(volume):
    def upgrade(*flags):
        subprocess.run([os.environ["HBMFS_BINARY"], "upgrade", *flags, volume.path], check=True, stdout=subprocess.DEVNULL)

    with hbmfs.Writer("cpu") as writer:
        draft = _publishing.Draft.begin(volume.path / "a")
        upgrade("--check")
        upgrade()
        files = []
        for name in ("f", "g"):
            files += draft.write(writer, [hbmfs.OutFile(name, 3, [hbmfs.FilePart(0, name.encode() * 3)])], False).wait().files
            upgrade()
        upgrade("--check")
        draft.publish(files)
    assert there(volume.path) == ["a"] and (volume.path / "a" / "g").read_bytes() == b"ggg"
    assert volume.status()["handover"]["count"] == 3


def saves(rank, size, path, over):
    step = 0
    with Checkpoints(path, 3) as ck:
        while ck._calls.gather(lambda step=step: step < 4 or not over.exists())[0]:
            step += 1
            ck.save(step, split(step, size)).wait(120)
        assert together(ck, size) == step
    return step


def test_daemons_are_killed_while_ranks_save(volume, tmp_path):
    job = ranks(2, saves, volume.path, tmp_path / "over")
    for _ in range(15 if LONG else 5):
        time.sleep(0.7)
        volume.kill()
    (tmp_path / "over").touch()
    first, second = job.wait()
    assert first == second > 3
    assert len(there(volume.path)) == 3
    same(local({}), local({}))
