"""checkpoint.py save|load DIR STEP [RATE]: what the demo shows of checkpoints. The weights are made of the step."""

import sys
import time

import hbmfs
import numpy as np


def weights(step):
    random = np.random.default_rng(step)
    return {f"layer.{number}": random.standard_normal((1024, 2048), np.float32) for number in range(8)}


def save(directory, step, rate=None):
    tensors = weights(step)
    with hbmfs.Writer("cpu", rate=rate) as writer:
        print("saving", flush=True)
        start = time.monotonic()
        written = hbmfs.save_safetensors(tensors, f"{directory}/step-{step}", writer=writer, progress=False)
    size = sum(file.size for file in written.files)
    print(f"{size / 1e6:.0f} MB in {time.monotonic() - start:.2f} s, synced, with a CRC-32C of every 4 MiB ({written.path})")


def load(directory, step):
    found, expected = hbmfs.load_safetensors(f"{directory}/step-{step}", "cpu"), weights(step)
    for name, tensor in expected.items():
        if not np.array_equal(np.asarray(found.pop(name)), tensor):
            sys.exit(f"{name} differs")
    if found:
        sys.exit(f"there is {min(found)}, too")
    print(f"same  {sum(tensor.nbytes for tensor in expected.values())} B in {len(expected)} tensors")


if __name__ == "__main__":
    what, directory, step, *rate = sys.argv[1:]
    {"save": save, "load": load}[what](directory, int(step), *map(float, rate))
