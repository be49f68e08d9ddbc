"""Weights into all GPUs of a host by hbmfs and by its peers, every loader in turn in one run.

    group.py [--gpus N] [--gb 17] [--shards 4] [--dir DIR] [--rounds 5] [--loaders NAMES] [--json FILE] [--cold] [--skip-failures]

One process for each GPU, an NCCL group of all of them, on which a collective ran before. The page cache holds the files.
A row's seconds are from the last rank's call to the last rank's synchronize; the reader, headers and allocation are
inside, and nothing is registered before. Each rank compares every tensor of each loader with safetensors' own, bit by
bit, once. "its share" reads a disjoint part on each rank and exchanges nothing; "links" copies a share from pinned
memory. Rows and columns are tensor parallelism: each rank gets its slices. At the end it prints which part of the files is in the page cache after
page_cache="keep" and "drop".

Then what goes wrong: a rank that is killed, a file that is damaged under one rank, a rank without memory. It prints how
long the others took to say so, and what they still hold.
"""

import argparse
import gc
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

import hbmfs
import torch
import torch.distributed as dist
from in_place import resident, warm
from torch import multiprocessing
from torch_weights import Loaders as Alone
from torch_weights import disk, forget, fresh_memory, make, same

SLOW = 1.5
"""Seconds of a load from which on a loader takes part in two rounds only."""


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
    "hbmfs", "hbmfs_each_all", "hbmfs_its_share", "hbmfs_rows", "hbmfs_columns", "hbmfs_columns_alone", "hbmfs_megatron", "instanttensor",
    "fastsafetensors", "fastsafetensors_hbmfs", "fastsafetensors_hbmfs_chunks", "safetensors",
)  # fmt: skip


class Loaders:
    def __init__(self, folder, files, rank, size):
        self.folder, self.files, self.rank, self.size = folder, files, rank, size
        self.device = f"cuda:{rank}"

    def hbmfs(self):
        return hbmfs.load_safetensors(self.folder, self.device, group=dist.group.WORLD, progress=False)

    def hbmfs_each_all(self):
        return hbmfs.load_safetensors(self.folder, self.device, method="staged", progress=False)

    def hbmfs_its_share(self):
        return hbmfs.load_safetensors(self.folder, self.device, method="staged", slices=rows(self.rank, self.size), progress=False) and None

    def hbmfs_rows(self):
        return hbmfs.load_safetensors(self.folder, self.device, group=dist.group.WORLD, slices=rows(self.rank, self.size), progress=False)

    def hbmfs_columns(self):
        return hbmfs.load_safetensors(self.folder, self.device, group=dist.group.WORLD, slices=columns(self.rank, self.size), progress=False)

    def hbmfs_columns_alone(self):
        return hbmfs.load_safetensors(self.folder, self.device, slices=columns(self.rank, self.size), progress=False)

    def hbmfs_megatron(self):
        return hbmfs.load_safetensors(self.folder, self.device, group=dist.group.WORLD, slices=megatron(self.rank, self.size), progress=False)

    def instanttensor(self):
        from instanttensor import BackendPolicy, safe_open

        with safe_open(
            [str(file) for file in self.files], framework="pt", device=self.rank, process_group=dist.group.WORLD, backend=BackendPolicy.BUFFERED
        ) as file:
            return dict(file.tensors())

    def fastsafetensors(self, copier="nogds", **options):
        return Alone(self.folder, self.files, self.device).fastsafetensors(copier, dist.group.WORLD, **options)

    def fastsafetensors_hbmfs(self):
        return self.fastsafetensors("hbmfs")

    def fastsafetensors_hbmfs_chunks(self):
        return self.fastsafetensors("hbmfs", max_batch_bytes=1 << 30)

    def safetensors(self):
        from safetensors.torch import load_file

        return {name: tensor for file in self.files for name, tensor in load_file(file, device=self.device).items()}


def share_of(expected, want):
    return {name: tensor[want(name) or ...] for name, tensor in expected.items()}


def rank_main(rank, size, address, folder, files, options, results):
    os.environ["LOCAL_WORLD_SIZE"] = str(size)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=address, rank=rank, world_size=size, device_id=torch.device("cuda", rank))
    dist.all_reduce(torch.zeros(1 << 20, device=f"cuda:{rank}"))
    probe = torch.zeros(size << 20, dtype=torch.uint8, device=f"cuda:{rank}")
    dist.all_gather_into_tensor(probe, probe[rank << 20 : (rank + 1) << 20].clone())
    control = dist.new_group(backend="gloo")
    loaders = Loaders(Path(folder), [Path(file) for file in files], rank, size)
    expected = loaders.safetensors()
    for name, tensor in expected.items():
        WIDTH[name], HEIGHT[name] = (tensor.shape[1], tensor.shape[0]) if tensor.dim() == 2 else (0, 0)
    ways, wants = {}, {"hbmfs_rows": rows, "hbmfs_columns": columns, "hbmfs_columns_alone": columns, "hbmfs_megatron": megatron}
    for name in options.loaders.split(","):
        load, wrong = getattr(loaders, name), None
        try:
            found = load()
            if found is not None:
                if name in wants:
                    parts = share_of(expected, wants[name](rank, size))
                    for key, part in parts.items():
                        assert torch.equal(found[key].view(torch.int16), part.contiguous().view(torch.int16)), key
                else:
                    same(found, expected)
        except Exception as err:  # noqa: BLE001 (a peer that cannot take part is a line of the report)
            wrong = f"{type(err).__name__}: {str(err).splitlines()[:1]}"
        found = parts = part = None
        said = [None] * size
        dist.all_gather_object(said, wrong, group=control)
        if any(said):
            if rank == 0:
                print(f"{name} takes no part: {said}", flush=True)
        else:
            ways[name] = load
    expected = None
    pinned = torch.empty(1 << 30, dtype=torch.uint8).pin_memory()
    there = torch.empty(1 << 30, dtype=torch.uint8, device=f"cuda:{rank}")
    total = sum(os.path.getsize(file) for file in files)

    def link():
        for at in range(0, total // size, 1 << 30):
            n = min(1 << 30, total // size - at)
            there[:n].copy_(pinned[:n], non_blocking=True)

    ways = {"links": link} | ways
    took = {name: [] for name in ways}
    cpu = {name: [] for name in ways}
    for done in range(options.rounds):
        for name, load in ways.items():
            if done >= 2 and statistics.median(took[name]) > SLOW:
                continue
            fresh_memory()
            dist.barrier(group=control)
            begin, used = time.clock_gettime(time.CLOCK_MONOTONIC), time.process_time()
            result = load()
            torch.cuda.synchronize()
            end = time.clock_gettime(time.CLOCK_MONOTONIC)
            used = time.process_time() - used
            del result
            all_times = [None] * size
            dist.all_gather_object(all_times, (begin, end, used), group=control)
            took[name].append(max(end for _, end, _ in all_times) - max(begin for begin, _, _ in all_times))
            cpu[name].append(sum(used for *_, used in all_times))
    if rank == 0:
        print(f"\n{size} GPUs, {total / 1e9:.1f} GB in {len(files)} files, {os.cpu_count()} CPUs\n| loader | seconds | CPU s |\n|---|---|---|")
        for name, times in took.items():
            print(f"| {name} | {statistics.median(times):.3f} ({min(times):.3f}-{max(times):.3f}) | {statistics.median(cpu[name]):.1f} |", flush=True)
        results.put({"seconds": took, "cpu": cpu, "bytes": total})
    dropped(rank, folder, files, control)
    if options.cold:
        cold(rank, size, folder, files, control, options)
    if not options.skip_failures:
        failures(rank, size, folder, control, options)
    print(f"rank {rank} ends", flush=True)
    os._exit(0)


def dropped(rank, folder, files, control):
    """The part of the files that is in the page cache after loads that keep and drop it."""
    for page_cache in ("keep", "drop"):
        dist.barrier(group=control)
        begin = time.monotonic()
        hbmfs.load_safetensors(folder, f"cuda:{rank}", group=dist.group.WORLD, progress=False, page_cache=page_cache)
        seconds = time.monotonic() - begin
        dist.barrier(group=control)
        if rank == 0:
            print(f"page cache, {page_cache}: {seconds:.3f} s, {resident(files):.5f} of the files is resident", flush=True)
            warm(files)


def left_the_disk(file):
    """Bytes that were read from the block device of a file."""
    device = os.stat(file).st_dev
    return 512 * int(Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()[2])


def cold(rank, size, folder, files, control, options):
    """Half of the files, out of the page cache: a plain reader on one rank, and the group."""
    files = files[: max(len(files) // 2, 1)]
    total = sum(os.path.getsize(file) for file in files)
    with tempfile.TemporaryDirectory(dir=options.dir) as half:
        for file in files:
            (Path(half) / Path(file).name).symlink_to(file)
        loaders = Loaders(Path(half), [Path(file) for file in files], rank, size)
        best = None
        for threads, block in ((8, 8 << 20), (16, 4 << 20), (32, 1 << 20)) if rank == 0 else ():
            forget(files)
            start = time.perf_counter()
            disk(files[:1], threads, block)
            best = min(best or (60.0, 0, 0), (time.perf_counter() - start, threads, block))
        ways = {"O_DIRECT": lambda: disk(files, *best[1:]) if rank == 0 else None}
        ways |= {name: getattr(loaders, name) for name in ("hbmfs", "hbmfs_columns", "hbmfs_megatron")}
        took, read = {name: [] for name in ways}, {name: [] for name in ways}
        for _ in range(2):
            for name, load in ways.items():
                gc.collect()
                torch.cuda.empty_cache()
                if rank == 0:
                    forget(files)
                dist.barrier(group=control)
                before, begin = left_the_disk(files[0]), time.monotonic()
                result = load()
                torch.cuda.synchronize()
                dist.barrier(group=control)
                took[name].append(time.monotonic() - begin)
                read[name].append((left_the_disk(files[0]) - before) / total)
                del result
    if rank == 0:
        print(f"\ncold, {total / 1e9:.1f} GB; O_DIRECT is {best[1]} threads x {best[2] >> 20} MiB\n| reader | seconds | GB/s | of O_DIRECT | left the disk |")
        print("|---|---|---|---|---|")
        plain = statistics.median(took["O_DIRECT"])
        for name, times in took.items():
            middle, times_read = statistics.median(times), ", ".join(f"{part:.2f} x" for part in read[name])
            print(
                f"| {name} | {middle:.2f} ({min(times):.2f}-{max(times):.2f}) | {total / middle / 1e9:.2f} | {plain / middle:.2f} | {times_read} |", flush=True
            )


def failures(rank, size, folder, control, options):
    """What the ranks that are left say, and hold, when the last one fails."""
    last = size - 1
    free = []

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

    def load(path=folder):
        return hbmfs.load_safetensors(path, f"cuda:{rank}", group=dist.group.WORLD, progress=False)

    with tempfile.TemporaryDirectory(dir=options.dir) as other:
        for file in sorted(Path(folder).iterdir()):
            (Path(other) / file.name).symlink_to(file)
        damaged = sorted(Path(other).glob("*.safetensors"))[-1]
        text = damaged.read_bytes()[: 1 << 20]
        damaged.unlink()
        damaged.write_bytes(text)
        expect("a damaged file under the last rank", lambda: load(other if rank == last else folder))
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count())
    parser.add_argument("--gb", type=float, default=17.0)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loaders", default=",".join(LOADERS), help="the rows to measure")
    parser.add_argument("--dir")
    parser.add_argument("--json")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--skip-failures", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hbmfs-group-", dir=options.dir) as folder, socket.socket() as free:
        files = [str(file) for file in make(Path(folder), options.gb, options.shards)]
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        free.close()
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        ranks = [context.Process(target=rank_main, args=(rank, options.gpus, address, folder, files, options, results)) for rank in range(options.gpus)]
        for process in ranks:
            process.start()
        result = results.get()
        for process in ranks:
            process.join()
    if options.json:
        Path(options.json).write_text(json.dumps({"command": sys.argv, "gpus": options.gpus, **result}, indent=1))


if __name__ == "__main__":
    main()
