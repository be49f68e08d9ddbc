"""Packs a dataset on a Ray cluster: one task for each part, and a last one that joins them.

    python pack_ray.py --parts 64 --out /shared/out /shared/web        # from the head node, or as a Ray job

Every node needs the hbmfs binary, and sees the sources and the output under the same paths (or the sources by s3://).
A worker that dies takes its `hbmfs pack` along. Ray starts the task again, and it goes on where the state in the part's
directory says. The result is the one of a single process, bit for bit.
"""

import argparse
import ctypes
import os
import signal
import subprocess
from pathlib import Path

import ray


def _die_with_parent() -> None:
    """Has the kernel end the child when its worker ends: nobody else would, and it holds the part's lock."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def run(*argv: str) -> None:
    done = subprocess.run(argv, stderr=subprocess.PIPE, text=True, preexec_fn=_die_with_parent, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())


@ray.remote(max_retries=5)
def pack_part(hbmfs: str, index: int, parts: int, sources: list[str], out: str, flags: list[str]) -> str:
    part = Path(out) / f"{index:05}"
    cores = str(int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
    run(hbmfs, "pack", "--part", f"{index}/{parts}", "--workers", cores, *flags, *sources, str(part))
    return str(part)


@ray.remote(max_retries=5)
def join(hbmfs: str, out: str, parts: list[str]) -> str:
    if not (Path(out) / "hbmfs-manifest.json").exists():
        run(hbmfs, "pack", "--join", out, *parts)
    return out


def pack(sources: list[str], out: str, parts: int, hbmfs: str = "hbmfs", cpus: int = 1, flags: tuple[str, ...] = ()) -> None:
    """Packs sources into out, by tasks of so many CPUs. flags are more flags of hbmfs pack, such as ("--to", "mds")."""
    work = out.rstrip("/") + ".parts"
    os.makedirs(work, exist_ok=True)
    task = pack_part.options(num_cpus=cpus)
    done = [task.remote(hbmfs, i, parts, sources, work, list(flags)) for i in range(parts)]
    ray.get(join.remote(hbmfs, out, ray.get(done)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="+")
    parser.add_argument("--out", required=True)
    parser.add_argument("--parts", type=int, default=16)
    parser.add_argument("--cpus", type=int, default=1, help="of a task")
    parser.add_argument("--hbmfs", default="hbmfs")
    parser.add_argument("--tokenizer", default="gpt2")
    args = parser.parse_args()
    ray.init()
    pack(args.source, args.out, args.parts, args.hbmfs, args.cpus, ("--tokenizer", args.tokenizer))


if __name__ == "__main__":
    main()
