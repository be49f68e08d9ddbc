"""LMCache's second level in a KV volume: an L2 adapter for its type "plugin".

    {"type": "plugin", "module_path": "hbmfs.lmcache", "class_name": "KVVolumeAdapter",
     "adapter_params": {"mount": "/mnt/kv", "namespace": "llama-8b-fp8", "block_bytes": 2097152}}

adapter_params are arguments of :class:`hbmfs.KVStore`: mount and namespace, block_bytes (the size of LMCache's chunk, the most that one
has), create, write, sums, mode, threads. One namespace is for one layout of chunks: model, dtype, chunk size. Ranks, object groups and
salts share it, since keys tell them apart. The volume bounds it and evicts; LMCache's own eviction of this level has nothing to do.

Written for LMCache 0.5.6, whose controllers poll the three eventfds.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.logging import init_logger
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface
from lmcache.v1.platform import create_event_notifier

from .. import errors
from ..kv import KVCall, KVOutcome, KVResult, KVStore

logger = init_logger(__name__)

_PARAMETERS = ("mount", "namespace", "block_bytes", "create", "write", "sums", "mode", "threads")


def block_key(key: Any) -> bytes:
    """The 32 bytes by which the volume knows an ObjectKey: a BLAKE2b digest of all of its fields."""
    digest = hashlib.blake2b(digest_size=32, person=b"hbmfs.lmcache")
    for field in (key.chunk_hash, key.model_name.encode(), key.cache_salt.encode()):
        digest.update(len(field).to_bytes(4, "little") + field)
    digest.update(key.kv_rank.to_bytes(8, "little") + key.object_group_id.to_bytes(8, "little"))
    return digest.digest()


class _Task:
    """A request of LMCache's. call is None where it could not begin; places are those of its keys among LMCache's."""

    def __init__(self, keys: list[Any], sizes: list[int], call: KVCall | None, places: list[int]) -> None:
        self.keys, self.sizes, self.call, self.places = keys, sizes, call, places
        self.result: KVResult | None = None

    def look(self) -> bool:
        """Whether it has ended. One that failed has no result."""
        if self.call is None:
            return True
        try:
            self.result = self.call.look()
        except errors.Error as err:
            logger.warning("hbmfs: %s", err)
            return True
        return self.result is not None

    def came(self, outcome: KVOutcome = KVOutcome.DONE) -> list[int]:
        """The places of keys that have an outcome."""
        if self.result is None:
            return []
        return [place for place, got in zip(self.places, self.result.outcomes, strict=True) if got == outcome]


class KVVolumeAdapter(L2AdapterInterface):  # type: ignore[misc, unused-ignore]
    """An L2 adapter over one namespace. Locks are pins, which the volume keeps until they are given up or this process ends."""

    def __init__(self, config: dict[str, Any], l1_memory_desc: Any = None) -> None:
        super().__init__()
        unknown = config.keys() - set(_PARAMETERS)
        if unknown or "mount" not in config or "namespace" not in config:
            raise ValueError(
                f"adapter_params of hbmfs are mount, namespace, and at will {', '.join(_PARAMETERS[2:])}; not {', '.join(sorted(unknown)) or 'fewer'}"
            )
        self._store = KVStore(client="lmcache", **config)
        self._notifiers = {name: create_event_notifier() for name in ("store", "lookup", "load")}
        self._lock = threading.Lock()  # guards the fields below
        self._tasks: dict[str, dict[int, _Task]] = {"store": {}, "lookup": {}, "load": {}}
        self._next = 0
        self._pins: dict[bytes, list[int]] = {}
        self._unlocks: list[KVCall] = []
        self._sizes: dict[int, int] = {}  # of an object group's chunks
        self._closed = False

    def get_store_event_fd(self) -> int:
        """The eventfd of stores."""
        return int(self._notifiers["store"].fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        """The eventfd of lookups."""
        return int(self._notifiers["lookup"].fileno())

    def get_load_event_fd(self) -> int:
        """The eventfd of loads."""
        return int(self._notifiers["load"].fileno())

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Starts storing. A chunk larger than block_bytes fails its task; the others are stored."""
        return self._submit("store", "put", keys, objects)

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        """A task succeeds when all its chunks are there, also if another process stored them. Chunks that find no room fail it."""
        ended: dict[int, Any] = {}
        stored: list[tuple[Any, int]] = []
        for number, task in self._harvest("store"):
            new = task.came()
            there = len(new) + len(task.came(KVOutcome.PRESENT)) + len(task.came(KVOutcome.BUSY))
            ended[number] = L2StoreResult(there == len(task.keys), sum(task.sizes[place] for place in new))
            stored += [(task.keys[place], task.sizes[place]) for place in new]
        if stored:
            with self._lock:
                self._sizes.update({key.object_group_id: size for key, size in stored})
            self._notify_keys_stored([key for key, _ in stored], [size for _, size in stored])
        return ended

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: Any) -> int:
        """Starts pinning the existing blocks."""
        return self._submit("lookup", "pin", keys, None)

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        """A bit for each key that is there and pinned; None where the task goes on."""
        task = self._take("lookup", task_id)
        if task is None:
            return None
        if task.result is not None:
            with self._lock:
                for place, token in zip(task.places, task.result.tokens, strict=True):
                    if token:
                        self._pins.setdefault(block_key(task.keys[place]), []).append(token)
        return _bitmap(task)

    def submit_unlock(self, keys: list[Any]) -> None:
        """Starts giving up one pin of each key. The request waits for the next daemon where there is none."""
        with self._lock:
            tokens = [pins.pop() for pins in (self._pins.get(block_key(key)) for key in keys) if pins]
            self._unlocks = [call for call in self._unlocks if not _over(call)]
            if tokens:
                self._unlocks.append(self._store.begin("unpin", tokens=tokens, eventfd=0))
            for key in keys:
                name = block_key(key)
                if name in self._pins and not self._pins[name]:
                    del self._pins[name]

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Starts loading, of locked keys and others."""
        return self._submit("load", "get", keys, objects)

    def query_load_result(self, task_id: int) -> Any:
        """A bit for each chunk that was loaded; None where the task goes on."""
        task = self._take("load", task_id)
        if task is None:
            return None
        loaded = [task.keys[place] for place in task.came()]
        if loaded:
            self._notify_keys_accessed(loaded)
        return _bitmap(task)

    def delete(self, keys: list[Any]) -> None:
        """Removes chunks, and tells listeners which were there."""
        names = [block_key(key) for key in keys]
        try:
            there = self._store.remove_many(names).result()
        except errors.Error as err:
            logger.warning("hbmfs: %s", err)
            return
        gone = [key for key, was in zip(keys, there, strict=True) if was]
        if gone:
            self._notify_keys_deleted(gone, [self._sizes.get(key.object_group_id, 0) for key in gone])

    def get_usage(self) -> AdapterUsage:
        """No bytes: the volume bounds itself, for all that share it, and it does not report evictions."""
        return AdapterUsage(total_bytes_used=0, total_capacity_bytes=0)

    def report_status(self) -> dict[str, Any]:
        """Counts of the store, and the locks that are held."""
        with self._lock:
            locks, tasks = sum(map(len, self._pins.values())), sum(map(len, self._tasks.values()))
        return {
            "is_healthy": not self._closed,
            "type": "KVVolumeAdapter",
            "namespace": self._store.namespace,
            "locks": locks,
            "tasks": tasks,
            **self._store.stats(),
        }

    def close(self) -> None:
        """Ends all requests, and gives up all locks."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            tokens = [token for pins in self._pins.values() for token in pins]
            self._pins.clear()
        try:
            if tokens:
                self._store.unpin_many(tokens).result()
        except errors.Error as err:
            logger.warning("hbmfs: %s", err)
        self._store.close()
        for notifier in self._notifiers.values():
            notifier.close()

    def _submit(self, kind: str, verb: str, keys: list[Any], objects: list[Any] | None) -> int:
        buffers = None if objects is None else [obj.byte_array for obj in objects]
        sizes = [0] * len(keys) if buffers is None else [len(buffer) for buffer in buffers]
        places = [place for place, size in enumerate(sizes) if size <= self._store.block_bytes]
        if len(places) < len(keys):
            logger.warning("hbmfs: %d chunks have more than the %d bytes of a block: give more block_bytes", len(keys) - len(places), self._store.block_bytes)
        fd = self._notifiers[kind].fileno()
        names = [block_key(keys[place]) for place in places]
        given = None if buffers is None else [buffers[place] for place in places]
        call = None
        with self._lock:  # a caller that hears of its end finds it listed
            try:
                call = self._store.begin(verb, names, given, eventfd=fd)
            except errors.Error as err:
                logger.warning("hbmfs: %s", err)
            number = self._next
            self._next += 1
            self._tasks[kind][number] = _Task(keys, sizes, call, places)
        if call is None:
            self._notifiers[kind].notify()
        return number

    def _harvest(self, kind: str) -> list[tuple[int, _Task]]:
        with self._lock:
            ended = [(number, task) for number, task in self._tasks[kind].items() if task.look()]
            for number, _ in ended:
                del self._tasks[kind][number]
        return ended

    def _take(self, kind: str, number: int) -> _Task | None:
        with self._lock:
            task = self._tasks[kind].get(number)
            if task is None or not task.look():
                return None
            return self._tasks[kind].pop(number)


def _bitmap(task: _Task) -> Any:
    bits = Bitmap(len(task.keys))
    for place in task.came():
        bits.set(place)
    return bits


def _over(call: KVCall) -> bool:
    look: Callable[[], Any] = call.look
    try:
        return look() is not None
    except errors.Error as err:
        logger.warning("hbmfs: %s", err)
        return True
