"""What of the Python package can only be seen with a GPU and torch: order with streams, torch's allocator, its errors.

    torch_check.py [--json FILE]

A line for each check; the exit status is 0 when all of them hold. tests/suites/python has everything that needs no GPU.
"""

import argparse
import concurrent.futures
import gc
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import hbmfs
import numpy as np

LENGTH = 257


def make(folder):
    random = np.random.default_rng(1)
    for dtype in (np.uint16, np.uint32, np.int32):
        np.save(folder / f"{np.dtype(dtype).name}.npy", random.integers(0, 60_000, 8 << 20).astype(dtype))


def spans(path, starts, length=LENGTH):
    data = np.load(path, mmap_mode="r")
    return np.stack([data[s : s + length] for s in starts])


def starts_of(ds, count=300, seed=2):
    return np.random.default_rng(seed).integers(0, len(ds) - LENGTH, count)


def same(tensor, want):
    return np.array_equal(tensor.cpu().numpy(), want)


def clear(tensor):
    import torch

    tensor.view(torch.uint8).zero_()
    return tensor


def raises(kind, action):
    try:
        action()
    except kind as err:
        assert "\n" not in str(err), f"more than a line: {err}"
        return str(err)
    raise AssertionError(f"no {kind.__name__}")


def check_bits_by_every_path(folder):
    import torch

    for dtype in ("uint16", "uint32", "int32"):
        path = folder / f"{dtype}.npy"
        for method in ("auto", "staged", "mapped"):
            with hbmfs.open(path, "cuda:0", method=method, require=None if method == "auto" else method) as ds:
                starts = starts_of(ds)
                want = spans(path, starts)
                x = ds.gather(starts, LENGTH)
                assert x.dtype == getattr(torch, dtype) and x.device == torch.device("cuda", 0) and same(x, want)
                assert all(same(ds[i], np.load(path, mmap_mode="r")[i]) and same(ds[i : i + 3], np.load(path, mmap_mode="r")[i : i + 3]) for i in (3, 4, 4))
                wide = ds.gather(torch.from_numpy(starts), LENGTH, dtype=torch.int64)
                assert wide.dtype == torch.int64 and same(wide, want)
                assert ds.gather(starts, LENGTH, out=clear(wide), dtype="int64") is wide and same(wide, want)
                assert ds.gather(starts, LENGTH, out=clear(x)) is x and same(x, want)
                assert same(ds.read(12_345, 3_000_001), spans(path, [12_345], 3_000_001)[0])


def check_order_with_the_current_stream(folder):
    """What was enqueued before on the caller's stream comes first, also on memory that the allocator gives out again."""
    import torch

    path = folder / "uint16.npy"
    with hbmfs.open(path, "cuda:0") as ds:
        starts = starts_of(ds)
        want = spans(path, starts)
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                for _ in range(5):
                    out = torch.empty(want.shape, dtype=torch.uint16, device="cuda:0")
                    torch.cuda._sleep(20_000_000)  # about 10 ms
                    out.view(torch.int16).fill_(7)
                    assert same(ds.gather(starts, LENGTH, out=out), want)
                    sevens = torch.full(want.shape, 7, dtype=torch.int16, device="cuda:0")
                    torch.cuda._sleep(20_000_000)
                    kept = sevens.clone()
                    del sevens, out
                    requests = [ds.begin_gather(starts, LENGTH) for _ in range(3)]
                    assert all(same(request.wait(), want) for request in requests)
                    assert bool((kept == 7).all()), "memory was written before the stream was done with it"


def check_refusals(folder):
    import torch

    path = folder / "uint16.npy"
    with hbmfs.open(path, "cuda:0") as ds:
        raises(hbmfs.DeviceError, lambda: ds.gather([1], 4, out=torch.zeros((1, 4), dtype=torch.uint16)))
        raises(hbmfs.DtypeError, lambda: ds.gather([1], 4, out=torch.zeros((1, 4), dtype=torch.int32, device="cuda:0")))
        raises(hbmfs.InvalidError, lambda: ds.gather([1], 4, out=np.zeros((1, 4), np.uint16)))
        raises(hbmfs.DeviceError, lambda: ds.gather(torch.ones(1, dtype=torch.int64, device="cuda:0"), 4))
        raises(hbmfs.OutOfRangeError, lambda: ds.gather([len(ds)], 1))
        raises(hbmfs.OutOfMemoryError, lambda: ds.gather(np.zeros(1 << 20, np.int64), 4 << 20, dtype="int64"))
        raises(hbmfs.DeviceError, lambda: hbmfs.open(path, "cuda:63"))
        raises(hbmfs.OutOfMemoryError, lambda: hbmfs.Reader("cuda:0", arena=1 << 42))
        assert same(ds.gather([5], 9), spans(path, [5], 9))


def check_a_path_that_is_wished_for(folder):
    path = folder / "uint16.npy"
    try:
        hbmfs.open(path, "cuda:0", require="direct").close()
    except hbmfs.UnavailableError as err:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", hbmfs.SlowPathWarning)
            with hbmfs.open(path, "cuda:0", method="direct") as ds:
                for _ in range(3):
                    assert same(ds.read(3, 9), spans(path, [3], 9)[0])
        assert len(caught) == 1, [str(w.message) for w in caught]
        return f"no direct here: {err}"
    return "direct works here"


def check_forks(folder):
    with hbmfs.open(folder / "uint16.npy", "cuda:0") as on_gpu, hbmfs.open(folder / "uint16.npy") as on_cpu:
        first = on_gpu.read(0, 5)
        read, write = os.pipe()
        if os.fork() == 0:
            try:
                refused = raises(hbmfs.ForkedError, lambda: on_gpu.read(0, 5))
                os.write(write, pickle.dumps((refused, on_cpu.read(0, 5).tolist())))
            finally:
                os._exit(0)
        os.close(write)
        with open(read, "rb") as pipe:
            refused, tokens = pickle.loads(pipe.read())
        os.wait()
        assert "spawn" in refused and tokens == first.cpu().tolist()


def read_all(ds):
    with ds:
        return ds.gather([1, 2], 50).cpu().numpy()


def check_spawn(folder):
    path = folder / "uint16.npy"
    context = multiprocessing.get_context("spawn")
    with hbmfs.open(path, "cuda:0") as ds, concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        assert np.array_equal(pool.submit(read_all, ds).result(120), spans(path, [1, 2], 50))


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # as if it were not installed
import hbmfs, numpy as np
path = sys.argv[1]
data = np.load(path, mmap_mode="r")
with hbmfs.open(path, "cuda:0") as ds:
    x = ds.gather([3, 9], 100)
    assert isinstance(x, hbmfs.DeviceArray)
    wide = ds.gather([3, 9], 100, dtype="int64")
want = np.stack([data[3:103], data[9:109]])
assert np.array_equal(x.to_numpy(), want) and np.array_equal(wide.to_numpy(), want)
del sys.modules["torch"]
import torch
y, z = torch.from_dlpack(wide), torch.as_tensor(wide, device="cuda:0")
assert y.data_ptr() == z.data_ptr() == wide.pointer
del wide, z
assert np.array_equal(y.cpu().numpy(), want)
assert np.array_equal(torch.from_dlpack(x).cpu().numpy(), want)
print("without torch: right")
"""


def check_without_torch(folder):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_TORCH, folder / "uint16.npy"], capture_output=True, text=True, timeout=120, check=False
    )
    assert "without torch: right" in done.stdout and done.returncode == 0, done.stderr


def check_interrupts(folder):
    """A hundred of them at any time leave nothing behind."""
    import torch

    def interrupt(*_):
        raise KeyboardInterrupt

    path = folder / "uint16.npy"
    signal.signal(signal.SIGALRM, interrupt)
    with hbmfs.Reader("cuda:0", arena=64 << 20) as reader, hbmfs.open(path, reader=reader) as ds:
        starts = starts_of(ds, 5000)
        torch.cuda.synchronize()
        used = torch.cuda.memory_allocated()
        for i in range(100):
            try:
                # Again and again, since Python ignores what is raised in a finalizer.
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + i * 0.0001, 0.1)
                while True:
                    ds.gather(starts, LENGTH)
            except KeyboardInterrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
        gc.collect()
        assert reader.stats()["requests"] == 0 and torch.cuda.memory_allocated() == used
        assert same(ds.gather(starts, LENGTH), spans(path, starts))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def check_token_stream(folder):
    path = folder / "uint16.npy"
    with hbmfs.open(path, "cuda:0") as on_gpu, hbmfs.open(path) as on_cpu:
        streams = [hbmfs.TokenStream(ds, batch_size=64, seq_len=1024, seed=3, epochs=1, dtype="int64", targets=True) for ds in (on_gpu, on_cpu)]
        steps = 0
        for ours, theirs in zip(*streams, strict=True):
            assert all(same(a, b) for a, b in zip(ours, theirs, strict=True))
            steps += 1
        assert steps == (len(on_cpu) - 1) // 1024 // 64


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(prefix="hbmfs-torch-") as name:
        folder = Path(name)
        make(folder)
        for title, check in sorted(globals().items()):
            if not title.startswith("check_"):
                continue
            try:
                results[title] = check(folder) or "ok"
            except Exception:  # noqa: BLE001 (the other checks go on)
                results[title] = "FAILED"
                traceback.print_exc()
            print(f"{title.removeprefix('check_').replace('_', ' '):36s} {results[title]}", flush=True)
    failed = "FAILED" in results.values()
    if options.json and not failed:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
