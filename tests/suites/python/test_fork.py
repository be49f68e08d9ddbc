"""Forked and spawned children: refused with a sentence, or right. Never a hang."""

import concurrent.futures
import multiprocessing
import os
import pickle
import select
import signal

import hbmfs
import numpy as np
import pytest

PATIENCE = 120  # seconds


def in_fork(function):
    """Gives what a function gives in a forked child, or raises what it raises there."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                answer = (function(), None)
            except Exception as err:  # to be raised in the parent
                answer = (None, err)
            os.write(write, pickle.dumps(answer))
        finally:
            os._exit(0)
    os.close(write)
    try:
        if not select.select([read], [], [], PATIENCE)[0]:
            os.kill(pid, signal.SIGKILL)
            pytest.fail("the child hangs")
        data = os.read(read, 1 << 16)
    finally:
        os.close(read)
        os.waitpid(pid, 0)
    value, err = pickle.loads(data)
    if err is not None:
        raise err
    return value


def test_a_gpu_is_refused_in_a_fork(gpu, tokens):
    path, data = tokens
    with gpu.reader() as reader, hbmfs.open(path, reader=reader) as ds:
        array = ds.read(0, 5)
        for action in (
            lambda: ds.gather([1], 5),
            lambda: ds.prefetch([1], 5),
            lambda: ds.queue(2),
            lambda: hbmfs.open(path, reader=reader),
            lambda: gpu.reader(),
            lambda: reader.open_file(path),
            lambda: array.to_numpy(),
            reader.stats,
        ):
            with pytest.raises(hbmfs.ForkedError, match="spawn"):
                in_fork(action)
        assert in_fork(lambda: (ds.close(), reader.close())) == (None, None)
        assert np.array_equal(ds.read(3, 5).to_numpy(), data[3:8])
        del array


def test_a_request_under_way_is_refused_in_a_fork(gpu, tokens):
    with gpu.reader() as reader, hbmfs.open(tokens[0], reader=reader) as ds:
        request = ds.begin_gather([1], 5)
        with pytest.raises(hbmfs.ForkedError):
            in_fork(request.wait)
        assert np.array_equal(request.wait().to_numpy()[0], tokens[1][1:6])
        del request


def test_the_cpu_works_in_a_fork(mount, tokens):
    path, data = tokens
    with hbmfs.open(path) as ds:
        assert np.array_equal(ds.read(1, 3), data[1:4])

        def child():
            with ds.queue(2) as queue:
                queue.put([5, 1], 3)
                rows = queue.get()
            ds.prefetch([1], 3)
            wide = ds.gather([5], 3, dtype="int64")
            with hbmfs.open(mount / "olmo") as other:
                first = other.read(0, 4)
            stats = ds.stats()
            ds.close()
            return rows, wide, first, stats["bytes"], stats["reads"]

        rows, wide, first, moved, reads = in_fork(child)
        assert np.array_equal(rows, [data[5:8], data[1:4]]) and wide.dtype == np.int64 and np.array_equal(wide, [data[5:8]])
        assert np.array_equal(first, np.load(mount / ".hbmfs/views/olmo/tokens.npy")[:4])
        assert (moved, reads) == ({"host": 18}, 2)
        assert np.array_equal(ds.read(1, 3), data[1:4])


def test_a_fork_sees_no_other_file(tmp_path):
    path = tmp_path / "tokens.npy"
    np.save(path, np.arange(100, dtype=np.uint16))
    with hbmfs.open(path) as ds:
        np.save(tmp_path / "other.npy", np.zeros(100, np.uint16))
        os.replace(tmp_path / "other.npy", path)
        with pytest.raises(hbmfs.StaleError):
            in_fork(lambda: ds.read(0, 1))


class Rows:
    """A dataset as people write them for torch's DataLoader."""

    def __init__(self, path):
        self.ds = hbmfs.open(path)

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return self.ds.read(i * 10, 10, dtype="int64")


def test_data_loader_with_forked_workers(tokens):
    from torch.utils.data import DataLoader

    path, data = tokens
    rows = Rows(path)
    loader = DataLoader(rows, batch_size=4, num_workers=2, multiprocessing_context="fork")
    batches = np.concatenate([batch.numpy() for batch in loader])
    assert np.array_equal(batches, data[:120].reshape(12, 10))
    rows.ds.close()


def gather(ds):
    with ds:
        array = ds.gather([4, 2], 3)
    return array.to_numpy() if isinstance(array, hbmfs.DeviceArray) else np.asarray(array)


def test_spawned_workers_open_it_again(gpu, tokens):
    path, data = tokens
    with gpu.reader() as reader, hbmfs.open(path, reader=reader) as on_gpu, hbmfs.open(path) as on_cpu:
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            for rows in pool.map(gather, [on_gpu, on_cpu], timeout=PATIENCE):
                assert np.array_equal(rows, [data[4:7], data[2:5]])
