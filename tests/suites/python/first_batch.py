"""How long a process takes from its start to its first batch, on a dataset of very many shards: TokenStream over a
mount's view, and MosaicML Streaming on the same files.

    .cache/venv/bin/python tests/suites/python/first_batch.py HBMFS [--shards N] [--rounds N] [--dataset DIR]

HBMFS is the built command; libhbmfs comes from `make lib`, or HBMFS_LIBRARY names it. The dataset is
written once, by Streaming's own writer, to --dataset (a temporary directory by default). Then each loader runs in a
fresh process, in turn, `rounds` times; the page cache is warm. Times are from before the process is made to when the
batch is there. Not part of `make test`: writing 100,000 shards takes minutes.

hbmfs is shown three times: with NumPy alone, with torch imported and a DataLoader, since Streaming cannot do without,
and with the mounting in it, from nothing to the first batch.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

TOKENS = 2049  # of a sample and of a shard
BATCH = 32
PACKAGE = Path(__file__).resolve().parents[3] / "python"

# Each prints the clock that all processes share, and leaves at once, so that no clean-up counts.
DONE = "print(time.monotonic(), flush=True); os._exit(0)"
HBMFS = f"""
import os, sys, time
import hbmfs
ds = hbmfs.open(sys.argv[1])
batch = next(iter(hbmfs.TokenStream(ds, {BATCH}, {TOKENS}, seed=1)))
assert batch.shape == ({BATCH}, {TOKENS})
{DONE}
"""
HBMFS_TORCH = f"""
import os, sys, time
import torch
import hbmfs
stream = hbmfs.TokenStream(hbmfs.open(sys.argv[1]), {BATCH}, {TOKENS}, seed=1)
batch = next(iter(torch.utils.data.DataLoader(stream, batch_size=None, num_workers=0)))
assert batch.shape == ({BATCH}, {TOKENS})
{DONE}
"""
STREAMING = f"""
import os, sys, time
import torch
from streaming import StreamingDataset
dataset = StreamingDataset(local=sys.argv[1], shuffle=True, shuffle_seed=1, batch_size={BATCH})
batch = next(iter(torch.utils.data.DataLoader(dataset, batch_size={BATCH}, num_workers=0)))["tokens"]
assert batch.shape == ({BATCH}, {TOKENS})
{DONE}
"""
TORCH = f"""
import os, time
import torch
{DONE}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hbmfs", type=Path)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dataset", type=Path, help="where the dataset is, or is to be written")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        dataset = options.dataset or Path(scratch, "dataset")
        write(dataset, options.shards)
        measure(options.hbmfs.resolve(), dataset, Path(scratch), options.rounds)


def write(dataset: Path, shards: int) -> None:
    """Writes one sample to a shard, unless the dataset is there."""
    from streaming import MDSWriter

    if not (dataset / "index.json").exists():
        print(f"writing {shards} shards to {dataset}", file=sys.stderr)
        shutil.rmtree(dataset, ignore_errors=True)
        random = np.random.default_rng(1)
        columns = {"tokens": f"ndarray:uint16:{TOKENS}"}
        with MDSWriter(out=str(dataset), columns=columns, size_limit=2 * TOKENS + 300) as writer:
            for _ in range(shards):
                writer.write({"tokens": random.integers(0, 1 << 16, TOKENS, np.uint16)})
    found = len(json.loads((dataset / "index.json").read_text())["shards"])
    if found != shards:
        raise SystemExit(f"{dataset} has {found} shards, not {shards}: name another --dataset")


def measure(hbmfs: Path, dataset: Path, scratch: Path, rounds: int) -> None:
    there = scratch / "mount"
    there.mkdir()
    times: dict[str, list[float]] = {}

    def timed(name: str, program: str, *args: str, since: float | None = None) -> None:
        times.setdefault(name, []).append(first_batch(program, *args, since=since))

    with mounted(hbmfs, dataset, there):
        for _ in range(rounds + 1):  # the first one warms the page cache
            timed("hbmfs, NumPy", HBMFS, str(there))
            timed("Streaming", STREAMING, str(dataset))
            timed("hbmfs, torch's DataLoader", HBMFS_TORCH, str(there))
            timed("import torch alone", TORCH)
    for _ in range(rounds + 1):
        began = time.monotonic()
        with mounted(hbmfs, dataset, there):
            timed("hbmfs, NumPy, with the mounting", HBMFS, str(there), since=began)
    report({name: seconds[1:] for name, seconds in times.items()})


@contextlib.contextmanager
def mounted(hbmfs: Path, dataset: Path, there: Path):
    subprocess.run([hbmfs, "mount", dataset, there], check=True)
    try:
        yield
    finally:
        subprocess.run([hbmfs, "umount", there], check=True)


def first_batch(program: str, *args: str, since: float | None = None) -> float:
    """Seconds from now (or since) until the program has its batch."""
    began = time.monotonic() if since is None else since
    path = os.pathsep.join(filter(None, [str(PACKAGE), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *args], env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True
    )
    clean_shared_memory()
    return float(done.stdout.split()[-1]) - began


def clean_shared_memory() -> None:
    """Removes what a run of Streaming left, since the next one would wait for it."""
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()


def report(times: dict[str, list[float]]) -> None:
    base = statistics.median(times["Streaming"])
    print(f"{'seconds to the first batch':34s} {'median':>8s} {'least':>8s} {'most':>8s}  against Streaming")
    for name, seconds in times.items():
        median = statistics.median(seconds)
        print(f"{name:34s} {median:8.3f} {min(seconds):8.3f} {max(seconds):8.3f}  {base / median:6.1f} x faster")


if __name__ == "__main__":
    main()
