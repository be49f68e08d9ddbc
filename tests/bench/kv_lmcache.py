"""LMCache's second level in a KV volume beside its backend `fs`, by LMCache's own benchmark (lmcache bench l2), in turn.

    hbmfs kv mount --size 4GiB --memory 1GiB DIRECTORY MOUNTPOINT
    python tests/bench/kv_lmcache.py MOUNTPOINT OTHER_DIRECTORY [--kib 64,256,1024,2048] [--rounds 20] [--repeats 3] [--sums]

OTHER_DIRECTORY is on the same disk, for `fs`; what lies in OTHER_DIRECTORY/fs is removed. Each repeat runs both adapters, the order turned around every
time; a first one is not counted: it brings the volume's memory. It prints milliseconds of a batch (p50 and p99 of all rounds of all repeats) and the ratio
of the p50 of `fs` to ours. torch gets one thread: its threads spin after each fill of a buffer, on the CPUs that adapters need.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import contextlib
import io
import json
import re
import shutil
import statistics
import sys
from pathlib import Path

import hbmfs
from hbmfs.lmcache import block_key
from lmcache.cli.commands.bench.l2_adapter_bench.data import make_object_keys
from lmcache.cli.main import main


def adapter(name, options, kib):
    if name == "hbmfs":
        parameters = {"mount": options.mount, "namespace": f"bench-{kib}", "block_bytes": kib << 10, "sums": options.sums}
        return {"type": "plugin", "module_path": "hbmfs.lmcache", "class_name": "KVVolumeAdapter", "adapter_params": parameters}
    where = Path(options.directory) / name
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    return {"type": "fs", "base_path": str(where)}


def rounds(said, warmup):
    """The milliseconds of each counted round, by operation."""
    found = {}
    for kind, number, took in re.findall(r"\[(Store|Lookup|Load)\] Round (\d+): ([\d.]+) ms", said):
        if int(number) > warmup:
            found.setdefault(kind, []).append(float(took))
    return found


def run(name, options, kib):
    if name == "hbmfs":
        keys = make_object_keys(options.keys * (options.rounds + options.warmup))
        with hbmfs.KVStore(options.mount, f"bench-{kib}", kib << 10) as store:
            store.remove_many([block_key(key) for key in keys]).result()  # clear() would give the memory back
    said = io.StringIO()
    arguments = ["--num-keys", str(options.keys), "--data-size-kb", str(kib), "--rounds", str(options.rounds), "--lookup-max-hit-rate", "0.5"]
    arguments += ["--warmup-rounds", str(options.warmup), "--no-skip-verify", "--l1-align-bytes", "4096"]
    with contextlib.redirect_stdout(said):
        main(["bench", "l2", "--l2-adapter", json.dumps(adapter(name, options, kib)), *arguments])
    text = said.getvalue()
    if "data verified OK" not in text or "TIMEOUT" in text or f"Total success:{options.keys * options.rounds:>50}"[-8:] not in text:
        raise SystemExit(f"{name} of {kib} KiB failed:\n{text}")
    return rounds(text, options.warmup)


def p99(values):
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("mount")
    parser.add_argument("directory")
    parser.add_argument("--kib", default="64,256,1024,2048")
    parser.add_argument("--keys", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=8, help="rounds that are not counted: a process has pages to map at first")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sums", action="store_true")
    return parser.parse_args()


def compare(options):
    names = ["hbmfs", "fs"]
    print(
        f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs; batches of {options.keys} blocks; milliseconds, p50 and p99 of {options.rounds * options.repeats}"
    )
    print(f"{'KiB':>5} {'':10} {'store':>15} {'lookup':>15} {'load':>15}   as many times as hbmfs: store, lookup, load")
    for kib in map(int, options.kib.split(",")):
        took = {name: {} for name in names}
        for repeat in range(options.repeats + 1):
            for name in names[:: 1 if repeat % 2 else -1]:
                found = run(name, options, kib)
                for kind in found if repeat else ():
                    took[name].setdefault(kind, []).extend(found[kind])
        for name in names:
            cells = [f"{statistics.median(took[name][kind]):7.2f}{p99(took[name][kind]):8.2f}" for kind in ("Store", "Lookup", "Load")]
            ratios = [statistics.median(took[name][kind]) / statistics.median(took["hbmfs"][kind]) for kind in ("Store", "Lookup", "Load")]
            print(f"{kib:5} {name:10} {' '.join(cells)}   {'  '.join(f'{ratio:5.1f}' for ratio in ratios) if name != 'hbmfs' else ''}", flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    sys.exit(compare(parse()))
