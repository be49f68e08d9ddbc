"""DCPWriter into a checkpoint volume, past FUSE, beside the same into the directory below it, in turn.

    hbmfs checkpoint mount /data/volume /mnt/volume
    volume_save.py --directory /data/plain --volume /mnt/volume [--gb 15.7] [--pairs 7] [--json FILE] [--cpu]

/data/plain and /data/volume lie on one filesystem. Each pair is one dcp.save of the same state each way, by one Writer, the first way in
turn; what a save has written is removed before the next. What begins and publishes is timed by itself, too: the rest is writing, on a
disk that others may share. The last checkpoint of the volume is loaded through the mount, and every tensor
compared bit by bit. The first pair warms up, and is not counted.
"""

import argparse
import json
import os
import shutil
import statistics
import time
import warnings

import hbmfs
import torch.distributed.checkpoint as dcp
from dcp_save import Run, check
from hbmfs.checkpoints import _publishing

AROUND = {"begin": 0.0, "publish": 0.0}
"""Seconds of the save that is under way."""


def timed(name):
    call = getattr(_publishing.Draft, name)

    def wrapped(*arguments, **options):
        start = time.perf_counter()
        try:
            return call(*arguments, **options)
        finally:
            AROUND[name] += time.perf_counter() - start

    setattr(_publishing.Draft, name, staticmethod(wrapped) if name == "begin" else wrapped)


def save(run, writer, path):
    AROUND.update(begin=0.0, publish=0.0)
    run.synchronize()
    start = time.perf_counter()
    storage = hbmfs.DCPWriter(path, writer=writer, progress=False)
    dcp.save(run.state, storage_writer=storage, **run.options)
    return time.perf_counter() - start, storage.way, sum(AROUND.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--volume", required=True)
    parser.add_argument("--gb", type=float, default=15.7)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=300, help="after which nothing new begins")
    parser.add_argument("--json")
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    run = Run(args)
    run.say(f"a state of {run.bytes / 1e9:.2f} GB")
    os.makedirs(args.directory, exist_ok=True)
    took = {"directory": [], "volume": []}
    around = {"directory": [], "volume": []}
    timed("begin")
    timed("publish")
    with hbmfs.Writer(run.device) as writer:
        for pair in range(args.pairs + 1):
            if run.late():
                break
            for way in sorted(took, reverse=pair % 2 == 1):
                path = os.path.join(getattr(args, way), f"save-{pair}")
                seconds, went, aside = save(run, writer, path)
                assert went == way, (went, way)
                run.say(f"{'warming up, ' if pair == 0 else ''}{way}: {seconds:.3f} s, {run.bytes / seconds / 1e9:.2f} GB/s; begin and publish {aside:.3f} s")
                if pair:
                    took[way].append(seconds)
                    around[way].append(aside)
                if pair == args.pairs and way == "volume":
                    run.change()
                    check(run, path)
                shutil.rmtree(path) if way == "directory" else os.rmdir(path)
                os.sync()
        stats = writer.stats()
    middle = {way: statistics.median(taken) for way, taken in took.items()}
    ratios = [volume / directory for volume, directory in zip(took["volume"], took["directory"], strict=True)]
    print(f"{run.bytes / 1e9:.2f} GB; {len(ratios)} pairs; {stats}")
    for way, taken in took.items():
        print(
            f"{way}: middle {middle[way]:.3f} s, {min(taken):.3f} to {max(taken):.3f} s, {run.bytes / middle[way] / 1e9:.2f} GB/s; "
            f"begin and publish {statistics.median(around[way]):.3f} s"
        )
    print(f"volume / directory, time: {middle['volume'] / middle['directory']:.3f} of the middles; pair by pair {min(ratios):.3f} to {max(ratios):.3f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"bytes": run.bytes, "seconds": took, "around": around, "stats": stats}, file, indent=1)


if __name__ == "__main__":
    main()
