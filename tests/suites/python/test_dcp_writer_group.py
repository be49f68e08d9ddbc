"""DCPWriter among ranks of gloo: round trips, resharding, cached plans, nodes, and ranks that fail or are killed."""

import contextlib
import gc
import os
import re
import resource
import shutil
import signal

import hbmfs
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hbmfs.checkpoints import _publishing
from test_dcp_group import SAVED_BY, both, local, ranks, same, state
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemReader, FileSystemWriter

pytestmark = [pytest.mark.filterwarnings("ignore:torch.distributed is disabled"), pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")]

MEMORY = 16 << 20


def there(path):
    """The names of a directory, which must be those of whole checkpoints."""
    for entry in _publishing.complete(path):
        _publishing.verify(entry.path)
    assert sorted(entry.name for entry in _publishing.complete(path)) == sorted(os.listdir(path))
    return sorted(os.listdir(path))


def is_of(path, size, seed, readers=(FileSystemReader, hbmfs.DCPReader), change=0):
    """Loads with both readers, and compares each bit with what was saved."""
    expected = local(state(seed, size, change))
    for reader in readers:
        found = state(7, size, change)
        dcp.load(found, storage_reader=reader(path))
        same(local(found), expected)


def barrier():
    torch.distributed.barrier()


def round_trip(rank, size, path, seed):
    """DDP, FSDP2, TP, both and HSDP, model and numbers: by ours to torch's reader and ours."""
    dcp.save(state(seed, size), storage_writer=hbmfs.DCPWriter(path / "ours"))
    dcp.save(state(seed, size), storage_writer=FileSystemWriter(path / "theirs"))
    is_of(path / "ours", size, seed)
    is_of(path / "theirs", size, seed)
    is_of(path / "ours", size, seed, change=1)
    return "same"


@pytest.mark.parametrize("size", [1, 3])
def test_round_trips(tmp_path, size):
    assert ranks(size, round_trip, tmp_path, 1).wait() == ["same"] * size
    names = {f"__{rank}_0.distcp" for rank in range(size)}
    assert set(os.listdir(tmp_path / "ours")) == names | {".metadata", ".hbmfs-manifest.json"}
    _publishing.verify(tmp_path / "ours")


def reshard(rank, size, path, before, after):
    found = state(7, size)
    dcp.load(found, storage_reader=hbmfs.DCPReader(path / before))
    is_of(path / before, size, 1, [FileSystemReader])
    same(local(found), local(state(1, size)))
    if after:
        dcp.save(found, storage_writer=hbmfs.DCPWriter(path / after))
    both(path / before, size, 2)
    return "same"


def test_resharded(tmp_path):
    """4 -> 2 -> 4 ranks, or 8."""
    assert ranks(4, round_trip, tmp_path, 1).wait() == ["same"] * 4
    assert ranks(2, reshard, tmp_path, "ours", "two").wait() == ["same"] * 2
    assert ranks(SAVED_BY, reshard, tmp_path, "two", None).wait() == ["same"] * SAVED_BY


def caching(rank, size, path, node):
    """Plans that are kept name files by their rank only."""
    for seed in range(3):
        options = {"node_local": (rank, size, True)} if node else {}
        where = path / f"node {rank}" if node else path
        writer = hbmfs.DCPWriter(where / f"{seed}", **options)
        writer.publish(dcp.save(state(seed, size), storage_writer=writer, planner=DefaultSavePlanner(enable_plan_caching=True)))
    for seed in range(3):
        if not node:
            is_of(path / f"{seed}", size, seed)
    return there(where)


@pytest.mark.parametrize("node", [False, True])
def test_planner_caching(tmp_path, node):
    assert ranks(2, caching, tmp_path, node).wait() == [["0", "1", "2"]] * 2


def overwrite(value):
    if isinstance(value, dict):
        for inside in value.values():
            overwrite(inside)
    elif isinstance(value, torch.Tensor):
        with torch.no_grad():
            value.zero_()


def in_background(rank, size, path, memory):
    held = []
    with hbmfs.DCPStager(memory, device="cpu") as stager:
        for seed in range(3):
            saved = state(seed, size)
            future = dcp.async_save(saved, storage_writer=hbmfs.DCPWriter(path / f"{seed}", writer=stager.writer), async_stager=stager)
            overwrite(saved)
            held.append(stager.held)
            future.result()
    for seed in range(3):
        is_of(path / f"{seed}", size, seed)
    return held


@pytest.mark.parametrize("memory", [MEMORY, 300_000], ids=["all", "waves"])
def test_async_saves(tmp_path, memory):
    for held in ranks(2, in_background, tmp_path, memory).wait():
        assert len(held) == 3 and all(0 < seconds < 10 for seconds in held), held
    assert there(tmp_path) == ["0", "1", "2"]


def nodes(rank, size, path, background):
    """Two nodes with disks of their own: ranks 0 and 1, and the others."""
    node = rank // 2
    own = path / f"node {node}"
    os.environ.update(GROUP_RANK=f"{node}", GROUP_WORLD_SIZE="2", LOCAL_RANK=f"{rank % 2}")
    with hbmfs.DCPStager(MEMORY, device="cpu") as stager:
        for seed in range(2):
            writer = hbmfs.DCPWriter(own / f"{seed}", node_local=True, writer=stager.writer)
            saved = state(seed, size)
            if background:
                future = dcp.async_save(saved, storage_writer=writer, async_stager=stager)
                overwrite(saved)
                metadata = future.result()
            else:
                metadata = dcp.save(saved, storage_writer=writer)
            assert rank != 2 or not os.path.exists(own / f"{seed}"), "it is not there before publish"
            barrier()
            writer.publish(metadata)
            writer.publish(metadata)
            barrier()
    for seed in range(2):
        is_of(own / f"{seed}", size, seed)  # from what is on this node alone, what is replicated included
    entries = _publishing.complete(own)
    assert [(entry.name, entry.part, entry.parts) for entry in entries] == [("0", node, 2), ("1", node, 2)]
    return there(own)


@pytest.mark.parametrize("background", [False, True])
def test_two_nodes_as_two_directories(tmp_path, background):
    for node in range(2):
        (tmp_path / f"node {node}").mkdir()
    assert ranks(4, nodes, tmp_path, background).wait() == [["0", "1"]] * 4
    for node in range(2):
        names = sorted(os.listdir(tmp_path / f"node {node}" / "1"))
        assert names == [".hbmfs-manifest.json", ".metadata", *[f"__{rank}_0.distcp" for rank in (2 * node, 2 * node + 1)]]
    if background:
        return
    # Files of both nodes, with the metadata of any, are a checkpoint for any ranks.
    for node in range(2):
        whole = tmp_path / f"whole {node}"
        for other in (1 - node, node):
            shutil.copytree(tmp_path / f"node {other}" / "1", whole, dirs_exist_ok=True)
        assert ranks(3, read_whole, whole, 1).wait() == ["same"] * 3


def read_whole(rank, size, path, seed):
    is_of(path, size, seed)
    return "same"


class Fails(DefaultSavePlanner):
    def resolve_data(self, item):
        raise RuntimeError("the state is damaged")


@contextlib.contextmanager
def small_files(applies):
    """Writes beyond 100,000 bytes fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if applies:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def failing(rank, size, path, kind, who, node):
    """One rank fails: all end, and only what was complete before is there."""
    own = path / f"{rank // 2}" if node else path
    options = {"node_local": (rank // 2, 2, rank % 2 == 0)} if node else {}

    def save(name, **more):
        where = own / (f"{name} of rank {who}" if kind == "path" and more and rank == who else name)
        if kind == "nodes" and more:
            options_here = {"node_local": (rank, size, True)} if rank == who else {}
        else:
            options_here = options
        writer = hbmfs.DCPWriter(where, **options_here)
        planner = Fails() if kind == "state" and more and rank == who else None
        with small_files(kind == "write" and more and rank == who):
            writer.publish(
                dcp.save(state(1, size) | {"large": torch.ones(99_999) * rank, f"own {rank}": torch.ones(99_999)}, storage_writer=writer, planner=planner)
            )
        return writer

    save("a")
    if kind == "exists" and rank == 0:
        (own / "b").mkdir()
        (own / "b" / "mine").touch()
    barrier()
    found, kept = None, None
    try:
        kept = save("b", fails=True)
    except dcp.api.CheckpointException as err:
        found = {failed: (type(failure[0]).__name__, str(failure[0])) for failed, failure in err.failures.items()}
        barrier()
        names = sorted(os.listdir(own))
    if kind == "exists":
        assert names == ["a", "b"] and os.listdir(own / "b") == ["mine"]
        barrier()
        if rank == 0:
            shutil.rmtree(own / "b")
    else:
        assert names == ["a"], names
    barrier()
    assert kept is None
    save("c")
    if kind != "nodes":
        save("b")
    barrier()
    if not node:
        dcp.load(loaded := {"own": torch.zeros(3)} and state(7, size), storage_reader=FileSystemReader(own / "a"))
        same(local(loaded), local(state(1, size)))
    there(own)
    return found


FAILURES = [
    ("state", 1, "RuntimeError", "damaged"),
    ("state", 0, "RuntimeError", "damaged"),
    ("write", 1, "WriteError", "File too large|file too large"),
    ("write", 0, "WriteError", "File too large|file too large"),
    ("exists", 0, "ExistsError", "is there|exists|is no checkpoint|not ours|directory"),
    ("path", 1, "NotFoundError", "give all ranks the same path"),
    ("nodes", 1, "GroupError", "node_local"),
]


def failing_in_turn(rank, size, path, cases, node):
    """One start of processes for all cases."""
    return [failing(rank, size, path / f"{number}", kind, who, node) for number, (kind, who, *_) in enumerate(cases)]


def test_one_rank_fails(tmp_path):
    for number in range(len(FAILURES)):
        (tmp_path / f"{number}").mkdir()
    for all_found in ranks(3, failing_in_turn, tmp_path, FAILURES, False).wait():
        for found, (kind, who, error, reason) in zip(all_found, FAILURES, strict=True):
            assert isinstance(found, dict), (kind, who, found)
            assert list(found) == [who if kind != "nodes" else 0] and found[next(iter(found))][0] == error, (kind, who, found)
            assert re.search(reason, next(iter(found.values()))[1]), (kind, who, found)


def test_one_rank_of_nodes_fails(tmp_path):
    cases = [("state", 3), ("state", 0), ("write", 2)]
    places = [tmp_path / f"{number}" / f"{node}" for number in range(len(cases)) for node in range(2)]
    for place in places:
        place.mkdir(parents=True)
    for all_found in ranks(4, failing_in_turn, tmp_path, cases, True).wait():
        assert [list(found) for found in all_found] == [[who] for _, who in cases], all_found
    for place in places:
        assert there(place) == ["a", "b", "c"]


def published_later(rank, size, path):
    """A part that waits for publish survives a later save that fails; a part of a save that failed is not published."""
    own = path / f"{rank}"
    writers = {name: hbmfs.DCPWriter(own / name, node_local=(rank, size, True)) for name in "ab"}
    metadata = dcp.save(state(1, size), storage_writer=writers["a"])
    with pytest.raises(dcp.api.CheckpointException):
        dcp.save(state(2, size), storage_writer=writers["b"], planner=Fails() if rank == 1 else None)
    with pytest.raises(hbmfs.NotFoundError, match="was dropped"):
        writers["b"].publish(metadata)
    with pytest.raises(hbmfs.InvalidError, match="says nothing of node") if rank else contextlib.nullcontext():
        other = hbmfs.DCPWriter(own / "c", node_local=(rank, size, True))
        dcp.save(state(2, size), storage_writer=other)
        other.publish(dcp.metadata.Metadata({}))
    writers["a"].publish(metadata)
    return there(own)


def test_parts_are_published_later(tmp_path):
    for node in range(2):
        (tmp_path / f"{node}").mkdir()
    assert ranks(2, published_later, tmp_path).wait() == [["a", "c"], ["a"]]


def killed(rank, size, path, where):
    """Rank 1 is killed in the save: the others end by torch's own means, and this process can save again."""
    dcp.save(state(1, size), storage_writer=hbmfs.DCPWriter(path / "a"))
    writer = hbmfs.DCPWriter(path / "b")
    if rank == 1:
        method = getattr(hbmfs.DCPWriter, where)

        def kill(self, *arguments):
            if where == "write_data":
                method(self, *arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(hbmfs.DCPWriter, where, kill)
    try:
        dcp.save(state(2, size), storage_writer=writer)
        return "saved"
    except (dcp.api.CheckpointException, RuntimeError) as err:
        told = str(err)
    assert [entry.name for entry in _publishing.complete(path)] == ["a"] and "b" not in os.listdir(path)
    if rank == 0:
        writer.drop()
        assert there(path) == ["a"]
        dcp.save({"x": torch.ones(5)}, storage_writer=writer, no_dist=True)
        assert there(path) == ["a", "b"]
    return told


@pytest.mark.parametrize("where", ["write_data", "prepare_local_plan"])
def test_a_rank_is_killed(tmp_path, where):
    assert all(ranks(3, killed, tmp_path, where).wait([0, 2]))
    _publishing.verify(tmp_path / "a")


def killed_coordinator(rank, size, path):
    """All are gone: the next start removes what they left."""
    dcp.save(state(1, size), storage_writer=hbmfs.DCPWriter(path / "a"))
    if rank == 0:
        hbmfs.DCPWriter.finish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    with contextlib.suppress(dcp.api.CheckpointException, RuntimeError):
        dcp.save(state(2, size), storage_writer=hbmfs.DCPWriter(path / "b"))
        return "saved"
    return "failed"


def test_the_coordinator_is_killed(tmp_path):
    assert ranks(2, killed_coordinator, tmp_path).wait([1]) == ["failed"]
    assert [entry.name for entry in _publishing.complete(tmp_path)] == ["a"] and len(os.listdir(tmp_path)) > 1
    assert ranks(2, save_again, tmp_path).wait() == [["a", "b"]] * 2
    _publishing.clean(tmp_path)
    assert there(tmp_path) == ["a", "b"]


def save_again(rank, size, path):
    dcp.save(state(2, size), storage_writer=hbmfs.DCPWriter(path / "b"))
    is_of(path / "a", size, 1)
    is_of(path / "b", size, 2)
    return [entry.name for entry in _publishing.complete(path)]


def collected(rank, size, path):
    """A save that failed leaves the memory of the stager to the next one, on ranks that heard nothing of the reason."""
    large = {"x": torch.ones(MEMORY // 4 * 3 // 4) * (rank + 1), f"own {rank}": torch.ones(3)}
    kept = []
    with hbmfs.DCPStager(MEMORY, device="cpu") as stager:
        for name in ("a", "a", "b"):
            kept.append(dcp.async_save(large, storage_writer=hbmfs.DCPWriter(path / name, writer=stager.writer), async_stager=stager))
            with contextlib.suppress(dcp.api.CheckpointException):
                kept[-1].result()
    gc.collect()
    assert isinstance(kept[1].exception(), dcp.api.CheckpointException) and not kept[2].exception()
    return there(path)


def test_failures_keep_no_room(tmp_path):
    assert ranks(2, collected, tmp_path).wait() == [["a", "b"]] * 2
    assert there(tmp_path) == ["a", "b"]
