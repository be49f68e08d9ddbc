"""SGLang's HiCache storage in a KV volume: a backend for its type "dynamic".

    python -m sglang.launch_server --enable-hierarchical-cache --hicache-storage-backend dynamic --hicache-storage-backend-extra-config \\
      '{"backend_name": "hbmfs", "module_path": "hbmfs.sglang", "class_name": "KVVolumeStorage", "interface_v1": 1,
        "mount": "/mnt/kv", "namespace": "llama-8b-fp8"}'

With "interface_v1" pages go between the host pool and the volume without a copy in between. block_bytes is a page of the host pool where it is
not given; create, write, sums, mode and threads are as of :class:`hbmfs.KVStore`. One namespace is for one model, dtype, page size and layout of
the host pool. Ranks share it, since keys tell them apart; ranks of an MLA model share its pages.

Pools beside the KV pool (Mamba, sliding windows, indexers, drafts: the interface v2) have namespaces of their own, whose names end in the pool's:
their pages have other sizes.

Written for SGLang 0.5.23.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolName, PoolTransferResult

from .. import errors
from ..kv import HostMemory, KVResult, KVStore

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PARAMETERS = ("mount", "namespace", "block_bytes", "create", "write", "sums", "mode", "threads")
_SGLANGS = {"backend_name", "module_path", "class_name", "interface_v1"}
_REPLICATED_DRAFTS = {"MLATokenToKVPoolHost", "DeepSeekV4PagedHostPool"}  # host pools of which all ranks of an MLA model hold the same


class _Pool:
    """A host pool, and the namespace that has its pages. shard is this rank's part of a page."""

    def __init__(self, host: Any, shard: str, options: dict[str, Any]) -> None:
        self._host, self._shard = host, shard
        self.page_size = int(getattr(host, "page_size", 1) or 1)
        self._flat = _is_flat(host, self.page_size)
        # A page in pieces has its bytes in the order of the layout.
        self._shard += "\0flat" if self._flat else f"\0pieces {getattr(host, 'layout', '')}"
        self.store = KVStore(client="sglang", **{"block_bytes": _page_bytes(host), **options})

    def names(self, keys: Sequence[str]) -> list[bytes]:
        return [_block_key(key, self._shard) for key in keys]

    def put(self, keys: Sequence[str], host_indices: Any) -> Future[KVResult]:
        """Stores pages that begin at every page_size-th index."""
        if self._flat:
            return self.store.put_many(self.names(keys), [self._host.get_data_page(at, flat=True).contiguous() for at in self._starts(host_indices)])
        return self.store.put_many(self.names(keys), _pages(self._host, keys, host_indices))

    def get(self, keys: Sequence[str], host_indices: Any) -> _Got:
        """Begins to load pages."""
        if not self._flat:
            return _Got(self.store.get_many(self.names(keys), _pages(self._host, keys, host_indices)))
        targets = [self._host.get_dummy_flat_data_page() for _ in keys]
        return _Got(self.store.get_many(self.names(keys), targets), self._host, self._starts(host_indices), targets)

    def _starts(self, host_indices: Any) -> list[int]:
        starts: list[int] = host_indices.tolist()[:: self.page_size]
        return starts


class _Got:
    """Pages on their way into a host pool: some by way of pages of their own."""

    def __init__(self, future: Future[KVResult], host: Any = None, starts: Sequence[int] = (), pages: Sequence[Any] = ()) -> None:
        self._future, self._host, self._starts, self._pages = future, host, starts, pages

    def result(self) -> list[bool]:
        done = self._future.result().done
        for at, page, came in zip(self._starts, self._pages, done, strict=False):
            if came:
                self._host.set_from_flat_data_page(at, page)
        return done


class KVVolumeStorage(HiCacheStorage):  # type: ignore[misc, unused-ignore]
    """A backend over one namespace. Pages that cannot be stored or found are False or None, as SGLang has it; errors are logged."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        extra = dict(storage_config.extra_config or {})
        unknown = extra.keys() - _SGLANGS - set(_PARAMETERS) - {"prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token"}
        if unknown or "mount" not in extra or "namespace" not in extra:
            raise ValueError(f"hbmfs takes mount, namespace, and at will {', '.join(_PARAMETERS[2:])}; not {', '.join(sorted(unknown)) or 'fewer'}")
        self._options = {name: extra[name] for name in _PARAMETERS if name in extra}
        self._config = storage_config
        self._shard = _shard(storage_config, not storage_config.is_mla_model)
        self._pieces = bool(extra.get("interface_v1", 0))
        self._host: Any = None
        self._pools: dict[str, _Pool] = {}  # by their names

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Opens the namespace, whose blocks are pages of this pool."""
        super().register_mem_pool_host(mem_pool_host)
        self._host = mem_pool_host
        if PoolName.KV not in self._pools and not self._is_logical:
            self._pools[PoolName.KV] = _Pool(mem_pool_host, self._shard, self._options)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Opens the namespace of a pool beside the KV pool."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = str(host_pool_name)
        if name == PoolName.KV:
            return
        before = self._pools.pop(name, None)
        if before is not None:
            before.store.close()
        options = {**self._options, "namespace": f"{self._options['namespace']}.{name}"}
        options.pop("block_bytes", None)
        self._pools[name] = _Pool(host_pool, f"{_shard(self._config, self._is_own(name, host_pool))}\0{name}", options)

    @property
    def _is_logical(self) -> bool:
        """Whether the KV pool has no memory: pools beside it have all of a page."""
        return getattr(self._host, "kv_buffer", self) is None

    def _is_own(self, name: str, host_pool: Any) -> bool:
        """Whether each rank of tensor parallelism has pages of its own in a pool."""
        if not self._config.is_mla_model or name == PoolName.MAMBA:
            return True
        return name in (PoolName.DRAFT, PoolName.DRAFT_SWA) and not any(base.__name__ in _REPLICATED_DRAFTS for base in type(host_pool).__mro__)

    @property
    def store(self) -> KVStore:
        """The store, once SGLang has registered its host pool."""
        return self._pool(PoolName.KV).store

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many pages are there, from the first on without a gap."""
        if self._is_logical:
            return len(keys)
        try:
            there = self.store.contains_many(self._pool(PoolName.KV).names(keys) if self._pieces else self._keys(keys)).result()
        except errors.Error as err:
            return _said(err, 0)
        return there.index(False) if False in there else len(there)

    def exists(self, key: str) -> bool:
        """Whether a page is there."""
        return self.batch_exists([key]) == 1

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Stores pages of the host pool. One that is there already, by any rank or engine, is stored."""
        if self._is_logical:
            return [True] * len(keys)
        try:
            return self._pool(PoolName.KV).put(keys, host_indices).result().there
        except errors.Error as err:
            return _said(err, [False] * len(keys))

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Loads pages into the host pool."""
        if self._is_logical:
            return [True] * len(keys)
        try:
            return self._pool(PoolName.KV).get(keys, host_indices).result()
        except errors.Error as err:
            return _said(err, [False] * len(keys))

    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """How long a prefix of pages every pool can give, and which prefixes. A policy that this backend does not know has no verdict."""
        try:
            asked = {str(t.name): self._pool(t.name) for t in pool_transfers or [] if t.name != PoolName.KV}
            begun = {name: pool.store.contains_many(pool.names(keys)) for name, pool in asked.items()}
            pages = self.batch_exists(keys, extra_info)
            there = {name: future.result() for name, future in begun.items()}
        except errors.Error as err:
            return _said(err, PoolTransferResult(0, {}, []))
        hits: dict[str, int] = {PoolName.KV: pages} if pages else {}
        restorable = list(range(1, pages + 1))
        for transfer in pool_transfers or []:
            if transfer.name == PoolName.KV:
                continue
            prefixes = _prefixes(there[str(transfer.name)][:pages], transfer)
            if prefixes is None:
                continue
            if prefixes:
                hits[transfer.name] = max(prefixes)
            restorable = [length for length in restorable if length in prefixes]
        return PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)

    def batch_set_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        """Stores pages of several pools at once."""
        return self._each(transfers, lambda pool, keys, indices: pool.put(keys, indices), lambda future: future.result().there)

    def batch_get_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        """Loads pages into several pools at once."""
        return self._each(transfers, lambda pool, keys, indices: pool.get(keys, indices), lambda got: got.result())

    def _each(self, transfers: list[Any], begin: Any, end: Any) -> dict[str, list[bool]]:
        """Begins all transfers before it waits for one. One that fails has False for each of its pages."""
        results: dict[str, list[bool]] = {t.name: [False] * len(t.keys or []) for t in transfers}
        begun = []
        for t in transfers:
            keys, indices = t.keys or [], t.host_indices
            if not keys:
                continue
            try:
                pool = self._pool(t.name)
                if indices is None or indices.numel() != len(keys) * pool.page_size:
                    raise errors.InvalidError(f"{len(keys)} pages of pool {t.name} have {0 if indices is None else indices.numel()} indices")
                begun.append((t, begin(pool, keys, indices)))
            except errors.Error as err:
                _said(err, None)
        for t, request in begun:
            try:
                results[t.name] = end(request)
            except errors.Error as err:
                _said(err, None)
        return results

    def _pool(self, name: Any) -> _Pool:
        pool = self._pools.get(str(name))
        if pool is None:
            raise errors.ClosedError(f"host pool {name} is not registered, or the backend is closed")
        return pool

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
        """Removes all pages of the namespaces, also those of other processes."""
        for pool in self._pools.values():
            pool.store.clear()

    def get_stats(self) -> Any:
        """Nothing that SGLang's metrics know; the volume has its own."""
        return None

    def close(self) -> None:
        """Closes the stores. Pages stay in the volume."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.store.close()

    def _keys(self, keys: Sequence[str]) -> list[bytes]:
        return [_block_key(key, f"{self._shard}\0flat") for key in keys]


def _block_key(key: str, shard: str) -> bytes:
    """The 32 bytes by which the volume knows a page: a BLAKE2b digest of SGLang's hash, and of this rank's part of the page."""
    return hashlib.blake2b(f"{key}\0{shard}".encode(), digest_size=32, person=b"hbmfs.sglang").digest()


def _page_bytes(host: Any) -> int:
    page = host.get_dummy_flat_data_page()
    return int(page.numel() * page.element_size())


def _pages(host: Any, keys: Sequence[str], host_indices: Any) -> list[list[HostMemory]]:
    """The memory of pages in a host pool: of some layouts one piece for keys and one for values, of others two for each layer."""
    pointers, sizes = host.get_page_buffer_meta(host_indices)
    each = len(pointers) // max(len(keys), 1)
    pieces = [HostMemory(pointer, size) for pointer, size in zip(pointers, sizes, strict=True)]
    return [pieces[i * each : (i + 1) * each] for i in range(len(keys))]


def _is_flat(host: Any, page_size: int) -> bool:
    """Whether a pool cannot name the memory of its pages, as a Mamba pool cannot in most layouts: its pages are copied then."""
    try:
        _, sizes = host.get_page_buffer_meta(torch.arange(page_size))
        return bool(sum(sizes) != _page_bytes(host))
    except (AttributeError, NotImplementedError, ValueError):
        return True


def _prefixes(there: list[bool], transfer: Any) -> set[int] | None:
    """The lengths of prefixes for which a pool has its required pages; None where its policy is not known here."""
    if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
        return set(range(1, (there.index(False) if False in there else len(there)) + 1))
    if transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
        last = max(1, len(transfer.keys or []))
        return {length for length in range(1, len(there) + 1) if all(there[max(0, length - last) : length])}
    return None


def _shard(config: Any, own: bool) -> str:
    """This rank's part of a page. own: each rank of tensor parallelism holds something else."""
    said = [config.model_name or "", f"pp{config.pp_rank}/{config.pp_size}", f"cp{config.attn_cp_rank}/{config.attn_cp_size}"]
    if own:
        said.append(f"tp{config.tp_rank}/{config.tp_size}")
    if config.dcp_size > 1:
        said.append(f"tp{config.tp_size} dcp{config.dcp_rank}/{config.dcp_size} page{config.logical_page_size}")
    return "\0".join(said)


def _said(err: errors.Error, otherwise: T) -> T:
    logger.warning("hbmfs: %s", err)
    return otherwise
