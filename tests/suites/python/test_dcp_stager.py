"""DCPStager in one process: states that are copied, and written while training changes them."""

import copy
import gc
import os
import threading
import time
import types

import hbmfs
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hbmfs.checkpoints import _publishing, _saves, _staging
from test_dcp import load_both, same, state
from test_dcp_writer import Damaged, change, refused, save, there
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter
from waiting import PATIENCE, interrupt_when, main_is_in, until, when

pytestmark = [pytest.mark.filterwarnings("ignore:torch.distributed is disabled"), pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")]

MEMORY = 64 << 20


@pytest.fixture(scope="module")
def stager():
    with hbmfs.DCPStager(MEMORY, device="cpu") as stager:
        yield stager


def async_save(saved, path, stager, **options):
    return dcp.async_save(saved, storage_writer=hbmfs.DCPWriter(path, writer=stager.writer), async_stager=stager, no_dist=True, **options)


def test_async_saves(tmp_path, stager):
    """Tensors that change as soon as async_save has returned are saved as they were."""
    for number in range(3):
        saved = state(number)
        future = async_save(saved, tmp_path / f"{number}", stager)
        change(saved)
        future.result()
        assert 0 < stager.held < 20
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


def test_room_comes_back_when_the_staged_state_is_forgotten(stager, monkeypatch):
    """At once, and not when garbage is collected or patience ends."""
    large = {"x": torch.ones(MEMORY // 4 * 3 // 4)}
    stager.stage({})
    monkeypatch.setattr("hbmfs.checkpoints.dcp_stager.time", types.SimpleNamespace(monotonic=time.monotonic, perf_counter=time.perf_counter))  # no sleep
    for _ in range(4):
        staged = stager.stage(large)
        stager.wait_staged()
        part = staged["x"][:5]
        del staged
        assert part.tolist() == [1] * 5, "a part of it keeps it"
        del part


def test_a_staged_state_that_nobody_saves(stager, monkeypatch):
    monkeypatch.setattr("hbmfs.checkpoints.dcp_stager.PATIENCE", 1)
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


def stages():
    """Whether the main thread begins to stage a state, which takes room."""
    return main_is_in("DCPStager._begin")


class Slow(DefaultSavePlanner):
    """Waits where the save has begun, and perhaps fails."""

    def __init__(self, fail=None):
        super().__init__()
        self.go, self.here, self.fail = threading.Event(), threading.Event(), fail

    def create_local_plan(self):
        self.here.set()
        assert self.go.wait(PATIENCE)
        if self.fail:
            raise RuntimeError(self.fail)
        return super().create_local_plan()


def test_the_next_stage_waits_for_room(tmp_path, stager):
    large = {"x": torch.ones(MEMORY // 4 * 3 // 4)}
    planner = Slow()
    future = async_save(large, tmp_path / "a", stager, planner=planner)
    assert planner.here.wait(PATIENCE)
    when(stages, planner.go.set)
    again = async_save({"x": large["x"] * 2}, tmp_path / "b", stager)
    assert planner.go.is_set() and stager.held > 0 and future.result()
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
    async_save(large, tmp_path / "good", stager).result()
    assert sorted(os.listdir(tmp_path)) == ["exists", "good"]


def test_a_save_that_fails_while_its_copies_are_waited_for(stager, monkeypatch):
    """Its thread gives the room back, and with it what the caller waits for."""
    staged = stager.stage({"x": torch.ones(1000)})

    def late(snapshot, slice_ns):
        monkeypatch.undo()
        staged.staging.release()
        raise hbmfs.ClosedError("handle 1 is closed")

    monkeypatch.setattr("hbmfs._lib.writer.Snapshot._look", late)
    stager.wait_staged()
    assert staged.staging.ended()


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
        when(stages, planner.go.set)
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


def test_waiting_for_room_has_an_end(tmp_path, monkeypatch):
    large, planner = {"x": torch.ones(MEMORY // 4 * 3 // 4)}, Slow()
    with hbmfs.DCPStager(MEMORY, device="cpu", timeout=0.3) as stager:
        stager.writer.wait_ready()
        future = async_save(large, tmp_path / "a", stager, planner=planner)
        assert planner.here.wait(PATIENCE)
        with pytest.raises(hbmfs.BusyError, match=r"no room for \d+ bytes within 0.3 s.* held by the saves on .*: wait for them, or give"):
            stager.stage(large)
        planner.go.set()
        future.result()
        with stager.writer.snapshot([large["x"]]), pytest.raises(hbmfs.BusyError, match="held by other snapshots of its writer"):
            stager.stage(large)
        monkeypatch.setattr(hbmfs.Writer, "ready", False)
        with stager.writer.snapshot([large["x"]]), pytest.raises(hbmfs.BusyError, match="not pinned yet: call writer.wait_ready"):
            stager.stage(large)


def test_ctrl_c_while_the_thread_that_saves_is_joined(tmp_path, stager):
    """The save goes on, and keeps its room from the next state."""
    large, planner = {"x": torch.ones(MEMORY // 4 * 3 // 4)}, Slow()
    staged = stager.stage(large)
    stager.wait_staged()
    writer = hbmfs.DCPWriter(tmp_path / "a", writer=stager.writer)
    thread = threading.Thread(target=dcp.save, args=(staged,), kwargs={"storage_writer": writer, "planner": planner, "no_dist": True})
    thread.start()
    assert planner.here.wait(PATIENCE)
    interrupt_when(lambda: main_is_in("Thread.join"))
    with pytest.raises(KeyboardInterrupt):
        thread.join()
    when(stages, planner.go.set)
    async_save({"x": large["x"] * 2}, tmp_path / "b", stager).result()
    until((tmp_path / "a").exists)
    assert planner.go.is_set() and torch.equal(load_both(tmp_path / "a", {"x": large["x"] * 0})["x"], large["x"])


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
        future = async_save(state(1), tmp_path / "exists", stager)
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

    def nothing():
        gc.collect()
        return all(any(s is other for other in others) for s in _staging._stagings) and not any(writer._draft for writer in _saves.saves.values())

    until(nothing)  # the thread of a save may end a moment after its result is there
