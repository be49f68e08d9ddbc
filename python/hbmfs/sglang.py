"""SGLang's HiCache storage in a KV volume: a backend for its type "dynamic".

    python -m sglang.launch_server --enable-hierarchical-cache --hicache-storage-backend dynamic --hicache-storage-backend-extra-config \\
      '{"backend_name": "hbmfs", "module_path": "hbmfs.sglang", "class_name": "KVVolumeStorage", "interface_v1": 1,
        "mount": "/mnt/kv", "namespace": "llama-8b-fp8"}'

With "interface_v1" pages go between the host pool and the volume without a copy in between. block_bytes is a page of the host pool where it is
not given; create, write, sums, mode and threads are as of :class:`hbmfs.KVStore`. One namespace is for one model, dtype, page size and layout of
the host pool. Ranks share it, since keys tell them apart; ranks of an MLA model share its pages.

Written for SGLang 0.5.23. Pools beside the KV pool (Mamba, sliding windows: the interface v2) are not stored.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any, TypeVar

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from . import errors
from .kv import HostMemory, KVStore

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PARAMETERS = ("mount", "namespace", "block_bytes", "create", "write", "sums", "mode", "threads")
_SGLANGS = {"backend_name", "module_path", "class_name", "interface_v1"}


class KVVolumeStorage(HiCacheStorage):  # type: ignore[misc, unused-ignore]
    """A backend over one namespace. What cannot be stored or found is False or None, as SGLang has it; errors are logged."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        extra = dict(storage_config.extra_config or {})
        unknown = extra.keys() - _SGLANGS - set(_PARAMETERS) - {"prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token"}
        if unknown or "mount" not in extra or "namespace" not in extra:
            raise ValueError(f"hbmfs takes mount, namespace, and at will {', '.join(_PARAMETERS[2:])}; not {', '.join(sorted(unknown)) or 'fewer'}")
        self._options = {name: extra[name] for name in _PARAMETERS if name in extra}
        self._shard = _shard(storage_config)
        self._store: KVStore | None = None
        self._pool: Any = None

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Opens the namespace, whose blocks are pages of this pool."""
        super().register_mem_pool_host(mem_pool_host)
        self._pool = mem_pool_host
        page = mem_pool_host.get_dummy_flat_data_page()
        self._options.setdefault("block_bytes", page.numel() * page.element_size())
        if self._store is None:
            self._store = KVStore(client="sglang", **self._options)

    @property
    def store(self) -> KVStore:
        """The store, once SGLang has registered its host pool."""
        if self._store is None:
            raise errors.ClosedError("the host pool is not registered, or the backend is closed")
        return self._store

    def block_key(self, key: str) -> bytes:
        """The 32 bytes by which the volume knows a page: a BLAKE2b digest of SGLang's hash and of what this rank holds of the page."""
        return hashlib.blake2b(f"{key}\0{self._shard}".encode(), digest_size=32, person=b"hbmfs.sglang").digest()

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many pages are there, from the first on without a gap."""
        try:
            there = self.store.contains_many(self._keys(keys)).result()
        except errors.Error as err:
            return _said(err, 0)
        return there.index(False) if False in there else len(there)

    def exists(self, key: str) -> bool:
        """Whether a page is there."""
        return self.batch_exists([key]) == 1

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Stores pages of the host pool. One that is there already, by any rank or engine, is stored."""
        try:
            return self.store.put_many(self._keys(keys), self._pages(keys, host_indices)).result().there
        except errors.Error as err:
            return _said(err, [False] * len(keys))

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Loads pages into the host pool."""
        try:
            return self.store.get_many(self._keys(keys), self._pages(keys, host_indices)).result().done
        except errors.Error as err:
            return _said(err, [False] * len(keys))

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Stores one page, a tensor."""
        return self.batch_set([key], [value])

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        """Stores pages, tensors of the CPU, and says whether all are there now."""
        try:
            return all(self.store.put_many(self._keys(keys), [value.contiguous() for value in values]).result().there)
        except errors.Error as err:
            return _said(err, False)

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Loads one page into a tensor, and gives it, or None."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """Loads pages into contiguous tensors of the CPU, and gives those that came; None for others."""
        try:
            done = self.store.get_many(self._keys(keys), target_locations).result().done
        except errors.Error as err:
            return _said(err, [None] * len(keys))
        return [target if came else None for target, came in zip(target_locations, done, strict=True)]

    def clear(self) -> None:
        """Removes all pages of the namespace, whoever stored them."""
        self.store.clear()

    def get_stats(self) -> Any:
        """Nothing that SGLang's metrics know; the volume has its own."""
        return None

    def close(self) -> None:
        """Closes the store. Pages stay in the volume."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _keys(self, keys: Sequence[str]) -> list[bytes]:
        return [self.block_key(key) for key in keys]

    def _pages(self, keys: Sequence[str], host_indices: Any) -> list[list[HostMemory]]:
        """The memory of pages in the host pool: of some layouts one piece for keys and one for values, of others two for each layer."""
        pointers, sizes = self._pool.get_page_buffer_meta(host_indices)
        each = len(pointers) // max(len(keys), 1)
        pieces = [HostMemory(pointer, size) for pointer, size in zip(pointers, sizes, strict=True)]
        return [pieces[i * each : (i + 1) * each] for i in range(len(keys))]


def _shard(config: Any) -> str:
    """What this rank holds of a page. All ranks of tensor parallelism hold the same of an MLA model."""
    said = [config.model_name or "", f"pp{config.pp_rank}/{config.pp_size}", f"cp{config.attn_cp_rank}/{config.attn_cp_size}"]
    if not config.is_mla_model:
        said.append(f"tp{config.tp_rank}/{config.tp_size}")
    if config.dcp_size > 1:
        said.append(f"tp{config.tp_size} dcp{config.dcp_rank}/{config.dcp_size} page{config.logical_page_size}")
    return "\0".join(said)


def _said(err: errors.Error, otherwise: T) -> T:
    logger.warning("hbmfs: %s", err)
    return otherwise
