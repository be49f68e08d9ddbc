"""How fast programs write into a draft of a checkpoint volume, beside the directory below, in turn.

    hbmfs checkpoint mount DIRECTORY MOUNTPOINT
    python tests/bench/volume.py DIRECTORY MOUNTPOINT [--gigabytes 1] [--rounds 7] [--only torch.save,DeepSpeed] [--publish] [--beside NAME=DIRECTORY]

Each round does each kind of work in all places, the order turned around every time, and removes what it wrote. It prints medians, ranges and
the ratio: 1 is as fast as the directory. Without --publish nothing is published. With it each save ends on the disk: the draft is published, and the
files of the directory are synced. --beside names another filesystem, such as that of tests/bench/loopback or libfuse's passthrough_ll: what FUSE
itself costs.

DeepSpeed and Trainer save a model and its Adam states, on CPUs. They need the packages of tests/requirements-peers.txt.
"""

import argparse
import math
import os
import shutil
import statistics
import tempfile
import time
import warnings
from pathlib import Path

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "TOKENIZERS_PARALLELISM": "false"}
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


def deepspeed(size):
    import torch

    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    os.environ |= ranks
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    import deepspeed

    deepspeed.utils.logger.setLevel("ERROR")
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    width = math.isqrt(size // (16 * 14))  # 16 layers, and 14 bytes for each weight: BF16, FP32 and two moments
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(16)))
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "train_batch_size": 1,
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": True},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    engine.backward(engine(torch.randn(1, width).bfloat16()).float().sum())
    engine.step()
    for name in ranks:  # the Trainer would take them for its own
        del os.environ[name]
    return lambda where: engine.save_checkpoint(where, tag="step")


def trainer(size):
    import torch
    import transformers

    width = math.isqrt(size // (12 * 12 * 12)) // 8 * 8  # 12 layers of 12 squares, and 12 bytes for each weight: FP32 and two moments
    config = transformers.GPT2Config(n_layer=12, n_head=8, n_embd=width, vocab_size=128, n_positions=16)
    data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}]
    made = tempfile.TemporaryDirectory()  # the Trainer makes its directory
    arguments = transformers.TrainingArguments(
        output_dir=made.name, max_steps=1, save_strategy="no", per_device_train_batch_size=1, report_to=[], use_cpu=True, disable_tqdm=True
    )
    it = transformers.Trainer(model=transformers.GPT2LMHeadModel(config), args=arguments, train_dataset=data)
    it.train()
    made.cleanup()

    def work(where):
        arguments.output_dir = str(where)
        it._save_checkpoint(it.model, trial=None)  # train() calls it at each save

    return work


KINDS = {
    "write": plain,
    "write and fsync": synced,
    "mapped writes": mapped,
    "2000 files of 16 KiB": small,
    "torch.save": torch_save,
    "safetensors save_file": safetensors,
    "DCP FileSystemWriter": dcp,
    "DeepSpeed": deepspeed,
    "Trainer": trainer,
}


def sync(where):
    for directory, _, names in os.walk(where):
        for path in [directory, *(os.path.join(directory, name) for name in names)]:
            f = os.open(path, os.O_RDONLY)
            os.fsync(f)
            os.close(f)


def timed(work, where, end):
    """Seconds that a save takes, and its bytes."""
    where.mkdir()
    os.sync()
    began = time.perf_counter()
    work(where)
    where = end(where)
    took = time.perf_counter() - began
    written = sum(path.stat().st_size for path in where.rglob("*") if path.is_file())
    shutil.rmtree(where, ignore_errors=True)  # what is published is removed as a whole, by its last rmdir
    if where.exists():
        raise SystemExit(f"{where} cannot be removed")
    return took, written


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("directory", type=Path)
    p.add_argument("mount", type=Path)
    p.add_argument("--gigabytes", type=float, default=1)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--only", default="", help="kinds, separated by commas: " + ", ".join(KINDS))
    p.add_argument("--beside", action="append", default=[], metavar="NAME=DIRECTORY", help="another filesystem to measure in turn")
    p.add_argument("--publish", action="store_true", help="count what brings a save to the disk: publishing the draft, syncing files of the directory")
    args = p.parse_args()
    size = int(args.gigabytes * 1e9) >> 20 << 20
    places = {"directory": args.directory / ".bench-of-the-directory", "draft": args.mount / "bench.tmp"}
    places |= {name: Path(path) / ".bench" for name, path in (beside.split("=", 1) for beside in args.beside)}

    def to_disk(where):
        if where.parent != args.mount:
            sync(where)
        return where.rename(where.with_suffix(""))

    def save(work, place, name):
        if not args.publish:
            return timed(work, place / name, lambda where: where)
        return timed(work, (args.mount if place == places["draft"] else place) / f"bench-{name}.tmp", to_disk)

    print(f"{args.rounds} rounds of {size / 1e9:.2f} GB, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; seconds: median (lowest to highest)")
    for place in places.values():
        place.mkdir()
    try:
        for kind, make in KINDS.items():
            if args.only and kind not in args.only.split(","):
                continue
            work, times = make(size), {name: [] for name in places}
            for place in places.values():  # not counted: imports, first pages
                written = save(work, place, "warm")[1]
            for i in range(args.rounds):
                for name in list(places)[:: 1 if i % 2 == 0 else -1]:
                    times[name].append(save(work, places[name], f"round{i}")[0])
            line = f"{kind:24} {written / 1e9:.2f} GB;"
            for name, t in times.items():
                ratio = statistics.median(times["directory"]) / statistics.median(t)
                line += f" {name} {statistics.median(t):.3f} ({min(t):.3f} to {max(t):.3f})" + (f", {ratio:.2f} of the speed;" if t is not times["directory"] else ";")
            print(f"{line} load {os.getloadavg()[0]:.1f}", flush=True)
    finally:
        for place in places.values():
            shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
