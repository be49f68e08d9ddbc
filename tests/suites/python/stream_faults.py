"""stream_faults.py HBMFS [--device cuda:0] [--shards 4096] [--rows 512] [--length 255] [--rounds 3]: faults under a running stream.

A TokenStream reads a mount of many shards. Meanwhile the daemon is replaced, is killed, and files of the source are replaced, removed and cut. Each token
says where it lies, so each batch is checked: no byte may be wrong but zeros of a file that was cut, and these only before the error that names it.
test_stream_faults.py does the same with little, on the host and on the fake GPU.
"""

import argparse
import json
import os
import signal
import subprocess
import tempfile
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

    def replace(self):
        other = self.source / "other"
        other.write_bytes(bytes(TOKENS * 4))
        other.rename(self.path(1))
        return lambda: True

    def remove(self):
        self.path(2).unlink()
        return lambda: True

    def cut(self, i):
        """Takes two tokens away. They are zeros then, while pages that are pinned as a whole would keep their bytes."""
        os.truncate(self.path(i), 4 * TOKENS - 8)


def check(batch, length, cut=None):
    """Whether a batch is right: each row is `length` numbers that follow each other. Those of a shard that was cut may be 0. Gives how many are."""
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


def run(faults, dataset, rows, length, rounds, say=lambda *_: None):
    """Reads the stream through all faults; the last of them must end it with an error."""
    stream = iter(hbmfs.TokenStream(dataset, rows, length, seed=1))
    epoch = faults.shards * TOKENS // (rows * length) + 1

    def go_on(batches, over=lambda: True):
        count = 0
        while count < batches or not over():
            check(next(stream), length)
            count += 1
        return count

    go_on(2 * epoch)  # until the shards are registered
    for turn in range(rounds):
        for fault in (faults.upgrade, faults.kill):
            say(f"{fault.__name__} {turn + 1}: {go_on(epoch, fault())} batches")
    for fault in (faults.replace, faults.remove):  # the old files are mapped, and go on
        say(f"{fault.__name__}: {go_on(epoch, fault())} batches")
    cut, zeros, count = 5, 0, 0
    faults.cut(cut)
    try:
        while True:
            zeros += check(next(stream), length, cut)
            count += 1
            assert count < 100_000, "a file that was cut is not reported"
    except hbmfs.Error as err:
        say(f"cut: {count} batches, {zeros} zeros, then: {err}")
        return err


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
        with hbmfs.open(faults.point, device=options.device) as dataset:
            run(faults, dataset, options.rows, options.length, options.rounds, say=lambda text: print(text, flush=True))


if __name__ == "__main__":
    main()
