"""A checkpoint of torch.distributed into all GPUs of a host: DCPReader with a group, without one, and torch's own reader.

    dcp_group.py [--ranks N] [--gb 8] [--dir DIR] [--rounds 3] [--cpu]

One process for each GPU (--cpu: gloo, without GPUs). The ranks save a model as FSDP does, and load it as FSDP, DDP and
tensor parallelism have it. Each loader is compared with torch's, bit by bit, once. Seconds are from the last rank's call
to the last rank's synchronize, planning by torch inside; the page cache holds the files. Bytes are those that the readers
of all ranks moved, in multiples of the checkpoint.
"""

import argparse
import contextlib
import os
import socket
import statistics
import tempfile
import time
import warnings

import hbmfs
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

KINDS = {"fsdp": [Shard(0)], "ddp": [Replicate()], "columns": [Shard(1)], "rows": [Shard(0)]}


def state(kind, mesh, gb, seed):
    """Matrices of 4096 columns and vectors, whose numbers the seed decides."""
    torch.manual_seed(seed)
    shapes = [(size, 4096) for _ in range(max(int(gb * 1e9 / 2 / 4096 / 20480), 1)) for size in (4096, 14336, 2048)] + [(4096,)] * 60
    found = {}
    for number, shape in enumerate(shapes):
        tensor = torch.randn(shape, dtype=torch.bfloat16, device=mesh.device_type) if seed else torch.zeros(shape, dtype=torch.bfloat16, device=mesh.device_type)
        placement = KINDS[kind] if len(shape) > 1 or kind == "fsdp" else [Replicate()]
        found[f"{number}"] = tensor if kind == "ddp" else distribute_tensor(tensor, mesh, placement, src_data_rank=None)
    return found


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def run(rank, args, port):
    warnings.simplefilter("ignore")
    device = "cpu" if args.cpu else f"cuda:{rank}"
    if not args.cpu:
        torch.cuda.set_device(rank)
    dist.init_process_group("gloo" if args.cpu else "cpu:gloo,cuda:nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=args.ranks)
    mesh = init_device_mesh("cpu" if args.cpu else "cuda", (args.ranks,))
    with tempfile.TemporaryDirectory(dir=args.dir) if rank == 0 else contextlib.nullcontext() as made:
        paths = [made]
        dist.broadcast_object_list(paths)
        dcp.save(state("fsdp", mesh, args.gb, 1), storage_writer=dcp.FileSystemWriter(paths[0]))
        for kind in KINDS:
            compare(rank, kind, mesh, paths[0], device, args)
        dist.barrier()
    dist.destroy_process_group()


def compare(rank, kind, mesh, path, device, args):
    target, expected = state(kind, mesh, args.gb, 0), state(kind, mesh, args.gb, 1)
    loaders = {
        "group": lambda reader: hbmfs.DCPReader(path, device, reader=reader, group=dist.group.WORLD),
        "alone": lambda reader: hbmfs.DCPReader(path, device, reader=reader),
        "torch": lambda reader: dcp.FileSystemReader(path),
    }
    seconds, moved = {name: [] for name in loaders}, {}
    payload = sum(tensor.numel() * tensor.element_size() for tensor in expected.values())
    for _ in range(args.rounds):
        for name, make in loaders.items():
            for tensor in target.values():
                local(tensor).zero_()
            synchronize(args)
            dist.barrier()
            start = time.time()
            with hbmfs.Reader(device, readers=args.ranks) as reader:
                dcp.load(target, storage_reader=make(reader))
                synchronize(args)
                bytes_read = sum(reader.stats()["bytes"].values())
            found = [None] * args.ranks
            dist.all_gather_object(found, (start, time.time(), bytes_read))
            seconds[name].append(max(end for _, end, _ in found) - max(start for start, _, _ in found))
            moved[name] = sum(count for *_, count in found) / payload
            assert all(torch.equal(local(target[key]).view(torch.uint8), local(expected[key]).view(torch.uint8)) for key in expected), (name, kind)
    if rank == 0:
        for name in loaders:
            median = statistics.median(seconds[name])
            print(f"{kind:8} {name:6} {median:7.3f} s ({min(seconds[name]):.3f} to {max(seconds[name]):.3f}) {moved[name]:5.2f} x {payload / 1e9:.2f} GB", flush=True)


def synchronize(args):
    if not args.cpu:
        torch.cuda.synchronize()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count() or 2)
    parser.add_argument("--gb", type=float, default=8)
    parser.add_argument("--dir", default=os.environ.get("TMPDIR", "/tmp"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(run, (args, port), args.ranks)
