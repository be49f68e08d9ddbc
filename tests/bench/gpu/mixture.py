"""Mixtures and packed batches beside TokenStream on one of the sources, in one run: a table in Markdown.

    mixture.py [--dir DIR] [--gib 4] [--device cuda:0] [--rows 512] [--length 4097] [--rounds 5] [--seconds 0.5]
               [--documents 800] [--hbmfs BIN --shards 20000] [--json FILE]

Three sources of tokens with Megatron's index are made below DIR (a temporary folder by default) and stay in the page cache; each
takes `gib`. Documents have a log-normal length. Every loader is checked against NumPy on the host first, and prefaulted; then each
has a turn of so many seconds, round after round (A B C A B C), so that what changes over time changes all of them. The base is
TokenStream on the first source. CPU for a batch is that of the thread that takes it, of the busiest other thread, and of all. Times of first batches are from the start of a process, on a mount of so many shards.

--device cpu tries it without a GPU: --device cpu --gib 0.05 --rows 16 --length 513 --seconds 0.2.
"""

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import hbmfs
import numpy as np

VOCABULARY = 50257
NAMES = ("web", "code", "books")
WEIGHTS = (0.7, 0.25, 0.05)
ODD = (0.7071067811865476, 0.2236067977499790, 0.0519615242270663)
"""Weights without a small common denominator: no order repeats itself."""


def make(path, tokens, mean, seed):
    """A .bin of so many tokens of u16, and its .idx, as Megatron writes them."""
    random = np.random.default_rng(seed)
    lengths = np.maximum(1, random.lognormal(np.log(mean) - 0.5, 1.0, int(tokens / mean * 1.1) + 8)).astype(np.int32)
    ends = np.cumsum(lengths, dtype=np.int64)
    count = int(np.searchsorted(ends, tokens))
    lengths, ends = lengths[:count], ends[:count]
    block = random.integers(0, VOCABULARY, 32 << 20, np.uint16)
    with open(f"{path}.bin", "wb") as file:
        left = int(ends[-1])
        for turn in itertools.count():
            if left <= 0:
                break
            part = np.roll(block, turn * 7919)[: min(left, len(block))]
            file.write(part.data if part.flags.c_contiguous else part.tobytes())
            left -= len(part)
    with open(f"{path}.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1))
        file.write(lengths.tobytes() + ((ends - lengths) * 2).tobytes() + np.arange(count + 1).tobytes())


def loaders(sources, shared, rows, length):
    """{name: a function that makes a stream}. All but the base see documents where they need them."""
    base = sources["web"]

    def mix(datasets, weights, **options):
        return hbmfs.Mixture(dict(zip(NAMES, zip(datasets.values(), weights, strict=True), strict=True)), rows, length, seed=1, depth=4, **options)

    return {
        "TokenStream on one source": lambda: hbmfs.TokenStream(base, rows, length, seed=1, depth=4),
        "Mixture of three": lambda: mix(sources, WEIGHTS),
        "Mixture of three, one reader": lambda: mix(shared, WEIGHTS),
        "Mixture of three, odd weights": lambda: mix(sources, ODD),
        "TokenStream, packed": lambda: hbmfs.TokenStream(base, rows, length, seed=1, depth=4, packed=True),
        "Mixture of three, packed": lambda: mix(sources, WEIGHTS, packed=True),
        "PackedStream, best-fit": lambda: hbmfs.PackedStream(base, rows, length, seed=1, depth=4),
    }


def mosaic(folder, options):
    """MosaicML's Streams with the same shares, in a DataLoader of 8 workers, where `streaming` is installed: 2,000 samples a source."""
    from streaming import MDSWriter, Stream, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    clean_stale_shared_memory()
    for name in NAMES:
        tokens = np.fromfile(folder / f"{name}.bin", np.uint16, 2000 * options.length)
        with MDSWriter(out=str(folder / f"{name}-mds"), columns={"tokens": f"ndarray:uint16:{options.length}"}) as writer:
            for row in tokens[: len(tokens) // options.length * options.length].reshape(-1, options.length):
                writer.write({"tokens": row})
    streams = [Stream(local=str(folder / f"{name}-mds"), proportion=weight) for name, weight in zip(NAMES, WEIGHTS, strict=True)]
    dataset = StreamingDataset(streams=streams, shuffle=True, shuffle_seed=1, batch_size=options.rows, epoch_size=1_000_000)
    for batch in DataLoader(dataset, batch_size=options.rows, num_workers=8, pin_memory=options.device != "cpu", drop_last=True):
        yield batch["tokens"].to(options.device, non_blocking=True)


def cpu():
    """Milliseconds of CPU so far: of all threads together, and of each that there is."""
    each = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            each[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e6
    return 1000 * time.process_time(), each


class Loader:
    """A stream that goes on from turn to turn, and its rates."""

    def __init__(self, name, make_stream, wait):
        self.name, self.wait, self.rates, self.cpu = name, wait, [], []
        began = time.perf_counter()
        self.stream = make_stream()
        self.batches = iter(self.stream)
        next(self.batches)
        wait()
        self.first = time.perf_counter() - began

    def turn(self, seconds):
        done, began, (all_before, before) = 0, time.perf_counter(), cpu()
        while time.perf_counter() - began < seconds:
            batch = next(self.batches)
            del batch
            done += 1
            if done % 8 == 0:
                self.wait()
        self.wait()
        self.rates.append(done / (time.perf_counter() - began))
        all_after, after = cpu()
        spent = {thread: now - before.get(thread, 0) for thread, now in after.items()}
        own = spent.pop(threading.get_native_id())
        self.cpu.append([n / done for n in (own, max(spent.values()), all_after - all_before)])


def same(a, b):
    """Whether two batches hold the same, wherever they are."""
    fields = zip(*((x if isinstance(x, tuple) else (x,)) for x in (a, b)), strict=True)
    return all((x is None and y is None) or np.array_equal(on_host(x), on_host(y)) for x, y in fields)


def on_host(field):
    return field.cpu().numpy() if hasattr(field, "cpu") else field


def opened(folder, device, reader=None):
    return {name: hbmfs.open(folder / f"{name}.bin", None if reader else device, dtype="uint16", reader=reader) for name in NAMES}


def prefault(dataset, length):
    """The first touch of every window of a file, which belongs to no rate."""
    step = 32 << 20
    for start in range(0, len(dataset) - length, 2 * step):
        dataset.gather(np.arange(start, min(start + 2 * step, len(dataset) - length), step), length)


def measure(options, folder):
    rows, length, device = options.rows, options.length, options.device

    def wait():
        if device != "cpu":
            torch.cuda.synchronize()

    if device != "cpu":
        import torch

        torch.empty(1, device=device)
    with contextlib.ExitStack() as stack:
        sources = opened(folder, device)
        size = sum(os.path.getsize(folder / f"{name}.bin") for name in NAMES)
        reader = stack.enter_context(hbmfs.Reader(device, reuse=True, pinned=size + (1 << 30))) if device != "cpu" else None
        shared = opened(folder, device, reader) if reader else sources
        host = opened(folder, "cpu")
        for dataset in {id(d): d for d in itertools.chain(sources.values(), shared.values(), host.values())}.values():
            stack.callback(dataset.close)
            prefault(dataset, length)
        plain = loaders(host, host, rows, length)
        running = []
        for name, make_stream in loaders(sources, shared, rows, length).items():
            for ours, theirs in itertools.islice(zip(make_stream(), plain[name](), strict=False), 2):
                assert same(ours, theirs), f"{name}: other tokens than on the host"
            running.append(Loader(name, make_stream, wait))
        if importlib.util.find_spec("streaming") and not os.environ.get("NOMOSAIC"):
            running.append(Loader("MosaicML's Streams, 8 workers", lambda: mosaic(folder, options), wait))
        for _ in range(options.rounds):
            for loader in running:
                loader.turn(options.seconds)
        base = statistics.median(running[0].rates)
        cpus = "ms of CPU for a batch: its thread, the busiest other, all"
        table = [f"| {rows} x {length:,}, {device} | batches/s, median (least to most) | of TokenStream | {cpus} | first, s |", "|---|---|---|---|---|"]
        result = {}
        for loader in running:
            rate = statistics.median(loader.rates)
            ratio = statistics.median(a / b for a, b in zip(loader.rates, running[0].rates, strict=True))
            spent = [statistics.median(n) for n in zip(*loader.cpu, strict=True)]
            least, most, cpus = min(loader.rates), max(loader.rates), ", ".join(f"{n:.3f}" for n in spent)
            table.append(f"| {loader.name} | {rate:,.1f} ({least:,.1f} to {most:,.1f}) | {ratio:.2f} | {cpus} | {loader.first:.3f} |")
            result[loader.name] = {"rates": loader.rates, "ratio": ratio, "cpu_ms": spent, "first": loader.first}
        fill = next(loader.stream.fill_rate for loader in running if "best-fit" in loader.name)
        print("\n".join(table), f"\n\nBest-fit fills {fill:.5f} of the samples. TokenStream moves {base * rows * length * 2 / 1e9:.2f} GB/s.", flush=True)
        for name, dataset in sources.items():
            stats = dataset.stats()
            print(f"{name}: {len(dataset):,} tokens, {len(dataset.documents) - 1:,} documents, read by {stats['choice']} ({stats['reason']})")
        return {"loaders": result, "fill": fill}


FIRST = """
import os, sys, time
import hbmfs
names = ("web", "code", "books")
sources = [hbmfs.open(os.path.join(sys.argv[1], name)) for name in names]
if sys.argv[2] == "mixture":
    stream = hbmfs.Mixture({n: (d, w) for n, d, w in zip(names, sources, (0.7, 0.25, 0.05))}, 32, 512, seed=1)
else:
    stream = hbmfs.TokenStream(sources[0], 32, 512, seed=1)
assert next(iter(stream)).shape == (32, 512)
print(time.monotonic(), flush=True)
os._exit(0)
"""


def first_batches(options, folder):
    """Seconds from the start of a process to its first batch, on so many shards."""
    shards = folder / "shards"
    tokens = np.random.default_rng(1).integers(0, 1000, 600, np.uint16)
    for i, name in enumerate(NAMES):
        (shards / name).mkdir(parents=True)
        for n in range(options.shards * (8, 1, 1)[i] // 10):
            tokens.tofile(shards / name / f"shard-{n:06d}.bin")
    point = folder / "mount"
    if subprocess.run([options.hbmfs, "mount", "--dtype", "u16", "--log-file", folder / "log", shards, point], check=False).returncode:
        print("first batches: not measured, since this machine does not mount")
        return {}
    times = {"TokenStream on one source": [], "Mixture of three": []}
    try:
        for _ in range(options.rounds + 1):
            for name, kept in times.items():
                began = time.monotonic()
                done = subprocess.run([sys.executable, "-c", FIRST, point, name.split()[0].lower()], check=True, stdout=subprocess.PIPE, text=True)
                kept.append(float(done.stdout) - began)
    finally:
        subprocess.run([options.hbmfs, "umount", point], check=True)
    print(f"\n| first batch, {options.shards:,} shards | seconds, median (least to most) |\n|---|---|")
    for name, kept in times.items():
        print(f"| {name} | {statistics.median(kept[1:]):.3f} ({min(kept[1:]):.3f} to {max(kept[1:]):.3f}) |", flush=True)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--length", type=int, default=4097)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn")
    parser.add_argument("--documents", type=int, default=800, help="mean tokens of a document")
    parser.add_argument("--hbmfs", help="the built command, to measure first batches on a mount")
    parser.add_argument("--shards", type=int, default=20_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as scratch:
        folder = Path(scratch)
        for seed, name in enumerate(NAMES):
            make(folder / name, int(options.gib * (1 << 29)), options.documents, seed)
        result = measure(options, folder)
        if options.hbmfs:
            result["first"] = first_batches(options, folder)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
