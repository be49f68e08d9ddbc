"""Weights into one GPU by hbmfs and by its peers, every loader in turn in one run: the table of docs/benchmarks.md.

    loaders.py [--gb 15] [--shards 4] [--dir DIR] [--tmpfs /dev/shm] [--rounds 5] [--json FILE] [--threads 8x4,12x2] [--only REGEXP]

The page cache holds the files, on the filesystem of DIR and on tmpfs. A peer takes part where its package can be
imported: kvikio (raw bytes, 16 threads, tasks of 4 MiB; with libcufile, and by its own POSIX reads), instanttensor (its default for the filesystem, and BUFFERED),
runai_model_streamer, safetensors (load_file; from 0.9 on its prefetch too, as it comes and with its best settings) and fastsafetensors (its copiers
nogds and unified, and that of hbmfs). Nothing is downloaded. The pinned copy is the wall.

Every loader runs once before the rounds, and its tensors are compared with safetensors' own. Memory comes fresh from
CUDA in each round. Rates are GB/s (1e9 bytes), as median (least to most); CPU seconds are those of all threads.
--threads measures readers of other numbers of threads with slots of so many MiB beside them. The peak is the most that torch's allocator had in use;
memory that a loader takes from CUDA itself is not in it.
"""

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import hbmfs
import torch
from hbmfs.weights import _load
from torch_weights import Clock, Loaders, compared, make, shuffled, takes_part, wall


class Peers(Loaders):
    """The loaders that others wrote. Each gives a dict of tensors, or None where it knows bytes only."""

    def kvikio_posix(self):
        """Through the page cache, which libcufile goes past where it can."""
        return self.kvikio(True)

    def kvikio(self, posix=False):
        import kvikio
        import kvikio.defaults

        kvikio.defaults.set(
            {
                "num_threads": 16,
                "task_size": 4 << 20,
                "auto_direct_io_read": not posix,
                "compat_mode": kvikio.CompatMode.ON if posix else kvikio.CompatMode.AUTO,
            }
        )
        blocks, futures, files = [], [], []
        for path in self.files:
            blocks.append(torch.empty(os.path.getsize(path), dtype=torch.uint8, device=self.device))
            files.append(kvikio.CuFile(path))
            futures.append(files[-1].pread(blocks[-1]))
        for future in futures:
            future.get()
        for file in files:
            file.close()
        return blocks

    def prefetch(self, threads=8):
        """safetensors 0.9's prefetch, file by file, as it comes."""
        return {name: tensor for file in self.files for name, tensor in self._prefetch(file, threads)}

    def prefetch_16_threads(self):
        return self.prefetch(16)

    def prefetch_all_files(self):
        """All files at once: with 8 threads each the best that was found."""
        return {name: tensor for loader in [self._prefetch(file, 8) for file in self.files] for name, tensor in loader}

    def _prefetch(self, file, threads):
        from safetensors import safe_open

        return safe_open(file, framework="pt", device=self.device).prefetch(threads=threads)

    def prefetch_hbmfs(self):
        """The same interface over hbmfs."""
        with hbmfs.safe_open(self.files, framework="pt", device=self.device).prefetch() as loader:
            return dict(loader)

    def there(self):
        """Each peer that can be imported, and its ways."""
        ways = {"kvikio": [self.kvikio, self.kvikio_posix], "instanttensor": [self.instanttensor, self.instanttensor_buffered],
                "runai_model_streamer": [self.runai], "safetensors": [self.prefetch, self.prefetch_16_threads, self.prefetch_all_files, self.prefetch_hbmfs],
                "fastsafetensors": [self.fastsafetensors_hbmfs, self.fastsafetensors_unified, self.fastsafetensors]}  # fmt: skip
        for package, functions in ways.items():
            try:
                __import__(package)
            except Exception as err:  # noqa: BLE001 (a package that cannot be imported is a line of the report)
                print(f"{package} takes no part: {type(err).__name__}: {str(err).splitlines()[:1]}", flush=True)
            else:
                yield from ((function.__name__, function) for function in functions)


def with_threads(folder, device, threads, slot):
    """load_safetensors with a reader of so many threads, whose slots have so many MiB."""

    def load():
        usual = _load.open_reader
        _load.open_reader = lambda device, method, readers=None: hbmfs.Reader(device, method="staged", threads=threads, slot=slot << 20, arena=64 << 20)
        try:
            return hbmfs.load_safetensors(folder, device, progress=False)
        finally:
            _load.open_reader = usual

    return load


def measure(where, folder, options):
    files = make(folder, options.gb, options.shards)
    size = sum(os.path.getsize(file) for file in files)
    clock, peers = Clock(options.device, size), Peers(folder, files, options.device)
    expected = peers.safetensors()
    reader, kept = peers.kept("auto")
    own = [("hbmfs", peers.hbmfs), ("hbmfs, reader kept", kept)]
    for text in filter(None, options.threads.split(",")):
        threads, slot = map(int, text.split("x"))
        own.append((f"hbmfs, {threads} threads x {slot} MiB", with_threads(folder, options.device, threads, slot)))
    chosen = [(name, way) for name, way in [*own, *peers.there(), ("safetensors", peers.safetensors)] if re.search(options.only, name)]
    ways = dict(compared(chosen, expected))
    del expected
    ways = {"pinned copy": wall(size, options.device)} | ways
    for done in range(options.rounds):
        for name, load in shuffled(ways, done):
            if takes_part(clock.rows[name]["seconds"]):
                torch.cuda.reset_peak_memory_stats()
                try:
                    clock.measure(name, load)
                except Exception as err:  # noqa: BLE001 (whatever another package raises is a line of the report)
                    print(f"{name} failed in round {done}: {type(err).__name__}: {str(err).splitlines()[:1]}", flush=True)
                    del ways[name]
                    continue
                row = clock.rows[name]
                row["peak"] = torch.cuda.max_memory_allocated()
                print(f"  {where} round {done} {name}: {size / row['seconds'][-1] / 1e9:.1f} GB/s, peak {row['peak'] / 1e9:.1f} GB", flush=True)
    print(f"\n{where}: {size / 1e9:.1f} GB in {len(files)} files; read by {reader.stats()['path']}: {reader.stats()['reason']}")
    reader.close()
    print("| loader | GB/s | CPU s/GB | of the wall | peak GB |\n|---|---|---|---|---|")
    rates = {name: sorted(size / seconds / 1e9 for seconds in clock.rows[name]["seconds"]) for name in ways}
    top = statistics.median(rates["pinned copy"])
    for name, all_rates in rates.items():
        middle, cpu = statistics.median(all_rates), statistics.median(clock.rows[name]["cpu"]) / (size / 1e9)
        print(f"| {name} | {middle:.1f} ({all_rates[0]:.1f}-{all_rates[-1]:.1f}) | {cpu:.2f} | {middle / top:.2f} | {clock.rows[name]['peak'] / 1e9:.1f} |", flush=True)
    of_peers = {name: statistics.median(some) for name, some in rates.items() if "hbmfs" not in name and name != "pinned copy"}
    if of_peers and "hbmfs" in rates:
        best = max(of_peers, key=of_peers.get)
        worst, middle = rates["hbmfs"][0] / of_peers[best], statistics.median(rates["hbmfs"]) / of_peers[best]
        print(f"hbmfs has {middle:.2f} of the median of the best peer, {best}, and {worst:.2f} in its slowest round", flush=True)
    for file in files:
        file.unlink()
    return {"bytes": size, "rows": clock.rows}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gb", type=float, default=15.0)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--dir")
    parser.add_argument("--tmpfs", default="/dev/shm", help="a folder of a tmpfs; empty for none")
    parser.add_argument("--threads", default="")
    parser.add_argument("--only", default="", help="the loaders whose names it matches")
    parser.add_argument("--json")
    options = parser.parse_args()
    result = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "command": sys.argv, "cpus": os.cpu_count()}
    for where, parent in (("disk", options.dir), ("tmpfs", options.tmpfs)):
        if parent != "":
            start = time.perf_counter()
            with tempfile.TemporaryDirectory(prefix="hbmfs-loaders-", dir=parent) as folder:
                result[where] = measure(where, Path(folder), options)
            print(f"{time.perf_counter() - start:.0f} s", flush=True)
            if options.json:
                Path(options.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
