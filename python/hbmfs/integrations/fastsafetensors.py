"""A copier for fastsafetensors (0.5 and later), which reads files by hbmfs: those of a mount from where their bytes really lie, and plain files.

    import hbmfs.fastsafetensors                       # makes the copier "hbmfs" known

    loader = BaseSafeTensorsFileLoader(pg, Device.from_str("cuda:0"), "hbmfs")
    pipeline = PipelineParallel(pg, loader, files)

ParallelLoader, AutoLoader, vLLM and SGLang ask for "nogds" or "gds" and for nothing else. :func:`replace` puts this copier in the place of
both. With HBMFS_FASTSAFETENSORS=1 in the environment, vLLM and SGLang call it when they start.

A tensor is handed out as soon as its bytes are there, while the rest of its file is on its way. The copier reads whole files, the byte
ranges of a tensor filter, and the chunks of max_batch_bytes and device_memory_budget. On the device it needs the memory that fastsafetensors
allocates for the bytes, and no other, except on the paths "direct" and "compat", which the planner hears of.

Written for fastsafetensors 0.5.0, and for PyTorch.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

try:
    from fastsafetensors.copier.base import CopierInterface, validated_byte_ranges, validated_chunk_allocation_size
    from fastsafetensors.copier.registry import register_copier_constructor
    from fastsafetensors.st_types import DType
except ImportError as err:
    raise type(err)(f"hbmfs.fastsafetensors needs fastsafetensors 0.5 or later: pip install 'fastsafetensors>=0.5' ({err})", name="fastsafetensors") from err

from .._lib import _device
from .._lib._closing import unheard
from .._lib._transfer import AHEAD, ARENA, LOOK, REQUEST, open_reader
from .._lib.reader import File, Reader
from .._lib.request import Request
from ..errors import FormatError, InvalidError, OutOfMemoryError, UnavailableError, WaitTimeoutError

REPLACED = ("nogds", "gds")
"""The names by which loaders and engines ask for a copier."""


class _Read(NamedTuple):
    """A read of bytes of a copier's file from start on, after the work that was on a stream."""

    copier: HBMFSCopier
    start: int
    size: int
    pointer: int
    stream: int | None


class _Line:
    """The reader of a loader and of its copiers, and their reads, which a thread begins in their order, AHEAD bytes at a time.

    If all began at once, the first tensor would hardly come before the last one. When the loader and its copiers are gone, another
    thread closes the reader, since unpinning memory takes milliseconds.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._lock = threading.Lock()  # guards the fields below
        self._reads: deque[_Read] = deque()
        self._busy = False

    def add(self, reads: list[_Read]) -> None:
        with self._lock:
            self._reads.extend(reads)
            if not self._busy:
                self._busy = True  # first: Ctrl-C may come while the thread begins
                try:
                    threading.Thread(target=self._run, name="hbmfs-reads", daemon=True).start()
                except RuntimeError:  # there can be no more threads
                    self._busy = False
                    raise

    def _run(self) -> None:
        begun = deque[tuple[_Read, Request[int]]]()
        while True:
            with self._lock:
                self._busy = bool(self._reads or begun)
                if not self._busy:
                    return
                full = begun and (not self._reads or sum(read.size for read, _ in begun) + self._reads[0].size > AHEAD)
                read = None if full else self._reads.popleft()
            if read is None:
                first, oldest = begun.popleft()
                first.copier.end(oldest)
            elif (request := read.copier.begin(read)) is not None:
                begun.append((read, request))

    def __del__(self) -> None:
        if not hasattr(self, "reader"):  # an interrupt may end __init__ before its first line
            return
        with contextlib.suppress(RuntimeError):  # Python ends, and closes all readers
            threading.Thread(target=unheard, args=("the reader of fastsafetensors", self.reader.close), name="hbmfs-close").start()


class HBMFSCopier(CopierInterface):  # type: ignore[misc, unused-ignore]
    """Copies one file, or a chunk of it, into memory that fastsafetensors allocates."""

    def __init__(self, metadata: Any, device: Any, framework: Any, line: _Line) -> None:
        self.metadata, self.device, self.framework = metadata, device, framework
        self._line = line
        self._file: File | None = None
        self._ranges: list[tuple[int, int]] | None = None  # None: all of the file
        self._names: set[str] | None = None  # the tensors of a chunk
        self._room: int | None = None
        self._first = metadata.header_length  # the byte of the file at the beginning of the buffer
        self._reads: list[_Read] = []  # in the order of the file
        self._changed = threading.Condition()  # guards the fields below, of which it tells
        self._begun = self._ended = 0  # how many of the reads
        self._failure: BaseException | None = None  # no other may begin

    def set_byte_ranges(self, byte_ranges: list[tuple[int, int]] | None) -> None:
        """Reads these ranges of the file only, into a buffer for all of it."""
        self._ranges = validated_byte_ranges(self.metadata, byte_ranges)

    def set_chunk(self, byte_ranges: list[tuple[int, int]], names: set[str], allocation_size: int | None = None) -> None:
        """Reads some tensors only, into a buffer from the first of the ranges to the last."""
        self._ranges = validated_byte_ranges(self.metadata, byte_ranges)
        self._room = validated_chunk_allocation_size(self._ranges, allocation_size)
        self._names = names

    @classmethod
    def chunk_transient_multiplier(cls, paths: list[str]) -> int:
        """1: bytes go into the buffer of a chunk by way of pinned memory of the host."""
        return 1

    @classmethod
    def chunk_device_overhead(cls, paths: list[str]) -> int:
        """0: a chunk begins where its first tensor does."""
        return 0

    @classmethod
    def fixed_device_overhead(cls, paths: list[str]) -> int:
        """A reader's own memory, which it takes for the paths "direct" and "compat" and for no other. Which path a file goes is known later."""
        return ARENA

    def submit_io(self, use_buf_register: bool, max_copy_block_size: int) -> Any:
        """Allocates the buffer, and begins all reads into it, after the work that is on the caller's current stream."""
        if max_copy_block_size <= 0:
            raise InvalidError(f"max_copy_block_size is {max_copy_block_size}: give a number of bytes from 1 on")
        path, header, size = self.metadata.src, self.metadata.header_length, self.metadata.size_bytes
        ranges = [(header, size)] if self._ranges is None else self._ranges
        room = size - header
        if self._names is not None:
            self._first = ranges[0][0] if ranges else header
            room = self._room or (ranges[-1][1] - self._first if ranges else 0)
        buffer = self.framework.alloc_tensor_memory(room, self.device)
        try:
            if room and not buffer.get_base_address():
                raise OutOfMemoryError(f"{self.device.as_str()} has no {room} bytes left for {path}: give a max_batch_bytes")
            stream = self._stream_until_now()  # now: meanwhile the consumer adds work that waits for other ranks
            self._file = self._line.reader.open_file(path)
            if self._file.size != size:
                raise FormatError(f"{path} changed while it was opened: load it again when its writer is done")
            self._begin(buffer.get_base_address(), ranges, min(max_copy_block_size, REQUEST), stream)
        except BaseException as err:
            self._end(err)
            self.framework.free_tensor_memory(buffer, self.device)
            raise
        return buffer

    def _begin(self, pointer: int, ranges: list[tuple[int, int]], most: int, stream: int | None) -> None:
        for start, end in ranges:
            for at in range(start, end, most):
                self._reads.append(_Read(self, at, min(most, end - at), pointer + at - self._first, stream))
        self._line.add(self._reads)

    def begin(self, read: _Read) -> Request[int] | None:
        """Begins a read on the line's thread. None where it failed, or is not wanted any more."""
        with self._changed:
            if self._failure is None:
                try:
                    assert self._file is not None
                    request = self._file.read_into(read.pointer, read.start, read.size, read.stream)
                    self._begun += 1
                    return request
                except BaseException as err:  # noqa: BLE001 (raised where a tensor is waited for)
                    self._failure = err
                    self._changed.notify_all()
            return None

    def end(self, request: Request[int]) -> None:
        """Waits for a read on the line's thread, or cancels it where it is not wanted any more."""
        failure: BaseException | None = None
        try:
            while self._failure is None:
                with contextlib.suppress(WaitTimeoutError):
                    request.wait(LOOK)
                    break
            else:
                request.cancel()
        except BaseException as err:  # noqa: BLE001 (raised where a tensor is waited for)
            failure = err
        with self._changed:
            self._ended += 1
            self._failure = self._failure or failure
            self._changed.notify_all()

    def _stream_until_now(self) -> int | None:
        """A stream that waits for the work on the caller's current one, and not for later work: that of the consumer may wait for other ranks."""
        device = self._line.reader.device
        if device == _device.CPU:
            return None
        import torch

        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        return int(stream.cuda_stream)

    def enable_tensor_readiness(self) -> bool:
        """True: tensors can be made before their bytes are there, and waited for one by one."""
        return True

    def prepare_tensors(self, gbuf: Any, owner: Any = None) -> dict[str, Any]:
        """The tensors, whose bytes may be on their way."""
        return self._tensors(gbuf, DType.AUTO, owner)

    def wait_tensor(self, name: str) -> None:
        """Waits until a tensor's bytes are there."""
        if self._failure is not None:
            raise self._failure
        if self._names is not None and name not in self._names:
            raise InvalidError(f"tensor {name!r} of {self.metadata.src} is not in this chunk")
        start, end = (self.metadata.header_length + offset for offset in self.metadata.tensors[name].data_offsets)
        number = bisect_right(self._reads, start, key=lambda read: read.start + read.size)
        while start < end:
            if number == len(self._reads) or self._reads[number].start > start:
                raise InvalidError(f"tensor {name!r} of {self.metadata.src} was filtered out and not read")
            start = self._reads[number].start + self._reads[number].size
            number += 1
        self._wait(number)

    def finish_io(self) -> None:
        """Waits for all that was begun. When it returns or raises, nothing writes to the buffer any more."""
        self._wait(len(self._reads))
        self._end()

    def wait_io(self, gbuf: Any, dtype: Any = DType.AUTO, noalign: bool = False, owner: Any = None) -> dict[str, Any]:
        """The tensors, when all of their bytes are there."""
        self.finish_io()
        return self._tensors(gbuf, dtype, owner)

    def _tensors(self, gbuf: Any, dtype: Any, owner: Any) -> dict[str, Any]:
        tensors: dict[str, Any] = self.metadata._get_tensors(gbuf, self.device, self._first, dtype=dtype, names=self._names, owner=owner)
        return tensors

    def _wait(self, count: int) -> None:
        """Waits for the first so many reads."""
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._ended >= count or self._failure is not None)
                if self._failure is not None and not isinstance(self._failure, Exception):
                    raise InterruptedError(f"the load of {self.metadata.src} was interrupted")  # at Ctrl-C fastsafetensors would free no more
                if self._failure is not None:
                    raise self._failure
        except BaseException as err:
            self._end(err)
            raise

    def _end(self, failure: BaseException | None = None) -> None:
        """Has the line cancel all that is under way, after a failure, and closes the file."""
        with self._changed:
            self._failure = failure
            self._changed.wait_for(lambda: self._ended == self._begun)
        self._reads = []
        if self._file is not None:
            self._file.close()
            self._file = None


def _factory(device: Any, *, framework: Any = None, method: str = "auto", **_: Any) -> Callable[[Any, Any, Any], HBMFSCopier]:
    """Opens a reader for the files of one loader. Of a loader's options it takes method, as of :class:`hbmfs.Reader`; others are for other copiers."""
    if framework is not None and framework.get_name() != "pytorch":
        raise UnavailableError(f"the copier hbmfs loads tensors of PyTorch, and this loader is for {framework.get_name()}: choose another copier")
    line = _Line(open_reader(_device.parse(device.as_str()), method))

    def construct(metadata: Any, device: Any, framework: Any) -> HBMFSCopier:
        return HBMFSCopier(metadata, device, framework, line)

    return construct


register_copier_constructor("hbmfs", HBMFSCopier)(_factory)


def replace() -> None:
    """Puts this copier in the place of "nogds" and "gds", for all loaders that this process makes from now on."""
    for name in REPLACED:
        register_copier_constructor(name, HBMFSCopier)(_factory)
