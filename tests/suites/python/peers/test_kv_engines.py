"""LMCache's and SGLang's second levels in a KV volume, by their own code.

LMCache is the real package: its plugin type makes the adapter, its storage manager and controllers store and load by it, and its benchmark of
such adapters runs. Of SGLang the
interface, the configuration and the factory of storage backends are the real ones. Its host pools need kernels that CPUs lack: a pool of the
same layouts stands for them.
"""

import argparse
import importlib.util
import json
import select
import sys
import time
import types
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from lmcache.cli.commands.bench.l2_adapter_bench.data import create_l1_memory_desc, make_memory_objects, make_object_keys
from lmcache.cli.main import main
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, PrefetchTaskSpec
from lmcache.v1.distributed.config import parse_args
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
from lmcache.v1.distributed.storage_manager import StorageManager
from lmcache.v1.platform import consume_fd
from test_kv import Volume

CHUNK = 64 << 10
PATIENCE = 60_000  # milliseconds


@pytest.fixture
def volume(tmp_path):
    volume = Volume(tmp_path)
    yield volume
    volume.unmount()


def specification(volume, **more):
    parameters = {"mount": str(volume.path), "namespace": "lmcache", "block_bytes": CHUNK, **more}
    return json.dumps({"type": "plugin", "module_path": "hbmfs.lmcache", "class_name": "KVVolumeAdapter", "adapter_params": parameters})


class Engine:
    """Asks an adapter as LMCache's controllers do."""

    def __init__(self, volume, **more):
        self.buffer = torch.zeros(64 * CHUNK, dtype=torch.uint8)
        config = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[specification(volume, **more)]))
        self.adapter = create_l2_adapter(config.adapters[0], l1_memory_desc=create_l1_memory_desc(self.buffer))
        self.poller = select.poll()
        for fd in (self.adapter.get_store_event_fd(), self.adapter.get_lookup_and_lock_event_fd(), self.adapter.get_load_event_fd()):
            self.poller.register(fd, select.POLLIN)

    def objects(self, n, first=0, size=CHUNK):
        return make_memory_objects(self.buffer, n, size, first * CHUNK, fill_offset=first)

    def until(self, fd, result):
        while True:
            for ready, _ in self.poller.poll(PATIENCE):  # first: an event that nobody takes would be the next task's
                assert ready == fd
                consume_fd(ready)
            value = result()
            if value:
                return value

    def store(self, keys, objects):
        task = self.adapter.submit_store_task(keys, objects)
        return self.until(self.adapter.get_store_event_fd(), self.adapter.pop_completed_store_tasks)[task]

    def lock(self, keys):
        task = self.adapter.submit_lookup_and_lock_task(keys, {})
        return self.bits(keys, self.until(self.adapter.get_lookup_and_lock_event_fd(), lambda: self.some(self.adapter.query_lookup_and_lock_result(task))))

    def load(self, keys, objects):
        task = self.adapter.submit_load_task(keys, objects)
        return self.bits(keys, self.until(self.adapter.get_load_event_fd(), lambda: self.some(self.adapter.query_load_result(task))))

    @staticmethod
    def some(bitmap):
        return None if bitmap is None else (bitmap,)

    @staticmethod
    def bits(keys, found):
        return [found[0].test(i) for i in range(len(keys))]


def test_lmcache(volume):
    engine = Engine(volume)
    keys, objects = make_object_keys(8), engine.objects(8)
    result = engine.store(keys, objects)
    assert result.is_successful() and result.bytes_transferred() == 8 * CHUNK
    result = engine.store(keys, objects)
    assert result.is_successful() and result.bytes_transferred() == 0
    assert engine.lock([*keys[:2], *make_object_keys(1, key_offset=99)]) == [True, True, False]
    assert engine.adapter.report_status()["locks"] == 2
    loaded = engine.objects(9, first=20)
    assert engine.load([*keys, *make_object_keys(1, key_offset=99)], loaded) == [True] * 8 + [False]
    assert all(torch.equal(a.raw_data, b.raw_data) for a, b in zip(objects, loaded[:8], strict=True))
    engine.adapter.submit_unlock(keys[:2])
    assert engine.adapter.report_status()["locks"] == 0
    engine.adapter.delete(keys[:3])
    assert engine.lock(keys) == [False] * 3 + [True] * 5
    volume.kill()
    assert engine.load(keys[3:], engine.objects(5, first=40)) == [True] * 5
    engine.adapter.close()


def test_lmcache_chunks_that_do_not_fit(volume):
    engine = Engine(volume, block_bytes=CHUNK // 2)
    assert not engine.store(make_object_keys(1), engine.objects(1)).is_successful()
    engine.adapter.close()
    with pytest.raises(ValueError, match="not colour"):
        Engine(volume, colour="red")


def test_lmcache_two_keys_are_never_one():
    from hbmfs.lmcache import block_key
    from lmcache.v1.distributed.api import ObjectKey

    keys = [
        ObjectKey(b"ab", "m", 1),
        ObjectKey(b"a", "m", 1),
        ObjectKey(b"ab", "m", 2),
        ObjectKey(b"ab", "m", 1, 1),
        ObjectKey(b"ab", "m", 1, 0, "s"),
        ObjectKey(b"ab", "ms", 1),
    ]
    assert len({block_key(key) for key in keys}) == len(keys) and {len(block_key(key)) for key in keys} == {32}


def test_lmcache_benchmark(volume, capsys):
    """lmcache bench l2, which compares what it loads with what it stored."""
    arguments = ["--num-keys", "16", "--data-size-kb", "64", "--rounds", "3", "--in-flight", "2", "--lookup-max-hit-rate", "0.5", "--no-skip-verify"]
    main(["bench", "l2", "--l2-adapter", specification(volume), *arguments])
    said = capsys.readouterr().out
    assert "All 32 keys data verified OK" in said and "TIMEOUT" not in said


class Server:
    """LMCache's storage manager, as its server makes it of its command line, with its own controllers of stores and loads."""

    def __init__(self, volume, **more):
        config = parse_args(["--l1-size-gb", "0.03", "--eviction-policy", "LRU", "--l2-adapter", specification(volume, **more)])
        config.l1_manager_config.memory_config.shm_name = ""  # several in one process
        self.manager = StorageManager(config)
        self.layout = MemoryLayoutDesc([torch.Size([CHUNK])], [torch.uint8])

    def write(self, keys, seed):
        objects = self.manager.reserve_write(keys, self.layout)
        for i, key in enumerate(keys):
            objects[key].raw_data[:] = torch.from_numpy(np.random.default_rng(seed + i).integers(0, 256, CHUNK, np.uint8))
        self.manager.finish_write(keys)

    def prefetch(self, keys):
        """Which keys are in L1 then, and the bytes of those."""
        handle = self.manager.submit_prefetch_task(PrefetchTaskSpec([GroupedObjectKeys(keys, 0, self.layout)]))
        assert self.manager.wait_prefetch_status(handle, PATIENCE / 1000)
        found = self.manager.query_prefetch_status(handle).hit_cells[0]
        hits = [key for i, key in enumerate(keys) if found.test(i)]
        with self.manager.read_prefetched_results(hits) as objects:
            loaded = [each.raw_data.clone() for each in objects or []]
        self.manager.finish_read_prefetched(hits)
        return [key in hits for key in keys], loaded

    def until(self, done):
        end = time.monotonic() + PATIENCE / 1000
        while not done(self.manager.report_status()["l2_adapters"][0]):
            assert time.monotonic() < end
            time.sleep(0.02)

    def close(self):
        self.manager.close()


def test_lmcache_server(volume):
    """One server of LMCache stores chunks, which another one on the same host finds and loads, also after the daemon was killed."""
    first = Server(volume)
    keys = make_object_keys(12)
    first.write(keys, seed=5)
    first.until(lambda status: status["stored"] == 12 and status["tasks"] == 0)
    second = Server(volume)
    hits, loaded = second.prefetch([*keys, *make_object_keys(2, key_offset=99)])
    assert hits == [True] * 12 + [False] * 2
    assert all(torch.equal(chunk, torch.from_numpy(np.random.default_rng(5 + i).integers(0, 256, CHUNK, np.uint8))) for i, chunk in enumerate(loaded))
    second.until(lambda status: status["locks"] == 0)
    volume.kill()
    first.close()
    more = make_object_keys(4, key_offset=50)
    second.write(more, seed=50)
    second.until(lambda status: status["stored"] == 4 and status["tasks"] == 0)
    third = Server(volume)
    assert third.prefetch([*keys, *more])[0] == [True] * 16
    third.close()
    second.close()


@pytest.fixture(scope="module")
def hicache():
    """SGLang's modules of storage backends, without its packages' own initialization, which needs kernels."""
    root = importlib.util.find_spec("sglang").submodule_search_locations[0]
    for name, path in (("sglang", root), ("sglang.srt", f"{root}/srt")):
        if name not in sys.modules:
            module = types.ModuleType(name)
            module.__path__ = [path]
            sys.modules[name] = module
    from sglang.srt.mem_cache import hicache_storage
    from sglang.srt.mem_cache.storage import StorageBackendFactory

    return hicache_storage, StorageBackendFactory


class HostPool:
    """A pool of tokens on the host: of the layout "layer_first", [2, layer, token, head], or "page_first", [2, token, layer, head]."""

    def __init__(self, layout, tokens=64, layers=3, width=40, page=8):
        self.layout, self.page_size = layout, page
        self.layers, self.width = layers, width
        self.buffer = torch.zeros((2, layers, tokens, width) if layout == "layer_first" else (2, tokens, layers, width), dtype=torch.bfloat16)

    def get_dummy_flat_data_page(self):
        return torch.zeros(2 * self.page_size * self.layers * self.width, dtype=torch.bfloat16)

    def get_data_page(self, index, flat=True):
        return self.page(index).flatten()

    def page(self, index):
        rows = slice(index, index + self.page_size)
        return self.buffer[:, :, rows] if self.layout == "layer_first" else self.buffer[:, rows]

    def get_page_buffer_meta(self, indices):
        views = []
        for index in indices.tolist()[:: self.page_size]:
            page = self.page(index)
            views += [page[kind, layer] for layer in range(self.layers) for kind in range(2)] if self.layout == "layer_first" else [page[0], page[1]]
        assert all(view.is_contiguous() for view in views)
        return [view.data_ptr() for view in views], [view.numel() * view.element_size() for view in views]


def backend(hicache, volume, pool, rank=0, mla=False, **more):
    storage, factory = hicache
    extra = {
        "backend_name": "hbmfs",
        "module_path": "hbmfs.sglang",
        "class_name": "KVVolumeStorage",
        "interface_v1": 1,
        "mount": str(volume.path),
        "namespace": "sglang",
        **more,
    }
    config = storage.HiCacheStorageConfig(
        tp_rank=rank, tp_size=2, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=mla, enable_storage_metrics=False,
        is_page_first_layout=pool.layout == "page_first", model_name="org/model", extra_config=extra,
    )  # fmt: skip
    made = factory.create_backend("dynamic", config, pool)
    made.register_mem_pool_host(pool)
    made.on_host_pools_registered()
    return made


@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
def test_sglang(volume, hicache, layout):
    pool = HostPool(layout)
    storage = backend(hicache, volume, pool)
    keys = [f"{i:064x}" for i in range(4)]
    pool.buffer[:] = torch.from_numpy(np.random.default_rng(1).random(pool.buffer.shape)).to(torch.bfloat16)
    pages = [pool.page(i * 8).clone() for i in range(8)]
    assert storage.batch_exists(keys) == 0
    assert storage.batch_set_v1(keys, torch.arange(32)) == [True] * 4
    assert storage.batch_set_v1(keys, torch.arange(32)) == [True] * 4
    assert storage.batch_exists([*keys[:2], "none", keys[3]]) == 2 and storage.exists(keys[3])
    assert storage.batch_get_v1([keys[2], "none", keys[0]], torch.arange(40, 64)) == [True, False, True]
    assert torch.equal(pool.page(40), pages[2]) and torch.equal(pool.page(56), pages[0])
    target = pool.get_dummy_flat_data_page()
    assert storage.set("flat", pages[7].flatten()) and torch.equal(storage.get("flat", target), pages[7].flatten())
    assert storage.batch_get(["none", "flat"], [pool.get_dummy_flat_data_page(), target])[0] is None
    other = backend(hicache, volume, pool, rank=1)
    assert other.batch_exists(keys) == 0  # it holds other heads of these pages
    other.close()
    storage.clear()
    assert storage.batch_exists(keys) == 0
    storage.close()
    storage.close()


def test_sglang_ranks_of_mla_share_pages(volume, hicache):
    pool = HostPool("page_first")
    first, second = (backend(hicache, volume, pool, rank, mla=True) for rank in range(2))
    assert first.batch_set_v1(["a"], torch.arange(8)) == [True] and second.exists("a")
    first.close()
    second.close()


def keys_of(n, first=0):
    return [f"{i:064x}" for i in range(first, first + n)]


class StatePool:
    """A pool of one state for each page, as Mamba's: its pages have no memory that it could name, or, page by page, one piece of each of two."""

    page_size = 1

    def __init__(self, layout, slots=16, width=24):
        self.layout = layout
        self.states, self.convolutions = (torch.zeros(slots, n, dtype=torch.float32) for n in (width, 5))

    def get_page_buffer_meta(self, indices):
        if self.layout != "page_first":
            raise ValueError(f"zero-copy requires page_first layout, got {self.layout}")
        rows = [row for i in indices.tolist() for row in (self.states[i], self.convolutions[i])]
        return [row.data_ptr() for row in rows], [row.numel() * row.element_size() for row in rows]

    def get_dummy_flat_data_page(self):
        return torch.zeros(self.states.shape[1] + self.convolutions.shape[1])

    def get_data_page(self, index, flat=True):
        return torch.cat([self.states[index], self.convolutions[index]])

    def set_from_flat_data_page(self, index, page):
        self.states[index], self.convolutions[index] = page.split([self.states.shape[1], self.convolutions.shape[1]])

    def fill(self, seed):
        for i, buffer in enumerate((self.states, self.convolutions)):
            buffer[:] = torch.from_numpy(np.random.default_rng(seed + i).random(buffer.shape).astype(np.float32))


@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_sglang_pools_beside(volume, hicache, layout):
    """Pages of two pools go and come in one batch, each in a namespace of its own."""
    storage, _ = hicache
    pool, states = HostPool("page_first"), StatePool(layout)
    made = backend(hicache, volume, pool)
    made.register_mem_host_pool_v2(pool, storage.PoolName.KV)
    made.register_mem_host_pool_v2(states, storage.PoolName.MAMBA)
    made.on_host_pools_registered()
    pool.buffer[:] = torch.from_numpy(np.random.default_rng(1).random(pool.buffer.shape)).to(torch.bfloat16)
    states.fill(2)
    wanted, page = states.get_data_page(2), pool.page(8).clone()

    def transfers(keys, of_kv, of_states):
        return [
            storage.PoolTransfer(storage.PoolName.KV, host_indices=of_kv, keys=keys),
            storage.PoolTransfer(storage.PoolName.MAMBA, host_indices=of_states, keys=keys[-1:], hit_policy=storage.PoolHitPolicy.TRAILING_PAGES),
        ]

    keys = keys_of(3)
    assert made.batch_set_v2(transfers(keys, torch.arange(24), torch.tensor([2]))) == {"kv": [True] * 3, "mamba": [True]}
    found = made.batch_exists_v2([*keys, *keys_of(1, 9)], transfers(keys, None, None)[1:])
    assert (found.kv_hit_pages, found.restorable_prefix_pages, found.extra_pool_hit_pages) == (3, [3], {"kv": 3, "mamba": 3})
    assert made.batch_get_v2(transfers(keys, torch.arange(32, 56), torch.tensor([7]))) == {"kv": [True] * 3, "mamba": [True]}
    assert torch.equal(pool.page(40), page) and torch.equal(states.get_data_page(7), wanted)
    assert made.batch_get_v2(transfers(keys_of(2, 5), torch.arange(16), torch.tensor([8]))) == {"kv": [False] * 2, "mamba": [False]}
    assert made.batch_set_v2(transfers(keys, torch.arange(5), torch.tensor([2])))["kv"] == [False] * 3  # fewer indices than pages have
    assert made.batch_set_v2([storage.PoolTransfer(storage.PoolName.SWA, torch.arange(1), keys=keys[:1])]) == {"swa": [False]}
    volume.kill()
    assert made.batch_get_v2(transfers(keys, torch.arange(24), torch.tensor([9])))["mamba"] == [True]
    made.clear()
    assert made.batch_exists_v2(keys, transfers(keys, None, None)[1:]).kv_hit_pages == 0
    made.close()


def test_sglang_finds_what_its_own_storage_finds(volume, hicache, tmp_path, monkeypatch):
    """batch_exists_v2 against SGLang's storage of files: random pages of three pools, under both policies."""
    storage, _ = hicache
    monkeypatch.setenv("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", str(tmp_path / "files"))
    evictor = types.ModuleType("lru_file_evictor")  # the real one needs kernels, and has nothing to evict here
    evictor.LRUFileEvictor = MagicMock()
    monkeypatch.setitem(sys.modules, "sglang.srt.mem_cache.storage.file.lru_file_evictor", evictor)
    names = (storage.PoolName.MAMBA, storage.PoolName.INDEXER)
    random = np.random.default_rng(3)
    for mla in (False, True):
        pool, others = HostPool("page_first", width=40 + 8 * mla), {name: StatePool("page_first") for name in names}
        made = backend(hicache, volume, pool, mla=mla, namespace=f"oracle-{mla}")
        oracle = storage.HiCacheFile(made._config)
        for each in (made, oracle):
            for name in names:
                each.register_mem_host_pool_v2(others[name], name)
        keys = keys_of(12, 100 * mla)
        for name in names:
            kept = [key for key in keys if random.random() < 0.7]
            transfer = storage.PoolTransfer(name, torch.arange(len(kept)), keys=kept)
            assert made.batch_set_v2([transfer]) == oracle.batch_set_v2([transfer]) == {name: [True] * len(kept)}
        kv = keys[: 7 + 3 * mla]
        assert made.batch_set_v1(kv, torch.zeros(8 * len(kv), dtype=torch.int64)) == [True] * len(kv)
        assert oracle.batch_set(kv, [pool.get_dummy_flat_data_page() for _ in kv])
        for _ in range(20):
            first = int(random.integers(0, 4))
            asked = [
                storage.PoolTransfer(name, keys=keys[: int(random.integers(0, 4))], hit_policy=policy)
                for name in names
                for policy in [(storage.PoolHitPolicy.ALL_PAGES, storage.PoolHitPolicy.TRAILING_PAGES)[int(random.integers(0, 2))]]
            ]
            got, want = made.batch_exists_v2(keys[first:], asked), oracle.batch_exists_v2(keys[first:], asked)
            assert (got.kv_hit_pages, got.restorable_prefix_pages) == (want.kv_hit_pages, want.restorable_prefix_pages)
            assert got.extra_pool_hit_pages.items() >= want.extra_pool_hit_pages.items()  # it asks no further where nothing is left
        made.close()


def test_sglang_a_policy_that_is_not_known_gates_nothing(volume, hicache):
    storage, _ = hicache
    made = backend(hicache, volume, HostPool("page_first"))
    made.register_mem_host_pool_v2(StatePool("page_first"), storage.PoolName.MAMBA)
    assert made.batch_set_v1(keys_of(2), torch.arange(16)) == [True] * 2
    transfer = storage.PoolTransfer(storage.PoolName.MAMBA, keys=keys_of(2), hit_policy=storage.PoolHitPolicy.BLOCK_GROUPS, block_pages=2, group_pages=1)
    found = made.batch_exists_v2(keys_of(2), [transfer])
    assert found.kv_hit_pages == 2 and "mamba" not in found.extra_pool_hit_pages
    made.close()


def test_sglang_which_ranks_share(volume, hicache):
    """Ranks of an MLA model share pages of the KV pool and of indexers, and have Mamba states and drafts with heads of their own."""
    storage, _ = hicache

    class Drafts(StatePool):
        pass

    class MLATokenToKVPoolHost(StatePool):
        pass

    shared = {storage.PoolName.INDEXER: StatePool("page_first"), storage.PoolName.DRAFT_SWA: MLATokenToKVPoolHost("page_first")}
    own = {storage.PoolName.MAMBA: StatePool("page_first"), storage.PoolName.DRAFT: Drafts("page_first")}
    ranks = [backend(hicache, volume, HostPool("page_first"), rank, mla=True) for rank in range(2)]
    for made in ranks:
        for name, pool in {**shared, **own}.items():
            made.register_mem_host_pool_v2(pool, name)
    for name in {**shared, **own}:
        transfer = storage.PoolTransfer(name, torch.arange(1), keys=["a"])
        assert ranks[0].batch_set_v2([transfer]) == {name: [True]}
        assert ranks[1].batch_get_v2([transfer]) == {name: [name in shared]}, name
    for made in ranks:
        made.close()


def test_sglang_a_pool_without_memory(volume, hicache):
    """The KV pool of some models is a name alone: the pools beside it have all of a page."""
    storage, _ = hicache
    pool, states = HostPool("page_first"), StatePool("page_first")
    pool.kv_buffer = None
    made = backend(hicache, volume, pool)
    made.register_mem_host_pool_v2(states, storage.PoolName.DEEPSEEK_V4_C4)
    keys = keys_of(4)
    assert made.batch_set_v1(keys, torch.arange(32)) == made.batch_get_v1(keys, torch.arange(32)) == [True] * 4
    assert made.batch_set_v2([storage.PoolTransfer(storage.PoolName.DEEPSEEK_V4_C4, torch.arange(3), keys=keys[:3])]) == {"deepseek_v4_c4": [True] * 3}
    assert made.batch_exists_v2(keys, [storage.PoolTransfer(storage.PoolName.DEEPSEEK_V4_C4)]).kv_hit_pages == 3
    made.close()


def test_sglang_orders_of_bytes_are_never_mixed(volume, hicache):
    """A page in pieces of a layout is not found by an engine of another layout, or by one that stores flat pages."""
    pool = HostPool("layer_first")
    pieces = backend(hicache, volume, pool)
    assert pieces.batch_set_v1(["a"], torch.arange(8)) == [True] and pieces.exists("a")
    for other in (backend(hicache, volume, HostPool("page_first")), backend(hicache, volume, pool, interface_v1=0)):
        assert not other.exists("a") and other.batch_get(["a"], [pool.get_dummy_flat_data_page()]) == [None]
        other.close()
    pieces.close()
