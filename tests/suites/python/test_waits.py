"""Waiting, cancelling and Ctrl-C, on a GPU whose streams can be stopped."""

import gc
import threading

import hbmfs
import numpy as np
import pytest
from hbmfs._lib._handle import opened
from hbmfs._lib._native import TIMEOUT
from waiting import PATIENCE, interrupt_when, until


@pytest.fixture
def stopped(gpu, tokens):
    """A dataset on a GPU that does nothing until it is told to go on."""
    with gpu.reader() as reader, hbmfs.open(tokens[0], reader=reader) as ds:
        gpu.ask("hold")
        try:
            yield ds, gpu, tokens[1]
        finally:
            gpu.ask("go_on")


def test_a_wait_that_is_over(stopped):
    ds, gpu, data = stopped
    request = ds.begin_gather([3, 1], 1000)
    assert not request.done
    for timeout in (0, 0.01, 0.15):
        with pytest.raises(TimeoutError, match="had not arrived"):
            request.wait(timeout)
    gpu.ask("go_on")
    until(lambda: request.done)
    want = np.stack([data[3:1003], data[1:1001]])
    assert np.array_equal(request.wait(0).to_numpy(), want)
    assert np.array_equal(request.wait().to_numpy(), want)
    request.cancel()
    assert np.array_equal(request.wait().to_numpy(), want)


def test_cancel(stopped):
    ds, gpu, data = stopped
    request = ds.begin_gather([3, 1], 1000)
    canceller = threading.Thread(target=request.cancel)
    canceller.start()
    gpu.ask("go_on")
    canceller.join(PATIENCE)
    assert not canceller.is_alive() and request.done
    with pytest.raises(hbmfs.CancelledError):
        request.wait()
    assert np.array_equal(ds.read(5, 5).to_numpy(), data[5:10])


def test_a_queue_that_times_out_loses_nothing(stopped):
    ds, gpu, data = stopped
    with ds.queue(2) as queue:
        queue.put([1], 10)
        queue.put([2], 10)
        with pytest.raises(hbmfs.WaitTimeoutError):
            queue.get(0.01)
        gpu.ask("go_on")
        assert [queue.get(PATIENCE).to_numpy()[0, 0] for _ in range(2)] == [data[1], data[2]]


def test_closing_ends_what_is_under_way(gpu, tokens):
    with gpu.reader() as reader:
        ds = hbmfs.open(tokens[0], reader=reader)
        requests = [ds.begin_gather([i], 200_000) for i in range(8)]
        ds.close()
        for request in requests:
            assert request.done
            try:
                assert request.wait().shape == (1, 200_000)  # it had arrived before
            except (hbmfs.CancelledError, hbmfs.ClosedError):
                continue
        del requests, request


class HangingLibrary:
    """The library, in which a read hangs in the kernel: closing says so."""

    forked = False

    def __init__(self, library):
        self.library, self.hangs = library, True

    def ask(self, name, *arguments):
        return TIMEOUT if self.hangs and name.endswith("_close") else self.library.ask(name, *arguments)


def test_closing_says_what_hangs(tokens, monkeypatch):
    """It must not say that nothing writes any more as long as something may. Closing again does it."""
    monkeypatch.setattr("hbmfs._lib._handle._CLOSING", 0.0)
    with hbmfs.Reader("cpu") as reader, reader.open_file(tokens[0]) as file:
        ds = hbmfs.open(tokens[0])
        library = HangingLibrary(reader._library)
        for thing in (file, reader, ds._file, ds._reader):
            monkeypatch.setattr(thing, "_library", library)
        for thing in (file, reader, ds):
            for _ in range(2):
                with pytest.raises(hbmfs.WaitTimeoutError, match="close it again"):
                    thing.close()
        assert reader.closed and ds.closed
        with pytest.raises(hbmfs.ClosedError):
            ds.read(0, 1)
        library.hangs = False
        for thing in (file, reader, ds, ds, reader, file):
            thing.close()


def test_interrupted_wait(stopped):
    """It returns although the GPU hangs, and what it used is given back when that is over."""
    ds, gpu, data = stopped
    before = gpu.ask("hbm")
    thread = interrupt_when(lambda: gpu.ask("pending") > 0)
    with pytest.raises(KeyboardInterrupt):
        ds.gather([3, 1], 1000)
    thread.join()
    gpu.ask("go_on")
    gc.collect()
    until(lambda: gpu.ask("hbm") == before)
    assert np.array_equal(ds.read(5, 5).to_numpy(), data[5:10])


class SlowLibrary:
    """Opens nothing until it is told to."""

    def __init__(self):
        self.asked, self.go_on, self.dropped = threading.Event(), threading.Event(), []

    def ask(self, name, handle):
        self.asked.set()
        assert self.go_on.wait(PATIENCE)
        handle.value = 42
        return 0

    def drop(self, name, handle):
        self.dropped.append((name, handle))


def test_interrupted_open():
    library = SlowLibrary()
    thread = interrupt_when(library.asked.is_set)
    with pytest.raises(KeyboardInterrupt):
        opened(library, "reader_open", "reader_close")
    thread.join()
    assert library.dropped == []
    library.go_on.set()
    until(lambda: library.dropped == [("reader_close", 42)])


@pytest.mark.parametrize("where", ["start", "join"])
def test_interrupted_open_around_its_wait(monkeypatch, where):
    """Ctrl-C while the thread starts, or when it has just ended, closes what it opened, too."""
    library, method = SlowLibrary(), getattr(threading.Thread, where)

    def interrupted(thread):
        method(thread)
        if thread.name == "hbmfs-open":
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, where, interrupted)
    if where == "join":
        library.go_on.set()
    with pytest.raises(KeyboardInterrupt):
        opened(library, "reader_open", "reader_close")
    library.go_on.set()
    until(lambda: library.dropped == [("reader_close", 42)])
