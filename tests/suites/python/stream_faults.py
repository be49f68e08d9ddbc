"""stream_faults.py HBMFS [--device cuda:0] [--shards 4096] [--rows 512] [--length 255] [--rounds 3]: faults under a running stream.

A TokenStream reads a mount of many shards. Meanwhile the daemon is replaced and is killed, and then one file of the source is replaced, removed, rewritten or
cut. The error must name the file and what was done. Each token says where it lies, so each batch is checked: no byte may be wrong but zeros of a file that was
rewritten or cut, and these only from the batch on that the error names.
test_stream_faults.py does the same with little, on the host and on the fake GPU.
"""

import argparse
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import hbmfs
import numpy as np

TOKENS = 4099
"""Of a shard. Rows are not aligned to them."""


class Faults:
    """A mount of shards whose token at place p is p + 1."""

    def __init__(self, binary, folder, shards):
        self.binary, self.source, self.point, self.shards = binary, folder / "source", folder / "mnt", shards
        self.source.mkdir()
        self.point.mkdir()
        for i in range(shards):
            self.path(i).write_bytes(self.tokens(i))

    def path(self, i):
        return self.source / f"a{i:05d}.bin"

    @staticmethod
    def tokens(i):
        return np.arange(i * TOKENS + 1, (i + 1) * TOKENS + 1, dtype=np.uint32).tobytes()

    def __enter__(self):
        self._run("mount", "--dtype", "u32", self.source, self.point)
        return self

    def renew(self, i):
        """Gives a shard its bytes back, and mounts the source again."""
        self.__exit__()
        self.path(i).unlink(missing_ok=True)
        self.path(i).write_bytes(self.tokens(i))
        self.__enter__()

    def __exit__(self, *_):
        subprocess.run([self.binary, "umount", "--lazy", self.point], check=False, timeout=60, stdout=subprocess.DEVNULL)

    def _run(self, *arguments):
        return subprocess.run([self.binary, *arguments], check=True, timeout=120, stdout=subprocess.PIPE, text=True).stdout

    def pid(self):
        """The daemon's."""
        done = subprocess.run([self.binary, "status", "--json", self.point], check=False, timeout=60, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        mounts = json.loads(done.stdout or "{}").get("mounts", [])
        return mounts[0].get("status", {}).get("pid", 0) if mounts else 0

    # Faults: each begins it, and gives a function that says whether it is over.

    def upgrade(self):
        before, process = self.pid(), subprocess.Popen([self.binary, "upgrade", self.point], stdout=subprocess.DEVNULL)

        def over():
            if process.poll() is None:
                return False
            assert process.returncode == 0 and self.pid() != before, "the daemon was not replaced"
            return True

        return over

    def kill(self):
        before = self.pid()
        os.kill(before, signal.SIGKILL)
        return lambda: self.pid() not in (0, before)

    # What becomes of a shard.

    def replaced(self, i):
        other = self.source / "other"
        other.write_bytes(bytes(TOKENS * 4))
        other.rename(self.path(i))

    def removed(self, i):
        self.path(i).unlink()

    def rewritten(self, i):
        with self.path(i).open("r+b") as file:
            file.write(bytes(TOKENS * 4))

    def cut(self, i):
        """Takes two tokens away. They are zeros then, while pages that are pinned as a whole would keep their bytes."""
        os.truncate(self.path(i), 4 * TOKENS - 8)


def check(batch, length, cut=None):
    """Whether a batch is right: each row is `length` numbers that follow each other. Those of a shard that was cut or rewritten may be 0. Gives how many are."""
    rows = batch.cpu().numpy() if hasattr(batch, "cpu") else batch if isinstance(batch, np.ndarray) else batch.to_numpy()
    gone = rows == 0
    places = rows.astype(np.int64) - np.arange(length)
    first = np.where(gone, 0, places).max(axis=1)  # of each row
    known = first > 0
    assert np.array_equal(np.where(gone, first[:, None], places), np.broadcast_to(first[:, None], rows.shape)), "wrong bytes"
    assert ((first[known] - 1) % length == 0).all(), "wrong bytes: a row begins elsewhere"
    if gone.any():
        assert cut is not None, "wrong bytes: zeros of files that are whole"
        shard = (first[:, None] - 1 + np.arange(length)) // TOKENS
        assert (shard[gone & known[:, None]] == cut).all(), "wrong bytes: zeros of a file that was not cut"
    return int(gone.sum())


def go_on(stream, length, batches, over=lambda: True):
    """Reads batches that must be right."""
    count = 0
    while count < batches or not over():
        check(next(stream), length)
        count += 1
    return count


def run(faults, reader, rows, length, rounds, say=lambda *_: None):
    """Reads streams of the mount through all faults."""
    epoch = faults.shards * TOKENS // (rows * length) + 1

    with hbmfs.open(faults.point, reader=reader) as dataset:
        stream = iter(hbmfs.TokenStream(dataset, rows, length, seed=1))
        go_on(stream, length, 2 * epoch)  # until the shards are registered
        for turn in range(rounds):
            for fault in (faults.upgrade, faults.kill):
                say(f"{fault.__name__} {turn + 1}: {go_on(stream, length, epoch, fault())} batches")
        stream.close()
    for i, change in enumerate((faults.replaced, faults.removed, faults.rewritten, faults.cut)):
        with hbmfs.open(faults.point, reader=reader) as dataset:
            meets(faults, dataset, rows, length, epoch, i, change, say)
        faults.renew(i)


def meets(faults, dataset, rows, length, epoch, shard, change, say):
    """Changes a shard under a stream, which must end with an error that says so."""
    stream, count, zeros, first = iter(hbmfs.TokenStream(dataset, rows, length, seed=1)), 0, 0, None
    count += go_on(stream, length, 2 * epoch)
    old = change in (faults.replaced, faults.removed)  # the old file is mapped
    began, before = time.monotonic(), count
    change(shard)
    try:
        while True:
            some = check(next(stream), length, None if old else shard)
            if some and first is None:
                first = count
            zeros, count = zeros + some, count + 1
            assert time.monotonic() - began < 60, f"a file that was {change.__name__} is not reported"
    except hbmfs.StaleError as err:
        took = time.monotonic() - began
        say(f"{change.__name__}: {took:.3f} s, {count - before} batches and {zeros} zeros, from batch {first} on, then: {err}")
        assert f"{faults.path(shard).name} was {change.__name__} at the source" in str(err), err
        if old:
            assert err.since is None and err.first_batch is None and not zeros
        else:
            assert err.first_batch is not None and err.first_batch <= before, "the first batch that may be wrong comes too late"
            assert first is None or err.first_batch <= first


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hbmfs")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--shards", type=int, default=4096)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--length", type=int, default=255)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Faults(options.hbmfs, Path(folder), options.shards) as faults:
        with hbmfs.Reader(options.device, reuse=options.device != "cpu") as reader:
            run(faults, reader, options.rows, options.length, options.rounds, say=lambda text: print(text, flush=True))


if __name__ == "__main__":
    main()
