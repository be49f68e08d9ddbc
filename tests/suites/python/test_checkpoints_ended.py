"""Checkpoints of processes that are ended: each trains and saves, and the next one goes on where it was."""

import contextlib
import itertools
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import threading
import time
import warnings

import hbmfs
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hbmfs.checkpoints import _publishing, steps
from hbmfs.checkpoints import Checkpoints
from long import LONG
from test_checkpoints import loaded, other, state
from test_dcp_group import local, same
from waiting import PATIENCE, main_is_in, until, when

pytestmark = [pytest.mark.filterwarnings("ignore:torch.distributed is disabled"), pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")]

RATE = 6 << 20
"""Bytes a second, so that a save of a megabyte takes a while."""
NEVER = 10 * PATIENCE
"""A deadline, in seconds: a process that waits for it is killed before, and its exit code shows that."""


def train(folder, ready, options):
    with Checkpoints(folder, 2, **options) as ck, ck.on_preemption():
        step = 0 if ck.latest() is None else ck.latest() + 1
        ready.set()
        for now in itertools.count(step):
            ck.save(now, state(now, 3))
            time.sleep(0.01)


class Process:
    """A process that runs job(folder, ready, *arguments). It is killed when it does not end."""

    def __init__(self, job, folder, *arguments):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed", "hbmfs.checkpoints.steps", "test_checkpoints_ended", "torch._dynamo"])
        self.ready = context.Event()
        self.process = context.Process(target=job, args=(folder, self.ready, *arguments))
        self.process.start()

    def exit(self):
        self.process.join(PATIENCE)
        self.process.kill()
        self.process.join()
        return self.process.exitcode

    def end(self, number, after=0, first=lambda: True):
        """Sends a signal some seconds after the process is ready, and something else has come first. Gives its exit code."""
        assert self.ready.wait(PATIENCE)
        until(first)
        time.sleep(after)
        os.kill(self.process.pid, number)
        return self.exit()


def newest(folder):
    """The newest complete step, which must load and verify, as all others must verify."""
    found = None
    for entry in _publishing.complete(folder):
        _publishing.verify(entry.path)
        found = max(found or 0, int(entry.name.removeprefix("step-")))
    if found is not None:
        into = other(1000)
        into["model"]["0"] = torch.zeros(900, 129)
        into["model"]["tied"] = torch.zeros(900, 129)
        dcp.load(into, storage_reader=dcp.FileSystemReader(folder / f"step-{found}"), no_dist=True)
        same(local(into), local(state(found, 3)))
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ended_at_random(folder, number):
    """After each: the newest complete step loads and verifies, no half one is listed, and the next process goes on from there."""
    chance = random.Random(f"{number}")
    before = -1
    for round in range(20):

        def made(known=before, waits=round % 3 == 2):  # each third one makes a step, however busy the CPUs are
            return not waits or any(name.startswith("step-") and int(name.removeprefix("step-")) > known for name in os.listdir(folder))

        code = Process(train, folder, {"rate": RATE, "deadline": NEVER}).end(number, chance.uniform(0, 0.6), made)
        assert code == -number, code
        found = newest(folder)
        assert (found or 0) >= before
        before = found if found is not None else before
        if number == signal.SIGTERM:
            assert not [name for name in os.listdir(folder) if name.startswith(".")], os.listdir(folder)
        if round >= 5 and before > 1 and not LONG:
            break
    assert before > 1
    with Checkpoints(folder):
        assert not [name for name in os.listdir(folder) if name.startswith(".")], os.listdir(folder)


class Started(threading.Event):
    """Of a thread. A signal comes while it is waited for, with the lock that the thread needs to say that it has started."""

    def wait(self, timeout=None):
        with self._cond:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().wait(timeout)


def end_while_a_thread_starts(folder, ready, within):
    """A signal comes after a save has begun, before its thread has or while that starts."""
    start = threading.Thread.start

    def ended(thread):
        if thread.name == "hbmfs-save-2":
            if within:
                thread._started = Started()
            else:
                os.kill(os.getpid(), signal.SIGTERM)
        start(thread)

    threading.Thread.start = ended
    with Checkpoints(folder, deadline=NEVER) as ck, ck.on_preemption():
        ck.save(1, state(1, 3))
        ck.save(2, state(2, 3))


@pytest.mark.parametrize("within", [False, True])
def test_ended_while_the_thread_of_a_save_starts(folder, within):
    assert Process(end_while_a_thread_starts, folder, within).exit() == -signal.SIGTERM
    assert newest(folder) == 2


def end_without_a_thread(folder, ready):
    """A signal comes while a save whose thread cannot be started waits for the one before it."""
    start, publish, hold = threading.Thread.start, _publishing.Draft.publish, threading.Event()

    def refuse(thread):
        if thread.name == "hbmfs-save-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = refuse
    _publishing.Draft.publish = lambda self, files: (hold.wait(PATIENCE), publish(self, files))[1]
    with Checkpoints(folder, memory=64 << 20, deadline=NEVER) as ck, ck.on_preemption():
        ck.save(1, state(1, 3))
        when(lambda: main_is_in("Save._join", "Condition.wait"), lambda: (os.kill(os.getpid(), signal.SIGTERM), hold.set()))
        ck.save(2, state(2, 3))


def test_ended_where_no_thread_can_be_started(folder):
    assert Process(end_without_a_thread, folder).exit() == -signal.SIGTERM
    assert newest(folder) == 1


class Clock:
    """Time for the handler of a signal: each look brings it half a second further, until the save is being dropped. Then it stands still,
    so that the process ends when that is done, or not at all."""

    def __init__(self):
        self.now, self.dropping, close = 0.0, False, hbmfs.Writer.close
        hbmfs.Writer.close = lambda writer: (setattr(self, "dropping", True), close(writer))[1]

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        dropping = self.dropping or any(thread.name == "hbmfs-drop" for thread in threading.enumerate())
        self.now += 0 if dropping else 0.5
        time.sleep(seconds)

    perf_counter = staticmethod(time.perf_counter)


def train_slowly(folder, ready, rate, deadline):
    clock = Clock()
    steps.time = clock if deadline != NEVER else time
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(int(clock.now) if clock.dropping else 7))
    with Checkpoints(folder, deadline=deadline, rate=rate) as ck, ck.on_preemption():
        ck.save(1, state(1, 3))
        ready.set()
        while True:
            time.sleep(0.01)


def test_what_is_staged_is_finished(folder):
    """It takes about a second, which the deadline allows; then the handler runs that was there before."""
    assert Process(train_slowly, folder, 1 << 20, NEVER).end(signal.SIGTERM) == 7
    assert newest(folder) == 1


def test_what_cannot_be_finished_is_dropped(folder):
    """It would take minutes. Two seconds of the deadline are for dropping it."""
    assert Process(train_slowly, folder, 10_000, 25).end(signal.SIGTERM) == 23
    assert newest(folder) is None and os.listdir(folder) == []


def test_handlers_are_put_back(folder):
    calls = []

    def mine(number, frame):
        calls.append((number, newest(folder)))

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with Checkpoints(folder, rate=RATE) as ck:
            with ck.on_preemption():
                assert signal.getsignal(signal.SIGTERM) is not mine
                for step in (1, 2):
                    ck.save(step, state(step, 3))
                    os.kill(os.getpid(), signal.SIGTERM)
                assert calls == [(signal.SIGTERM, 1), (signal.SIGTERM, 2)], "training went on, as its handler wanted"
            assert signal.getsignal(signal.SIGTERM) is mine
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with ck.on_preemption():
                ck.save(3, state(3, 3))
                os.kill(os.getpid(), signal.SIGTERM)
                assert ck.steps() == [1, 2, 3]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_training_goes_on_after_a_drop(folder):
    """A handler that was there before may want that. What was dropped is a failure, and the next save works."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        with Checkpoints(folder, deadline=0.4, rate=10_000) as ck, ck.on_preemption(), pytest.warns(RuntimeWarning, match="step 1 was not saved"):
            save = ck.save(1, state(1))
            os.kill(os.getpid(), signal.SIGTERM)
            assert isinstance(save.exception(60), hbmfs.Error) and os.listdir(folder) == []
            ck._options["rate"] = None
            ck.save(2, state(2)).wait(60)
            assert loaded(ck) == 2
    finally:
        signal.signal(signal.SIGTERM, before)


def fill(folder, ready, limit):
    """Saves until the filesystem, or the limit of files, has no room."""
    warnings.simplefilter("ignore")
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    with Checkpoints(folder, None) as ck:
        ck.save(0, state(0)).wait(60)
        error = next(error for step in itertools.count(1) if (error := ck.save(step, state(step, 3 if limit else 1)).exception(60)))
        assert isinstance(error, (OSError, hbmfs.Error)), error
        there = ck.steps()
        assert [loaded(ck, step) for step in there] == there, there
        assert {f"step-{step}" for step in there} == set(os.listdir(folder)), os.listdir(folder)
        if not limit:
            _publishing.remove(ck.path(0))
            ck.save(1000, state(1000)).wait(60)
            assert loaded(ck) == 1000
        ready.set()
    os._exit(3)


def test_files_that_may_not_grow(folder):
    assert Process(fill, folder, 700_000).exit() == 3


@contextlib.contextmanager
def small_disk(folder):
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


if os.geteuid() == 0:

    def test_full_disk(folder):
        with small_disk(folder):
            assert Process(fill, folder, 0).exit() == 3


# Ranks.
