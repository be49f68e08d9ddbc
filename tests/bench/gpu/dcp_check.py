"""What saving must do on a GPU, beyond what CI can see: streams, waves, memory. About half a minute.

dcp_check.py [--dir DIR] [--mib 256] [--cpu]
"""

import argparse
import contextlib
import pathlib
import tempfile
import time
import warnings

import hbmfs
import torch
import torch.distributed.checkpoint as dcp

MIB = 1 << 20


def state(args, seed):
    """Tensors on the GPU and a few on the host, of --mib in all: contiguous, transposed, tied, with gaps, small."""
    g = torch.Generator(args.device).manual_seed(seed)

    def random(*shape, dtype=torch.bfloat16):
        return torch.randn(shape, generator=g, device=args.device).to(dtype)

    rows = args.mib * MIB // 8 // 2 // 1024
    wide, tied = random(rows, 2048), random(rows // 2, 1024)
    return {
        "matrices": {f"{number}": random(rows, 1024) for number in range(4)},
        "columns": wide[:, 100:1000],
        "transposed": random(1024, rows // 2).t(),
        "tied": {"a": tied, "b": tied},
        "small": {f"{number}": random(number + 1, dtype=torch.float32) for number in range(50)},
        "host": torch.full((5,), float(seed)),
        "step": seed,
    }


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    for inside in value.values() if isinstance(value, dict) else ():
        yield from tensors(inside)


def check(args, path, seed):
    expected = state(args, seed)
    for reader in (hbmfs.DCPReader, dcp.FileSystemReader):
        found = state(args, seed + 1)
        dcp.load(found, storage_reader=reader(path), no_dist=True)
        assert found["step"] == seed
        for tensor, other in zip(tensors(found), tensors(expected), strict=True):
            assert torch.equal(tensor.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)), (reader, tensor.shape)


def change(value):
    for tensor in tensors(value):
        tensor.zero_()


@contextlib.contextmanager
def late_stream(args, saved, seed):
    """A stream of the caller's that has much to do, and only then gives the state its values."""
    if args.cpu:
        yield
        return
    values = state(args, seed)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(500_000_000)
        for tensor, value in zip(tensors(saved), tensors(values), strict=True):
            if tensor.is_cuda:
                tensor.copy_(value, non_blocking=True)
        yield


def plain(args, path):
    """Straight from HBM. A tensor with gaps does not take its size of HBM again."""
    saved = state(args, 1)
    if not args.cpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = 0 if args.cpu else torch.cuda.memory_allocated()
    dcp.save(saved, storage_writer=hbmfs.DCPWriter(path / "a", device=args.device), no_dist=True)
    grown = 0 if args.cpu else torch.cuda.max_memory_allocated() - before
    assert grown <= 80 * MIB, f"{grown} bytes of HBM"
    del saved
    check(args, path / "a", 1)
    saved = state(args, 9)
    with late_stream(args, saved, 2):
        saved = state(args, 2) if args.cpu else saved
        saved["host"].fill_(2.0)
        saved["step"] = 2
        dcp.save(saved, storage_writer=hbmfs.DCPWriter(path / "b", device=args.device), no_dist=True)
    check(args, path / "b", 2)
    return f"{grown / MIB:.0f} MiB of HBM more"


def background(args, path, memory, wait=True):
    held = []
    with hbmfs.DCPStager(memory, device=args.device, wait=wait) as stager:
        stager.writer.wait_ready()
        for seed in range(3):
            saved = state(args, seed if args.cpu else 9)
            saved["host"].fill_(float(seed))
            saved["step"] = seed
            with late_stream(args, saved, seed):
                future = dcp.async_save(saved, storage_writer=hbmfs.DCPWriter(path / f"{seed}", writer=stager.writer), async_stager=stager, no_dist=True)
                if wait:
                    change(saved)
                elif args.cpu or seed:
                    stager.wait_staged()
                    change(saved)
                else:  # the memory goes to others while it is copied
                    del saved
                    [torch.full((MIB,), 7.0, device=args.device) for _ in range(args.mib // 2)]
            future.result()
            held.append(f"{stager.held:.3f}")
    for seed in range(3):
        check(args, path / f"{seed}", seed)
    return "held " + ", ".join(held)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    args.device = "cpu" if args.cpu else "cuda"
    warnings.simplefilter("ignore")
    whole = 2 * args.mib * MIB
    cases = {
        "straight from HBM": plain,
        "staged": lambda args, path: background(args, path, whole),
        "staged, without waiting": lambda args, path: background(args, path, whole, wait=False),
        "in waves": lambda args, path: background(args, path, args.mib * MIB // 3),
        "all of it in HBM": lambda args, path: background(args, path, 4096),
    }
    for name, case in cases.items():
        with tempfile.TemporaryDirectory(dir=args.dir) as directory:
            start = time.perf_counter()
            said = case(args, pathlib.Path(directory))
            print(f"{name}: passed in {time.perf_counter() - start:.1f} s; {said}", flush=True)


if __name__ == "__main__":
    main()
