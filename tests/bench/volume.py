"""How fast programs write into a draft of a checkpoint volume, beside the directory below, in turn.

    hbmfs mount --checkpoints DIRECTORY MOUNTPOINT
    python tests/bench/volume.py DIRECTORY MOUNTPOINT [--gigabytes 1] [--rounds 7] [--only torch.save,dcp] [--beside NAME=DIRECTORY]

Each round does each kind of work in all places, the order turned around every time, and removes what it wrote. It prints medians, ranges and
the ratio: 1 is as fast as the directory. Nothing is published but where a line says so. --beside names another filesystem, such as that of
tests/bench/loopback or libfuse's passthrough_ll: what FUSE itself costs.
"""

import argparse
import os
import shutil
import statistics
import time
import warnings
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = ""
warnings.filterwarnings("ignore")


def plain(size):
    block = os.urandom(1 << 20)

    def work(where):
        with open(where / "file", "wb", buffering=0) as f:
            f.writelines(block for _ in range(size >> 20))

    return work


def synced(size):
    write = plain(size)

    def work(where):
        write(where)
        with open(where / "file", "r+b") as f:
            os.fsync(f.fileno())

    return work


def mapped(size):
    import mmap

    block = os.urandom(1 << 20)

    def work(where):
        with open(where / "file", "w+b") as f:
            f.truncate(size)
            with mmap.mmap(f.fileno(), size) as m:
                for at in range(0, size, 1 << 20):
                    m[at : at + (1 << 20)] = block

    return work


def small(_):
    block = os.urandom(16 << 10)

    def work(where):
        for i in range(2000):
            (where / f"f{i}").write_bytes(block)

    return work


def states(size):
    import torch

    return {f"layer.{i}": torch.randint(-128, 127, (size // 16,), dtype=torch.int8) for i in range(16)}


def torch_save(size):
    import torch

    state = states(size)
    return lambda where: torch.save(state, where / "model.pt")


def safetensors(size):
    from safetensors.torch import save_file

    state = states(size)
    return lambda where: save_file(state, where / "model.safetensors")


def dcp(size):
    import torch.distributed.checkpoint as dcp

    state = states(size)
    # In a directory below the draft, so that the save does not end with a publishing.
    return lambda where: dcp.save(state, storage_writer=dcp.FileSystemWriter(where / "step"), no_dist=True)


KINDS = {
    "write": plain,
    "write and fsync": synced,
    "mapped writes": mapped,
    "2000 files of 16 KiB": small,
    "torch.save": torch_save,
    "safetensors save_file": safetensors,
    "DCP FileSystemWriter": dcp,
}


def timed(work, where):
    where.mkdir()
    os.sync()
    began = time.perf_counter()
    work(where)
    took = time.perf_counter() - began
    shutil.rmtree(where)
    return took


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("directory", type=Path)
    p.add_argument("mount", type=Path)
    p.add_argument("--gigabytes", type=float, default=1)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--only", default="", help="kinds, separated by commas: " + ", ".join(KINDS))
    p.add_argument("--beside", action="append", default=[], metavar="NAME=DIRECTORY", help="another filesystem to measure in turn")
    args = p.parse_args()
    size = int(args.gigabytes * 1e9) >> 20 << 20
    places = {"directory": args.directory / ".bench-of-the-directory", "draft": args.mount / "bench.tmp"}
    places |= {name: Path(path) / ".bench" for name, path in (beside.split("=", 1) for beside in args.beside)}
    print(f"{args.rounds} rounds of {size / 1e9:.2f} GB, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; seconds: median (lowest to highest)")
    for place in places.values():
        place.mkdir()
    try:
        for kind, make in KINDS.items():
            if args.only and kind not in args.only.split(","):
                continue
            work, times = make(size), {name: [] for name in places}
            for place in places.values():  # not counted: imports, first pages
                timed(work, place / "warm")
            for i in range(args.rounds):
                for name in list(places)[:: 1 if i % 2 == 0 else -1]:
                    times[name].append(timed(work, places[name] / f"round{i}"))
            line = f"{kind:24}"
            for name, t in times.items():
                ratio = statistics.median(times["directory"]) / statistics.median(t)
                line += f" {name} {statistics.median(t):.3f} ({min(t):.3f} to {max(t):.3f})" + (f", {ratio:.2f} of the speed;" if t is not times["directory"] else ";")
            print(f"{line} load {os.getloadavg()[0]:.1f}", flush=True)
    finally:
        for place in places.values():
            shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
