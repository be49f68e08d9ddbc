"""What others reach from the same file into the same GPU: a table beside `hbmfs bench`.

    python3 tests/bench/gpu/peers.py FILE [--cold]

Warm: a pinned copy, np.memmap to CUDA, torch.cuda.gds.GdsFile. Cold: eight threads that read with O_DIRECT into host
memory, the most that the disk gives to a plain reader. Rates are GB/s (1e9 bytes), one pass each after a warm-up.
"""

import argparse
import concurrent.futures
import mmap
import os
import time


def report(name: str, size: int, start: float, cpu: float) -> None:
    seconds = time.perf_counter() - start
    print(f"{name:28s} {size / seconds / 1e9:7.2f} GB/s  {(time.process_time() - cpu) / (size / 1e9):.3f} CPU s/GB", flush=True)


def cold(path: str) -> None:
    size = os.path.getsize(path) // (8 << 20) * (8 << 20)
    block, threads = 8 << 20, 8
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)

    def read(first: int) -> None:
        buffer = mmap.mmap(-1, block)
        for at in range(first * block, size, threads * block):
            assert os.preadv(fd, [buffer], at) == block

    start, cpu = time.perf_counter(), time.process_time()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(read, range(threads)))
    report("O_DIRECT, 8 threads x 8 MiB", size, start, cpu)


def warm(path: str) -> None:
    import numpy
    import torch

    block = 256 << 20
    size = os.path.getsize(path) // block * block
    there = torch.empty(block, dtype=torch.uint8, device="cuda")

    pinned = torch.empty(block, dtype=torch.uint8).pin_memory()
    there.copy_(pinned)
    torch.cuda.synchronize()
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(size // block):
        there.copy_(pinned, non_blocking=True)
    torch.cuda.synchronize()
    report("pinned copy (torch)", size, start, cpu)

    data = numpy.memmap(path, dtype=numpy.uint8, mode="r")
    start, cpu = time.perf_counter(), time.process_time()
    for at in range(0, size, block):
        there.copy_(torch.from_numpy(data[at : at + block]))
    torch.cuda.synchronize()
    report("np.memmap to CUDA", size, start, cpu)

    try:
        file = torch.cuda.gds.GdsFile(path, os.O_RDONLY)
        storage = there.untyped_storage()
        file.load_storage(storage, 0)
        start, cpu = time.perf_counter(), time.process_time()
        for at in range(0, size, block):
            file.load_storage(storage, at)
        torch.cuda.synchronize()
        report("torch.cuda.gds.GdsFile", size, start, cpu)
    except Exception as err:
        print(f"{'torch.cuda.gds.GdsFile':28s} failed: {err}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--cold", action="store_true")
    args = parser.parse_args()
    (cold if args.cold else warm)(args.file)


if __name__ == "__main__":
    main()
