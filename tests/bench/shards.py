"""Random batches of a mount of many shards in memory of the host, beside what else people read such tokens with.

    shards.py HBMFS [--dir DIR] [--gib 1] [--counts 1,8,128,900,4096,20000] [--peers 4096] [--rounds 5] [--dtype int64] [--json FILE]

HBMFS is the built command; HBMFS_LIBRARY and PYTHONPATH name the package that is measured. `make bench-shards` runs it with Python's packages of
tests/requirements-peers.txt. The same tokens of uint16 lie in a plain file, in shards behind mounts, and in shards of MosaicML Streaming and of LitData
(--peers says in how many). A batch has 64 rows of 1,024 tokens. All loaders take turns of a second, after a quarter of one that does not count, since workers
have batches ready. The next turn waits while workers make batches again. The loop is what one writes without a loader: rows at random places of np.memmap, of the view of each mount. The DataLoader has 8 workers, each
of which makes whole batches from np.memmap of the shards. MosaicML's and LitData's own loaders have 8 workers, too, and shuffle samples of 1,024 tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import hbmfs
import numpy as np

ROWS, LENGTH, WORKERS, DOCUMENT = 64, 1024, 8, 4096
REST = 2  # seconds in which workers make the batches that they keep ready


def blocks(tokens):
    """The tokens, the same for all."""
    block = np.random.default_rng(0).integers(0, 50257, 1 << 20, np.uint16)
    for turn, first in enumerate(range(0, tokens, 1 << 20)):
        yield np.roll(block, turn)[: tokens - first]


def write(folder, shards, tokens):
    os.makedirs(folder)
    left, each, shard, at = np.empty(0, np.uint16), tokens // shards, 0, blocks(tokens)
    while shard < shards:
        while len(left) < each:
            left = np.concatenate([left, next(at)])
        left[:each].tofile(f"{folder}/a{shard:05d}.bin")
        left, shard = left[each:], shard + 1


def stream(data, wide):
    """TokenStream with its defaults, again and again."""
    batches = hbmfs.TokenStream(data, batch_size=ROWS, seq_len=LENGTH, seed=1, dtype=wide)
    while True:
        yield from batches


def gathers(data, wide):
    """One gather after the other."""
    random = np.random.default_rng(1)
    while True:
        yield data.gather(random.integers(0, len(data) - LENGTH, ROWS), LENGTH, dtype=wide)


def loop(path, dtype):
    """What one writes by hand."""
    tokens, random = np.load(path, mmap_mode="r") if path.endswith(".npy") else np.memmap(path, np.uint16, "r"), np.random.default_rng(1)
    while True:
        yield np.stack([tokens[start : start + LENGTH] for start in random.integers(0, len(tokens) - LENGTH, ROWS).tolist()]).astype(dtype or "uint16", copy=False)


class Batches:
    """Whole batches at random places of many files, for a DataLoader."""

    def __init__(self, folder, dtype):
        self.files = [np.memmap(f"{folder}/{name}", np.uint16, "r") for name in sorted(os.listdir(folder))]
        self.borders = np.cumsum([0] + [len(file) for file in self.files])
        self.dtype = np.dtype(dtype or "uint16")

    def __len__(self):
        return 1 << 24

    def row(self, start):
        i = int(np.searchsorted(self.borders, start, "right")) - 1
        parts, left = [], LENGTH
        while left:
            part = self.files[i][start - self.borders[i] :][:left]
            parts.append(part)
            left, i, start = left - len(part), i + 1, start + len(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def __getitem__(self, i):
        import torch

        starts = np.random.default_rng(i).integers(0, self.borders[-1] - LENGTH, ROWS)
        return torch.from_numpy(np.stack([self.row(int(start)) for start in starts]).astype(self.dtype, copy=False))


def loader(folder, dtype):
    """The best that a DataLoader does."""
    from torch.utils.data import DataLoader

    yield from DataLoader(Batches(folder, dtype), batch_size=None, num_workers=WORKERS, prefetch_factor=4)


def mosaic(folder, shards, tokens, dtype):
    """MosaicML Streaming's own format and loader."""
    import torch
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

    with MDSWriter(out=folder, columns={"tokens": f"ndarray:uint16:{LENGTH}"}, size_limit=2 * tokens // shards + 1024) as out:
        for block in blocks(tokens):
            for row in block.reshape(-1, LENGTH):
                out.write({"tokens": row})
    data = StreamingDataset(local=folder, shuffle=True, batch_size=ROWS)
    batches = StreamingDataLoader(data, batch_size=ROWS, num_workers=WORKERS, prefetch_factor=4, persistent_workers=True)
    while True:
        for batch in batches:
            yield batch["tokens"].to(getattr(torch, dtype or "uint16"))


class Documents:
    """The tokens in pieces, for the processes that write LitData's."""

    def __init__(self, path):
        self.path = path

    def __call__(self, i):
        import torch

        return torch.from_numpy(np.fromfile(self.path, np.uint16, DOCUMENT, offset=2 * DOCUMENT * i).astype(np.int32))


def litdata(folder, plain, shards, tokens, dtype):
    """LitData's own format and loader, for which tokens have 4 bytes: it knows no type of 2 that torch calculates with."""
    import litdata
    import torch

    for name in ("DATA_OPTIMIZER_CACHE_FOLDER", "DATA_OPTIMIZER_DATA_CACHE_FOLDER"):
        os.environ[name] = f"{folder}-{name}"
    litdata.optimize(
        fn=Documents(plain), inputs=list(range(tokens // DOCUMENT)), output_dir=folder, num_workers=1, chunk_size=tokens // shards,
        item_loader=litdata.TokensLoader(block_size=LENGTH), verbose=False,
    )  # fmt: skip
    data = litdata.StreamingDataset(folder, item_loader=litdata.TokensLoader(block_size=LENGTH), shuffle=True, drop_last=True)
    batches = litdata.StreamingDataLoader(data, batch_size=ROWS, num_workers=WORKERS, prefetch_factor=4, persistent_workers=True)
    while True:
        for batch in batches:
            yield batch.to(torch.int64) if dtype else batch


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Turn:
    """A loader and what was measured of it."""

    def __init__(self, batches, workers=False):
        began = time.perf_counter()
        self.batches, self.workers, self.rates, self.cpu = batches, workers, [], []
        next(batches)
        self.first = time.perf_counter() - began

    def measure(self, seconds, keep=True):
        began, used, count = time.perf_counter(), cpu(), 0
        while time.perf_counter() - began < seconds:
            next(self.batches)
            count += 1
        if keep:
            self.rates.append(count / (time.perf_counter() - began))
            self.cpu.append((cpu() - used) / count * 1e3)


def peers(work, options, turns):
    """Adds the loaders that need packages of their own."""
    n, tokens = options.peers, int(options.gib * (1 << 29))
    made = {
        f"DataLoader over np.memmap, {n} shards": lambda: loader(f"{work}/s{n}", options.dtype),
        f"MosaicML Streaming, {n} shards": lambda: mosaic(f"{work}/mds", n, tokens, options.dtype),
        f"LitData, {n} shards": lambda: litdata(f"{work}/litdata", f"{work}/plain/a00000.bin", n, tokens, options.dtype),
    }
    for name, make in made.items():
        try:
            turns[name] = Turn(make(), workers=True)
        except ImportError as err:
            print(f"{name} was not measured: {err}. `make bench-shards` has what it needs", file=sys.stderr)


def report(turns, options):
    results = {}
    print("| loader | batches/s | ms of CPU a batch, of this process | first batch, s |\n|---|---|---|---|")
    for name, turn in turns.items():
        results[name] = {"rates": turn.rates, "cpu_ms": turn.cpu, "first_s": turn.first}
        rate = statistics.median(turn.rates)
        print(f"| {name} | {rate:,.0f} ({min(turn.rates):,.0f} to {max(turn.rates):,.0f}) | {statistics.median(turn.cpu):.2f} | {turn.first:.2f} |")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hbmfs")
    parser.add_argument("--dir")
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--counts", default="1,8,128,900,4096,20000")
    parser.add_argument("--peers", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype")
    parser.add_argument("--json")
    options = parser.parse_args()
    counts = [int(n) for n in options.counts.split(",")]
    tokens = int(options.gib * (1 << 29))
    work, turns = tempfile.mkdtemp(dir=options.dir), {}
    os.environ["TMPDIR"] = tempfile.tempdir = f"{work}/temporary"  # where others leave files
    os.mkdir(tempfile.tempdir)
    try:
        write(f"{work}/plain", 1, tokens)
        plain = f"{work}/plain/a00000.bin"
        turns["TokenStream, a plain file"] = Turn(stream(hbmfs.open(plain, dtype="uint16", device="cpu"), options.dtype))
        turns["np.memmap in a loop, a plain file"] = Turn(loop(plain, options.dtype))
        for n in counts:
            mount = f"{work}/m{n}"
            write(f"{work}/s{n}", n, tokens)
            os.makedirs(mount)
            subprocess.run([options.hbmfs, "mount", "--dtype", "u16", f"{work}/s{n}", mount], check=True, stdout=subprocess.DEVNULL)
            data = hbmfs.open(mount, device="cpu")
            turns[f"TokenStream, a mount of {n} shards"] = Turn(stream(data, options.dtype))
            turns[f"ds.gather, a mount of {n} shards"] = Turn(gathers(data, options.dtype))
            turns[f"np.memmap in a loop, the view of {n} shards"] = Turn(loop(data.path, options.dtype))
        if options.peers in counts:
            peers(work, options, turns)
        for name, turn in turns.items():
            turn.measure(20 if "20000" in name else 4, keep=False)  # until all shards were read
        for _ in range(options.rounds):
            for turn in turns.values():
                turn.measure(0.25, keep=False)
                turn.measure(1)
                if turn.workers:
                    time.sleep(REST)
        report(turns, options)
    finally:
        turns.clear()
        for n in filter(lambda n: os.path.ismount(f"{work}/m{n}"), counts):
            subprocess.run([options.hbmfs, "umount", "--lazy", f"{work}/m{n}"], check=False, stdout=subprocess.DEVNULL)
        subprocess.run(["rm", "-rf", work], check=False)


if __name__ == "__main__":
    main()
