"""The main job as users run it: random batches from a mount of many shards into a GPU, beside a plain file, a DataLoader and the hardware's limit.

    shards.py HBMFS [--dir DIR] [--gib 4] [--counts 1,8,128,900,4096] [--rounds 4] [--dtype int64] [--targets] [--json FILE]

HBMFS is the built command; HBMFS_LIBRARY and PYTHONPATH name the package that is measured. The same tokens lie in a plain file and in 1 to 4,096 shards. A
batch has 512 rows of 4,099 tokens of uint16 at random places, so rows are never aligned to a shard. All loaders take turns. The DataLoader has 8 workers, each
of which makes whole batches from np.memmap of the shards, in pinned memory. The limit registers each shard with CUDA and gathers by one kernel for each batch:
it needs cupy, and checks nothing that hbmfs promises.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time

import hbmfs
import numpy as np
import torch

ROWS, LENGTH = 512, 4099
BYTES = ROWS * LENGTH * 2
KERNEL = r"""
extern "C" __global__ void gather(const unsigned long long* files, const unsigned* file, const unsigned long long* at, unsigned char* out, unsigned n) {
    const uint4* from = (const uint4*)(files[file[blockIdx.x]] + at[blockIdx.x]);
    uint4* to = (uint4*)(out + (unsigned long long)blockIdx.x * n * 16);
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) to[i] = __ldcs(from + i);
}"""


def write(folder, shards, tokens):
    """Makes shards of the same random tokens, rotated so that no two are equal."""
    os.makedirs(folder)
    block = np.random.default_rng(0).integers(0, 50257, 1 << 20, np.uint16)
    turn = 0
    for i in range(shards):
        with open(f"{folder}/a{i:05d}.bin", "wb") as file:
            left = tokens // shards
            while left > 0:
                n = min(left, 1 << 20)
                file.write(np.roll(block, turn)[:n].tobytes())
                left, turn = left - n, turn + 1


def stream(path, options, **how):
    """TokenStream with its defaults, again and again."""
    data = hbmfs.open(path, device="cuda:0", **how)
    batches = hbmfs.TokenStream(data, batch_size=ROWS, seq_len=LENGTH, seed=1, targets=options.targets, dtype=options.dtype)
    while True:
        yield from batches


def gathers(path, **how):
    """One gather after the other."""
    data, random = hbmfs.open(path, device="cuda:0", **how), np.random.default_rng(1)
    while True:
        yield data.gather(random.integers(0, len(data) - LENGTH, ROWS), length=LENGTH)


class Batches:
    """Whole batches at random places of many files, for a DataLoader."""

    def __init__(self, folder, dtype):
        self.files = [np.memmap(f"{folder}/{name}", np.uint16, "r") for name in sorted(os.listdir(folder))]
        self.borders = np.cumsum([0] + [len(file) for file in self.files])
        self.dtype = np.dtype(dtype or "uint16")

    def __len__(self):
        return 1 << 20

    def row(self, start):
        i = int(np.searchsorted(self.borders, start, "right")) - 1
        parts, left = [], LENGTH
        while left:
            part = self.files[i][start - self.borders[i] :][:left]
            parts.append(part)
            left, i, start = left - len(part), i + 1, start + len(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def __getitem__(self, i):
        starts = np.random.default_rng(i).integers(0, self.borders[-1] - LENGTH, ROWS)
        return torch.from_numpy(np.stack([self.row(int(start)) for start in starts]).astype(self.dtype))


def loader(folder, options):
    """The best that a DataLoader does."""
    from torch.utils.data import DataLoader

    for batch in DataLoader(Batches(folder, options.dtype), batch_size=None, num_workers=8, pin_memory=True, prefetch_factor=4):
        yield batch.to("cuda", non_blocking=True)


def limit(folder):
    """One kernel for each batch over shards that are registered."""
    import cupy

    libc = ctypes.CDLL(None)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    names = sorted(os.listdir(folder))
    size, addresses = os.path.getsize(f"{folder}/{names[0]}"), []
    for name in names:
        fd = os.open(f"{folder}/{name}", os.O_RDONLY)
        addresses.append(libc.mmap(None, size, 1, 1 | 0x8000, fd, 0))  # PROT_READ, MAP_SHARED | MAP_POPULATE
        os.close(fd)
        cupy.cuda.runtime.hostRegister(addresses[-1], size, 2 | 8)  # mapped, read-only
    kernel, random, width = cupy.RawKernel(KERNEL, "gather"), np.random.default_rng(0), LENGTH * 2 // 16
    files, out = cupy.asarray(np.array(addresses, np.uint64)), cupy.empty(ROWS * width * 16, cupy.uint8)
    ready = [
        (cupy.asarray(random.integers(0, len(names), ROWS).astype(np.uint32)), cupy.asarray((random.integers(0, size // 16 - width, ROWS) * 16).astype(np.uint64)))
        for _ in range(256)
    ]
    while True:
        for which, at in ready:
            kernel((ROWS,), (512,), (files, which, at, out, np.uint32(width)))
            yield None


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Turn:
    """A loader and what was measured of it."""

    def __init__(self, batches):
        began = time.perf_counter()
        self.batches, self.rates, self.cpu = batches, [], []
        next(batches)
        torch.cuda.synchronize()
        self.first = time.perf_counter() - began

    def measure(self, seconds, keep=True):
        torch.cuda.synchronize()
        began, used, count = time.perf_counter(), cpu(), 0
        while time.perf_counter() - began < seconds:
            next(self.batches)
            count += 1
            if count % 64 == 0:
                torch.cuda.synchronize()  # the limit's launches would run ahead without end
        torch.cuda.synchronize()
        if keep:
            self.rates.append(count / (time.perf_counter() - began))
            self.cpu.append((cpu() - used) / count * 1e3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hbmfs")
    parser.add_argument("--dir")
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--counts", default="1,8,128,900,4096")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--dtype")
    parser.add_argument("--targets", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    counts = [int(n) for n in options.counts.split(",")]
    tokens = int(options.gib * (1 << 29))
    work, results = tempfile.mkdtemp(dir=options.dir), {}
    try:
        write(f"{work}/plain", 1, tokens)
        for n in counts:
            write(f"{work}/s{n}", n, tokens)
            os.makedirs(f"{work}/m{n}")
            subprocess.run([options.hbmfs, "mount", "--dtype", "u16", f"{work}/s{n}", f"{work}/m{n}"], check=True, stdout=subprocess.DEVNULL)
        plain = f"{work}/plain/a00000.bin"
        turns = {"a plain file": Turn(stream(plain, options, dtype="uint16"))}
        turns.update({f"a mount of {n} shards": Turn(stream(f"{work}/m{n}", options)) for n in counts})
        if not options.dtype and not options.targets:
            turns["gather, a plain file"] = Turn(gathers(plain, dtype="uint16"))
            turns.update({f"gather, a mount of {n} shards": Turn(gathers(f"{work}/m{n}")) for n in counts})
        try:
            turns[f"DataLoader, {counts[-1]} shards"] = Turn(loader(f"{work}/s{counts[-1]}", options))
        except OSError as err:
            print(f"the DataLoader was not measured: np.memmap keeps a descriptor for each shard: {err}")
        try:
            turns[f"the limit, {counts[-1]} shards"] = Turn(limit(f"{work}/s{counts[-1]}"))
        except ImportError:
            print("the limit was not measured: it needs cupy")
        for name, turn in turns.items():
            turn.measure(10 if "20000" in name else 3, keep=False)  # until its shards are registered
        for _ in range(options.rounds):
            for turn in turns.values():
                turn.measure(1)
        for name, turn in turns.items():
            rate = statistics.median(turn.rates)
            results[name] = {"rates": turn.rates, "cpu_ms": statistics.median(turn.cpu), "first_s": turn.first}
            print(
                f"{name:32s} {rate:8.0f} batches/s ({min(turn.rates):.0f} to {max(turn.rates):.0f}), {rate * BYTES / 1e9:5.1f} GB/s of tokens, "
                f"{statistics.median(turn.cpu):.2f} ms of CPU a batch, first batch {turn.first:.2f} s",
                flush=True,
            )
        if options.json:
            with open(options.json, "w") as file:
                json.dump(results, file, indent=1)
    finally:
        for n in counts:
            subprocess.run([options.hbmfs, "umount", "--lazy", f"{work}/m{n}"], check=False, stdout=subprocess.DEVNULL)
        subprocess.run(["rm", "-rf", work], check=False)


if __name__ == "__main__":
    main()
