"""DCPWriter and DCPStager in one process: what they write, torch's reader and ours read."""

import copy
import gc
import os
import pickle
import threading
import time
import zipfile

import hbmfs
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hbmfs import _publishing, _staging, dcp_writer, torch_save
from hbmfs._dcp_layout import LARGE
from test_dcp import load_both, random_tensor, same, state
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemReader, FileSystemWriter

pytestmark = [pytest.mark.filterwarnings("ignore:torch.distributed is disabled"), pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")]

MEMORY = 64 << 20


def save(saved, path, **options):
    return dcp.save(saved, storage_writer=hbmfs.DCPWriter(path, **options), no_dist=True)


def change(value):
    """Overwrites all tensors of a state."""
    if isinstance(value, dict):
        for inside in value.values():
            change(inside)
    elif isinstance(value, list):
        for number, inside in enumerate(value):
            change(inside)
            value[number] = None
    elif isinstance(value, torch.Tensor):
        value.detach().zero_()


def there(path):
    """What is in a directory, which must be a checkpoint that all its sums say is whole, and nothing else."""
    assert [entry.name for entry in _publishing.complete(path)] == sorted(os.listdir(path))
    for entry in _publishing.complete(path):
        _publishing.verify(entry.path)
    return sorted(os.listdir(path))


def refused(call):
    """The exception behind torch's own."""
    with pytest.raises(dcp.api.CheckpointException) as caught:
        call()
    (failure,) = caught.value.failures.values()
    return failure[0]


@pytest.fixture(scope="module")
def stager():
    with hbmfs.DCPStager(MEMORY, device="cpu") as stager:
        yield stager


def async_save(saved, path, stager, **options):
    return dcp.async_save(saved, storage_writer=hbmfs.DCPWriter(path, writer=stager.writer), async_stager=stager, no_dist=True, **options)


def test_a_trainers_state(tmp_path):
    save(state(1), tmp_path / "a", device="cpu")
    same(load_both(tmp_path / "a", state(2)), state(1))
    assert there(tmp_path) == ["a"]
    assert sorted(os.listdir(tmp_path / "a")) == [".hbmfs-manifest.json", ".metadata", "__0_0.distcp"]


def test_the_same_as_torchs_writer(tmp_path):
    """Metadata, places apart, and tensors."""
    ours = save(state(1), tmp_path / "ours")
    theirs = dcp.save(state(1), storage_writer=FileSystemWriter(tmp_path / "theirs"), no_dist=True)
    assert ours.state_dict_metadata == theirs.state_dict_metadata and ours.planner_data == theirs.planner_data
    theirs = FileSystemReader(tmp_path / "theirs").read_metadata()
    ours = FileSystemReader(tmp_path / "ours").read_metadata()
    assert ours.storage_data.keys() == theirs.storage_data.keys() and ours.version == theirs.version
    assert type(ours) is type(theirs) and vars(ours).keys() == vars(theirs).keys(), "nothing of ours is in it"


def test_elements_are_aligned(tmp_path):
    g = torch.Generator().manual_seed(1)
    saved = {f"{number}": random_tensor(g, size, dtype=torch.uint8) for number, size in enumerate([LARGE, 10, LARGE - 1, 300_000, 0, 5 << 20, LARGE + 1])}
    save(saved, tmp_path / "a")
    metadata = FileSystemReader(tmp_path / "a").read_metadata()
    with open(tmp_path / "a" / "__0_0.distcp", "rb") as file:
        for index, info in metadata.storage_data.items():
            stored = torch_save.find_tensor(torch_save.Slice(file.fileno(), info.offset, info.length))
            size = saved[index.fqn].nbytes
            assert (info.offset + stored.offset) % (4096 if size >= LARGE else 64) == 0 or not size
            file.seek(info.offset)
            with zipfile.ZipFile(torch_save.Slice(file.fileno(), info.offset, info.length)) as archive:
                assert archive.getinfo("archive/data/0").file_size == size


def test_tensors_with_gaps(tmp_path):
    wide = torch.randn(900, 700)
    saved = {"columns": wide[:, 100:300], "rows": wide[::3], "repeated": wide[:1].expand(50, 700), "transposed": wide[:, :50].t()}
    save(saved, tmp_path / "a")
    same(load_both(tmp_path / "a", {name: torch.zeros_like(tensor, memory_format=torch.contiguous_format) for name, tensor in saved.items()}),
         {name: tensor.contiguous() for name, tensor in saved.items()})  # fmt: skip


def test_a_writer_of_the_caller(tmp_path):
    seen = []
    with hbmfs.Writer("cpu") as writer:
        for number in range(3):
            save(state(number), tmp_path / f"{number}", writer=writer, progress=lambda done, total: seen.append((done, total)))
        assert seen[-1][0] == seen[-1][1] > 1_000_000
        with pytest.raises(hbmfs.InvalidError, match="leave them out"):
            hbmfs.DCPWriter(tmp_path / "x", writer=writer, threads=2)
    assert there(tmp_path) == ["0", "1", "2"]
    same(load_both(tmp_path / "2", state(5)), state(2))


def test_one_object_for_several_saves(tmp_path):
    writer = hbmfs.DCPWriter(tmp_path / "0")
    for number in range(3):
        dcp.save(state(number), storage_writer=writer, checkpoint_id=tmp_path / f"{number}", no_dist=True)
    assert there(tmp_path) == ["0", "1", "2"] and writer.validate_checkpoint_id(tmp_path / "3")
    same(load_both(tmp_path / "1", state(5)), state(1))


@pytest.mark.parametrize("overwrite", [False, True])
def test_nothing_is_overwritten(tmp_path, overwrite):
    save(state(1), tmp_path / "a")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "mine").write_text("mine")
    for name in ("a", "file", "directory"):
        error = refused(lambda name=name: save(state(2), tmp_path / name, overwrite=overwrite))
        assert isinstance(error, hbmfs.ExistsError) and str(tmp_path / name) in str(error), error
    assert sorted(os.listdir(tmp_path)) == ["a", "directory", "file"]
    same(load_both(tmp_path / "a", state(3)), state(1))
    assert (tmp_path / "file").read_text() == (tmp_path / "directory" / "mine").read_text() == "mine"


def test_two_writers_of_one_step(tmp_path):
    with _publishing.Draft.begin(str(tmp_path / "a")):
        error = refused(lambda: save(state(1), tmp_path / "a"))
        assert isinstance(error, hbmfs.BusyError) and str(os.getpid()) in str(error), error
    save(state(1), tmp_path / "a")
    assert there(tmp_path) == ["a"]


def test_other_modes_are_refused(tmp_path):
    with pytest.raises(hbmfs.UnavailableError, match="use_collectives"):
        dcp.save(state(1), storage_writer=hbmfs.DCPWriter(tmp_path / "a"), no_dist=True, use_collectives=False)
    with pytest.raises(hbmfs.UnavailableError, match="THREAD"):
        pickle.dumps(hbmfs.DCPWriter(tmp_path / "a"))
    with pytest.raises(hbmfs.InvalidError, match="GROUP_RANK"):
        hbmfs.DCPWriter(tmp_path / "a", node_local=True)
    with pytest.raises(hbmfs.InvalidError, match="node 2 of 2"):
        hbmfs.DCPWriter(tmp_path / "a", node_local=(2, 2, True))
    assert not os.listdir(tmp_path)


class Damaged:
    """An object that cannot be saved."""

    def __reduce__(self):
        raise RuntimeError("this cannot be pickled")


def test_a_state_that_cannot_be_saved(tmp_path):
    save(state(1), tmp_path / "a")
    writer = hbmfs.DCPWriter(tmp_path / "b")
    for _ in range(2):
        error = refused(lambda: dcp.save(state(2) | {"damaged": Damaged()}, storage_writer=writer, no_dist=True))
        assert "cannot be pickled" in str(error) and there(tmp_path) == ["a"]
    dcp.save(state(2), storage_writer=writer, no_dist=True)
    assert there(tmp_path) == ["a", "b"]


def test_a_save_that_is_interrupted_between(tmp_path, monkeypatch):
    """Where no hook says that the save has failed, the next one of the path knows, and the writer that is forgotten."""

    class Planner(DefaultSavePlanner):
        def finish_plan(self, plan):
            raise RuntimeError("after the plan")

    kept = hbmfs.DCPWriter(tmp_path / "a")
    assert "after the plan" in str(refused(lambda: dcp.save(state(1), storage_writer=kept, planner=Planner(), no_dist=True)))
    assert os.listdir(tmp_path) and not _publishing.complete(tmp_path)
    save(state(1), tmp_path / "a")
    assert there(tmp_path) == ["a"]
    forgotten = hbmfs.DCPWriter(tmp_path / "b")
    refused(lambda: dcp.save(state(1), storage_writer=forgotten, planner=Planner(), no_dist=True))
    del forgotten
    gc.collect()
    assert there(tmp_path) == ["a"]
    dropped = hbmfs.DCPWriter(tmp_path / "c")
    refused(lambda: dcp.save(state(1), storage_writer=dropped, planner=Planner(), no_dist=True))
    dropped.drop()
    dropped.drop()
    assert there(tmp_path) == ["a"]


def test_async_saves(tmp_path, stager):
    """Tensors that change as soon as async_save has returned are saved as they were."""
    for number in range(3):
        saved = state(number)
        future = async_save(saved, tmp_path / f"{number}", stager)
        change(saved)
        future.result()
        assert 0 < stager.held < 5
    assert there(tmp_path) == ["0", "1", "2"]
    for number in range(3):
        same(load_both(tmp_path / f"{number}", state(9)), state(number))


def test_staged_structure(stager):
    storage = torch.arange(5000.0)
    shared = torch.randn(30, 20)
    hidden = {"of": [1, 2]}
    named = torch.Size([3, 4])
    given = {
        "first": storage[10:2000], "second": storage[1000:], "tied": [shared, shared], "view": shared.t(), "bytes": storage.view(torch.uint8)[3:90],
        "nested": {"deep": {"tensor": torch.tensor(3)}, "object": hidden, "size": named}, "none": None, "empty": torch.empty(0, 3), "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "sparse": torch.eye(3).to_sparse(), "parameter": torch.nn.Parameter(torch.ones(2)),
    }  # fmt: skip
    expected = copy.deepcopy({key: value for key, value in given.items() if key != "sparse"})
    staged = stager.stage(given)
    stager.wait_staged()
    change({key: value for key, value in given.items() if key not in ("sparse", "tied", "view")})
    hidden["of"].append(3)
    assert torch.equal(staged["sparse"].to_dense(), torch.eye(3)) and staged["nested"]["object"] == {"of": [1, 2]}
    assert staged["tied"][0] is staged["tied"][1] and staged["view"].untyped_storage().data_ptr() == staged["tied"][0].untyped_storage().data_ptr()
    assert staged["first"].untyped_storage().data_ptr() == staged["second"].untyped_storage().data_ptr(), "what overlaps stays shared"
    assert isinstance(staged["nested"]["size"], torch.Size)
    same({key: value for key, value in staged.items() if key != "sparse"}, expected)


def test_room_comes_back_when_the_staged_state_is_forgotten(stager):
    large = {"x": torch.ones(MEMORY // 4 * 3 // 4)}
    for _ in range(4):
        start = time.monotonic()
        staged = stager.stage(large)
        stager.wait_staged()
        part = staged["x"][:5]
        del staged
        assert part.tolist() == [1] * 5, "a part of it keeps it"
        del part
        assert time.monotonic() - start < 2


def test_a_staged_state_that_nobody_saves(stager, monkeypatch):
    monkeypatch.setattr("hbmfs.dcp_stager.PATIENCE", 1)
    large = {"x": torch.ones(MEMORY // 4 * 3 // 4)}
    kept = stager.stage(large)
    with pytest.raises(hbmfs.BusyError, match="nobody saves it"):
        stager.stage(large)
    assert kept["x"][-1] == 1
    del kept
    stager.stage(large)
    monkeypatch.setattr(_staging, "PATIENCE", 1)
    with hbmfs.DCPStager(4096, device="cpu") as small:
        kept = small.stage(large)
        with pytest.raises(hbmfs.BusyError, match="did not fit"):
            small.wait_staged()


class Slow(DefaultSavePlanner):
    """Waits where the save has begun, and perhaps fails."""

    def __init__(self, fail=None):
        super().__init__()
        self.go, self.here, self.fail = threading.Event(), threading.Event(), fail

    def create_local_plan(self):
        self.here.set()
        assert self.go.wait(20)
        if self.fail:
            raise RuntimeError(self.fail)
        return super().create_local_plan()


def test_the_next_stage_waits_for_room(tmp_path, stager):
    large = {"x": torch.ones(MEMORY // 4 * 3 // 4)}
    planner = Slow()
    future = async_save(large, tmp_path / "a", stager, planner=planner)
    assert planner.here.wait(10)
    threading.Timer(0.7, planner.go.set).start()
    again = async_save({"x": large["x"] * 2}, tmp_path / "b", stager)
    assert stager.held > 0.3 and future.result()
    again.result()
    assert there(tmp_path) == ["a", "b"]
    small = {"x": torch.ones(MEMORY // 4 // 4)}
    planner = Slow()
    future = async_save(small, tmp_path / "c", stager, planner=planner)
    async_save({"x": small["x"] * 2}, tmp_path / "d", stager).result()
    assert not future.done(), "two that fit are under way at once"
    planner.go.set()
    future.result()
    assert torch.equal(load_both(tmp_path / "c", {"x": small["x"] * 0})["x"], small["x"])


def test_a_save_that_fails_gives_its_room_back(tmp_path, stager):
    """Also where the caller keeps its future, and it failed before it came to write."""
    large = {"x": torch.ones(MEMORY // 4 * 3 // 4)}
    kept = []
    for where in ("plan", "exists", "write"):
        saved, planner = dict(large), Slow("not now")
        planner.go.set()
        (tmp_path / "exists").write_text("mine")
        if where == "write":
            saved["damaged"] = Unpicklable()
        kept.append(async_save(saved, tmp_path / where, stager, **({"planner": planner} if where == "plan" else {})))
        with pytest.raises(dcp.api.CheckpointException):
            kept[-1].result()
    start = time.monotonic()
    async_save(large, tmp_path / "good", stager).result()
    assert time.monotonic() - start < 5 and sorted(os.listdir(tmp_path)) == ["exists", "good"]


class Unpicklable(Damaged):
    def __deepcopy__(self, memo):
        return self


def test_a_stage_that_fails_half_way(stager):
    """Its room is free while the exception lives, and so is that of a save that failed while its future is kept."""
    large = {"x": torch.ones(MEMORY // 4 * 3 // 4)}
    kept = []
    for _ in range(3):
        with pytest.raises(TypeError, match="lock") as caught:
            stager.stage(large | {"bad": threading.Lock()})
        kept.append(caught.value)
    stager.stage(large)


def test_room_in_pieces(tmp_path):
    """A save that failed while its future is kept gives room back to one that waits for it in a row."""
    quarter = {"x": torch.ones(1 << 18)}
    with hbmfs.DCPStager(4 << 20, device="cpu") as stager:
        held, planner = [stager.stage(quarter)], Slow("not now")
        future = async_save(quarter, tmp_path / "a", stager, planner=planner)
        held += [stager.stage(quarter), stager.stage(quarter)]
        del held[0]
        gc.collect()
        threading.Timer(0.5, planner.go.set).start()
        half = stager.stage({"x": torch.ones(1 << 19)})  # the first and the second quarter
        assert half["x"][-1] == 1
        with pytest.raises(dcp.api.CheckpointException):
            future.result()


def test_closing_waits_for_saves(tmp_path):
    """Also for one whose thread has not begun."""
    for number in range(5):
        with hbmfs.DCPStager(MEMORY, device="cpu") as stager:
            async_save(state(number), tmp_path / f"{number}", stager)
    assert there(tmp_path) == [f"{number}" for number in range(5)]


def test_waiting_for_room_has_an_end(tmp_path):
    large, planner = {"x": torch.ones(MEMORY // 4 * 3 // 4)}, Slow()
    with hbmfs.DCPStager(MEMORY, device="cpu", timeout=0.3) as stager:
        future = async_save(large, tmp_path / "a", stager, planner=planner)
        assert planner.here.wait(10)
        with pytest.raises(hbmfs.BusyError, match=r"no room for \d+ bytes within 0.3 s.* held by the saves on .*: wait for them, or give"):
            stager.stage(large)
        planner.go.set()
        future.result()
        with stager.writer.snapshot([large["x"]]), pytest.raises(hbmfs.BusyError, match="held by other snapshots of its writer"):
            stager.stage(large)


def test_memory_that_cannot_be_pinned(tmp_path, stager, monkeypatch):
    """The state is written while training waits, on this rank as on the others."""

    def none(*_):
        raise hbmfs.OutOfMemoryError("CUDA pinned 0 bytes: allow the process to lock more (ulimit -l)")

    monkeypatch.setattr(stager.writer, "snapshot", none)
    saved = state(1)
    with pytest.warns(hbmfs.SlowPathWarning, match="training waits until its state is written: CUDA pinned 0 bytes"):
        future = async_save(saved, tmp_path / "a", stager)
    change(saved)
    future.result()
    same(load_both(tmp_path / "a", state(9)), state(1))


def test_a_staged_state_is_saved_once(tmp_path, stager):
    """Later other bytes may be in its memory."""
    staged = stager.stage(state(1))
    save(staged, tmp_path / "a", writer=stager.writer)
    with pytest.raises(hbmfs.ClosedError, match="stage the state again"):
        save(staged, tmp_path / "b", writer=stager.writer)
    assert there(tmp_path) == ["a"]


@pytest.mark.parametrize("staged", [False, True])
def test_tensors_without_bytes_are_named(tmp_path, stager, staged):
    saved = {"model": {"w": torch.empty(3, device="meta")}, "sparse": torch.eye(3).to_sparse()}
    error = refused(lambda: async_save(saved, tmp_path / "a", stager).result() if staged else save(saved, tmp_path / "a"))
    assert isinstance(error, hbmfs.DeviceError) and "model.w is on meta" in str(error), error
    del saved["model"]
    async_save(saved, tmp_path / "a", stager).result() if staged else save(saved, tmp_path / "a")
    assert there(tmp_path) == ["a"]


def test_a_path_stays_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    writer = hbmfs.DCPWriter("a")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    dcp.save(state(1), storage_writer=writer, no_dist=True)
    assert sorted(os.listdir(tmp_path)) == ["a", "elsewhere"] and not os.listdir(tmp_path / "elsewhere")
    with pytest.raises(hbmfs.InvalidError, match="is an address"):
        hbmfs.DCPWriter("s3://bucket/a")


@pytest.mark.parametrize("memory", [1 << 20, 4096, 2_500_000])
def test_a_state_larger_than_the_memory(tmp_path, memory):
    """What does not fit is written before async_save returns, so that it may change."""
    with hbmfs.DCPStager(memory, device="cpu") as stager:
        for number in range(2):
            saved = state(number)
            future = async_save(saved, tmp_path / f"{number}", stager)
            assert os.path.exists(tmp_path / f"{number}" / "__0_0.distcp") or os.path.exists(
                _publishing.Draft.directory_of(tmp_path / f"{number}") + "/__0_0.distcp"
            )
            change(saved)
            future.result()
        for number in range(2):
            same(load_both(tmp_path / f"{number}", state(9)), state(number))
        # A save that fails lets the caller go, and says so on its future.
        (tmp_path / "exists").write_text("mine")
        start = time.monotonic()
        future = async_save(state(1), tmp_path / "exists", stager)
        assert time.monotonic() - start < 15
        with pytest.raises(dcp.api.CheckpointException, match="exists"):
            future.result()


def test_tensors_may_change_later(tmp_path):
    with hbmfs.DCPStager(MEMORY, device="cpu", wait=False) as stager:
        assert not stager.should_synchronize_after_execute
        saved = state(1)
        future = async_save(saved, tmp_path / "a", stager)
        stager.wait_staged()
        change(saved)
        future.result()
    same(load_both(tmp_path / "a", state(9)), state(1))


def test_a_stager_with_torchs_writer(tmp_path, stager):
    saved = state(1)
    future = dcp.async_save(saved, storage_writer=FileSystemWriter(tmp_path / "a"), async_stager=stager, no_dist=True)
    change(saved)
    future.result()
    same(load_both(tmp_path / "a", state(9)), state(1))
    with hbmfs.DCPStager(1 << 20, device="cpu") as small:
        saved = state(2)
        future = dcp.async_save(saved, storage_writer=FileSystemWriter(tmp_path / "b"), async_stager=small, no_dist=True)
        change(saved)
        future.result()
    same(load_both(tmp_path / "b", state(9)), state(2))


@pytest.mark.parametrize("memory", [0, MEMORY])
def test_without_a_stager(tmp_path, memory):
    saved = state(1)
    future = dcp.async_save(saved, storage_writer=hbmfs.DCPWriter(tmp_path / "a", device="cpu", memory=memory), no_dist=True)
    change(saved)
    future.result()
    same(load_both(tmp_path / "a", state(9)), state(1))


def test_a_stager_is_told_what_it_is_given(stager):
    for options in ({}, {"memory": 5, "writer": stager.writer}):
        with pytest.raises(hbmfs.InvalidError, match="memory="):
            hbmfs.DCPStager(**options)
    closed = hbmfs.DCPStager(1 << 20, device="cpu")
    closed.close()
    closed.close()
    with pytest.raises(hbmfs.ClosedError):
        closed.stage({})


def test_nothing_is_kept(tmp_path, stager):
    """After saves neither the package nor torch holds a state, a staging or a draft of them."""
    stager.stage({})
    gc.collect()
    others = list(_staging._stagings)  # a failed save of another test lives as long as its exception
    async_save(state(1), tmp_path / "a", stager).result()
    stager.stage({})
    end = time.monotonic() + 30
    while True:  # the thread of a save may end a moment after its result is there
        gc.collect()
        held = [s for s in _staging._stagings if not any(s is other for other in others)], [writer for writer in dcp_writer._saves.values() if writer._draft]
        if not any(held) or time.monotonic() > end:
            break
        del held
        time.sleep(0.05)
    assert not any(held)
