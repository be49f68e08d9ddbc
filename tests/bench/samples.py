"""Random batches of samples from a mount of many shards, beside the loaders of MosaicML, LitData and WebDataset.

    samples.py HBMFS [--dir DIR] [--device cpu] [--samples 8192] [--shards 256] [--batch 128] [--workers 2] [--rounds 5] [--alone]
        [--skip LOADER]... [--decode] [--same-order] [--json FILE]

HBMFS is the built command; HBMFS_LIBRARY and PYTHONPATH name the package that is measured. `make bench-samples` runs it with Python's packages of
tests/requirements-peers.txt. There are two sets: "jpg" has 50 to 250 kB of random bytes in each sample, and "latent" an array of float16 of 32 KiB.
hbmfs mounts the shards that MosaicML's writer made, and MosaicML's loader reads the same files. LitData and WebDataset have shards of their own writers.
All but WebDataset shuffle the samples, each in its own order; WebDataset reads its shards in sequence. Each loader gives one tensor of all values of a batch.
Workers put it together, and with a GPU pin it, before it goes to the device. The files are in the page cache. Loaders take turns of a second.
--skip leaves out the rows that begin so. Without MosaicML's writer this file writes the shards, in the same format.

With --same-order MosaicML's and LitData's loaders give the samples in the order that SampleStream gives them: by number, through a sampler of torch's
DataLoader.

With --decode there is one set, "image": JPEGs of 256 x 256 pixels, 512 different ones. Each loader gives the bytes in memory of the host, pinned with a
GPU. torchvision's decode_jpeg makes batches of images on the device of them, which are resized to 224 x 224. One row is the decoder alone.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import multiprocessing.util
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import hbmfs
import numpy as np
import torch
from hbmfs.data.permutation import Permutation

REST = 2  # seconds in which workers make the batches that they keep ready
SHAPE = (4, 64, 64)


def made(kind, samples):
    """The samples, the same for all."""
    random = np.random.default_rng(0)
    block = random.integers(0, 256, 1 << 20, np.uint8)
    for _ in range(samples):
        at = int(random.integers(0, 1 << 19))
        if kind == "image":
            yield jpegs()[at % len(jpegs())]
        else:
            yield block[at : at + int(random.integers(50_000, 250_000))].tobytes() if kind == "jpg" else block[at : at + 32768].view(np.float16).reshape(SHAPE)


@functools.cache
def jpegs():
    """Different pictures, of smooth colours and some noise."""
    from torchvision.io import encode_jpeg

    def picture(seed):
        random = torch.Generator().manual_seed(seed)
        smooth = torch.nn.functional.interpolate(torch.rand(1, 3, 24, 24, generator=random), 256, mode="bilinear")[0]
        return (smooth * 220 + torch.rand(3, 256, 256, generator=random) * 35).to(torch.uint8)

    return [encode_jpeg(picture(seed), 90).numpy().tobytes() for seed in range(512)]


def decoded(values, offsets, device):
    """A batch of images of 224 x 224 on the device."""
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.v2.functional import resize

    at = offsets.tolist()
    images = decode_jpeg([values[a:b] for a, b in zip(at, at[1:])], mode=ImageReadMode.RGB, device=device)
    return resize(torch.stack(images), [224, 224])


def collate(samples):
    """One tensor of all values, and where each sample's begin."""
    if not isinstance(samples[0], (bytes, memoryview)):
        return torch.from_numpy(np.stack(samples)), None
    return torch.frombuffer(bytearray(b"".join(samples)), dtype=torch.uint8), torch.tensor(np.cumsum([0, *map(len, samples)]))


def first_field(samples):
    """The same of a loader's samples, which are dicts or tuples of one field."""
    return collate([next(iter(sample.values())) if isinstance(sample, dict) else sample[0] for sample in samples])


def stream(folder, kind, options, place):
    """SampleStream with its defaults, again and again."""
    batches = hbmfs.SampleStream(hbmfs.SampleDataset(folder, {kind: place}, tensors=True), options.batch, seed=1)
    while True:
        for batch in batches:
            if kind == "image":
                yield decoded(*batch[kind], options.device)
            else:
                yield batch[kind] if kind == "latent" else batch[kind].values


def to_device(batches, options):
    """The values on the device, of a loader that is begun anew at its end."""
    while True:
        for values, offsets in batches:
            yield decoded(values, offsets, options.device) if options.decode else values.to(options.device, non_blocking=True)


def loading(options):
    return {"num_workers": options.workers, "prefetch_factor": 4, "persistent_workers": True, "pin_memory": options.device != "cpu"}


class Order:
    """A sampler of SampleStream's order: seed 1, an epoch each time."""

    def __init__(self, samples):
        self.samples, self.epoch = samples, 0

    def __len__(self):
        return self.samples

    def __iter__(self):
        self.epoch += 1
        return iter(Permutation(self.samples, 1, self.epoch - 1)(np.arange(self.samples)).tolist())


class ByNumber:
    """A loader's dataset as map-style alone: DataLoader takes no sampler for one that it could iterate over."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.data[i]


def in_same_order(data, options):
    data = ByNumber(data)
    loader = torch.utils.data.DataLoader(data, options.batch, sampler=Order(len(data)), drop_last=True, collate_fn=first_field, **loading(options))
    return to_device(loader, options)


def plain_write(folder, kind, column, options):
    """Shards as MosaicML's writer makes them."""
    os.makedirs(folder)
    samples, shards = made(kind, options.samples), []
    for i in range(options.shards):
        raw = [sample if isinstance(sample, bytes) else sample.tobytes() for _, sample in zip(range(options.samples // options.shards), samples)]
        size = len(raw[0]) if kind == "latent" else None
        raw = raw if size else [np.uint32(len(sample)).tobytes() + sample for sample in raw]
        said = {"column_encodings": [column], "column_names": [kind], "column_sizes": [size], "compression": None, "format": "mds", "hashes": [], "size_limit": None, "version": 2}
        config = json.dumps(said, sort_keys=True).encode()
        begins = np.cumsum([0, *map(len, raw)]) + 4 + 4 * (len(raw) + 1) + len(config)
        data = np.uint32(len(raw)).tobytes() + begins.astype(np.uint32).tobytes() + config + b"".join(raw)
        name = f"shard.{i:05d}.mds"
        with open(f"{folder}/{name}", "wb") as file:
            file.write(data)
        shards.append({**said, "raw_data": {"basename": name, "bytes": len(data), "hashes": {}}, "samples": len(raw), "zip_data": None})
    with open(f"{folder}/index.json", "w") as file:
        json.dump({"shards": shards, "version": 2}, file)


def mosaic_write(folder, kind, options):
    column = f"ndarray:float16:{','.join(map(str, SHAPE))}" if kind == "latent" else "bytes"
    try:
        from streaming import MDSWriter
    except ImportError:
        return plain_write(folder, kind, column, options)
    each = options.samples // options.shards
    size = each * {"jpg": 150_000, "latent": 32768, "image": statistics.mean(map(len, jpegs())) if kind == "image" else 0}[kind]
    with MDSWriter(out=folder, columns={kind: column}, size_limit=int(size)) as out:
        for sample in made(kind, options.samples):
            out.write({kind: sample})


def mosaic(folder, options):
    from streaming import StreamingDataLoader, StreamingDataset

    data = StreamingDataset(local=folder, shuffle=not options.same_order, batch_size=options.batch)
    if options.same_order:
        return in_same_order(data, options)
    return to_device(StreamingDataLoader(data, batch_size=options.batch, collate_fn=first_field, **loading(options)), options)


class Numbered:
    """A sample by its number, for the processes that write LitData's."""

    def __init__(self, kind):
        self.kind = kind

    def __call__(self, i):
        random = np.random.default_rng(i)
        if self.kind == "jpg":
            return {"jpg": random.bytes(int(random.integers(50_000, 250_000)))}
        if self.kind == "image":
            return {"image": jpegs()[i % len(jpegs())]}
        return {"latent": random.integers(0, 256, 32768, np.uint8).view(np.float16).reshape(SHAPE)}


def litdata(folder, kind, options):
    import litdata

    for name in ("DATA_OPTIMIZER_CACHE_FOLDER", "DATA_OPTIMIZER_DATA_CACHE_FOLDER"):
        os.environ[name] = f"{folder}-{name}"
    litdata.optimize(fn=Numbered(kind), inputs=list(range(options.samples)), output_dir=folder, num_workers=options.writers, chunk_size=options.samples // options.shards, verbose=False)
    data = litdata.StreamingDataset(folder, shuffle=not options.same_order, drop_last=True)
    if options.same_order:
        return in_same_order(data, options)
    return to_device(litdata.StreamingDataLoader(data, batch_size=options.batch, collate_fn=first_field, **loading(options)), options)


def webdataset(folder, kind, options):
    import webdataset as wds

    os.makedirs(folder)
    with wds.ShardWriter(f"{folder}/%06d.tar", maxcount=options.samples // options.shards, verbose=0) as out:
        for i, sample in enumerate(made(kind, options.samples)):
            if kind == "latent":
                np.save(file := io.BytesIO(), sample)
            out.write({"__key__": f"{i:08d}", **({"npy": file.getvalue()} if kind == "latent" else {"jpg": sample})})
    urls = [f"{folder}/{name}" for name in sorted(os.listdir(folder))]
    data = wds.WebDataset(urls, shardshuffle=False, empty_check=False)
    data = (data.decode() if kind == "latent" else data).to_tuple("npy" if kind == "latent" else "jpg").batched(options.batch, collation_fn=first_field)
    return to_device(wds.WebLoader(data, batch_size=None, **loading(options)), options)


def copies(options):
    """A copy of pinned memory to the GPU, of as many bytes as a batch has: the link. Without a GPU a copy in memory."""
    values = torch.ones(options.batch * 150_000, dtype=torch.uint8, pin_memory=options.device != "cpu")
    to = torch.empty_like(values, device=options.device)
    while True:
        yield to.copy_(values, non_blocking=True)


def decoder(options):
    """Batches of images of bytes in memory."""
    samples = collate(list(made("image", options.batch)))
    while True:
        yield decoded(*samples, options.device)


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Turn:
    """A loader and what was measured of it."""

    def __init__(self, name, batches, options, workers=False):
        self.name, self.batches, self.options, self.workers, self.rates, self.bytes, self.cpu = name, batches, options, workers, [], [], []
        began = time.perf_counter()
        next(batches)
        self.wait()
        self.first = time.perf_counter() - began

    def wait(self):
        if self.options.device != "cpu":
            torch.cuda.synchronize()

    def measure(self, seconds, keep=True):
        self.wait()
        began, used, count, size = time.perf_counter(), cpu(), 0, 0
        while time.perf_counter() - began < seconds:
            values = next(self.batches)
            count, size = count + 1, size + values.numel() * values.element_size()
            if count % 64 == 0:
                self.wait()  # copies would run ahead without end
        self.wait()
        if keep:
            took = time.perf_counter() - began
            self.rates.append(count * self.options.batch / took)
            self.bytes.append(size / took / 1e9)
            self.cpu.append((cpu() - used) / took)
            print(f"{self.name}: {self.rates[-1]:,.0f} samples/s, {self.bytes[-1]:.2f} GB/s, {self.cpu[-1]:.2f} CPUs", file=sys.stderr, flush=True)


def begin(turns, name, make, options, workers=True):
    if any(map(name.startswith, options.skip)):
        return
    began = time.perf_counter()
    try:
        turns[name] = Turn(name, make(), options, workers)
        print(f"{name}: made, and begun, in {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    except Exception as err:  # others' loaders fail in many ways where packages are missing
        print(f"{name} was not measured: {err!r}. `make bench-samples` has what it needs", file=sys.stderr)


def take_turns(turns, options):
    for turn in turns.values():
        if not turn.workers:  # which have made batches since they began
            turn.measure(2 * options.seconds, keep=False)
    for _ in range(options.rounds):
        for turn in turns.values():
            turn.measure(options.seconds / 4, keep=False)
            turn.measure(options.seconds)
            if turn.workers:
                time.sleep(min(REST, 2 * options.seconds))


def report(turns, options):
    print(f"{options.samples} samples in {options.shards} shards, batches of {options.batch}, {options.workers} workers, {os.cpu_count()} CPUs, {options.device}, torch {torch.__version__}")
    print("| loader | samples/s | GB/s | CPUs of this process | first batch, s |\n|---|---|---|---|---|")
    for name, turn in turns.items():
        rate = statistics.median(turn.rates)
        print(
            f"| {name} | {rate:,.0f} ({min(turn.rates):,.0f} to {max(turn.rates):,.0f}) | {statistics.median(turn.bytes):.2f} | {statistics.median(turn.cpu):.2f} | {turn.first:.2f} |"
        )
    if options.json:
        with open(options.json, "w") as file:
            json.dump({name: {"rates": turn.rates, "gb": turn.bytes, "cpus": turn.cpu, "first_s": turn.first} for name, turn in turns.items()}, file, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hbmfs")
    parser.add_argument("--dir")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--shards", type=int, default=256)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--writers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--alone", action="store_true", help="without the loaders of others")
    parser.add_argument("--skip", action="append", default=[], metavar="LOADER")
    parser.add_argument("--decode", action="store_true", help="images, decoded on the device")
    parser.add_argument("--same-order", action="store_true", help="the peers that can give samples by number read SampleStream's order")
    parser.add_argument("--json")
    options = parser.parse_args()
    work, turns = tempfile.mkdtemp(dir=options.dir), {}
    # After multiprocessing's own finalizers, which remove what is below.
    multiprocessing.util.Finalize(None, subprocess.run, (["rm", "-rf", work],), {"check": False}, exitpriority=-1000)
    kinds, on_cpu = ("image",) if options.decode else ("jpg", "latent"), options.device == "cpu"
    os.environ["TMPDIR"] = tempfile.tempdir = f"{work}/temporary"  # where others leave files
    os.mkdir(tempfile.tempdir)
    mount = f"{work}/mount"
    os.mkdir(mount)
    try:
        if options.decode:
            begin(turns, "the decoder alone", lambda: decoder(options), options, workers=False)
        else:
            begin(turns, "a copy in memory" if on_cpu else "a pinned copy: the link", lambda: copies(options), options, workers=False)
        for kind in kinds:
            mosaic_write(f"{work}/mds/{kind}", kind, options)
        subprocess.run([options.hbmfs, "mount", f"{work}/mds", mount], check=True, stdout=subprocess.DEVNULL)
        for kind in kinds:
            for place in ("cpu",) if on_cpu else ("pinned",) if options.decode else ("pinned", options.device):
                begin(turns, f"SampleStream, {kind} to {place}", lambda k=kind, p=place: stream(f"{mount}/{k}", k, options, p), options, workers=False)
            if options.alone:
                continue
            order = " in the same order" * options.same_order
            begin(turns, f"MosaicML Streaming{order}, {kind}", lambda k=kind: mosaic(f"{work}/mds/{k}", options), options)
            begin(turns, f"LitData{order}, {kind}", lambda k=kind: litdata(f"{work}/litdata-{k}", k, options), options)
            begin(turns, f"WebDataset in sequence, {kind}", lambda k=kind: webdataset(f"{work}/wds-{k}", k, options), options)
        take_turns(turns, options)
        report(turns, options)
    finally:
        turns.clear()
        if os.path.ismount(mount):
            subprocess.run([options.hbmfs, "umount", "--lazy", mount], check=False, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
