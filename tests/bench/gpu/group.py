"""Weights into all GPUs of a host by hbmfs and by its peers, every loader in turn in one run.

    group.py [--gpus N] [--gb 17] [--shards 4] [--dir DIR] [--rounds 5] [--loaders NAMES] [--json FILE] [--parts rounds,planner,page_cache,cold,failures]

One process for each GPU, an NCCL group of all of them, on which a collective ran before. The page cache holds the files. --device cpu tries it
out without GPUs. Its parts, of which each writes to FILE when it ends:

rounds      A row's seconds are from the last rank's call to the last rank's synchronize; the reader, headers and allocation are inside, and
            nothing is registered before. Each rank compares every tensor of each loader with safetensors' own, bit by bit, once. "its share"
            reads a disjoint part on each rank and exchanges nothing; "links" copies a share from pinned memory. Rows and columns are tensor
            parallelism: each rank gets its slices.
planner     What the copiers tell fastsafetensors' planner, and the most of each device that their loads take, with budgets and without.
page_cache  Which part of the files is in the page cache after page_cache="keep" and "drop".
cold        Half of the files, out of the page cache.
failures    A rank that is killed, a file that is damaged under one rank, a rank without memory: how long the others took to say so, and what
            they still hold.
"""

import argparse
import contextlib
import gc
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import hbmfs
import torch
import torch.distributed as dist
from in_place import resident, warm
from torch import multiprocessing
from torch_weights import Loaders as Alone
from torch_weights import disk, forget, fresh_memory, make, same, shuffled, takes_part


def columns(rank, size):
    """Every rank's equal part of the last dimension, of tensors with two."""
    return lambda name: (slice(None), slice(rank * WIDTH[name] // size, (rank + 1) * WIDTH[name] // size)) if WIDTH[name] else None


def rows(rank, size):
    return lambda name: (slice(rank * HEIGHT[name] // size, (rank + 1) * HEIGHT[name] // size), slice(None)) if HEIGHT[name] else None


def megatron(rank, size):
    """Rows of the projections into heads and of the MLP's first half, columns of those out of them."""
    ways = {"q": rows, "k": rows, "v": rows, "gate": rows, "up": rows, "o": columns, "down": columns}
    return lambda name: ways[name.split(".")[2]](rank, size)(name) if name.split(".")[2] in ways else None


WIDTH, HEIGHT = {}, {}
LOADERS = (
    "hbmfs", "hbmfs_each_all", "hbmfs_its_share", "hbmfs_rows", "hbmfs_columns", "hbmfs_columns_alone", "hbmfs_megatron", "instanttensor_buffered",
    "fastsafetensors", "fastsafetensors_unified", "fastsafetensors_hbmfs", "fastsafetensors_hbmfs_chunks", "safetensors",
)  # fmt: skip


class Loaders(Alone):
    def __init__(self, folder, files, rank, size, device):
        super().__init__(folder, files, device, dist.group.WORLD)
        self.rank, self.size, self.alone = rank, size, "staged" if device != "cpu" else "auto"

    def hbmfs_each_all(self):
        return hbmfs.load_safetensors(self.folder, self.device, method=self.alone, progress=False)

    def hbmfs_its_share(self):
        return hbmfs.load_safetensors(self.folder, self.device, method=self.alone, slices=rows(self.rank, self.size), progress=False) and None

    def hbmfs_rows(self):
        return hbmfs.load_safetensors(self.folder, self.device, group=self.group, slices=rows(self.rank, self.size), progress=False)

    def hbmfs_columns(self):
        return hbmfs.load_safetensors(self.folder, self.device, group=self.group, slices=columns(self.rank, self.size), progress=False)

    def hbmfs_columns_alone(self):
        return hbmfs.load_safetensors(self.folder, self.device, slices=columns(self.rank, self.size), progress=False)

    def hbmfs_megatron(self):
        return hbmfs.load_safetensors(self.folder, self.device, group=self.group, slices=megatron(self.rank, self.size), progress=False)

    def fastsafetensors_hbmfs_chunks(self):
        return self.fastsafetensors("hbmfs", max_batch_bytes=1 << 30)


def share_of(expected, want):
    return {name: tensor[want(name) or ...] for name, tensor in expected.items()}


class Run(NamedTuple):
    """A rank, what it loads, and a group of all ranks beside that of the loaders."""

    rank: int
    size: int
    device: str
    folder: str
    files: list
    control: object
    options: argparse.Namespace

    @property
    def on_gpu(self):
        return self.device != "cpu"

    @property
    def bytes(self):
        return sum(os.path.getsize(file) for file in self.files)

    def loaders(self, folder=None, files=None):
        return Loaders(Path(folder or self.folder), [Path(file) for file in files or self.files], self.rank, self.size, self.device)

    def fresh_memory(self):
        if self.on_gpu:
            fresh_memory()

    def wait(self):
        """Waits until the device of this rank is done, and then for the others."""
        if self.on_gpu:
            torch.cuda.synchronize()
        dist.barrier(group=self.control)

    def gather(self, value):
        """What each rank says."""
        said = [None] * self.size
        dist.all_gather_object(said, value, group=self.control)
        return said


def rank_main(rank, size, address, folder, files, options, results):
    os.environ["LOCAL_WORLD_SIZE"] = str(size)
    device, here = ("cpu", {}) if options.device == "cpu" else (f"cuda:{rank}", {"device_id": torch.device("cuda", rank)})
    if here:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if here else "gloo", init_method=address, rank=rank, world_size=size, **here)
    dist.all_reduce(torch.zeros(1 << 20, device=device))
    probe = torch.zeros(size << 20, dtype=torch.uint8, device=device)
    dist.all_gather_into_tensor(probe, probe[rank << 20 : (rank + 1) << 20].clone())
    del probe
    run = Run(rank, size, device, folder, files, dist.new_group(backend="gloo"), options)
    for part in options.parts:
        begin, found = time.monotonic(), PARTS[part](run)
        if rank == 0:
            print(f"{part}: {time.monotonic() - begin:.0f} s", flush=True)
            results.send((part, found))
    print(f"rank {rank} ends", flush=True)
    os._exit(0)


def compared(run, names):
    """The loaders that give every rank the expected tensors."""
    loaders = run.loaders()
    expected = loaders.safetensors()
    for name, tensor in expected.items():
        WIDTH[name], HEIGHT[name] = (tensor.shape[1], tensor.shape[0]) if tensor.dim() == 2 else (0, 0)
    ways, wants = {}, {"hbmfs_rows": rows, "hbmfs_columns": columns, "hbmfs_columns_alone": columns, "hbmfs_megatron": megatron}
    for name in names:
        load, wrong = getattr(loaders, name), None
        try:
            found = load()
            if found is not None:
                if name in wants:
                    parts = share_of(expected, wants[name](run.rank, run.size))
                    for key, part in parts.items():
                        assert torch.equal(found[key].view(torch.int16), part.contiguous().view(torch.int16)), key
                else:
                    same(found, expected)
        except Exception as err:  # noqa: BLE001 (a peer that cannot take part is a line of the report)
            wrong = f"{type(err).__name__}: {str(err).splitlines()[:1]}"
        found = parts = part = None
        said = run.gather(wrong)
        if any(said):
            if run.rank == 0:
                print(f"{name} takes no part: {said}", flush=True)
        else:
            ways[name] = load
    return ways


def rounds(run):
    ways = compared(run, run.options.loaders.split(","))
    total, block = run.bytes, min(1 << 30, run.bytes)
    pinned = torch.empty(block, dtype=torch.uint8, pin_memory=run.on_gpu)
    there = torch.empty(block, dtype=torch.uint8, device=run.device)

    def link():
        for at in range(0, total // run.size, block):
            n = min(block, total // run.size - at)
            there[:n].copy_(pinned[:n], non_blocking=True)

    ways = {"links": link} | ways
    took, cpu = {name: [] for name in ways}, {name: [] for name in ways}
    for done in range(run.options.rounds):
        for name, load in shuffled(ways, done):
            if not takes_part(took[name]):
                continue
            run.fresh_memory()
            dist.barrier(group=run.control)
            begin, used = time.clock_gettime(time.CLOCK_MONOTONIC), time.process_time()
            result = load()
            if run.on_gpu:
                torch.cuda.synchronize()
            end, used = time.clock_gettime(time.CLOCK_MONOTONIC), time.process_time() - used
            del result
            all_times = run.gather((begin, end, used))
            took[name].append(max(end for _, end, _ in all_times) - max(begin for begin, _, _ in all_times))
            cpu[name].append(sum(used for *_, used in all_times))
            if run.rank == 0:
                print(f"  round {done} {name}: {took[name][-1]:.3f} s", flush=True)
    if run.rank == 0:
        print(f"\n{run.size} GPUs, {total / 1e9:.1f} GB in {len(run.files)} files, {os.cpu_count()} CPUs\n| loader | seconds | CPU s |\n|---|---|---|")
        for name, times in took.items():
            print(f"| {name} | {statistics.median(times):.3f} ({min(times):.3f}-{max(times):.3f}) | {statistics.median(cpu[name]):.1f} |", flush=True)
    return {"seconds": took, "cpu": cpu, "bytes": total}


class Watch:
    """The most bytes of a device that were taken while it ran, beyond those at its beginning: by torch's allocator, and as CUDA says each millisecond."""

    def __init__(self, run):
        self._run, self._stop, self._thread = run, threading.Event(), threading.Thread(target=self._look)
        self.torch = self.device = 0

    def _look(self):
        while not self._stop.wait(0.001):
            self.device = max(self.device, self._free - torch.cuda.mem_get_info(self._run.device)[0])

    def __enter__(self):
        self._run.fresh_memory()
        dist.barrier(group=self._run.control)
        if self._run.on_gpu:
            torch.cuda.reset_peak_memory_stats()
            self._free, self._allocated = torch.cuda.mem_get_info(self._run.device)[0], torch.cuda.memory_allocated()
            self._thread.start()
        return self

    def __exit__(self, *_):
        if self._run.on_gpu:
            self._stop.set()
            self._thread.join()
            self.torch = torch.cuda.max_memory_allocated() - self._allocated


def planner(run):
    import hbmfs.fastsafetensors  # noqa: F401 (makes the copier known)
    from fastsafetensors.copier.registry import get_copier_class

    loaders, rows = run.loaders(), []
    ways = {"whole files": {}, "max_batch_bytes": {"max_batch_bytes": 1 << 30}}
    ways |= {f"device_memory_budget, {part} of the model": {"device_memory_budget": int(part * run.bytes)} for part in (1.1, 1.2, 1.4)}
    for copier in ("hbmfs", "nogds", "unified"):
        asked = get_copier_class(copier)
        told = [answer(run.files) for answer in (asked.chunk_transient_multiplier, asked.chunk_device_overhead, asked.fixed_device_overhead)]
        for name, options in {"first": {}, **ways}.items():
            with Watch(run) as watch:
                begin, failure = time.monotonic(), None
                try:
                    found = loaders.fastsafetensors(copier, **options)
                except Exception as err:  # noqa: BLE001 (a budget that is too small is a line of the report; all ranks hear of it)
                    failure = f"{type(err).__name__}: {err}"
                run.wait()
                seconds = time.monotonic() - begin
            found = None  # noqa: F841 (its memory is free now)
            said = run.gather((watch.torch, watch.device, failure))
            if name != "first":  # in which CUDA loads the copier's kernels
                rows.append({"copier": copier, "options": name, **options, "told": told, "seconds": seconds, "ranks": said})
    if run.rank == 0:
        print(f"\nplanner, {run.size} GPUs, {run.bytes / 1e9:.2f} GB\n| copier | options | GB | told | peak of torch, GB | peak of the device, GB | s |\n|---|---|---|---|---|---|---|")
        for row in rows:
            peaks = [" and ".join(f"{said[which] / 1e9:.2f}" for said in row["ranks"]) for which in (0, 1)]
            limit = row.get("device_memory_budget", row.get("max_batch_bytes", 0)) / 1e9
            ended = row["ranks"][0][2] or f"{row['seconds']:.3f}"
            print(f"| {row['copier']} | {row['options']} | {limit:.2f} | {row['told']} | {peaks[0]} | {peaks[1]} | {ended[:200]} |", flush=True)
    return {"bytes": run.bytes, "rows": rows}


def page_cache(run):
    found = {}
    for name in ("keep", "drop"):
        warm(run.files if run.rank == 0 else ())
        dist.barrier(group=run.control)
        begin = time.monotonic()
        hbmfs.load_safetensors(run.folder, run.device, group=dist.group.WORLD, progress=False, page_cache=name)
        seconds = time.monotonic() - begin
        dist.barrier(group=run.control)
        if run.rank == 0:
            found[name] = {"seconds": seconds, "resident": resident(run.files)}
            print(f"page cache, {name}: {seconds:.3f} s, {found[name]['resident']:.5f} of the files is resident", flush=True)
    warm(run.files if run.rank == 0 else ())
    dist.barrier(group=run.control)
    return found


def left_the_disk(file):
    """Bytes that were read from the block device of a file."""
    device = os.stat(file).st_dev
    return 512 * int(Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()[2])


def cold(run):
    """A plain reader on one rank, and the group."""
    files = run.files[: max(len(run.files) // 2, 1)]
    total = sum(os.path.getsize(file) for file in files)
    with tempfile.TemporaryDirectory(dir=run.options.dir) as half:
        for file in files:
            (Path(half) / Path(file).name).symlink_to(file)
        loaders = run.loaders(half, files)
        best = None
        for threads, block in ((8, 8 << 20), (16, 4 << 20), (32, 1 << 20)) if run.rank == 0 else ():
            forget(files)
            start = time.perf_counter()
            disk(files[:1], threads, block)
            best = min(best or (60.0, 0, 0), (time.perf_counter() - start, threads, block))
        ways = {"O_DIRECT": lambda: disk(files, *best[1:]) if run.rank == 0 else None}
        ways |= {name: getattr(loaders, name) for name in ("hbmfs", "hbmfs_columns", "hbmfs_megatron") if WIDTH or name == "hbmfs"}
        took, read = {name: [] for name in ways}, {name: [] for name in ways}
        for _ in range(2):
            for name, load in ways.items():
                run.fresh_memory()
                if run.rank == 0:
                    forget(files)
                dist.barrier(group=run.control)
                before, begin = left_the_disk(files[0]), time.monotonic()
                result = load()
                run.wait()
                took[name].append(time.monotonic() - begin)
                read[name].append((left_the_disk(files[0]) - before) / total)
                del result
    if run.rank == 0:
        print(f"\ncold, {total / 1e9:.1f} GB; O_DIRECT is {best[1]} threads x {best[2] >> 20} MiB\n| reader | seconds | GB/s | of O_DIRECT | left the disk |")
        print("|---|---|---|---|---|")
        plain = statistics.median(took["O_DIRECT"])
        for name, times in took.items():
            middle, times_read = statistics.median(times), ", ".join(f"{part:.2f} x" for part in read[name])
            print(
                f"| {name} | {middle:.2f} ({min(times):.2f}-{max(times):.2f}) | {total / middle / 1e9:.2f} | {plain / middle:.2f} | {times_read} |", flush=True
            )
    return {"seconds": took, "left the disk": read, "bytes": total}


def failures(run):
    """What the ranks that are left say, and hold, when the last one fails."""
    rank, last, control, free = run.rank, run.size - 1, run.control, []

    def expect(name, load):
        gc.collect()
        torch.cuda.empty_cache()
        dist.barrier(group=control)
        before, start = (torch.cuda.mem_get_info(rank)[0], len(os.listdir("/proc/self/fd"))), time.monotonic()
        try:
            load()
            said = "loaded"
        except Exception as err:  # noqa: BLE001 (what it raises is what this looks for)
            said = f"{type(err).__name__}: {err}"
        took = time.monotonic() - start
        gc.collect()
        torch.cuda.empty_cache()
        time.sleep(1)
        after = torch.cuda.mem_get_info(rank)[0], len(os.listdir("/proc/self/fd"))
        print(
            f"{name}: rank {rank} after {took:.1f} s: {said[:300]} | HBM {(before[0] - after[0]) >> 20} MiB and {after[1] - before[1]} descriptors more than before",
            flush=True,
        )

    def load(path=run.folder):
        return hbmfs.load_safetensors(path, f"cuda:{rank}", group=dist.group.WORLD, progress=False)

    with tempfile.TemporaryDirectory(dir=run.options.dir) as other:
        for file in sorted(Path(run.folder).iterdir()):
            (Path(other) / file.name).symlink_to(file)
        damaged = sorted(Path(other).glob("*.safetensors"))[-1]
        text = damaged.read_bytes()[: 1 << 20]
        damaged.unlink()
        damaged.write_bytes(text)
        expect("a damaged file under the last rank", lambda: load(other if rank == last else run.folder))
    if rank == last:
        free.append(torch.empty(torch.cuda.mem_get_info(rank)[0] - (6 << 30), dtype=torch.uint8, device=f"cuda:{rank}"))
    expect("the last rank has 6 GiB of HBM", load)
    free.clear()
    torch.cuda.empty_cache()
    expect("the group after both", load)
    if rank == last:
        from hbmfs._lib import _transfer

        begin, calls = _transfer.Transfer.then, []

        def stop(self, call):
            calls.append(0)
            if len(calls) == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            begin(self, call)

        _transfer.Transfer.then = stop
    expect("the last rank is killed", load)


PARTS = {"rounds": rounds, "planner": planner, "page_cache": page_cache, "cold": cold, "failures": failures}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count())
    parser.add_argument("--gb", type=float, default=17.0)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loaders", default=",".join(LOADERS), help="the rows to measure")
    parser.add_argument("--parts", default=list(PARTS), type=lambda text: text.split(","))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dir")
    parser.add_argument("--json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hbmfs-group-", dir=options.dir) as folder, socket.socket() as free:
        files = [str(file) for file in make(Path(folder), options.gb, options.shards)]
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        free.close()
        context = multiprocessing.get_context("spawn")
        results, send = context.Pipe(duplex=False)
        ranks = [context.Process(target=rank_main, args=(rank, options.gpus, address, folder, files, options, send)) for rank in range(options.gpus)]
        for process in ranks:
            process.start()
        send.close()
        found = {"command": sys.argv, "gpus": options.gpus, "cpus": os.cpu_count(), "torch": torch.__version__}
        found["gpu"] = torch.cuda.get_device_name(0) if options.device != "cpu" else "none"
        with contextlib.suppress(EOFError):
            while True:
                part, result = results.recv()
                found[part] = result
                if options.json:
                    Path(options.json).write_text(json.dumps(found, indent=1))
        for process in ranks:
            process.join()
    missing = [part for part in options.parts if part not in found]
    sys.exit(f"no result of {', '.join(missing)}" if missing else 0)


if __name__ == "__main__":
    main()
