"""Weights from safetensors files into HBM: hbmfs.load_safetensors beside what people use, in about 90 seconds.

    torch_weights.py [--gb 14] [--shards 4] [--json FILE] [--dir DIR] [--sweep] [--only-warm]

Warm: the page cache holds the files. Each round measures, one after the other, a copy of as many bytes from pinned
memory (the wall), load_safetensors as users call it, with readers kept open for each path, and safetensors' own
load_file; fastsafetensors and Run:ai's streamer where they can be imported. Memory comes fresh from CUDA each time, as
when a process starts, unless a row says otherwise. Cold: the files are dropped from the page cache, and load_safetensors
alternates with threads that read with O_DIRECT into host memory, the most that the disk gives to a plain reader. At the
end a checkpoint of torch.distributed.checkpoint, warm, with DCPReader and with torch's own reader.

Rates are GB/s (1e9 bytes), medians. `open` and `close` are those of a Reader alone. --sweep adds sizes of requests.
--device cpu runs it all without a GPU, to try it out.
"""

import argparse
import collections
import concurrent.futures
import gc
import json
import math
import mmap
import os
import random
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

import hbmfs
import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from hbmfs.weights import _load
from hbmfs._lib import _transfer
from safetensors.torch import load_file

ROUNDS = 5
LAYER = {
    "q": (4096, 4096),
    "k": (1024, 4096),
    "v": (1024, 4096),
    "o": (4096, 4096),
    "gate": (14336, 4096),
    "up": (14336, 4096),
    "down": (4096, 14336),
    "norm": (4096,),
    "norm2": (4096,),
}


def make(folder, gb, shards):
    """Writes shards of layers such as Llama's 8B has them, in bfloat16, and their index. No two tensors are equal."""
    noise = np.random.default_rng(1).integers(0, 256, (64 << 20) + (1 << 20), np.uint8)
    layer = sum(2 * int(np.prod(shape)) for shape in LAYER.values())
    places, number = {}, 0
    for shard in range(shards):
        header, at = {}, 0
        for _ in range(math.ceil(gb * 1e9 / layer / shards)):
            for name, shape in LAYER.items():
                size = 2 * int(np.prod(shape))
                header[f"layers.{number}.{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
                at += size
            number += 1
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path = folder / f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            left, i = at, 0
            while left > 0:
                skip = (shard * 7919 + i * 104_729) % (1 << 20)
                left -= file.write(noise[skip : skip + min(left, 64 << 20)].data)
                i += 1
            file.flush()
            os.fsync(file.fileno())
        places |= dict.fromkeys(header, path.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return sorted(folder.glob("*.safetensors"))


def fresh_memory():
    """Gives torch's free memory back to CUDA, and waits until the driver has wiped it: copies that begin meanwhile lose 30 ms for 16 GB."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    time.sleep(0.1)


def shuffled(ways, done):
    """The ways of a round, in the same order on every rank. A loader's memory may be wiped beside the next one, so each round has another order."""
    return random.Random(done).sample(list(ways.items()), len(ways))


def takes_part(seconds):
    """Whether a loader that took so long takes part in another round: those over 1.5 s take part in two, those over 3 s in one."""
    return not seconds or statistics.median(seconds) < (3 if len(seconds) == 1 else 1.5)


class Loaders:
    """Ways to load the files, alone or with the ranks of a group. Each gives a dict of tensors, which are there when it returns."""

    def __init__(self, folder, files, device, group=None):
        self.folder, self.files, self.device, self.group = folder, files, device, group

    def hbmfs(self):
        return hbmfs.load_safetensors(self.folder, self.device, group=self.group, progress=False)

    def kept(self, method):
        """As it is with a reader that stays open."""
        reader = hbmfs.Reader(self.device, method=method)
        return reader, lambda: hbmfs.load_safetensors(self.folder, self.device, reader=reader, progress=False)

    def safetensors(self):
        return {name: tensor for file in self.files for name, tensor in load_file(file, device=self.device).items()}

    def instanttensor(self, backend=None):
        from instanttensor import safe_open

        index = torch.device(self.device).index
        with safe_open([str(file) for file in self.files], framework="pt", device=index, process_group=self.group, backend=backend) as file:
            return dict(file.tensors())

    def instanttensor_buffered(self):
        from instanttensor import BackendPolicy

        return self.instanttensor(BackendPolicy.BUFFERED)

    def fastsafetensors(self, copier="nogds", **options):
        """As vLLM drives it, which passes what ParallelLoader's default is: two files are on the device beside the tensors.

        Unless the environment says otherwise, its own copiers read what the page cache holds, and not past it.
        """
        os.environ.setdefault("FASTSAFETENSORS_ODIRECT", "0")
        from fastsafetensors import SingleGroup
        from fastsafetensors.loader import BaseSafeTensorsFileLoader
        from fastsafetensors.parallel_loader import PipelineParallel
        from fastsafetensors.st_types import Device

        if copier == "hbmfs":
            import hbmfs.fastsafetensors  # noqa: F401 (makes it known)
        ranks = self.group or SingleGroup()
        loader = BaseSafeTensorsFileLoader(ranks, Device.from_str(self.device), copier)
        pipeline = PipelineParallel(ranks, loader, [str(file) for file in self.files], use_tqdm_on_load=False, **options)
        try:
            return dict(pipeline.iterate_weights())
        finally:
            pipeline.close()

    def fastsafetensors_unified(self):
        return self.fastsafetensors("unified")

    def fastsafetensors_hbmfs(self):
        return self.fastsafetensors("hbmfs")

    def runai(self):
        from runai_model_streamer import SafetensorsStreamer

        with SafetensorsStreamer() as streamer:
            streamer.stream_files([str(file) for file in self.files])
            return {name: tensor.to(self.device) for name, tensor in streamer.get_tensors()}


def wall(size, device):
    """Copies from pinned memory: what the link gives."""
    block = torch.empty(min(size, 1 << 30), dtype=torch.uint8)
    if device != "cpu":
        block = block.pin_memory()
    there = torch.empty(min(size, 1 << 30), dtype=torch.uint8, device=device)

    def copy():
        for at in range(0, size, block.numel()):
            n = min(block.numel(), size - at)
            there[:n].copy_(block[:n], non_blocking=True)

    return copy


class Clock:
    """Measures by wall and by CPU, with the GPU done at both ends."""

    def __init__(self, device, size):
        self.device, self.size = device, size
        self.rows = collections.defaultdict(lambda: {"seconds": [], "cpu": []})

    def synchronize(self):
        if self.device != "cpu":
            torch.cuda.synchronize()

    def measure(self, name, run, fresh=True):
        gc.collect()
        if fresh and self.device != "cpu":
            fresh_memory()
        self.synchronize()
        start, cpu = time.perf_counter(), time.process_time()
        result = run()
        self.synchronize()
        row = self.rows[name]
        row["seconds"].append(time.perf_counter() - start)
        row["cpu"].append(time.process_time() - cpu)
        return result

    def report(self, against, only):
        for name in only:
            row = self.rows[name]
            row["gb_per_s"] = self.size / statistics.median(row["seconds"]) / 1e9
            row["cpu_s_per_gb"] = statistics.median(row["cpu"]) / (self.size / 1e9)
        base = self.rows[against]["gb_per_s"]
        for name in only:
            row = self.rows[name]
            row["ratio"] = row["gb_per_s"] / base
            print(f"{name:44s} {row['gb_per_s']:7.2f} GB/s  {row['ratio']:5.2f} of {against}  {row['cpu_s_per_gb']:.3f} CPU s/GB", flush=True)


def same(found, expected):
    assert found.keys() == expected.keys(), "other names"
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name].view(torch.int16), tensor.view(torch.int16)), name


def compared(ways, expected):
    """The ways that give the expected tensors, or the expected bytes. The memory of one is free before the next one loads."""
    for name, load in ways:
        try:
            found = load()
            if isinstance(found, dict):
                same(found, expected)
        except Exception as err:  # noqa: BLE001 (whatever another package raises is a line of the report)
            print(f"{name} takes no part: {type(err).__name__}: {str(err).splitlines()[:1]}", flush=True)
        else:
            yield name, load
        found = None
        torch.cuda.empty_cache()


def warm(clock, loaders, options):
    """Each loader once unmeasured, to load what it loads, and the bytes compared; then rounds, as the time allows."""
    end = time.perf_counter() + options.warm_seconds
    copy = wall(clock.size, clock.device)
    ways = {"pinned copy": copy, "hbmfs": loaders.hbmfs, "safetensors load_file": loaders.safetensors}
    peers = []
    for name in ("fastsafetensors", "runai_model_streamer"):
        try:
            __import__(name)
            peers.append((name, getattr(loaders, name.removesuffix("_model_streamer"))))
        except ImportError as err:
            print(f"{name:44s} is not there: {err}")
    expected = loaders.safetensors()
    same(loaders.hbmfs(), expected)
    ways |= compared(peers, expected)
    del expected
    readers = []
    methods = () if options.only_warm else ("staged", "mapped", "auto") if clock.device != "cpu" else ("host",)
    for method in methods:
        reader, load = loaders.kept(method)
        readers.append(reader)
        ways[f"hbmfs, reader kept, {method}"] = load
        load()
    for done in range(ROUNDS):
        if done >= 2 and time.perf_counter() > end:
            print(f"time for {done} rounds only", flush=True)
            break
        for name, run in ways.items():
            if done < 2 or "hbmfs" in name or name == "pinned copy":  # the others take seconds each
                clock.measure(name, run)
        clock.measure("hbmfs, memory of the allocator's cache", loaders.hbmfs, fresh=False)
        opened = clock.measure("open", lambda: hbmfs.Reader(clock.device, method="staged" if clock.device != "cpu" else "auto"))
        clock.measure("close", opened.close)
    names = [*ways, "hbmfs, memory of the allocator's cache"]
    if options.sweep:
        names += swept(clock, loaders)
    clock.report("pinned copy", names)
    for name in ("open", "close"):
        print(f"{name} of a Reader: {1000 * statistics.median(clock.rows[name]['seconds']):.1f} ms")
    for reader in readers:
        print("read by", reader.stats()["bytes"], "|", reader.stats()["reason"])
        reader.close()


def swept(clock, loaders):
    """Sizes of requests, and of a reader's slots by how many threads fill them; readers are opened and closed each time."""
    names = []
    usual = _load.open_reader
    for slot in (2, 4, 8):
        for threads in (6, 8, 12, 16):
            _load.open_reader = lambda device, method, readers=None, slot=slot, threads=threads: hbmfs.Reader(
                device, method="staged", threads=threads, slot=slot << 20, arena=_transfer.ARENA
            )
            names.append(f"hbmfs, {threads} threads with slots of {slot} MiB")
            for _ in range(3):
                clock.measure(names[-1], loaders.hbmfs)
    _load.open_reader = usual
    for request in (16, 32, 64, 128, 256, 1024):
        for ahead in (2, 4, 8):
            _transfer.REQUEST, _transfer.AHEAD = request << 20, ahead * request << 20
            names.append(f"hbmfs, requests of {request} MiB, {ahead} ahead")
            for _ in range(3):
                clock.measure(names[-1], loaders.hbmfs)
    return names


def forget(files):
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def disk(files, threads, block):
    """Reads the files into host memory with O_DIRECT."""
    fds = [os.open(file, os.O_RDONLY | os.O_DIRECT) for file in files]
    work = [(fd, at, os.fstat(fd).st_size) for fd in fds for at in range(0, os.fstat(fd).st_size, block)]

    def read(first):
        buffer = mmap.mmap(-1, block)
        for fd, at, size in work[first::threads]:
            assert os.preadv(fd, [buffer], at) == min(block, size - at), "a short read"

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(read, range(threads)))
    for fd in fds:
        os.close(fd)


def cold(clock, loaders, seconds):
    """Tunes the plain reader on one shard, then alternates, as often as the time allows."""
    best = None
    for threads, block in ((8, 8 << 20), (16, 4 << 20), (32, 1 << 20), (4, 16 << 20)):
        forget(loaders.files)
        start = time.perf_counter()
        disk(loaders.files[:1], threads, block)
        took = time.perf_counter() - start
        best = min(best or (took, threads, block), (took, threads, block))
    _, threads, block = best
    plain, end = f"O_DIRECT, {threads} threads x {block >> 20} MiB", time.perf_counter() + seconds
    for _ in range(ROUNDS):
        for name, run in ((plain, lambda: disk(loaders.files, threads, block)), ("hbmfs, cold", loaders.hbmfs)):
            forget(loaders.files)
            clock.measure(name, run)
        if time.perf_counter() + sum(clock.rows[name]["seconds"][-1] for name in (plain, "hbmfs, cold")) > end:
            break
    clock.report(plain, [plain, "hbmfs, cold"])


def state(device, seed, large):
    """A checkpoint: large and small tensors, other strides, and dtypes that are not the saved ones."""
    torch.manual_seed(seed)
    tensors = {f"large.{i}": torch.randn(4096, 4096, device=device) for i in range(large)}
    tensors |= {f"small.{i}": torch.randn(500 + i, device=device).to(torch.bfloat16) for i in range(300)}
    tensors["transposed"] = torch.randn(1000, 3000, device=device).t()
    tensors["step"] = torch.tensor(seed, device=device)
    return tensors


def checkpoint(clock, folder, large):
    """DCPReader beside torch's FileSystemReader, into tensors of the device, with the same bits."""
    saved = state(clock.device, 1, large)
    dcp.save(saved, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    size = clock.size
    clock.size = sum(tensor.nbytes for tensor in saved.values())
    for _ in range(3):
        for name, reader in (("torch's FileSystemReader", dcp.FileSystemReader), ("hbmfs.DCPReader", hbmfs.DCPReader)):
            target = state(clock.device, 2, large)
            clock.measure(name, lambda target=target, reader=reader: dcp.load(target, storage_reader=reader(folder), no_dist=True))
            for key, tensor in saved.items():
                assert torch.equal(target[key], tensor) and target[key].stride() == tensor.stride(), key
    target = {"large.0": torch.zeros(4096, 4096, device=clock.device, dtype=torch.bfloat16), "large.1": torch.zeros(4096, 4096, device=clock.device).t()}
    dcp.load(target, storage_reader=hbmfs.DCPReader(folder), no_dist=True)
    assert torch.equal(target["large.0"], saved["large.0"].bfloat16()) and torch.equal(target["large.1"], saved["large.1"])
    clock.report("torch's FileSystemReader", ["torch's FileSystemReader", "hbmfs.DCPReader"])
    clock.size = size


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gb", type=float, default=14.0)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--dir")
    parser.add_argument("--json")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--cold-seconds", type=float, default=30)
    parser.add_argument("--warm-seconds", type=float, default=45)
    parser.add_argument("--only-warm", action="store_true", help="not cold, no checkpoint, and hbmfs only as users call it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hbmfs-weights-", dir=options.dir) as folder:
        start = time.perf_counter()
        files = make(Path(folder), options.gb, options.shards)
        size = sum(os.path.getsize(file) for file in files)
        print(f"made {size / 1e9:.1f} GB in {len(files)} files in {time.perf_counter() - start:.1f} s")
        clock = Clock(options.device, size)
        loaders = Loaders(Path(folder), files, options.device)
        warm(clock, loaders, options)
        if not options.only_warm:
            cold(clock, loaders, options.cold_seconds)
            for file in files:
                file.unlink()
            checkpoint(clock, Path(folder) / "checkpoint", 2 + round(1.6 * options.gb))
    rows = clock.rows
    verdict = (
        f"warm: {rows['hbmfs']['ratio']:.2f} of the pinned copy (wanted 0.90), "
        f"{rows['hbmfs']['gb_per_s'] / rows['safetensors load_file']['gb_per_s']:.1f} x load_file (wanted 5)"
    )
    print(verdict + ("" if options.only_warm else f"; cold: {rows['hbmfs, cold']['ratio']:.2f} of the disk (wanted 0.95)"))
    if options.json:
        gpu = torch.cuda.get_device_name(0) if options.device != "cpu" else "none"
        Path(options.json).write_text(json.dumps({"gpu": gpu, "torch": torch.__version__, "command": sys.argv, "bytes": size, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
