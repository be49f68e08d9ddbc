"""killed_saves.py DIRECTORY: kills a process that saves, at each system call that makes or publishes a checkpoint.

Children save step_1 beside a complete step_0, under strace, which kills them. After each, step_0 is whole and loads, step_1 is whole or
not there, and the next save takes what was left. One process imports torch; the children are forks of it.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import traceback
import warnings

import hbmfs
import torch
import torch.distributed.checkpoint as dcp
from hbmfs.checkpoints import _publishing

CALLS = {
    "mkdirat": 2,
    "flock": 2,
    "openat": 5,
    "fallocate": 2,
    "pwrite64": 3,
    "ftruncate": 2,
    "fsync": 4,
    "fchmod": 2,
    "renameat": 1,
    "renameat2": 1,
    "unlinkat": 2,
}
"""How often a thread makes each at most, as far as is tried. Threads are counted one by one."""
SYNCED = ("", "/.step_1.hbmfs.tmp", "/.step_1.hbmfs.tmp/__0_0.distcp", "/.step_1.hbmfs.tmp/.metadata", "/.step_1.hbmfs.tmp/.hbmfs-manifest.json")
PATIENCE = 120


def state(seed):
    return {"large": torch.full((300_000,), float(seed)), "small": torch.full((3,), float(seed)), "step": seed}


def save(step, path):
    dcp.save(state(step), storage_writer=hbmfs.DCPWriter(path / f"step_{step}"), no_dist=True)


def check(path):
    """What is listed is whole, and loads. Then the next process saves the same step, unless it is there."""
    found = [entry.name for entry in _publishing.complete(path)]
    assert found in (["step_0"], ["step_0", "step_1"]), found
    for name in found:
        _publishing.verify(path / name)
        loaded, step = state(7), int(name[-1])
        dcp.load(loaded, storage_reader=dcp.FileSystemReader(path / name), no_dist=True)
        assert all(torch.equal(loaded[key], state(step)[key]) for key in ("large", "small")) and loaded["step"] == step
    assert sorted(name for name in os.listdir(path) if not name.startswith(".")) == found, "what is not listed is hidden"
    if len(found) == 1:
        save(1, path)
    else:
        _publishing.clean(path)
    assert sorted(os.listdir(path)) == ["step_0", "step_1"], os.listdir(path)
    _publishing.verify(path / "step_1")


def child(job, *arguments, after=None):
    """Runs a job in a fork of this process, once something was read from `after`."""
    pid = os.fork()
    if pid == 0:
        try:
            if after is not None:
                os.read(after, 1)
            job(*arguments)
            os._exit(0)
        except BaseException:  # the fork must not return
            traceback.print_exc()
            os._exit(1)
    return pid


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed(path, *options):
    """Saves under strace, and tells whether that was killed."""
    reads, writes = os.pipe()
    saver = child(save, 1, path, after=reads)
    tracer = subprocess.Popen(["strace", "-f", "-qq", "-o", "/dev/null", *options, "-p", str(saver)])
    try:
        end = time.monotonic() + PATIENCE
        while f"TracerPid:\t{tracer.pid}\n" not in pathlib.Path(f"/proc/{saver}/status").read_text():
            assert time.monotonic() < end and tracer.poll() is None, "strace does not attach"
            time.sleep(0.002)
        os.write(writes, b"x")
        code = ended(saver)
    finally:
        os.close(reads)
        os.close(writes)
        tracer.wait(PATIENCE)
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def main(directory):
    warnings.simplefilter("ignore")
    path = pathlib.Path(directory)
    assert ended(child(save, 0, path)) == 0
    counts = {}
    cases = [(call, [f"inject={call}:signal=KILL:when={when}"]) for call, most in CALLS.items() for when in range(1, most + 1)]
    cases += [("fsync of a path", ["inject=fsync:signal=KILL:when=1", "-P", f"{path}{name}"]) for name in SYNCED]
    finished = set()
    for name, (inject, *options) in cases:
        if name in finished:
            continue
        hit = killed(path, "-e", inject, *options)
        counts[name] = counts.get(name, 0) + hit
        if not hit and name in CALLS:
            finished.add(name)  # no thread makes it so often
        assert ended(child(check, path)) == 0, (name, inject, options)
        shutil.rmtree(path / "step_1")
    print("killed at", ", ".join(f"{name} ({count})" for name, count in counts.items()))
    assert all(counts[name] for name in ("fallocate", "pwrite64", "ftruncate", "fsync", "mkdirat")) and counts["renameat"] + counts["renameat2"], counts
    assert counts["fsync of a path"] == len(SYNCED), counts


if __name__ == "__main__":
    main(sys.argv[1])
