"""What becomes of the page cache after a load: counted by mincore, in this process or around another one."""

import ctypes
import mmap
import os
import subprocess
import sys
import uuid
from pathlib import Path

import hbmfs
import numpy as np
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from test_group import Ranks

SIZE = 16 << 20
libc = ctypes.CDLL(None, use_errno=True)


def resident(path):
    """The part of a file that is in the page cache."""
    size = os.path.getsize(path)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as memory:
        pages = -(-size // mmap.PAGESIZE)
        flags = (ctypes.c_ubyte * pages)()
        view = (ctypes.c_char * size).from_buffer(memory)
        assert libc.mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(size), flags) == 0
        del view
        return sum(flag & 1 for flag in flags) / pages


def warm(path):
    """A file whose pages are clean and in the page cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        file.read()
    assert resident(path) > 0.99
    return path


@pytest.fixture
def path(tmp_path):
    name = tmp_path / "model.safetensors"
    safetensors.torch.save_file({f"{i}": torch.randn(SIZE >> 4) for i in range(4)}, name)
    return warm(name)


def test_dropped_after_a_load(path):
    with hbmfs.Reader("cpu") as reader:
        hbmfs.load_safetensors(path, "cpu", reader=reader)
        assert resident(path) > 0.99 and reader.stats()["dropped_bytes"] == 0
        found = hbmfs.load_safetensors(path, "cpu", reader=reader, page_cache="drop")
        assert resident(path) <= 0.01 and 0.99 * SIZE < reader.stats()["dropped_bytes"] <= os.path.getsize(path)
        into = {name: torch.zeros_like(tensor) for name, tensor in found.items()}
        hbmfs.load_safetensors(path, into=into, page_cache="drop")
        assert resident(path) <= 0.01 and all(torch.equal(into[name], found[name]) for name in into)


def test_a_reader_that_drops_what_it_closes(path):
    with hbmfs.Reader("cpu", page_cache="drop") as reader:
        with reader.open_file(path) as file:
            into = np.zeros(file.size, np.uint8)
            file.read_into(into.ctypes.data, 0, file.size).wait()
            assert resident(path) > 0.99
        assert resident(path) <= 0.01 and reader.stats()["dropped_bytes"] > 0.99 * SIZE
    warm(path)
    with hbmfs.Reader("cpu") as reader, reader.open_file(path) as file:
        assert file.uncache("keep") == 0 and resident(path) > 0.99
        assert file.uncache() > 0.99 * SIZE and resident(path) <= 0.01
        assert file.read_into(into.ctypes.data, 0, file.size).wait() == file.size
        with pytest.raises(hbmfs.ArgumentError, match="page_cache must be 'keep' or 'drop' or 'auto'"):
            file.uncache("all")


def test_where_there_is_room_auto_keeps(path):
    with hbmfs.Reader("cpu") as reader:
        hbmfs.load_safetensors(path, "cpu", reader=reader, page_cache="auto")
        assert resident(path) > 0.99 and reader.stats()["dropped_bytes"] == 0


MAPS = """
import mmap, sys
with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
    touched = sum(memory[at] for at in range(0, len(memory), 4096))
    print("mapped", flush=True)
    sys.stdin.read()
"""


def test_what_another_process_maps_stays(path):
    """The kernel itself keeps pages that are in any page table."""
    with subprocess.Popen([sys.executable, "-c", MAPS, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "mapped\n"
        with hbmfs.Reader("cpu") as reader:
            hbmfs.load_safetensors(path, "cpu", reader=reader, page_cache="drop")
            assert resident(path) > 0.99 and reader.stats()["dropped_bytes"] < 0.01 * SIZE
        other.stdin.close()
    hbmfs.load_safetensors(path, "cpu", page_cache="drop")
    assert resident(path) <= 0.01


def test_dirty_pages_stay(path):
    """Here of shared memory, all of whose pages are."""
    shared = Path("/dev/shm") / f"hbmfs-{uuid.uuid4()}"
    shared.write_bytes(path.read_bytes())
    try:
        hbmfs.load_safetensors(shared, "cpu", page_cache="drop")
        assert resident(shared) == 1.0
    finally:
        shared.unlink()


def of_a_group(rank, size, path, into):
    """What is resident when each rank comes out of the call."""
    tensors = {f"{i}": torch.zeros(SIZE >> 4) for i in range(4)} if into else None
    with hbmfs.Reader("cpu") as reader:
        hbmfs.load_safetensors(path, "cpu", group=torch.distributed.group.WORLD, reader=reader, into=tensors, page_cache="drop")
        torch.distributed.barrier()
        return resident(path), reader.stats()["dropped_bytes"]


@pytest.mark.parametrize("into", [False, True])
def test_dropped_once_all_ranks_have_it(path, into):
    results = Ranks(2, of_a_group, path, into).wait()
    assert all(left <= 0.01 for left, _ in results) and sum(dropped for _, dropped in results) > 0.99 * SIZE


def of_a_group_through_a_mount(rank, size, folder, shards):
    """Files that were all opened at once are let go, dropped and read again."""
    for shard in shards if rank == 0 else ():
        warm(shard)
    torch.distributed.barrier()
    with hbmfs.Reader("cpu") as reader:
        first = hbmfs.load_safetensors(folder, "cpu", group=torch.distributed.group.WORLD, reader=reader, page_cache="drop")
        torch.distributed.barrier()
        left, dropped = [resident(shard) for shard in shards], reader.stats()["dropped_bytes"]
        torch.distributed.barrier()  # the other rank has looked, too
        for file in reader.open_many([folder / shard.name for shard in shards]):
            for _ in range(2):
                into = np.zeros(file.size, np.uint8)
                file.read_into(into.ctypes.data, 0, file.size).wait()
                assert into.tobytes() == Path(file.path).read_bytes()
                file.uncache("keep")
        assert len(first) > 1
        return left, dropped


def test_through_a_mount(mount, source):
    """The pages are those of the backing files."""
    shards = sorted((source / "safetensors-sharded").glob("*.safetensors"))
    for shard in shards:
        warm(shard)
    with hbmfs.Reader("cpu") as reader:
        hbmfs.load_safetensors(mount / "safetensors-sharded", "cpu", reader=reader, page_cache="drop")
        assert reader.stats()["dropped_bytes"] >= 0.99 * sum(map(os.path.getsize, shards))
    assert [resident(shard) for shard in shards] == [0] * len(shards)
    results = Ranks(2, of_a_group_through_a_mount, mount / "safetensors-sharded", shards).wait()
    assert sum(dropped for _, dropped in results) >= 0.99 * sum(map(os.path.getsize, shards))
    assert all(left == [0] * len(shards) for left, _ in results)


def test_a_checkpoint_of_dcp(tmp_path):
    state = {f"{i}": torch.randn(SIZE >> 4) for i in range(4)}
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    files = [warm(file) for file in tmp_path.glob("*.distcp")]
    into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(into, storage_reader=hbmfs.DCPReader(tmp_path, page_cache="drop"), no_dist=True)
    assert all(torch.equal(into[name], state[name]) for name in state) and all(resident(file) <= 0.01 for file in files)


def test_a_stream(path):
    """By the Reader that it is given."""
    with hbmfs.Reader("cpu", page_cache="drop") as reader:
        with hbmfs.open(path, "cpu", reader=reader, dtype="uint8") as dataset:
            assert len(list(hbmfs.TokenStream(dataset, 4, 1 << 20, epochs=1))) > 2
        assert resident(path) <= 0.01


MODEL, LIMIT = 192 << 20, 96 << 20

LIMITED = """
import os, sys
group, path, shared, size = sys.argv[1:4] + [int(sys.argv[4])]
import hbmfs, torch, mmap
from hbmfs.weights import _into, _targets, _load  # before there is a limit
import test_page_cache
libc = test_page_cache.libc
file = open(shared, "r+b")
memory = mmap.mmap(file.fileno(), size)
into = {f"{i}": torch.frombuffer(memory, dtype=torch.float32, count=size >> 5, offset=i * (size >> 3)) for i in range(8)}
with open(os.path.join(group, "cgroup.procs"), "w") as procs:
    procs.write(str(os.getpid()))
with hbmfs.Reader("cpu") as reader:
    for page_cache in ("keep", "auto"):
        hbmfs.load_safetensors(path, into=into, reader=reader, page_cache=page_cache)
        print(reader.stats()["dropped_bytes"], test_page_cache.resident(path))
"""


@pytest.fixture
def memory_group():
    """A control group of version 1 with a limit; the process's group may be no child of the root's."""
    root = Path("/sys/fs/cgroup/memory")
    if not (root / "memory.limit_in_bytes").exists() or os.geteuid() != 0:
        pytest.skip("there is no memory controller of version 1, or this is not root")
    group = root / f"hbmfs-{uuid.uuid4()}"
    try:
        group.mkdir()
    except OSError as err:
        pytest.skip(f"no control group can be made: {err}")
    try:
        (group / "memory.limit_in_bytes").write_text(str(LIMIT))
        yield group
    finally:
        group.rmdir()


def test_a_model_of_twice_the_limit_of_its_control_group(tmp_path, memory_group):
    """The targets are shared memory that belongs to this process's group, as a GPU's would not count either. What another process maps stays."""
    path, mapped = tmp_path / "model.safetensors", tmp_path / "mapped"
    safetensors.torch.save_file({f"{i}": torch.full((MODEL >> 5,), float(i)) for i in range(8)}, path)
    mapped.write_bytes(bytes(SIZE))
    hbmfs.load_safetensors(warm(path), "cpu", page_cache="drop")
    shared = Path("/dev/shm") / f"hbmfs-{uuid.uuid4()}"
    shared.write_bytes(bytes(MODEL))
    with subprocess.Popen([sys.executable, "-c", MAPS, warm(mapped)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "mapped\n"
            said = subprocess.run(
                [sys.executable, "-c", LIMITED, memory_group, path, shared, str(MODEL)], capture_output=True, text=True, timeout=120, check=False,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
            )  # fmt: skip
            assert said.returncode == 0, said.stderr
            (kept, left), (dropped, nothing) = [tuple(map(float, line.split())) for line in said.stdout.splitlines()]
            assert kept == 0 and 0 < left < 0.7 and dropped > 0 and nothing <= 0.01
            values = np.fromfile(shared, np.float32).reshape(8, -1)
            assert all((row == number).all() for number, row in enumerate(values))
            assert resident(mapped) == 1.0
        finally:
            shared.unlink()
            other.stdin.close()
