"""The stager of dcp.async_save that holds training only while its state is copied into memory that is pinned already.

    stager = hbmfs.DCPStager(memory=40 << 30)       # once, early: the memory is pinned in the background
    ...
    future = dcp.async_save(state, storage_writer=hbmfs.DCPWriter(path, writer=stager.writer), async_stager=stager)
    print(stager.held)                              # seconds that this call held training

One stager serves all saves. While a save is written it keeps its part of the memory, and the next stage() waits for room; `held`
counts that wait. memory=2 x the state of a rank lets a save be written while the next is staged. A state larger than the memory goes in waves: tensors
that do not fit stay in HBM. DCPWriter writes them first, and async_save returns when they are written. If the save fails before,
async_save returns, too, and its future has the error.

    stager = hbmfs.DCPStager(memory=40 << 30, wait=False)
    future = dcp.async_save(...)                    # returns at once
    ...                                             # forward, backward
    stager.wait_staged()                            # from here on tensors may change
    optimizer.step()

The staged tensors share memory where the state's do. They are DCPWriter's: when it has written them, other bytes take their place.
"""

from __future__ import annotations

import contextlib
import gc
import time
import weakref
from typing import Any

try:
    import torch
except ModuleNotFoundError as err:
    raise ModuleNotFoundError("hbmfs.dcp_stager stages torch's checkpoints, but torch is not installed: pip install torch", name=err.name) from None

from .._lib import _device
from .._lib._arguments import Device, checked
from .._lib.writer import Writer
from ..errors import BusyError, ClosedError, InvalidError, WaitTimeoutError
from ._saves import is_saving
from ._staging import LOOK, PATIENCE, Staging

COLLECT = 0.5
"""Seconds of waiting for room after which garbage is collected: it may have a staged state. Also those between two looks which saves
have ended, while the arena has room that is in too many pieces, and those in which a save begins."""


class Staged(dict[Any, Any]):
    """A staged state dict. dcp.save, which asks for its items first, gets them when they are copied. It notes which thread that
    is: when it ends, however, the room is free."""

    staging: Staging | None = None

    def items(self) -> Any:
        if self.staging is not None:
            if self.staging.ended():
                raise ClosedError("this staged state was saved or given up, and other bytes take its place: stage the state again")
            self.staging.note()
            self.staging.wait()
        return super().items()


class DCPStager:
    """Copies state dicts into pinned memory for dcp.async_save.

    memory  bytes of it, of this rank
    device  the GPU that the state is on; None: the current one, or the CPU where there is none
    writer  a Writer with memory, which stays open; by default one is opened, with
    threads, rate  that write, and the most bytes a second to storage: see Writer
    wait    whether async_save returns when the state is copied; if not, call wait_staged() before tensors change
    timeout seconds that stage() waits for room; then BusyError. So long close() waits for saves, too
    """

    @checked
    def __init__(
        self,
        memory: int = 0,
        *,
        device: Device = None,
        writer: Writer | None = None,
        threads: int | None = None,
        rate: float | None = None,
        wait: bool = True,
        timeout: float = 1800.0,
    ) -> None:
        if (writer is None) == (memory <= 0):
            raise InvalidError("give DCPStager memory=, the bytes that it may pin, or writer=, a Writer that has memory")
        if writer is not None and (threads, rate) != (None, None):
            raise InvalidError("threads and rate are those of the writer that is given: leave them out")
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self._own = writer is None
        self.writer = writer or Writer(_device.name(_device.parse(device)), memory=memory, threads=threads, rate=rate)
        self.held = 0.0
        """Seconds that the last stage() and wait_staged() held the caller."""
        self._wait = wait
        self._timeout = timeout
        self._closed = False
        self._last: Staging | None = None
        self._live: list[weakref.ref[Staging]] = []

    def stage(self, state_dict: Any, **_: Any) -> Any:
        """Begins to copy a state dict, and gives the copy: the same structure, whose tensors may be read after wait_staged()."""
        if self._closed:
            raise ClosedError("the stager is closed")
        start = time.perf_counter()
        if self._last is not None and self._last.left:
            self._last.wait_taken()
        staging = Staging(self.writer, state_dict)
        staged = Staged(self._begin(staging, state_dict))
        staged.staging = staging
        self._last = staging
        self._live.append(weakref.ref(staging))
        self.held = time.perf_counter() - start
        return staged

    @property
    def should_synchronize_after_execute(self) -> bool:
        return self._wait

    def synchronize_staging(self) -> None:
        """Waits until the tensors of the last state may change."""
        start = time.perf_counter()
        if self._last is not None:
            self._last.wait_taken()
        self.held += time.perf_counter() - start

    def wait_staged(self) -> None:
        """Waits until the tensors of the last state may change. An error of the copy is raised here, and on the save's future."""
        self.synchronize_staging()

    def close(self) -> None:
        """Waits for the saves that are under way, and gives the memory back."""
        if self._closed:
            return
        self._closed = True
        begun = time.monotonic()
        for staging in self._alive():
            # async_save has returned before its thread has begun.
            while not staging.ended() and (staging.saver() is not None or time.monotonic() - begun < COLLECT):
                time.sleep(LOOK)
            staging.release()
        while is_saving(self.writer) and time.monotonic() - begun < self._timeout:
            time.sleep(LOOK)
        if self._own:
            self.writer.close()

    def __enter__(self) -> DCPStager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _alive(self) -> list[Staging]:
        self._live = [alive for alive in self._live if (staging := alive()) is not None and not staging.ended()]
        return [staging for alive in self._live if (staging := alive()) is not None]

    def _begin(self, staging: Staging, state: Any) -> Any:
        """Begins to copy, as soon as earlier saves have given back enough memory."""
        start = saved = time.monotonic()
        collected = False
        while True:
            earlier = self._alive()
            if not earlier or self.writer.fits(staging.room + sum(other.room for other in earlier)):
                with contextlib.suppress(WaitTimeoutError):
                    return staging.begin(self.writer, state, COLLECT)
            now = time.monotonic()
            savers = {saver for other in earlier if (saver := other.saver()) is not None}
            if now - start > self._timeout:
                if savers:
                    why = f"that is held by the saves on {', '.join(sorted(savers))}: wait for them, or give it more memory"
                elif not self.writer.ready:
                    why = "its memory is not pinned yet: call writer.wait_ready() first, or give it less memory"
                else:
                    why = "that is held by other snapshots of its writer: release them, or give it more memory"
                raise BusyError(f"the stager had no room for {staging.room} bytes within {self._timeout:g} s, since {why}")
            if savers or not earlier:
                saved = now
            elif now - saved > PATIENCE:
                raise BusyError("a state that was staged before has the stager's memory, and nobody saves it: save it, or forget it")
            elif now - saved > COLLECT and not collected:
                collected = True
                gc.collect()
            del earlier
            time.sleep(LOOK / 10)
