"""Tensors that a thread reads, and that others wait for one by one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from .._lib import _device
from .._lib._transfer import Progress, Transfer, open_reader, shower
from ..errors import ClosedError
from . import _model_files, _parts
from ._load import Call, Torch, _view, begin_reads, check_device, open_files
from ._parts import Cut, Layout, Place
from .safetensors_header import Header

if TYPE_CHECKING:
    from .._lib.reader import Reader


class Arriving:
    """Reads tensors of files, in the order of their bytes. A tensor can be had as soon as its own bytes are there."""

    def __init__(
        self, headers: Sequence[Header], cuts: Mapping[str, Cut], device: str, *, method: str = "auto", reader: Reader | None = None, progress: Progress = False
    ) -> None:
        """cuts has the names of the tensors to read, and what of each."""
        import torch

        index = _device.parse(device)
        check_device(reader, index)
        self._library = Torch(_device.name(index))
        self._headers = headers
        self._layout = Layout()
        for number, header in enumerate(headers):
            for tensor in header.tensors:
                if tensor.name in cuts:
                    self._library.check(tensor)
                    self._layout.add(number, _parts.part(tensor, cuts[tensor.name]))
        self._changed = threading.Condition()  # guards what follows
        self._tensors: dict[str, Any] = {}  # those that have memory
        self._ends: dict[str, int] = {}  # the bytes from which on each is there
        self._done = 0
        self._over = self._stopped = False
        self._failure: BaseException | None = None
        # The caller's stream is where the memory will be used, and given back.
        stream = None if index == _device.CPU else torch.cuda.current_stream(index)
        arguments = (index, method, reader, progress, torch.cuda.stream(stream))
        self._thread = threading.Thread(target=self._run, args=arguments, name="hbmfs-weights", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, call: Call) -> Arriving:
        """Reads all tensors of the model of a call, as it says."""
        headers = _model_files.headers(call.path, None)
        cuts = dict.fromkeys(tensor.name for header in headers for tensor in header.tensors)
        return cls(headers, cuts, call.device, method=call.method, reader=call.reader, progress=call.progress)

    @property
    def names(self) -> list[str]:
        """The tensors' names, in the order in which they arrive."""
        return [place.part.tensor.name for place in self._layout.places]

    def tensor(self, name: str) -> Any:
        """Waits until a tensor is there."""
        with self._changed:
            self._wait(lambda: self._ends.get(name, self._done + 1) <= self._done)
            return self._tensors[name]

    def take(self, name: str) -> Any:
        """Waits until a tensor is there, and keeps it no longer."""
        with self._changed:
            self.tensor(name)
            return self._tensors.pop(name)

    def all(self) -> dict[str, Any]:
        """Waits until all tensors are there."""
        with self._changed:
            self._wait(lambda: False)
            return dict(self._tensors)

    def end(self) -> BaseException | None:
        """Stops reading, if it goes on, forgets the tensors, and says why reading failed, if it did."""
        self._stopped = True
        self._thread.join()
        with self._changed:
            self._tensors = {}
        return None if isinstance(self._failure, _Stopped) else self._failure

    def _wait(self, there: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._over or there())
        if self._stopped:
            raise ClosedError("the weights were closed before they had arrived")
        if self._failure is not None:
            raise self._failure

    def _set(self, **values: Any) -> None:
        with self._changed:
            self.__dict__.update(values)
            self._changed.notify_all()

    def _run(self, device: int, method: str, reader: Reader | None, progress: Progress, stream: Any) -> None:
        try:
            with contextlib.ExitStack() as stack:
                if reader is None:
                    reader = stack.enter_context(open_reader(device, method))
                self._read(stack, reader, progress, stream)
                self._set(_over=True)
        except BaseException as err:  # noqa: BLE001 (raised by who asks)
            self._set(_tensors={}, _failure=err, _over=True)

    def _read(self, stack: contextlib.ExitStack, reader: Reader, progress: Progress, stream: Any) -> None:
        files = open_files(stack, reader, self._headers)
        places = self._layout.places
        ends = dict(zip((place.part.tensor.name for place in places), accumulate(place.part.length for place in places), strict=True))
        total = sum(place.part.length for place in places)
        show, end = shower(progress, total, "weights")
        stack.callback(end)

        def arrived(done: int, _: int) -> None:
            if self._stopped:
                raise _Stopped
            show(done - self._done)
            self._set(_done=done)

        blocks = dict[int, Any]()
        with stream, Transfer(total, arrived, "weights") as transfer:
            self._publish([place for place in places if place.block < 0], blocks, ends)
            for block, size in enumerate(self._layout.blocks):
                blocks = {block: self._library.allocate(size)}  # meanwhile the link works on what was begun
                self._publish([place for place in places if place.block == block], blocks, ends)
                begin_reads(self._layout.reads[block], self._library.pointer(blocks[block]), files, transfer)

    def _publish(self, places: Sequence[Place], blocks: Any, ends: Mapping[str, int]) -> None:
        """Makes the tensors of a block, whose bytes are still to come."""
        made = {place.part.tensor.name: _view(place, blocks, 0, self._library) for place in places}
        with self._changed:
            self._tensors |= made
            self._ends |= {name: ends[name] for name in made}
            self._changed.notify_all()


class _Stopped(Exception):
    """Nobody waits for the weights any more."""
