"""Weights into tensors that are there, and the page cache afterwards, in two to four minutes.

    in_place.py [--only adapter,turns,failures,cache,others,limit] [--gb 15.7] [--shards 4]
        [--limits auto,keep,0.5/mapped,keep,0.5] [--dir DIR] [--json FILE] [--device cuda:0]
    in_place.py --adapter DIR: only the adapter, made in DIR unless it is there, as on a mount

In turn, with a warm page cache: a fresh load to memory that torch has kept, one to memory fresh from CUDA, and one into an existing module. Then refused
loads, one that fails midway, targets of another dtype, and some on the host. A LoRA adapter of 50 MB. The page cache after page_cache="drop", and loads in a
control group of version 2, or 1, where this is root: by a path, with a page_cache, and with a part of the model's bytes as the limit of memory.
--device cpu tries it out without a GPU.
"""

import argparse
import ctypes
import gc
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import hbmfs
import torch
from torch_weights import make

ROUNDS = 9


def module_of(state, device, dtype=None):
    """A module with parameters of these names."""
    root = torch.nn.Module()
    for name, tensor in state.items():
        at = root
        *path, last = name.split(".")
        for part in path:
            if part not in at._modules:
                at.add_module(part, torch.nn.Module())
            at = at._modules[part]
        at.register_parameter(last, torch.nn.Parameter(torch.zeros(tensor.shape, dtype=dtype or tensor.dtype, device=device), requires_grad=False))
    return root


def sums(state):
    """A number for the bytes of each tensor, in which the place of each counts."""
    found = {}
    for name, tensor in state.items():
        data, total = tensor.detach().reshape(-1).view(torch.int16), 0
        if not data.is_cuda:
            found[name] = zlib.crc32(data.numpy())
            continue
        for at in range(0, data.numel(), 1 << 24):
            some = data[at : at + (1 << 24)].long()
            total = total * 31 + int((some * (torch.arange(len(some), device=some.device) % 65521 + 1)).sum())
        found[name] = total
    return found


def timed(device, call):
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    found = call()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start, found


def resident(paths):
    """The part of files that is in the page cache."""
    here = pages = 0
    libc = ctypes.CDLL(None, use_errno=True)
    for path in paths:
        size = os.path.getsize(path)
        count = -(-size // mmap.PAGESIZE)
        flags = (ctypes.c_ubyte * count)()
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as memory:
            view = (ctypes.c_char * size).from_buffer(memory)
            if libc.mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(size), flags):
                raise OSError(ctypes.get_errno(), "mincore")
            del view
        here, pages = here + bytes(flags).count(1), pages + count
    return here / pages


def warm(paths):
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.read(64 << 20):
                pass


def in_turn(folder, device, size):
    """Medians of fresh loads and of loads into a module."""
    module = module_of(hbmfs.weights.outlines(folder), device)
    times = {"fresh": [], "fresh from CUDA": [], "in place": []}
    extra = 0
    for _ in range(ROUNDS):
        for name in times:
            if name == "fresh from CUDA" and device != "cpu":
                torch.cuda.empty_cache()
            if device != "cpu":
                torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated() if device != "cpu" else 0
            call = (lambda: hbmfs.load_safetensors(folder, into=module)) if name == "in place" else (lambda: hbmfs.load_safetensors(folder, device))
            seconds, found = timed(device, call)
            if name == "in place" and device != "cpu":
                extra = max(extra, torch.cuda.max_memory_allocated() - before)
            times[name].append(seconds)
            del found
            gc.collect()
    fresh = hbmfs.load_safetensors(folder, device)
    equal = all(torch.equal(tensor.view(torch.int16), fresh[name].view(torch.int16)) for name, tensor in module.state_dict().items())
    medians = {name: round(statistics.median(some), 4) for name, some in times.items()}
    return module, {
        "seconds": medians, "GB/s": {name: round(size / seconds / 1e9, 1) for name, seconds in medians.items()},
        "in place / fresh": round(medians["fresh"] / medians["in place"], 3), "in place / fresh from CUDA": round(medians["fresh from CUDA"] / medians["in place"], 3),
        "device bytes beside the module": extra, "equal": equal,
    }  # fmt: skip


def failures(folder, module, device):
    """What is in the module after loads that are refused, and after one that fails midway."""
    into = dict(module.state_dict())
    first, *_, last = into
    for name in (first, last):
        into[name].fill_(1.5)
    before = sums(into)
    refused = []
    for bad in (into[last].float(), into[last].t() if into[last].dim() > 1 else into[last][:-1], torch.zeros(1, device=device).expand(into[last].shape), None):
        try:
            hbmfs.load_safetensors(folder, into={name: tensor for name, tensor in {**into, last: bad}.items() if tensor is not None})
        except hbmfs.TargetError as err:
            refused.append(len(err.differences))
    unchanged = sums(into) == before

    def stop(done, total):
        if done > total / 2:
            raise RuntimeError("stopped")

    for tensor in into.values():
        tensor.fill_(1.5)
    old = sums(into)
    try:
        hbmfs.load_safetensors(folder, into=into, progress=stop)
    except hbmfs.UndefinedError as err:
        undefined, text = set(err.undefined), str(err)
    now = sums(into)
    hbmfs.load_safetensors(folder, into=into)
    new = sums(into)
    states = [("undefined" if name in undefined else "new" if now[name] == new[name] else "old" if now[name] == old[name] else "bad") for name in into]
    return {"refused": refused, "unchanged after all refused": unchanged, "midway": {state: states.count(state) for state in sorted(set(states))}, "text": text[:400]}


def others(folder, device, size):
    """Another dtype by scratch memory; a module of which the host has some."""
    outlines = hbmfs.weights.outlines(folder)
    module = module_of(outlines, device, torch.float16)
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if device != "cpu" else 0
    seconds = min(timed(device, lambda: hbmfs.load_safetensors(folder, into=module, cast=True))[0] for _ in range(3))
    extra = torch.cuda.max_memory_allocated() - before if device != "cpu" else 0
    fresh = hbmfs.load_safetensors(folder, device)
    equal = all(torch.equal(tensor.view(torch.int16), fresh[name].half().view(torch.int16)) for name, tensor in module.state_dict().items())
    del module
    names = list(outlines)
    into = {name: torch.zeros(outlines[name].shape, dtype=torch.bfloat16, device="cpu" if number % 8 == 0 else device) for number, name in enumerate(names)}
    hbmfs.load_safetensors(folder, into=into)
    both = all(torch.equal(tensor.to(device).view(torch.int16), fresh[name].view(torch.int16)) for name, tensor in into.items())
    return {"cast GB/s": round(size / seconds / 1e9, 1), "scratch bytes": extra, "cast equal": equal, "host and device equal": both}


def adapter(folder, device):
    """A LoRA adapter of 50 MB: 16 and 4,096 elements of bfloat16, twice in 7 matrices of 32 layers. One that is there is measured as it is, as on a mount."""
    from safetensors.torch import load_file, save_file

    if not folder.exists():
        folder.mkdir()
        made = {f"layers.{layer}.{number}.lora_{kind}.weight": torch.randn(14, 4096).bfloat16() for layer in range(32) for number in range(7) for kind in "AB"}
        save_file(made, folder / "adapter_model.safetensors")
    into = {name: torch.zeros(outline.shape, dtype=outline.dtype, device=device) for name, outline in hbmfs.weights.outlines(folder).items()}
    times = {"fresh": [], "in place": [], "fresh, reader kept": [], "in place, reader kept": []}
    first = timed(device, lambda: hbmfs.load_safetensors(folder, into=into))[0]
    with hbmfs.Reader(device) as reader:
        for _ in range(25):
            for name, some in times.items():
                given = {"reader": reader} if "kept" in name else {}
                given |= {"into": into} if "place" in name else {"device": device}
                some.append(timed(device, lambda given=given: hbmfs.load_safetensors(folder, **given))[0])
        how = reader.stats()["path"]
    expected = load_file(folder / "adapter_model.safetensors")
    return {
        "bytes": sum(tensor.nbytes for tensor in expected.values()), "path": how, "first load, in place, ms": round(1e3 * first, 1),
        "ms": {name: f"{1e3 * statistics.median(some):.2f} ({1e3 * min(some):.2f}-{1e3 * max(some):.2f})" for name, some in times.items()},
        "equal": all(torch.equal(into[name].cpu(), tensor) for name, tensor in expected.items()),
    }  # fmt: skip


def page_cache(folder, paths, device, module):
    """Times of loads that drop, warm, and the part of the files that stays."""
    found = {}
    for method in ("auto",) if device == "cpu" else ("auto", "mapped"):
        with hbmfs.Reader(device, method=method) as reader:
            for name in ("keep", "drop"):
                warm(paths)
                seconds, _ = timed(device, lambda: hbmfs.load_safetensors(folder, into=module, reader=reader, page_cache=name))
                found[f"{method}, {name}"] = {"seconds": round(seconds, 3), "resident": round(resident(paths), 5)}
            found[method] = {key: reader.stats()[key] for key in ("bytes", "dropped_bytes", "pinned_bytes")}
    return found


def control_group(limit):
    """A group with a memory limit, or why there is none. It may be one of either version."""
    for root, file, peak in (("/sys/fs/cgroup", "memory.max", "memory.peak"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes")):
        group = Path(root) / f"hbmfs-{os.getpid()}"
        if not (Path(root) / "cgroup.procs").exists():
            why = f"{root} is no control group"
            continue
        try:
            if file == "memory.max":
                (Path(root) / "cgroup.subtree_control").write_text("+memory")
            group.mkdir()
            (group / file).write_text(str(limit))
        except OSError as err:
            why = str(err)
            if group.is_dir():
                group.rmdir()
            continue
        return group, group / peak
    return None, why


def limited(folder, paths, device, size, limits, add):
    """Loads in processes whose control groups have a part of the model's size as their limit, and on the host 2.5 times the size beside, for the weights."""
    found = {}
    for text in limits.split("/"):
        method, how, part = text.split(",")
        limit = int(size * (float(part) + (2.5 if device == "cpu" else 0)))
        group, peak = control_group(limit)
        if group is None:
            return f"no control group: {peak}"
        try:
            hbmfs.load_safetensors(folder, device, page_cache="drop")
            before = resident(paths)
            command = [sys.executable, __file__, "--limited", str(group), "--dir", str(folder), "--device", device, "--page-cache", how, "--method", method]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            said = json.loads(run.stdout.splitlines()[-1]) if run.returncode == 0 else {"died": run.returncode, "said": run.stderr[-500:]}
            found[text] = {"limit": limit, "resident before": round(before, 4), **said, "resident after": round(resident(paths), 4), "peak": int(peak.read_text())}
            events = group / "memory.events"
            if events.exists():
                found[text]["events"] = dict(line.split() for line in events.read_text().splitlines())
            add(f"limit, {text}", found[text])
        finally:
            group.rmdir()
    return found


def in_group(arguments):
    """The process that has the limit."""
    (Path(arguments.limited) / "cgroup.procs").write_text(str(os.getpid()))
    if arguments.device != "cpu":
        torch.zeros(1, device=arguments.device)
    found = {}
    paths = sorted(Path(arguments.dir).glob("*.safetensors"))
    with hbmfs.Reader(arguments.device, method=arguments.method) as reader:
        for turn in ("first", "second", "after plain reads"):
            if turn == "after plain reads":  # by this process, so that the page cache takes as much of the limit as it can
                warm(paths)
                found["plain reads left"] = round(resident(paths), 3)
            seconds, weights = timed(arguments.device, lambda: hbmfs.load_safetensors(arguments.dir, arguments.device, reader=reader, page_cache=arguments.page_cache))
            found[turn] = round(seconds, 2)
            del weights
        stats = reader.stats()
    print(json.dumps(found | {"bytes": stats["bytes"], "dropped": stats["dropped_bytes"]}))


def main():
    parser = argparse.ArgumentParser()
    for name, kind, default in (("gb", float, 15.7), ("shards", int, 4), ("dir", str, None), ("json", str, None), ("device", str, "cuda:0"), ("adapter", Path, None)):
        parser.add_argument(f"--{name}", type=kind, default=default)
    parser.add_argument("--only", default="adapter,turns,failures,cache,others,limit")
    parser.add_argument("--limits", default="mapped,keep,0.5/auto,auto,1/auto,keep,0.5/auto,auto,0.5/auto,drop,0.5")
    parser.add_argument("--limited")
    parser.add_argument("--page-cache", default="keep")
    parser.add_argument("--method", default="auto")
    arguments = parser.parse_args()
    if arguments.limited:
        in_group(arguments)
        return
    if arguments.adapter:
        print(json.dumps({"adapter": adapter(arguments.adapter, arguments.device)}))
        return
    with tempfile.TemporaryDirectory(dir=arguments.dir) as name:
        folder = Path(name) / "model"
        folder.mkdir()
        paths = make(folder, arguments.gb, arguments.shards)
        size = sum(tensor.nbytes for tensor in hbmfs.weights.outlines(folder).values())
        begin = time.monotonic()
        warm(paths)
        found = {"bytes": size, "seconds to read the files": round(time.monotonic() - begin, 1)}
        print(json.dumps(found), flush=True)

        def add(what, result):
            found[what] = result
            print(json.dumps({what: result}), flush=True)
            if arguments.json:
                Path(arguments.json).write_text(json.dumps(found, indent=1))

        device, only = arguments.device, arguments.only.split(",")
        if "adapter" in only:
            add("adapter", adapter(Path(name) / "adapter", device))
        module = None
        if {"turns", "failures", "cache"} & set(only):
            module, result = in_turn(folder, device, size)
            add("in place", result)
        if "failures" in only:
            add("failures", failures(folder, module, device))
        if "cache" in only:
            add("page cache", page_cache(folder, paths, device, module))
        del module
        if "others" in only:
            warm(paths)
            add("others", others(folder, device, size))
        gc.collect()
        if device != "cpu":
            torch.cuda.empty_cache()
        if "limit" in only:
            add("limit", limited(folder, paths, device, size, arguments.limits, add))


if __name__ == "__main__":
    main()
