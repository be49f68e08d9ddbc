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
    # What leaks does so each time. What a garbage collector or an allocator keeps, it keeps once.
    for _ in range(5):
        before = usage()
        for _ in range(ROUNDS):
            one()
        if flat(before):
            return
    pytest.fail(f"each {ROUNDS} rounds left something, the last: {grown(before)} descriptors, threads and bytes")


def grown(before):
    """What there is more of than before."""
    return [now - was for now, was in zip(usage(), before, strict=True)]


def flat(before):
    """Whether no more is in use than what 100 leaks could not hide in. What ends a moment after close(), such as threads
    that the kernel has not collected, may take its time."""
    end = time.monotonic() + 30
    while True:
        descriptors, threads, memory = grown(before)
        if descriptors <= 4 and threads <= 16 and memory < 24 << 20:
            return True
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
