"""KV volumes: blocks that leave the GPU, or host memory, and come back by key.

A :class:`KVStore` is one namespace of a volume (``hbmfs kv mount``), for one device::

    store = hbmfs.KVStore("/mnt/kv", "llama-8b-fp8", 2 << 20, device="cuda:0")
    store.put_many(keys, blocks).result()          # behind the current stream; a concurrent.futures.Future
    found = store.get_many(keys, blocks).result()  # found.outcomes says which came

Several processes and all ranks of a host may share a namespace. A block without room, or a missing block, is an outcome and no
exception: the volume is a cache. docs/guide/kv-engines.md shows it with LMCache and SGLang.
"""

from __future__ import annotations

import ctypes
import enum
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from . import errors
from ._lib import _device, _native
from ._lib._arguments import Device, Path, checked
from ._lib._handle import Owner
from ._lib._memory import Place, place
from ._lib.reader import _check, _path
from ._lib.request import Request
from ._lib.writer import _memory

T = TypeVar("T")


class KVOutcome(enum.IntEnum):
    """The outcome of one block or key."""

    DONE = 0  # it was stored, loaded, found, pinned or removed
    MISSING = 1  # it is not there
    PRESENT = 2  # of a put: it was there before
    BUSY = 3  # of a put: another request is writing it
    NO_ROOM = 4  # of a put: nothing can be evicted now
    OVER_LIMIT = 5  # this user holds as much as one user may
    LENGTH = 6  # of a get: the block has another length than the memory
    DAMAGED = 7  # of a get: its bytes are not those that were stored
    LOST = 8  # of a put: its reservation ended with the daemon, each time
    FAILED = 9  # its tier could not be read or written
    UNDONE = 10  # the request ended before its turn


_OUTCOMES = tuple(KVOutcome)


class HostMemory:
    """``length`` bytes at an address of the host, as a block or a part of one. The caller keeps the memory."""

    __slots__ = ("address", "length")

    def __init__(self, address: int, length: int) -> None:
        self.address, self.length = address, length


class KVResult(NamedTuple):
    """The result of a request.

    outcomes: of each block or key, in order.
    moved: bytes of blocks by path ("mapped", "staged", "host") and by tier ("memory", "disk").
    tokens: of pin_many(), for unpin_many(); 0 for keys that are not there.
    """

    outcomes: tuple[KVOutcome, ...]
    moved: dict[str, int]
    tokens: tuple[int, ...] = ()

    @property
    def done(self) -> list[bool]:
        """Which blocks were stored, loaded, found, pinned or removed. One that was there before a put is not."""
        done = KVOutcome.DONE
        return [outcome is done for outcome in self.outcomes]

    @property
    def there(self) -> list[bool]:
        """Which blocks of a put are in the store now, or will be: another request writes those that are busy."""
        return [outcome in (KVOutcome.DONE, KVOutcome.PRESENT, KVOutcome.BUSY) for outcome in self.outcomes]


class KVStore(Owner):
    """A namespace of a KV volume, for one device. It may be used from many threads at once.

    mount: a path in the volume.
    namespace: its name. Blocks of one namespace are of one model, layout and dtype, by agreement of those that share it.
    block_bytes: the most bytes that a block has. None: as the namespace has it, which must be there.
    device: "cuda", "cuda:1", an index, or "cpu". Blocks of a GPU's store may lie on the CPU, too.
    create: make the namespace where there is none, with ``mode``.
    write: to put and to remove. Without it the process cannot write to the volume's memory.
    sums: blocks in memory have checksums (CRC-32C), too, which gets compare. Blocks on the disk always do. It costs the CPU about 0.1 s for each GB.
    threads: that copy; None means 4, on the CPU no more than there are CPUs.
    client: the name by which the mount's status shows this store.
    libraries: another file to load "cuda" from.

    :class:`NotFoundError`: there is no such namespace, and create is False. :class:`InvalidError`: it has blocks of another size.
    :class:`AccessError`: its mode keeps this user out, or the volume is mounted read-only here. :class:`UnavailableError`: mount lies in no KV volume.
    """

    @checked
    def __init__(
        self,
        mount: Path,
        namespace: str,
        block_bytes: int | None = None,
        *,
        device: Device = "cpu",
        create: bool = True,
        write: bool = True,
        sums: bool = False,
        mode: int = 0o600,
        threads: int | None = None,
        client: str = "hbmfs.KVStore",
        libraries: dict[str, str] | None = None,
    ) -> None:
        self.device = _device.parse(device)
        self.namespace = namespace
        for name, number in (("block_bytes", block_bytes or 0), ("threads", threads or 0), ("mode", mode)):
            _check(name, number)
        create = create and write and bool(block_bytes)
        options = _native.KVOptions(
            device=self.device, mount=_path(os.fspath(mount)), namespace_=_path(namespace), block_bytes=block_bytes or 0,
            flags=create * _native.KV_CREATE | write * _native.KV_WRITE | sums * _native.KV_SUMS, mode=mode, threads=threads or 0,
            client=_path(client), libcuda=_path((libraries or {}).get("cuda")),
        )  # fmt: skip
        self._open("kv", options)
        self._place: Place | None = None
        self._ends = _Ends(self._library)
        weakref.finalize(self, self._ends.close).atexit = False
        self.block_bytes = int(self._stats().block_bytes)

    def put_many(self, keys: Sequence[bytes], blocks: Any) -> Future[KVResult]:
        """Starts storing blocks, behind the work on the caller's current stream. They must stay unchanged until the future is done.

        keys: bytes, 1 to 64 each. blocks: for each key a contiguous torch tensor on the device or the CPU, a NumPy array or a bytes-like
        object, or a list of those, whose bytes are stored one behind the other; or one tensor or array [N, ...] of all.
        """
        return self._future(self.begin("put", keys, blocks), _all)

    def get_many(self, keys: Sequence[bytes], blocks: Any) -> Future[KVResult]:
        """Starts loading blocks into memory of the caller, as put_many() takes it, after the work on the caller's current stream.

        A block is loaded where its outcome is DONE. Memory of others may have been written to, and holds nothing of use.
        """
        return self._future(self.begin("get", keys, blocks), _all)

    def contains_many(self, keys: Sequence[bytes]) -> Future[list[bool]]:
        """Starts asking which blocks are there. They may be evicted at any time after that: see pin_many()."""
        return self._future(self.begin("contains", keys), _done)

    def pin_many(self, keys: Sequence[bytes]) -> Future[KVResult]:
        """Starts pinning blocks: they are not evicted until unpin_many(result.tokens), or the end of this process."""
        return self._future(self.begin("pin", keys), _all)

    def unpin_many(self, tokens: Iterable[int]) -> Future[KVResult]:
        """Starts giving up pins. Tokens that are 0 are left out."""
        return self._future(self.begin("unpin", tokens=[token for token in tokens if token]), _all)

    def remove_many(self, keys: Sequence[bytes]) -> Future[list[bool]]:
        """Starts removing blocks, and gives which were there. One that is pinned is found no more, and goes with its last pin."""
        return self._future(self.begin("remove", keys), _done)

    def clear(self) -> None:
        """Removes all blocks of the namespace, also those of other processes."""
        self._library.ask("kv_clear", self._handle)

    def stats(self) -> dict[str, Any]:
        """Counts since the store was opened.

        put, get: bytes by path and by tier. stored, present, refused: blocks of puts. loaded, missing, damaged: blocks of gets. requests: under
        way. connections: to daemons, one after the other. pinned: bytes of the memory tier that are registered with CUDA. direct: bytes of the disk
        tier that went past the page cache. buffered: why blocks of the disk tier go through it, "" where they do not.
        """
        stats = self._stats()
        numbers = {name: getattr(stats, name) for name in ("stored", "present", "refused", "loaded", "missing", "damaged", "requests", "connections")}
        return {
            "device": _device.name(self.device),
            "put": stats.put.by_name(),
            "get": stats.get.by_name(),
            **numbers,
            "pinned": stats.pinned_bytes,
            "direct": stats.direct_bytes,
            "buffered": stats.buffered.decode(),
        }

    def close(self) -> None:
        """Cancels requests, waits for them, and gives everything back. Blocks stay in the volume.

        :class:`WaitTimeoutError`: a call into the kernel or the driver hangs, so that memory must stay. Close it again later.
        """
        super().close()
        self._ends.close()

    def __repr__(self) -> str:
        return f"<hbmfs.KVStore {self.namespace} {_device.name(self.device)}{' closed' if self._closed else ''}>"

    def begin(self, verb: str, keys: Sequence[bytes] = (), blocks: Any = None, tokens: Sequence[int] = (), eventfd: int | None = None) -> KVCall:
        """Starts a request without a future, for programs that wait for an eventfd of their own: 1 is added to it once
        :meth:`KVCall.look` would give the result. The futures are made of it."""
        return KVCall(self, verb, keys, blocks, tokens, self._ends.eventfd() if eventfd is None else eventfd)

    def _future(self, call: KVCall, give: Callable[[KVResult], T]) -> Future[T]:
        return self._ends.add(call, give)

    def _stats(self) -> _native.KVStats:
        stats = _native.KVStats()
        self._library.ask("kv_get_stats", self._handle, stats)
        return stats

    def _stream(self, on_device: bool) -> int:
        """The caller's current stream, which may also write to memory of the host."""
        if self.device == _device.CPU or not on_device and "torch" not in sys.modules:
            return _native.NO_STREAM
        if self._place is None:
            self._place = place(self._library, self._handle, self.device)
        return self._place.stream()


def _all(result: KVResult) -> KVResult:
    return result


def _done(result: KVResult) -> list[bool]:
    return result.done


class KVCall:
    """A request of a store that is under way. It keeps the memory of its blocks. A request that is forgotten is cancelled."""

    def __init__(self, store: KVStore, verb: str, keys: Sequence[bytes], blocks: Any, tokens: Sequence[int], eventfd: int) -> None:
        self._library = store._library
        self._result: KVResult | BaseException | None = None
        self._lock = threading.Lock()
        self._count = len(tokens) if verb == "unpin" else len(keys)
        self._pins = verb == "pin"
        batch = _native.KVBatch(eventfd=eventfd, count=self._count, stream=_native.NO_STREAM)
        lengths = np.fromiter(map(len, keys), np.int32, len(keys))
        try:
            joined = b"".join(keys)
        except TypeError as err:
            raise errors.InvalidError("a key must be bytes, 1 to 64 of them") from err
        batch.keys, batch.key_lengths = ctypes.cast(ctypes.c_char_p(joined), ctypes.c_void_p), lengths.ctypes.data
        if verb in ("put", "get"):
            parts, counts = _parts(blocks, len(keys), verb == "get")
            batch.parts, batch.part_count = parts.ctypes.data, len(parts)
            batch.part_counts = None if counts is None else counts.ctypes.data
            batch.stream = store._stream(bool(parts["on_device"].any()))
        given = np.array(tokens, np.uint64)
        batch.tokens = given.ctypes.data
        self._request: Request[None] | None = Request.begin(self._library, f"kv_{verb}_begin", (store._handle, batch), None, owner=(store, blocks))

    def look(self, timeout: float = 0.0) -> KVResult | None:
        """Gives the result, or None where it is not there after ``timeout`` seconds. It raises the error of the request."""
        with self._lock:
            if self._result is None:
                self._result = self._ask(timeout)
                if self._result is not None and self._request is not None:
                    self._request._handle.value, self._request = 0, None
            if isinstance(self._result, BaseException):
                raise self._result
            return self._result

    def _ask(self, timeout: float) -> KVResult | BaseException | None:
        assert self._request is not None
        outcomes = np.full(self._count, KVOutcome.UNDONE, np.int32)
        tokens = np.zeros(self._count, np.uint64) if self._pins else None
        result = _native.KVResult()
        where = None if tokens is None else tokens.ctypes.data
        try:
            code = self._library.ask("kv_wait", self._request._handle, int(timeout * 1e9), result, outcomes.ctypes.data, where, self._count)
        except errors.Error as err:
            return err
        if code == _native.TIMEOUT:
            return None
        return KVResult(tuple(map(_OUTCOMES.__getitem__, outcomes.tolist())), result.moved.by_name(), () if tokens is None else tuple(tokens.tolist()))


def _parts(blocks: Any, count: int, writes: bool) -> tuple[NDArray[np.void], NDArray[np.int64] | None]:
    """The memory of blocks, and how many parts each has where that is not one."""
    if hasattr(blocks, "data_ptr") or isinstance(blocks, np.ndarray):
        if len(blocks.shape) == 0 or blocks.shape[0] != count:
            raise errors.InvalidError(f"blocks have shape {tuple(blocks.shape)}, and there are {count} keys: give [{count}, ...]")
        address, size, on_device = _place(blocks, writes)
        each = size // max(count, 1)
        return _memories(address + np.arange(count, dtype=np.uint64) * np.uint64(each), each, on_device), None
    if len(blocks) != count:
        raise errors.InvalidError(f"there are {len(blocks)} blocks and {count} keys")
    counts = None
    if any(isinstance(block, (list, tuple)) for block in blocks):
        listed = [list(block) if isinstance(block, (list, tuple)) else [block] for block in blocks]
        blocks, counts = [part for parts in listed for part in parts], np.fromiter(map(len, listed), np.int64, count)
    flat = (number for block in blocks for number in _place(block, writes))
    return _memories(*np.fromiter(flat, np.uint64, 3 * len(blocks)).reshape(-1, 3).T), counts


def _memories(addresses: Any, lengths: Any, on_device: Any) -> NDArray[np.void]:
    parts = np.zeros(len(addresses), _native.MEMORY)
    parts["address"], parts["length"], parts["on_device"] = addresses, lengths, on_device
    return parts


def _place(data: Any, writes: bool) -> tuple[int, int, int]:
    """The address of data, its bytes, and whether it is on a GPU."""
    if isinstance(data, HostMemory):
        return data.address, data.length, 0
    if writes and not hasattr(data, "data_ptr"):
        array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8) if not hasattr(data, "__cuda_array_interface__") else None
        if array is not None and not array.flags.writeable:
            raise errors.InvalidError(f"a {type(data).__name__} cannot be loaded into: it is read-only")
    return _memory(data)


class _Ends:
    """Ends futures when their requests have: one thread for a store, which waits for an eventfd."""

    def __init__(self, library: _native.Library) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._fd = -1
        self._calls: dict[Future[Any], tuple[KVCall, Callable[[KVResult], Any]]] = {}
        self._thread: threading.Thread | None = None
        self._over = False

    def eventfd(self) -> int:
        with self._lock:
            if self._over:
                raise errors.ClosedError("the store is closed")
            if self._fd < 0:
                self._fd = os.eventfd(0, os.EFD_CLOEXEC)
            return self._fd

    def add(self, call: KVCall, give: Callable[[KVResult], T]) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # it cannot be cancelled: the memory is in use
        with self._lock:
            self._calls[future] = (call, give)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="hbmfs-kv", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # there can be no more threads now
                    self._thread = None
                    del self._calls[future]
                    raise
        self._look(future, call, give)  # it may have ended before it was listed
        return future

    def _serve(self) -> None:
        while True:
            os.eventfd_read(self._fd)
            with self._lock:
                calls = list(self._calls.items())
            for future, (call, give) in calls:
                self._look(future, call, give)
            with self._lock:
                if self._over and not self._calls:
                    return

    def _look(self, future: Future[Any], call: KVCall, give: Callable[[KVResult], Any]) -> None:
        result: KVResult | None = None
        failure: BaseException | None = None
        try:
            result = call.look()
        except errors.Error as err:
            failure = err
        if result is None and failure is None:
            return
        with self._lock:
            if self._calls.pop(future, None) is None:
                return
        if failure is not None:
            future.set_exception(failure)
        elif result is not None:
            future.set_result(give(result))

    def close(self) -> None:
        """Ends the thread, once no request is left."""
        with self._lock:
            self._over, thread = True, self._thread
        if self._fd >= 0:
            os.eventfd_write(self._fd, 1)
            if thread is not None and thread is not threading.current_thread():
                thread.join()
            with self._lock:
                fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)
