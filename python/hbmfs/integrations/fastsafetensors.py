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
from collections.abc import Callable
from typing import Any, NamedTuple

try:
    from fastsafetensors.copier.base import CopierInterface, validated_byte_ranges, validated_chunk_allocation_size
    from fastsafetensors.copier.registry import register_copier_constructor
    from fastsafetensors.st_types import DType
except ModuleNotFoundError as err:
    raise ModuleNotFoundError("hbmfs.fastsafetensors needs fastsafetensors 0.5 or later: pip install 'fastsafetensors>=0.5'", name="fastsafetensors") from err
except ImportError as err:
    raise ImportError(f"hbmfs.fastsafetensors needs fastsafetensors 0.5 or later, which this one is not: {err}", name="fastsafetensors") from err

from .._lib import _device
from .._lib._closing import unheard
from .._lib._transfer import ARENA, REQUEST, open_reader
from .._lib.reader import File, Reader
from .._lib.request import Request
from ..errors import FormatError, InvalidError, OutOfMemoryError, UnavailableError

REPLACED = ("nogds", "gds")
"""The names by which loaders and engines ask for a copier."""


class _Begun(NamedTuple):
    """A read that was begun: [start, end) of the file."""

    start: int
    end: int
    request: Request[int]


class _Shared:
    """The reader of a loader and of its copiers. A thread closes it when all of them are gone, since unpinning memory takes milliseconds."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __del__(self) -> None:
        with contextlib.suppress(RuntimeError):  # Python ends, and closes all readers
            threading.Thread(target=unheard, args=("the reader of fastsafetensors", self.reader.close), name="hbmfs-close").start()


class HBMFSCopier(CopierInterface):  # type: ignore[misc, unused-ignore]
    """Copies one file, or a chunk of it, into memory that fastsafetensors allocates."""

    def __init__(self, metadata: Any, device: Any, framework: Any, shared: _Shared) -> None:
        self.metadata, self.device, self.framework = metadata, device, framework
        self._shared = shared
        self._file: File | None = None
        self._ranges: list[tuple[int, int]] | None = None  # None: all of the file
        self._names: set[str] | None = None  # the tensors of a chunk
        self._room: int | None = None
        self._first = metadata.header_length  # the byte of the file at the beginning of the buffer
        self._begun: list[_Begun] = []
        self._ended: list[bool] = []
        self._failure: BaseException | None = None

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
        self._file, buffer = self._shared.reader.open_file(path), None
        try:
            if self._file.size != size:
                raise FormatError(f"{path} changed while it was opened: load it again when its writer is done")
            buffer = self.framework.alloc_tensor_memory(room, self.device)
            if room and not buffer.get_base_address():
                raise OutOfMemoryError(f"{self.device.as_str()} has no {room} bytes left for {path}: give a max_batch_bytes")
            self._begin(buffer.get_base_address(), ranges, min(max_copy_block_size, REQUEST))
        except BaseException:
            self._end()
            if buffer is not None:
                self.framework.free_tensor_memory(buffer, self.device)
            raise
        return buffer

    def _begin(self, pointer: int, ranges: list[tuple[int, int]], most: int) -> None:
        assert self._file is not None
        stream = self._stream_until_now()
        for start, end in ranges:
            for at in range(start, end, most):
                size = min(most, end - at)
                self._begun.append(_Begun(at, at + size, self._file.read_into(pointer + at - self._first, at, size, stream)))
        self._ended = [False] * len(self._begun)

    def _stream_until_now(self) -> int | None:
        """A stream that waits for the work on the caller's current one, and not for later work: that of the consumer may wait for other ranks."""
        device = self._shared.reader.device
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
        number = bisect_right(self._begun, start, key=lambda begun: begun.end)
        while start < end:
            if number == len(self._begun) or self._begun[number].start > start:
                raise InvalidError(f"tensor {name!r} of {self.metadata.src} was filtered out and not read")
            self._wait(number)
            start = self._begun[number].end
            number += 1

    def finish_io(self) -> None:
        """Waits for all that was begun. When it returns or raises, nothing writes to the buffer any more."""
        for number in range(len(self._begun)):
            self._wait(number)
        self._end()

    def wait_io(self, gbuf: Any, dtype: Any = DType.AUTO, noalign: bool = False, owner: Any = None) -> dict[str, Any]:
        """The tensors, when all of their bytes are there."""
        self.finish_io()
        return self._tensors(gbuf, dtype, owner)

    def _tensors(self, gbuf: Any, dtype: Any, owner: Any) -> dict[str, Any]:
        tensors: dict[str, Any] = self.metadata._get_tensors(gbuf, self.device, self._first, dtype=dtype, names=self._names, owner=owner)
        return tensors

    def _wait(self, number: int) -> None:
        if self._ended[number]:
            return
        try:
            self._begun[number].request.wait()
        except BaseException as err:
            self._failure = err
            self._end()
            raise
        self._ended[number] = True

    def _end(self) -> None:
        """Cancels all that is under way, and closes the file."""
        for begun in self._begun:
            begun.request.cancel()
        self._begun, self._ended = [], []
        if self._file is not None:
            self._file.close()
            self._file = None


def _factory(device: Any, *, framework: Any = None, method: str = "auto", **_: Any) -> Callable[[Any, Any, Any], HBMFSCopier]:
    """Opens a reader for the files of one loader. Of a loader's options it takes method, as of :class:`hbmfs.Reader`; others are for other copiers."""
    if framework is not None and framework.get_name() != "pytorch":
        raise UnavailableError(f"the copier hbmfs loads tensors of PyTorch, and this loader is for {framework.get_name()}: choose another copier")
    shared = _Shared(open_reader(_device.parse(device.as_str()), method))

    def construct(metadata: Any, device: Any, framework: Any) -> HBMFSCopier:
        return HBMFSCopier(metadata, device, framework, shared)

    return construct


register_copier_constructor("hbmfs", HBMFSCopier)(_factory)


def replace() -> None:
    """Puts this copier in the place of "nogds" and "gds", for all loaders that this process makes from now on."""
    for name in REPLACED:
        register_copier_constructor(name, HBMFSCopier)(_factory)
