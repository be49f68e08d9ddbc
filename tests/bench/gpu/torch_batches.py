"""What training gets from the Python package on a GPU, beside what people use today. torch.sh runs all of it.

torch_batches.py make FILE [--gib 16]      tokens of u16, left in the page cache
torch_batches.py batches FILE              random batches of 512 x 4,097 tokens: batches/s, medians of 5 rounds
torch_batches.py leaks FILE                10,000 rounds of open, gather, close: memory, descriptors, threads
torch_batches.py train FILE                1,000 steps with each loader: the losses' bits, and the GPU's idle time
"""

import argparse
import gc
import json
import os
import statistics
import time
from pathlib import Path

import numpy as np

ROWS, LENGTH = 512, 4097
VOCABULARY = 50257


def make(options):
    block = np.random.default_rng(1).integers(0, VOCABULARY, 128 << 20, np.uint16)
    with open(options.file, "wb") as file:
        for i in range(options.gib * 4):
            file.write(np.roll(block[: 1 << 20], i).data)  # blocks differ
            file.write(block[1 << 20 :].data)
        file.flush()
        os.fsync(file.fileno())
    print(f"made {os.path.getsize(options.file) / 1e9:.1f} GB")


class Baselines:
    """The loaders that people have: nanoGPT's own get_batch, and a DataLoader with 8 workers and pinned memory."""

    def __init__(self, path):
        self.path = path

    def nanogpt(self):
        """karpathy/nanoGPT, train.py, get_batch: x and y of int64, through pinned memory."""
        import torch

        while True:
            data = np.memmap(self.path, dtype=np.uint16, mode="r")
            ix = torch.randint(len(data) - LENGTH, (ROWS,))
            x = torch.stack([torch.from_numpy(data[i : i + LENGTH - 1].astype(np.int64)) for i in ix])
            y = torch.stack([torch.from_numpy(data[i + 1 : i + LENGTH].astype(np.int64)) for i in ix])
            yield x.pin_memory().to("cuda", non_blocking=True), y.pin_memory().to("cuda", non_blocking=True)

    def rows(self, dtype):
        """A DataLoader that makes batches of single rows, as they come out of a map-style dataset."""
        from torch.utils.data import DataLoader, RandomSampler

        data = Rows(self.path, dtype)
        loader = DataLoader(data, batch_size=ROWS, sampler=RandomSampler(data), num_workers=8, pin_memory=True, prefetch_factor=4, drop_last=True)
        for batch in loader:
            yield batch.to("cuda", non_blocking=True)

    def batches(self, dtype):
        """The best that a DataLoader does: each worker makes whole batches, narrow ones."""
        from torch.utils.data import DataLoader

        loader = DataLoader(Batches(self.path, dtype), batch_size=None, num_workers=8, pin_memory=True, prefetch_factor=4)
        for batch in loader:
            yield batch.to("cuda", non_blocking=True)


class Rows:
    """Single rows at every place of the file."""

    def __init__(self, path, dtype):
        self.data, self.dtype = np.memmap(path, dtype=np.uint16, mode="r"), dtype

    def __len__(self):
        return (1 << 22) - 1

    def __getitem__(self, i):
        import torch

        at = i * 65_537 % (len(self.data) - LENGTH)
        return torch.from_numpy(self.data[at : at + LENGTH].astype(self.dtype))


class Batches:
    """Whole batches at random places."""

    def __init__(self, path, dtype):
        self.data, self.dtype = np.memmap(path, dtype=np.uint16, mode="r"), dtype

    def __len__(self):
        return 1 << 20

    def __getitem__(self, i):
        import torch

        if i >= len(self):
            raise IndexError(i)
        starts = np.random.default_rng(i).integers(0, len(self.data) - LENGTH, ROWS)
        return torch.from_numpy(np.stack([self.data[s : s + LENGTH] for s in starts]).astype(self.dtype))


def gathers(ds, dtype=None, depth=4):
    """Random batches of a dataset of hbmfs, read ahead."""
    random = np.random.default_rng(3)
    with ds.queue(depth) as queue:
        while True:
            while not queue.full:
                queue.put(random.integers(0, len(ds) - LENGTH, ROWS), LENGTH, dtype=dtype)
            yield queue.get()


def stream(ds, dtype=None, depth=4):
    """Batches of TokenStream."""
    import hbmfs

    yield from hbmfs.TokenStream(ds, batch_size=ROWS, seq_len=LENGTH, seed=1, dtype=dtype, depth=depth)


class Contender:
    """A loader with what was measured of it. It stays open, so that workers and registrations are not counted again."""

    def __init__(self, name, batches):
        self.name, self.batches, self.rates = name, batches, []
        began = time.perf_counter()
        self.next()
        self.first = time.perf_counter() - began

    def next(self):
        import torch

        batch = next(self.batches)
        torch.cuda.synchronize()
        return batch

    def measure(self, seconds):
        import torch

        done, began = 0, time.perf_counter()
        while True:
            batch = next(self.batches)
            done += 1
            del batch
            if done % 8 == 0 or seconds > 0.5:
                torch.cuda.synchronize()
            if time.perf_counter() - began > seconds:
                break
        torch.cuda.synchronize()
        self.rates.append(done / (time.perf_counter() - began))


def batches(options):
    import hbmfs
    import torch

    torch.empty(1, device="cuda")
    path = options.file
    size = os.path.getsize(path)
    warm(path)
    wall = pinned_wall()
    print(
        f"pinned copy: {wall / 1e9:.1f} GB/s, so at most {wall / (ROWS * LENGTH * 2):.0f} batches/s of uint16, {wall / (ROWS * LENGTH * 8):.0f} of int64 copied"
    )
    base = Baselines(path)
    kept = hbmfs.Reader("cuda:0", reuse=True, pinned=size + (1 << 30))
    opened = [
        hbmfs.open(path, "cuda:0", dtype="uint16"),
        hbmfs.open(path, "cuda:0", dtype="uint16", method="staged"),
        hbmfs.open(path, dtype="uint16", reader=kept),
    ]
    plain, staged, mapped = opened
    check(plain, path)
    prefault(plain)
    prefault(mapped)
    ours = [
        ("hbmfs gather", gathers(plain)),
        ("hbmfs gather, depth 8", gathers(plain, depth=8)),
        ("hbmfs gather, reuse=True", gathers(mapped)),
        ("hbmfs gather, staged", gathers(staged)),
        ("hbmfs gather, to int64", gathers(plain, "int64")),
        ("hbmfs TokenStream", stream(plain)),
        ("hbmfs TokenStream, to int64", stream(plain, "int64")),
    ]
    if options.mount:
        opened.append(hbmfs.open(options.mount, "cuda:0"))
        prefault(opened[-1])
        ours.append(("hbmfs gather, through a mount", gathers(opened[-1])))
    theirs = [
        ("nanoGPT get_batch", base.nanogpt()),
        ("DataLoader 8, rows, int64", base.rows(np.int64)),
        ("DataLoader 8, rows, uint16", base.rows(np.uint16)),
        ("DataLoader 8, batches, uint16", base.batches(np.uint16)),
    ]
    results = measured(ours, options.seconds / 4) + measured(theirs, options.seconds)
    reference = {c.name: statistics.median(c.rates) for c in results}
    columns = [theirs[i][0] for i in (0, 1, 3)]
    print(f"{'random batches of 512 x 4,097':32s} {'batches/s':>10s} {'GB/s':>7s} {'first, s':>9s}   times nanoGPT, DataLoader of rows, DataLoader of batches")
    for c in results:
        rate = reference[c.name]
        ratios = "".join(f"{rate / reference[name]:10.1f}" for name in columns)
        print(f"{c.name:32s} {rate:10.1f} {rate * ROWS * LENGTH * 2 / 1e9:7.2f} {c.first:9.3f} {ratios}")
    for ds in opened:
        stats = ds.stats()
        print(stats["choice"], stats["reason"], stats["bytes"], f"pinned {stats['pinned_bytes'] / 1e9:.1f} GB")
    return {"wall": wall, "rates": {c.name: c.rates for c in results}, "first": {c.name: c.first for c in results}, "stats": [ds.stats() for ds in opened]}


def measured(contenders, seconds):
    """Rounds in turn, so that what changes over time changes all of them."""
    running = [Contender(*c) for c in contenders]
    for _ in range(5):
        for contender in running:
            contender.measure(seconds)
    for contender in running:
        contender.batches.close()
    return running


def warm(path):
    with open(path, "rb", buffering=0) as file:
        room = bytearray(64 << 20)
        while file.readinto(room):
            pass


def prefault(ds):
    """The first touch of every window, which is part of no rate; it is printed."""
    began = time.perf_counter()
    for start in range(0, len(ds) - LENGTH, 64 << 20):
        ds.gather(np.arange(start, min(start + (64 << 20), len(ds) - LENGTH), 32 << 20), LENGTH)
    print(f"first touch of the whole file: {time.perf_counter() - began:.2f} s, {ds.stats()['choice']}")


def pinned_wall():
    import torch

    there, here = torch.empty(256 << 20, dtype=torch.uint8, device="cuda"), torch.empty(256 << 20, dtype=torch.uint8).pin_memory()
    there.copy_(here)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(16):
        there.copy_(here, non_blocking=True)
    torch.cuda.synchronize()
    return 16 * (256 << 20) / (time.perf_counter() - began)


def check(ds, path):
    """A batch by each of the two types is what is in the file."""
    data = np.memmap(path, dtype=np.uint16, mode="r")
    starts = np.random.default_rng(9).integers(0, len(ds) - LENGTH, ROWS)
    want = np.stack([data[s : s + LENGTH] for s in starts])
    assert np.array_equal(ds.gather(starts, LENGTH).cpu().numpy(), want), "other tokens"
    assert np.array_equal(ds.gather(starts, LENGTH, dtype="int64").cpu().numpy(), want), "other tokens, widened"


def leaks(options):
    import hbmfs
    import torch

    def usage():
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {
            "hbm": torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0],
            "host": pages * os.sysconf("SC_PAGE_SIZE"),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
        }

    starts = np.arange(0, 64_000, 1000)

    def dataset_round(reader):
        with hbmfs.open(options.file, reader=reader, dtype="uint16") as ds:
            ds.gather(starts, 129)
            ds.begin_gather(starts, 129)  # forgotten on purpose

    def reader_round(_):
        with hbmfs.open(options.file, "cuda:0", dtype="uint16") as ds:
            ds.gather(starts, 129, dtype="int64")

    grown = {}
    torch.empty(1, device="cuda")
    with hbmfs.Reader("cuda:0", arena=64 << 20) as reader:
        for name, action, rounds, argument in (("datasets", dataset_round, options.rounds, reader), ("readers", reader_round, options.rounds // 100, None)):
            for _ in range(max(20, rounds // 50)):
                action(argument)
            before, began = usage(), time.perf_counter()
            for _ in range(rounds):
                action(argument)
            seconds, after = time.perf_counter() - began, usage()
            grown[name] = {"rounds": rounds, "seconds": seconds, "before": before, "after": after}
            print(f"{rounds} {name} opened, read and closed in {seconds:.1f} s: " + ", ".join(f"{key} {before[key]} -> {after[key]}" for key in before))
    return grown


def train(options):
    import hbmfs
    import torch
    import torch.nn.attention

    rows, length, steps = 32, 513, options.steps
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # what nobody reads
    random = np.random.default_rng(5)
    data = np.memmap(options.file, dtype=np.uint16, mode="r")
    plan = random.integers(0, len(data) - length, (steps, rows))

    def plain():
        for starts in plan:
            batch = torch.stack([torch.from_numpy(data[s : s + length].astype(np.int64)) for s in starts])
            yield batch.pin_memory().to("cuda", non_blocking=True)

    def ours():
        with hbmfs.open(options.file, "cuda:0", dtype="uint16") as ds, ds.queue(4) as queue:
            ahead = iter(plan)
            for starts in ahead:
                queue.put(starts, length, dtype="int64")
                if queue.full:
                    break
            while len(queue):
                yield queue.get()
                for starts in ahead:
                    queue.put(starts, length, dtype="int64")
                    break

    results = {}
    for name, loader in (("plain", plain), ("hbmfs", ours), ("plain again", plain), ("hbmfs again", ours)):
        r = results[name] = losses(loader(), torch)
        assert len(r["losses"]) == steps
        print(
            f"{name:12s} {r['seconds']:6.2f} s for {steps} steps, GPU idle {100 * r['idle']:5.1f} %, "
            f"waiting for batches {r['waited']:6.2f} s, for the first {1000 * r['first']:.0f} ms, last loss {r['losses'][-1]}",
            flush=True,
        )
    same = len({tuple(r["losses"]) for r in results.values()}) == 1
    print("losses: " + ("the same bits" if same else "OTHER BITS"))
    assert same
    return {"same_bits": same, **{name: {**r, "losses": r["losses"][-1]} for name, r in results.items()}}


def losses(loader, torch):
    """Trains a small transformer; gives the losses as hexadecimal, the time, and the part in which the GPU computed nothing."""
    torch.manual_seed(1)
    width = 512
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    model = torch.nn.ModuleDict(
        {
            "embed": torch.nn.Embedding(VOCABULARY, width),
            "body": torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            "head": torch.nn.Linear(width, 1024),
        }
    )
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept, events, waited, first = [], [], 0.0, 0.0
    torch.cuda.synchronize()
    began = time.perf_counter()
    while True:
        asked = time.perf_counter()
        batch = next(loader, None)
        waited += time.perf_counter() - asked
        if not kept:
            first = waited
        if batch is None:
            break
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        # Of the attention kernels the plain one gives the same bits each time.
        with torch.autocast("cuda", torch.bfloat16), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            hidden = model["body"](model["embed"](batch[:, :-1]))
            # 1,024 classes stand for the vocabulary, so that the step is short enough for the loader to matter.
            loss = torch.nn.functional.cross_entropy(model["head"](hidden).float().flatten(0, 1), batch[:, 1:].flatten() % 1024)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end.record()
        kept.append(loss.detach())
        events.append((start, end))
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    busy = sum(start.elapsed_time(end) for start, end in events) / 1000
    return {"losses": [float(loss).hex() for loss in kept], "seconds": seconds, "idle": max(0.0, 1 - busy / seconds), "waited": waited, "first": first}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "batches", "leaks", "train"])
    parser.add_argument("file")
    parser.add_argument("--gib", type=int, default=16)
    parser.add_argument("--mount", help="a mount of the file's folder")
    parser.add_argument("--seconds", type=float, default=1.0, help="of one round of a slow loader; fast ones take a quarter")
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--json", help="where the result goes")
    options = parser.parse_args()
    result = {"make": make, "batches": batches, "leaks": leaks, "train": train}[options.what](options)
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
