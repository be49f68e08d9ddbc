"""KVStore over a KV volume (hbmfs kv mount), on the CPU and on a fake GPU."""

import ctypes
import gc
import json
import os
import signal
import subprocess
import sys

import hbmfs
import numpy as np
import pytest
import torch
from hbmfs import KVOutcome
from hbmfs._lib import _native

BLOCK = 200_000


class Volume:
    def __init__(self, folder, size="64MiB"):
        self.source, self.path = folder / "source", folder / "mnt"
        self.source.mkdir()
        self.path.mkdir()
        command = [os.environ["HBMFS_BINARY"], "kv", "mount", "--size", size, "--memory", "8MiB", self.source, self.path]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def status(self):
        return json.loads((self.path / ".hbmfs" / "status").read_text())

    def kill(self):
        """Kills the daemon; the next one goes on."""
        os.kill(self.status()["pid"], signal.SIGKILL)

    def unmount(self):
        subprocess.run([os.environ["HBMFS_BINARY"], "unmount", self.path], check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    volume = Volume(tmp_path_factory.mktemp("kv"))
    yield volume
    volume.unmount()


@pytest.fixture
def store(volume, request):
    with hbmfs.KVStore(volume.path, f"{request.node.name[:100]}".translate(str.maketrans("[]", "..")), BLOCK) as store:
        yield store


def noise(*shape, seed=1):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def keys(n, prefix=b"key"):
    return [prefix + b"%d" % i for i in range(n)]


def test_blocks_come_back(volume, store):
    data = noise(8, BLOCK)
    result = store.put_many(keys(8), data).result(60)
    assert result.outcomes == (KVOutcome.DONE,) * 8 and result.moved["host"] == data.nbytes and all(result.there)
    result = store.put_many(keys(8), data).result(60)
    assert result.outcomes == (KVOutcome.PRESENT,) * 8 and all(result.there) and not any(result.done)
    back = np.zeros_like(data)
    assert all(store.get_many(keys(8), back).result(60).done)
    assert (back == data).all()
    assert store.contains_many([b"key3", b"none"]).result(60) == [True, False]
    assert store.remove_many([b"key3", b"none"]).result(60) == [True, False]
    assert store.get_many(keys(4), [torch.empty(BLOCK, dtype=torch.uint8) for _ in range(4)]).result(60).done == [True, True, True, False]
    store.clear()
    assert store.contains_many(keys(8)).result(60) == [False] * 8
    stats = store.stats()
    assert (stats["stored"], stats["present"], stats["loaded"], stats["missing"], stats["requests"]) == (8, 8, 11, 1, 0)
    disk = next(n["disk"] for n in volume.status()["kv"]["namespaces"] if n["name"] == store.namespace)
    assert stats["buffered"] == disk.get("io_reason", "") and (disk["io"] == "direct") == (not stats["buffered"]) and stats["direct"] >= 0
    assert store.contains_many([]).result(60) == []


def test_blocks_of_parts(store):
    parts = [torch.arange(1000, dtype=torch.bfloat16), bytearray(b"abc"), np.arange(7)]
    whole = parts[0].view(torch.uint8).numpy().tobytes() + b"abc" + parts[2].tobytes()
    assert store.put_many([b"parts", b"one"], [parts, b"x"]).result(60).done == [True, True]
    out = bytearray(len(whole))
    assert store.get_many([b"parts"], [out]).result(60).done == [True]
    assert bytes(out) == whole
    assert store.get_many([b"parts"], [bytearray(len(whole) - 1)]).result(60).outcomes == (KVOutcome.LENGTH,)


def test_a_store_of_a_gpu(volume, gpu):
    """HBM to registered slots and back, and through pinned memory where blocks lie on the disk."""
    data = noise(60, BLOCK)
    with hbmfs.KVStore(volume.path, "gpu", BLOCK, device="cuda:0", libraries={"cuda": gpu.libraries["cuda"]}, sums=True) as store, gpu.reader() as reader:
        np.save(volume.source.parent / "data.npy", data)
        with hbmfs.open(volume.source.parent / "data.npy", reader=reader, dtype="uint8") as dataset:
            rows = [dataset.gather([i * BLOCK], BLOCK) for i in range(10)]
        assert all(store.put_many(keys(10), rows).result(60).done)
        there = store.stats()["put"]
        assert there.get("mapped", 0) + there.get("staged", 0) == 10 * BLOCK and there.get("mapped", 0) > 0
        back = [np.zeros(BLOCK, np.uint8) for _ in range(10)]
        assert all(store.get_many(keys(10), back).result(60).done)
        assert (np.stack(back) == data[:10]).all()
        for row in rows:
            ctypes.memset(row.pointer, 0, BLOCK)  # the fake's HBM
        assert all(store.get_many(keys(10), rows).result(60).done)
        assert all((row.to_numpy() == data[i]).all() for i, row in enumerate(rows))
        del row, rows


@pytest.fixture
def little(tmp_path):
    volume = Volume(tmp_path, "20MiB")
    yield volume
    volume.unmount()


def test_it_is_bounded(little):
    """More than the volume has: what is pinned stays, and each block that is there is right."""
    with hbmfs.KVStore(little.path, "bounded", BLOCK) as store:
        data = noise(180, 1000).repeat(200, axis=1)
        assert all(store.put_many(keys(5), data[:5]).result(60).done)
        pins = store.pin_many(keys(5)).result(60)
        for first in range(5, 180, 20):
            assert sum(store.put_many(keys(180)[first : first + 20], data[first : first + 20]).result(60).there) > 0
        there = store.contains_many(keys(180)).result(60)
        assert all(there[:5]) and not all(there)
        back = np.zeros_like(data)
        result = store.get_many(keys(180), back).result(60)
        assert all((back[i] == data[i]).all() for i, done in enumerate(result.done) if done)
        assert all(result.done[:5]) and 5 < sum(result.done) < 180
        assert all(store.unpin_many(pins.tokens).result(60).done)
        store.clear()


def test_many_at_once_while_the_daemon_is_killed(volume):
    with hbmfs.KVStore(volume.path, "killed", 4096, sums=True) as store:
        data = noise(300, 4096)
        futures = [store.put_many([b"%d-%d" % (i, j) for j in range(10)], data[i * 10 : i * 10 + 10]) for i in range(30)]
        volume.kill()
        assert all(all(future.result(60).there) for future in futures)
        back = np.zeros_like(data)
        futures = [store.get_many([b"%d-%d" % (i, j) for j in range(10)], back[i * 10 : i * 10 + 10]) for i in range(30)]
        for i, future in enumerate(futures):
            for j, done in enumerate(future.result(60).done):
                assert not done or (back[i * 10 + j] == data[i * 10 + j]).all()


OTHER = """
import sys, hbmfs
with hbmfs.KVStore(sys.argv[1], "shared", write=False) as store:
    out = bytearray(1000)
    assert store.get_many([b"a"], [out]).result(60).done == [True]
    try:
        store.put_many([b"b"], [out])
    except hbmfs.AccessError:
        print(out.hex())
"""


def test_another_process_reads(volume):
    with hbmfs.KVStore(volume.path, "shared", BLOCK) as store:
        block = noise(1000)
        store.put_many([b"a"], [block]).result(60)
        out = subprocess.run([sys.executable, "-c", OTHER, volume.path], check=True, capture_output=True, text=True).stdout
    assert bytes.fromhex(out) == block.tobytes()


def test_what_makes_no_sense(volume, store, mount, tmp_path):
    for bad, words in [
        (lambda: store.put_many([b"a"], [b""]), "0 bytes"),
        (lambda: store.put_many([b"a"], [bytes(BLOCK + 1)]), "1 to 200000"),
        (lambda: store.put_many([b"a" * 65], [b"x"]), "1 to 64"),
        (lambda: store.put_many([b""], [b"x"]), "1 to 64"),
        (lambda: store.put_many(["a"], [b"x"]), "must be bytes"),
        (lambda: store.put_many([b"a", b"b"], [b"x"]), "1 blocks and 2 keys"),
        (lambda: store.put_many([b"a"], noise(2, 8)), r"give \[1, ...\]"),
        (lambda: store.put_many([b"a"], [noise(8, 8)[:, 0]]), "without gaps"),
        (lambda: store.get_many([b"a"], [b"x"]), "read-only"),
        (lambda: hbmfs.KVStore(volume.path, store.namespace, 77), "200000"),
        (lambda: hbmfs.KVStore(volume.path, "a/b", 77), ""),
    ]:
        with pytest.raises(hbmfs.InvalidError, match=words):
            bad()
    with pytest.raises(hbmfs.NotFoundError):
        hbmfs.KVStore(volume.path, "none")
    for path in (mount, tmp_path):
        with pytest.raises(hbmfs.UnavailableError):
            hbmfs.KVStore(path, "x", 4096)


@pytest.mark.parametrize("verb", ["put", "get"])
@pytest.mark.parametrize("when", ["begins", "listed"])
def test_ctrl_c_leaves_nothing_under_way(store, verb, when, monkeypatch):
    """Nothing may write to memory that nobody keeps."""
    ask, begun = _native.Library.ask, []

    def interrupted(self, name, *arguments):
        code = ask(self, name, *arguments)
        if name == f"kv_{verb}_begin":
            begun.append(arguments[-1].value)
            if when == "begins":
                raise KeyboardInterrupt
        return code

    class Interrupted:
        def __init__(self):
            raise KeyboardInterrupt

    interrupts = False
    with monkeypatch.context() as patch:
        patch.setattr(_native.Library, "ask", interrupted)
        if when == "listed":
            patch.setattr("hbmfs.kv.Future", Interrupted)
        try:
            getattr(store, f"{verb}_many")(keys(8), noise(8, BLOCK))
        except KeyboardInterrupt:
            interrupts = True
    gc.collect()
    assert interrupts and store.stats()["requests"] == 0
    with pytest.raises(hbmfs.ClosedError):
        ask(store._library, "cancel", begun[0], 0)


def test_no_more_threads(store, monkeypatch):
    def fails(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", fails)
        with pytest.raises(RuntimeError, match="new thread"):
            store.put_many(keys(2), noise(2, BLOCK))
    gc.collect()
    assert store.stats()["requests"] == 0
    assert all(store.put_many(keys(2, b"later"), noise(2, BLOCK)).result(60).done)
    store.close()


def test_close(volume):
    store = hbmfs.KVStore(volume.path, "closed", BLOCK)
    data = noise(20, BLOCK)
    futures = [store.put_many(keys(20, b"%d-" % i), data) for i in range(5)]
    store.close()
    store.close()
    for future in futures:
        assert future.done()
    with pytest.raises(hbmfs.ClosedError):
        store.put_many([b"a"], [b"x"])
    forgotten = hbmfs.KVStore(volume.path, "closed")
    forgotten.contains_many(keys(2)).result(60)
    del forgotten
