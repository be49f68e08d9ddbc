"""The checkpoints of a job in a directory: help("hbmfs.checkpoints") has the whole story."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import wait as wait_for
from typing import Any

try:
    import torch
except ModuleNotFoundError as err:
    raise ModuleNotFoundError("hbmfs.checkpoints saves torch's states, but torch is not installed: pip install torch", name=err.name) from None
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.stateful import Stateful

from .._lib import _device
from .._lib._arguments import Device, checked
from .._lib._closing import unheard
from .._lib._native import library
from .._lib.writer import Writer
from ..errors import AccessError, ClosedError, Error, GroupError, InvalidError, NotFoundError, WaitTimeoutError
from ..group import _ranks
from . import _publishing
from ._publishing import Entry
from ._staging import Staging, room
from .dcp import DCPReader
from .dcp_stager import DCPStager
from .dcp_writer import DCPWriter

LOOK = 0.02
"""Seconds between two looks of the handler of a signal, which may not wait for a lock."""


class Save(Future[str]):
    """A save that is under way. As a Future it has the path of the checkpoint, or the exception that kept it from being saved."""

    def __init__(self, step: int, path: str) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self.step = step
        self.path = path
        self.way: str | None = None
        """How this rank's files went, once they have: "directory", or "volume", past FUSE into a checkpoint volume."""
        self.held = 0.0
        """Seconds that save() and wait_staged() held training."""
        self.heard = False
        """Whether somebody has asked how it ended."""
        self._staging: Staging | None = None
        self._thread: threading.Thread | None = None

    def wait_staged(self) -> None:
        """Waits until the tensors may change."""
        start = time.perf_counter()
        if self._staging is not None:
            self._staging.wait_taken()
        self.held += time.perf_counter() - start

    def wait(self, timeout: float | None = None) -> str:
        """Waits until the checkpoint is safe, and gives its path. After `timeout` seconds WaitTimeoutError; the save goes on."""
        try:
            return self.result(timeout)
        except FutureTimeout:
            if self.done():
                raise
            raise WaitTimeoutError(f"step {self.step} was not safe after {timeout} s: wait again") from None

    def result(self, timeout: float | None = None) -> str:
        self.exception(timeout)
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        found = super().exception(timeout)
        self.heard = True
        return found

    def _join(self) -> None:
        """Waits until it and its thread have ended. Where Ctrl-C ends Thread.join(), Python before 3.13 takes the thread for ended, though
        it goes on: so the thread comes last, when it does nothing any more."""
        if self._thread is None or self._thread.ident is None or library().forked:
            return  # Ctrl-C may have kept it from starting, and a forked child has no other thread
        wait_for([self])
        self._thread.join()


class Checkpoints:
    """The checkpoints of a job in one directory, which is made if it is not there. In a mount that shows a dataset they are only read.

    keep        how many of them; None: all
    memory      bytes of host memory to pin for the states of this rank. None: enough for the first state, when it is saved. Twice
                that lets one be written while the next is copied. Tensors that do not fit are written while training waits; 0: all
    device      the GPU that the state is on; None: the current one, or the CPU where there is none
    deadline    seconds within which SIGTERM ends the process: see on_preemption
    group       a process group of torch.distributed; None: all ranks, or this process alone where there are no ranks
    node_local  whether each node has a directory of its own, on a disk of its own
    name        the name of a step's directory, with {step} in it
    options     method, require, threads and rate are those of the Writer that is opened: see there
    """

    @checked
    def __init__(
        self,
        directory: str | os.PathLike[str],
        keep: int | None = 3,
        *,
        memory: int | None = None,
        device: Device = None,
        deadline: float = 25.0,
        group: Any = None,
        node_local: bool = False,
        name: str = "step-{step}",
        **options: Any,
    ) -> None:
        if keep is not None and (type(keep) is not int or keep < 1):
            raise InvalidError(f"keep is {keep!r}: give how many checkpoints stay, or None for all of them")
        if not deadline > 0:
            raise InvalidError(f"deadline is {deadline!r}: give seconds")
        before, found, after = name.partition("{step}")
        if not found or "/" in name or name.startswith(".") or "{" in before + after:
            raise InvalidError(f"name is {name!r}: give the name of a directory with one {{step}} in it")
        self.directory = os.path.abspath(directory)
        above = self.directory
        while not os.path.lexists(above):
            above = os.path.dirname(above)
        if os.path.exists(above) and not os.path.isdir(above):
            raise InvalidError(f"{above} is no directory, or lies below a file: give a directory for checkpoints")
        self.deadline = deadline
        self._keep = keep
        self._name = name
        self._pattern = re.compile(f"{re.escape(before)}(0|[1-9][0-9]*){re.escape(after)}")
        self._device = _device.name(_device.parse(("cuda" if torch.cuda.is_available() else "cpu") if device is None else device))
        self._memory = memory
        self._options = options
        self._stager: DCPStager | None = None
        self._last: Save | None = None
        self._failed: list[Save] = []
        self._closed = False
        # A handler of a signal reads these two: the main thread counts in one, the threads that save in the other.
        self._begun = self._ended = 0
        # Thread.start holds a lock that the new thread needs, so a handler that comes within it is put off.
        self._starting: threading.Thread | None = None
        self._late: Callable[[], None] | None = None
        try:
            # Messages of saving threads to other ranks, and those of calls, must not meet.
            self._saves: Any = _ranks.everybody(group)
            self._calls: Any = _ranks.everybody(group)
            written = all(self._calls.gather(self._may_save))
            self._place = _ranks.place(self._calls, self.directory, node_local)
            self._local = node_local
            if memory is not None:
                self._calls.gather(lambda: self._open(memory) and None)
            self._calls.gather(lambda: _publishing.clean(self.directory) if written and self._place.leader else None)
        except BaseException:
            if self._stager is not None:
                self._close_stager()
            raise

    @checked
    def save(self, step: int, state: dict[str, Any], *, overlap: bool = False) -> Save:
        """Saves a state, and returns when its tensors may change. With `overlap` it returns before: call wait_staged() of the Save."""
        start = time.perf_counter()
        if type(step) is not int or step < 0:
            raise InvalidError(f"step is {step!r}: give a number that is not negative")
        if not isinstance(state, dict):
            raise InvalidError(f"the state is a {type(state).__name__}: give a dict of what is to be saved, by name")
        if self._closed:
            raise ClosedError("these checkpoints are closed")
        save = Save(step, self.path(step))
        stager, staged, failure = None, None, None
        try:
            state = {key: value.state_dict() if isinstance(value, Stateful) else value for key, value in state.items()}
            stager = self._stager or self._open(room(state) if self._memory is None else self._memory)
            staged = stager.stage(state)
            save._staging = staged.staging
        except Exception as err:  # noqa: BLE001 (it is the save's)
            failure = err
            _forget(err)
        before = self._last
        save._thread = thread = threading.Thread(target=self._run, args=(save, stager, staged, failure, before), name=f"hbmfs-save-{step}")
        caller = threading.current_thread()
        self._starting, self._last, self._begun = caller, save, self._begun + 1  # without a call between them, at whose end a handler may run
        try:
            try:
                thread.start()
            finally:
                self._starting = None
                if caller is threading.main_thread() and self._late is not None:
                    late, self._late = self._late, None
                    late()
        except RuntimeError as err:  # other ranks wait for this one
            refused = Error(f"no thread could be started: {err}. Allow more of them (ulimit -u, or pids.max of the control group)")
            try:
                problem = self._run(save, stager, staged, failure or refused, before)
            finally:
                self._last, save._thread = before, None
            if not isinstance(problem, Exception | None):
                save.result()  # Ctrl-C ends the caller
        del staged, before
        save.held = time.perf_counter() - start
        if not overlap:
            with contextlib.suppress(Error):  # it is the save's, too
                save.wait_staged()
        return save

    @checked
    def path(self, step: int) -> str:
        """The directory of a step, whether it is there or not."""
        return os.path.join(self.directory, self._name.format(step=step))

    def steps(self) -> list[int]:
        """All complete steps, in their order."""
        return self._complete(self._calls)

    def latest(self) -> int | None:
        """The newest complete step; None if there is none."""
        return max(self.steps(), default=None)

    @checked
    def load(self, state: dict[str, Any], step: int | None = None) -> int:
        """Loads the newest complete step, or the one that is wished for, into the tensors of a state. Gives its number.

        NotFoundError: there is no such complete step. FormatError, ReadError: it is damaged (`hbmfs checkpoint verify` says where).
        """
        wished = self._calls.gather(lambda: step)
        if any(other != step for other in wished):
            raise GroupError(f"the ranks load different steps: {', '.join(map(str, wished))}")
        steps = self.steps()
        if not steps if step is None else step not in steps:
            there = f"the complete steps are {', '.join(map(str, steps))}" if steps else "it has none"
            raise NotFoundError(f"{self.directory} has no complete {'checkpoint' if step is None else f'step {step}'}: {there}")
        found = max(steps) if step is None else step
        self._ask(state_dict_loader.load, state, storage_reader=DCPReader(self.path(found)), process_group=self._calls.group, no_dist=self._calls.group is None)
        return found

    def wait(self) -> None:
        """Waits until nothing is being saved."""
        if self._last is not None:
            self._last._join()

    def close(self) -> None:
        """Waits until nothing is being saved, and gives the memory back. Raises a failure that nobody has asked for."""
        self.wait()
        if not self._closed:
            self._closed = True
            self._close_stager()
        failed, self._failed = [save for save in self._failed if not save.heard], []
        if failed:
            failed[0].result()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            unheard(f"the checkpoints in {self.directory}", self.close)

    def __repr__(self) -> str:
        return f"<hbmfs.Checkpoints {self.directory} on {self._device}, keep={self._keep}{' closed' if self._closed else ''}>"

    @checked
    @contextlib.contextmanager
    def on_preemption(self, number: int = signal.SIGTERM) -> Iterator[None]:
        """Within it, the signal finishes or drops running saves. Afterwards the earlier handler runs.

        Python gives handlers to the main thread only, so it is called there; elsewhere InvalidError.
        """
        if threading.current_thread() is not threading.main_thread():
            raise InvalidError("Python handles signals in the main thread only: call on_preemption() there")
        before = signal.getsignal(number)
        if before is None:
            raise InvalidError(f"signal {number} has a handler that is not Python's, which could not be called afterwards")
        active, busy = True, False

        def handle(number: int, frame: Any) -> None:
            nonlocal busy
            if busy:
                return  # the first signal is being answered
            if self._starting is threading.main_thread():
                self._late = lambda: handle(number, frame)
                return
            busy = True
            try:
                if active:
                    self._finish(time.monotonic() + self.deadline)
            finally:
                busy = False
            if callable(before):
                before(number, frame)
            elif before == signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
                os._exit(128 + number)  # process 1 of a container ignores signals that it does not handle

        signal.signal(number, handle)
        try:
            yield
        finally:
            active = False  # a handler that was put upon this one goes on calling it
            if signal.getsignal(number) is handle:
                signal.signal(number, before)

    # How it is done.

    def _may_save(self) -> bool:
        """Whether steps can be written here. In a mount of a dataset, such as drained checkpoints on S3, the existing ones are read.

        Where no checkpoint can be, that is said before a directory is made.
        """
        try:
            _publishing.in_volume(self.path(0))
        except AccessError:
            if not os.path.isdir(self.directory):
                raise
            return False  # a save says why
        return True

    def _open(self, memory: int) -> DCPStager:
        self._stager = DCPStager(writer=Writer(self._device, memory=memory, **self._options), wait=False)
        return self._stager

    def _close_stager(self) -> None:
        stager, self._stager = self._stager, None
        if stager is not None:
            stager.close()
            stager.writer.close()

    def _run(self, save: Save, stager: DCPStager | None, staged: Any, failure: Exception | None, before: Save | None) -> BaseException | None:
        """Writes one state, after the one before it. Gives the error that kept it from being saved."""
        problem: BaseException | None = None
        try:
            if before is not None:
                before._join()
                before = None
            self._write(save, stager, staged, failure)
        except BaseException as err:  # noqa: BLE001 (it is the save's)
            problem = err
            _forget(err)
        # Its end is the end of this thread; the room in the arena is free before somebody hears of it.
        if save._staging is not None:
            unheard("a staged state", save._staging.release)
        self._ended += 1
        if problem is None:
            save.set_result(save.path)
            return None
        self._failed.append(save)
        with contextlib.suppress(Exception):  # where warnings are errors
            warnings.warn(f"hbmfs: step {save.step} was not saved: {problem}", RuntimeWarning, stacklevel=1)
        save.set_exception(problem)
        return problem

    def _write(self, save: Save, stager: DCPStager | None, staged: Any, failure: Exception | None) -> None:
        ranks = self._saves

        def agree() -> tuple[int, int | None]:
            if failure is not None:
                raise failure
            entry = self._here().get(save.step) if self._local else None
            return save.step, None if entry is None else entry.parts

        said = ranks.gather(agree)
        for rank, (step, _) in enumerate(said):
            if step != said[0][0]:
                raise GroupError(f"the ranks save different steps: rank 0 saves {said[0][0]} and rank {rank} saves {step}")
        there = [parts for _, parts in said]
        if self._local and None in there and there[ranks.rank] == self._place.nodes and self._place.leader:
            _publishing.remove(save.path)  # other nodes never had theirs, so it is no checkpoint
        assert stager is not None
        node = (self._place.node, self._place.nodes, self._place.leader) if self._local else False
        writer = DCPWriter(save.path, writer=stager.writer, node_local=node, progress=False)
        metadata = self._ask(state_dict_saver.save, staged, storage_writer=writer, process_group=ranks.group, no_dist=ranks.group is None)
        save.way = writer.way
        if self._local:
            ranks.gather(lambda: writer.publish(metadata))
        self._remove_old(self._complete(ranks), save.step)

    def _ask(self, call: Any, *arguments: Any, **options: Any) -> Any:
        """Calls torch's dcp, whose exception of exceptions becomes one that names its reason."""
        try:
            return call(*arguments, **options)
        except CheckpointException as err:
            failures = err.failures
            rank = self._calls.rank
            if rank in failures:
                raise failures[rank][0] from None
            first = min(failures)
            raise _ranks.told(first, type(failures[first][0]).__name__, str(failures[first][0])) from None

    def _here(self) -> dict[int, Entry]:
        """The steps that this rank sees complete; of a node, its parts."""
        found = {}
        for entry in _publishing.complete(self.directory):
            match = self._pattern.fullmatch(entry.name)
            if match:
                found[int(match[1])] = entry
        return found

    def _complete(self, ranks: Any) -> list[int]:
        """The steps that are complete for all ranks."""
        mine = (self._place.node, self._place.nodes) if self._local else (0, 1)

        def see() -> list[int]:
            if not (self._local or self._place.leader):
                return []
            return sorted(step for step, entry in self._here().items() if (entry.part, entry.parts) == mine)

        seen = ranks.gather(see)
        return sorted(set.intersection(*map(set, seen))) if self._local else list(seen[0])

    def _remove_old(self, complete: list[int], step: int) -> None:
        """Removes checkpoints older than the kept ones. Failing at it does not fail the save."""
        kept = [known for known in complete if known <= step]
        if not self._place.leader or self._keep is None or len(kept) < self._keep:
            return
        try:
            for old in self._here():
                if old < kept[-self._keep]:
                    _publishing.remove(self.path(old))
        except (Error, OSError) as err:
            with contextlib.suppress(RuntimeWarning):
                warnings.warn(f"hbmfs: old checkpoints in {self.directory} could not be removed: {err}", RuntimeWarning, stacklevel=1)

    def _finish(self, end: float) -> None:
        """Waits for running saves, and drops them when no time is left. It runs in a handler, so it waits for no lock."""
        drop = end - min(2.0, self.deadline / 4)
        while self._saving() and time.monotonic() < drop:
            time.sleep(LOOK)
        stager = self._stager
        if self._saving() and stager is not None:
            self._stager = None  # if training goes on, the next save opens another
            threading.Thread(target=unheard, args=("the writer", stager.writer.close), name="hbmfs-drop", daemon=True).start()
            while self._saving() and time.monotonic() < end:
                time.sleep(LOOK)

    def _saving(self) -> bool:
        """Whether a save has not ended. One whose thread could not be started is none: the main thread does it, where the handler runs."""
        thread = None if self._last is None else self._last._thread
        return self._ended < self._begun - (thread is not None and thread.ident is None)


def _forget(err: BaseException | None) -> None:
    """Lets go of objects in the frames of an exception. Otherwise they would hold the state as long as somebody has the Save."""
    while err is not None:
        traceback.clear_frames(err.__traceback__)
        err = err.__cause__ or err.__context__
