"""Blocks from HBM to a KV volume and back, beside pinned copies of the same bytes in the same run.

    hbmfs kv mount --size 4GiB --memory 20GiB DIRECTORY /mnt/kv
    kv.py --mount /mnt/kv [--gb 16] [--block 2097152,262144] [--rounds 5] [--json FILE] [--cpu]

For each size of blocks it puts a set of them, gets it back into other memory, and does both at once; then it copies as many bytes between HBM and
pinned memory, 8 MiB at a time: out, in, and both at once. All blocks are compared. It prints GB/s, the ratio to the pinned copies, and CPU seconds a GB of this
process (the daemon moves no bytes). --cpu does the same on host memory with a memcpy for a copy, to check the script where there is no GPU.
The first round brings and registers the volume's memory, and is not counted.
"""

import argparse
import json
import os
import statistics
import threading
import time

import hbmfs
import torch


class Device:
    """The GPU, or the host that stands for it."""

    def __init__(self, cpu):
        self.cpu = cpu
        self.device = torch.device("cpu" if cpu else "cuda:0")
        self.streams = None if cpu else (torch.cuda.Stream(), torch.cuda.Stream())

    def synchronize(self):
        if not self.cpu:
            torch.cuda.synchronize()

    def pinned(self, n):
        return torch.empty(n, dtype=torch.uint8, pin_memory=not self.cpu)

    def copy(self, which, to, source, step=8 << 20):
        """Copies on a stream of its own."""
        if self.cpu:
            to.copy_(source)
            return
        with torch.cuda.stream(self.streams[which]):
            for at in range(0, len(to), step):
                to[at : at + step].copy_(source[at : at + step], non_blocking=True)


def both(one, other):
    thread = threading.Thread(target=other)
    thread.start()
    one()
    thread.join()


def timed(device, work):
    """Seconds, and CPU seconds of this process."""
    device.synchronize()
    start, cpu = time.perf_counter(), time.process_time()
    work()
    device.synchronize()
    return time.perf_counter() - start, time.process_time() - cpu


def measure(device, options, block):
    n = int(options.gb * 1e9) // block // 2 * 2
    size, half = n * block, n // 2
    data = torch.randint(0, 256, (size,), dtype=torch.uint8, device=device.device).view(n, block)
    back = torch.empty_like(data)
    host = device.pinned(size // 2), device.pinned(size // 2)
    found = {}

    def add(name, took, moved):
        found.setdefault(name, []).append((moved / took[0] / 1e9, took[1] / (moved / 1e9)))

    with hbmfs.KVStore(options.mount, f"bench-{block}", block, device=device.device, sums=options.sums) as store:
        for round in range(options.rounds + 1):
            names = [b"%d-%d" % (round % 2, i) for i in range(n)]
            store.remove_many([b"%d-%d" % (1 - round % 2, i) for i in range(n)]).result()
            put = timed(device, lambda: whole(store.put_many(names, data)))
            back.zero_()
            get = timed(device, lambda: whole(store.get_many(names, back)))
            if not torch.equal(back, data):
                raise SystemExit("other bytes came back")
            whole_done(store.remove_many(names[half:]))
            at_once = timed(
                device, lambda: both(lambda: whole(store.get_many(names[:half], back[:half])), lambda: whole(store.put_many(names[half:], data[half:])))
            )
            flat, out = data.view(-1)[: size // 2], back.view(-1)[: size // 2]
            copies = [
                timed(device, lambda: device.copy(0, host[0], flat)),
                timed(device, lambda: device.copy(1, out, host[0])),
                timed(device, lambda: both(lambda: device.copy(0, host[1], flat), lambda: device.copy(1, out, host[0]))),
            ]
            if round:
                for name, took, moved in [("put", put, size), ("get", get, size), ("both", at_once, size)]:
                    add(name, took, moved)
                for name, took, moved in zip(("pinned out", "pinned in", "pinned both"), copies, (size // 2, size // 2, size), strict=True):
                    add(name, took, moved)
        moved = store.stats()
    return {"block": block, "blocks": n, "moved": {"put": moved["put"], "get": moved["get"]}, "pinned": moved["pinned"], "rates": found}


def whole(future):
    result = future.result()
    if not all(result.done):
        raise SystemExit(f"some blocks were not moved: {set(result.outcomes)}: give the volume more --memory")


def whole_done(future):
    if not all(future.result()):
        raise SystemExit("some blocks were not there")


def show(result):
    print(f"blocks of {result['block']} bytes, {result['blocks']} of them; {result['moved']}; registered {result['pinned']}")
    medians = {name: [statistics.median(column) for column in zip(*values, strict=True)] for name, values in result["rates"].items()}
    for name, peer in (("put", "pinned out"), ("get", "pinned in"), ("both", "pinned both")):
        rates = [rate for rate, _ in result["rates"][name]]
        rate, cpu = medians[name]
        print(
            f"  {name:5} {rate:6.1f} GB/s ({min(rates):.1f} to {max(rates):.1f}), {rate / medians[peer][0]:.2f} of {peer} at {medians[peer][0]:.1f}; CPU {cpu:.3f} s/GB"
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mount", required=True)
    parser.add_argument("--gb", type=float, default=16)
    parser.add_argument("--block", default="2097152,262144")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sums", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    device = Device(options.cpu)
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs, {'the host' if options.cpu else torch.cuda.get_device_name(0)}")
    results = []
    for block in map(int, options.block.split(",")):
        results.append(measure(device, options, block))
        show(results[-1])
    if options.json:
        with open(options.json, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
