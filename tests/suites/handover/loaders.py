"""Reads as trainers do while daemons of a mount are replaced: `loaders.py KIND VIEWS TOKENS` until standard input ends.

KIND is nanogpt (a memmap of tokens.bin, made again for each batch) or megatron (megatron-core's IndexedDataset). VIEWS are the views of the
mount, TOKENS a file outside of it with the tokens that they must show. At the end it prints in JSON the batches, the usual and the longest
time of one in seconds, and what was wrong.
"""

import json
import os
import random
import sys
import threading
import time
import warnings

import numpy as np

LENGTH = 1024
SHUFFLE = random.Random(5)


def nanogpt(views, tokens):
    import torch

    def batch():
        data = np.memmap(f"{views}/tokens.bin", dtype=np.uint16, mode="r")
        at = [SHUFFLE.randrange(len(tokens) - LENGTH) for _ in range(4)]
        x = torch.stack([torch.from_numpy(data[i : i + LENGTH].astype(np.int64)) for i in at])
        return all(np.array_equal(x[k].numpy(), tokens[i : i + LENGTH]) for k, i in enumerate(at))

    return batch


def megatron(views, tokens):
    with warnings.catch_warnings():  # of what is not installed
        warnings.simplefilter("ignore")
        from megatron.core.datasets.indexed_dataset import IndexedDataset
    dataset = IndexedDataset(f"{views}/megatron")
    begins = np.concatenate([[0], np.cumsum(dataset.sequence_lengths, dtype=np.int64)])

    def batch():
        i = SHUFFLE.randrange(len(dataset))
        offset = SHUFFLE.randrange(int(dataset.sequence_lengths[i]))
        length = min(LENGTH, int(dataset.sequence_lengths[i]) - offset)
        return np.array_equal(dataset.get(i, offset=offset, length=length), tokens[begins[i] + offset : begins[i] + offset + length])

    return batch


def forget(path):
    """Has the kernel drop the pages that nobody maps just now."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def main():
    kind, views, expected = sys.argv[1:]
    batch = {"nanogpt": nanogpt, "megatron": megatron}[kind](views, np.fromfile(expected, np.uint16))
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    print("ready", flush=True)
    took, wrong = [], []
    while not over.is_set():
        began = time.monotonic()
        try:
            forget(f"{views}/{'tokens' if kind == 'nanogpt' else 'megatron'}.bin")
            if not batch():
                wrong.append("wrong tokens")
        except OSError as err:
            wrong.append(str(err))
        took.append(time.monotonic() - began)
    print(json.dumps({"count": len(took), "usual": float(np.median(took)), "longest": max(took), "wrong": wrong[:10]}))


if __name__ == "__main__":
    main()
