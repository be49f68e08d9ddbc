"""Rounds of open, gather and close keep descriptors, threads and memory flat. HBMFS_TEST_ROUNDS sets how many (100)."""

import gc
import os
import time

import hbmfs
import pytest

ROUNDS = int(os.environ.get("HBMFS_TEST_ROUNDS", "100"))


def usage():
    """Descriptors, threads, and resident bytes of this process."""
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_rounds(gpu, mount, tokens, device):
    def one():
        with gpu.reader() if device == "cuda" else hbmfs.Reader("cpu") as reader:
            for path in (tokens[0], mount / "olmo"):
                with hbmfs.open(path, reader=reader) as ds:
                    kept = ds.gather([1, 2, 3], 200)
                    ds.begin_gather([4], 1000)
                    queue = ds.queue(2)
                    queue.put([5], 100)
                with pytest.raises(hbmfs.ClosedError):
                    ds.read(0, 1)
        del kept

    for _ in range(30):
        one()
    before = usage()
    for _ in range(ROUNDS):
        one()
    # What ends a moment after close(), such as threads that the kernel has not collected, may take its time.
    end = time.monotonic() + 30
    while True:
        grown = [after - was for after, was in zip(usage(), before, strict=True)]
        if grown[0] <= 4 and grown[1] <= 16 and grown[2] < 24 << 20:  # what a round leaks is there a hundred times
            return
        assert time.monotonic() < end, f"{ROUNDS} rounds: {grown[0]} descriptors, {grown[1]} threads and {grown[2]} bytes more"
        time.sleep(0.1)
