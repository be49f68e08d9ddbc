"""Checkpoints: what is saved, found, kept and removed, alone and with ranks of gloo, and what is left by those that are killed."""

import os
import subprocess
import threading
import warnings

import hbmfs
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hbmfs.checkpoints import _publishing
from hbmfs.checkpoints import Checkpoints
from test_dcp_group import local, same
from test_fork import in_fork
from waiting import PATIENCE, interrupt_when, main_is_in, when

pytestmark = [pytest.mark.filterwarnings("ignore:torch.distributed is disabled"), pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")]


def state(seed, scale=1):
    g = torch.Generator().manual_seed(seed)
    shapes = [(torch.float32, 300 * scale, 129), (torch.bfloat16, 37, 50), (torch.float64, 16, 8), (torch.int64,), (torch.bool, 1000)]
    model = {f"{number}": (torch.randn(shape, generator=g) * 3).to(dtype) for number, (dtype, *shape) in enumerate(shapes)}
    return {"model": model | {"tied": model["0"]}, "step": seed, "lr": [seed / 7, "constant"]}


def other(seed):
    """A state to load into, where nothing is as it will be."""
    found = state(seed)
    found["model"]["tied"] = torch.zeros_like(found["model"]["0"])
    return found


def loaded(ck, step=None):
    """Loads, and checks that it is the step's state to the bit. Gives the step."""
    found = other(1000)
    at = ck.load(found, step)
    same(local(found), local(state(at)))
    return at


def test_what_is_saved_is_loaded(folder):
    with Checkpoints(folder, memory=4 << 20) as ck:
        assert ck.latest() is None and ck.steps() == []
        saves = [ck.save(step, state(step)) for step in (1, 2, 10)]
        assert [save.wait(60) for save in saves] == [str(folder / f"step-{step}") for step in (1, 2, 10)]
        assert ck.steps() == [1, 2, 10] and ck.latest() == 10
        assert loaded(ck) == 10 and loaded(ck, 2) == 2
        assert all(save.done() and save.exception() is None and save.held > 0 for save in saves)
    with Checkpoints(folder) as ck:
        assert loaded(ck) == 10
    found = other(5)
    dcp.load(found, storage_reader=dcp.FileSystemReader(folder / "step-2"), no_dist=True)
    same(local(found), local(state(2)))
    for entry in _publishing.complete(folder):
        _publishing.verify(entry.path)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("hbmfs-save")]


@pytest.mark.parametrize("memory", [None, 0, 100_000, 64 << 20])
def test_tensors_change_after_save(folder, memory):
    with Checkpoints(folder, memory=memory) as ck:
        for step in range(4):
            now = state(step)
            ck.save(step, now)
            for tensor in now["model"].values():
                tensor.zero_()
        ck.wait()
        assert ck.steps() == [1, 2, 3] and [loaded(ck, step) for step in (1, 2, 3)] == [1, 2, 3]


def test_copies_are_on_the_host_wherever_torchs_default_is(folder):
    saved = {"x": torch.randn(300, 4), "gaps": torch.randn(3, 4).T, "none": torch.empty(0, 3), "conj": torch.randn(5, dtype=torch.complex64).conj()}
    with Checkpoints(folder, memory=4 << 20) as ck:
        with torch.device("meta"):
            save = ck.save(1, saved)
        save.result(60)
        found = {name: torch.zeros_like(value.resolve_conj()) for name, value in saved.items()}
        assert ck.load(found) == 1 and all(torch.equal(found[name], saved[name]) for name in saved)


def test_overlapped(folder):
    with Checkpoints(folder, memory=64 << 20) as ck:
        now = state(3)
        save = ck.save(3, now, overlap=True)
        before = save.held
        save.wait_staged()
        assert save.held >= before
        for tensor in now["model"].values():
            tensor.zero_()
        save.result(60)
        assert loaded(ck) == 3


def test_objects_with_states(folder):
    torch.manual_seed(1)
    model = torch.nn.Linear(30, 20)
    optimizer = torch.optim.AdamW(model.parameters())

    class Trainer:
        step = 7

        def state_dict(self):
            return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": self.step}

        def load_state_dict(self, found):
            model.load_state_dict(found["model"])
            optimizer.load_state_dict(found["optimizer"])
            self.step = found["step"]

    def train():
        model(torch.ones(30)).sum().backward()
        optimizer.step()

    train()
    with Checkpoints(folder) as ck:
        trainer = Trainer()
        expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        ck.save(7, {"trainer": trainer}).wait(60)
        train()
        trainer.step = 8
        assert ck.load({"trainer": trainer}) == 7 and trainer.step == 7
        same(dict(model.state_dict()), expected)


@pytest.mark.parametrize("keep", [1, 2, None])
def test_old_ones_go(folder, keep):
    with Checkpoints(folder, keep) as ck:
        for step in range(5):
            ck.save(step, state(step)).wait(60)
            assert ck.steps() == list(range(step + 1))[-(keep or 10) :]
        for entry in os.listdir(folder):
            assert entry.startswith("step-"), entry


def test_old_ones_go_when_the_new_one_is_safe(folder, monkeypatch):
    publish = _publishing.Draft.publish

    def full(self, files):
        raise hbmfs.ReadError(28, "no space left on device")

    with Checkpoints(folder, 1) as ck, pytest.warns(RuntimeWarning, match="step 2 was not saved: .*no space"):
        ck.save(1, state(1)).wait(60)
        monkeypatch.setattr(_publishing.Draft, "publish", full)
        save = ck.save(2, state(2))
        with pytest.raises(hbmfs.ReadError, match="no space"):
            save.wait(60)
        assert ck.steps() == [1] and os.listdir(folder) == ["step-1"]
        monkeypatch.setattr(_publishing.Draft, "publish", publish)
        ck.save(3, state(3)).wait(60)
        assert ck.steps() == [3] and loaded(ck) == 3


def test_going_back(folder):
    """Steps from before somebody went back are later ones, and stay; what was just saved always stays."""
    with Checkpoints(folder, 2) as ck:
        for step in (5, 6):
            ck.save(step, state(step)).wait(60)
        ck.save(3, state(3)).wait(60)
        assert ck.steps() == [3, 5, 6] and ck.latest() == 6
        with pytest.raises(hbmfs.ExistsError, match="step-5"), pytest.warns(RuntimeWarning, match="step 5 was not saved"):
            ck.save(5, state(50)).wait(60)
        assert loaded(ck, 5) == 5


def test_what_others_have_there(folder):
    """Files, directories and checkpoints of other names are neither listed nor removed, and are in nobody's way."""
    folder.mkdir()
    (folder / "step-1").mkdir()
    (folder / "step-1" / "weights").write_text("mine")
    (folder / "step-2").write_text("mine")
    (folder / "step-03").mkdir()
    (folder / "step-nine").mkdir()
    (folder / "latest").write_text("step-9")
    (folder / ".step-8.hbmfs.tmp").write_text("no draft")
    with Checkpoints(folder, 1, name="best-{step}") as ck:
        ck.save(0, state(0)).wait(60)
    with Checkpoints(folder, 1) as ck:
        assert ck.steps() == []
        for step in (1, 2):
            with pytest.raises(FileExistsError), pytest.warns(RuntimeWarning, match="not saved"):
                ck.save(step, state(step)).wait(60)
        for step in (4, 5):
            ck.save(step, state(step)).wait(60)
        assert ck.steps() == [5]
    there = {"best-0", "step-1", "step-2", "step-03", "step-nine", "latest", "step-5"}
    assert there <= set(os.listdir(folder)) <= there | {".step-8.hbmfs.tmp"}
    assert (folder / "step-1" / "weights").read_text() == (folder / "step-2").read_text() == "mine"


def test_times_say_nothing(folder):
    with Checkpoints(folder, None) as ck:
        for step in (30, 4, 200):
            ck.save(step, state(step)).wait(60)
        os.utime(folder / "step-4", (2e9, 2e9))
        os.utime(folder / "step-200", (1, 1))
        assert ck.steps() == [4, 30, 200] and loaded(ck) == 200


def test_half_ones_are_none(folder):
    """A step without its manifest, or with a short file, is none."""
    with Checkpoints(folder, None) as ck:
        for step in range(4):
            ck.save(step, state(step)).wait(60)
        (folder / "step-3" / ".hbmfs-manifest.json").unlink()
        (file,) = (folder / "step-2").glob("*.distcp")
        os.truncate(file, file.stat().st_size - 1)
        assert ck.steps() == [0, 1] and loaded(ck) == 1
        with pytest.raises(hbmfs.NotFoundError, match="no complete step 3: the complete steps are 0, 1"):
            ck.load(other(1), 3)
    with Checkpoints(folder / "none") as ck, pytest.raises(hbmfs.NotFoundError, match="no complete checkpoint"):
        ck.load(other(1))


def test_failures_do_not_end_training(folder):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        ck = Checkpoints(folder)
        save = ck.save(1, {"x": {1, 2}, "bad": threading.Lock()})
        assert isinstance(save.exception(60), Exception)
        ck.save(2, state(2))
        ck.wait()
        assert ck.steps() == [2]
        ck.close()  # somebody has asked for the failure
        with pytest.raises(hbmfs.ClosedError):
            ck.save(3, state(3))
        assert ck.latest() == 2
    assert sum("step 1 was not saved" in str(warning.message) for warning in heard) == 1


def test_no_more_threads(folder, monkeypatch):
    """A save whose thread cannot be started fails, after the one before it; the next one is as any other."""
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == "hbmfs-save-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with Checkpoints(folder) as ck:
        first = ck.save(1, state(1))
        with pytest.warns(RuntimeWarning, match="step 2 was not saved: no thread could be started"):
            save = ck.save(2, state(2))
        assert first.done() and save.done() and "ulimit -u" in str(save.exception())
        assert not ck._saving()  # a signal finds nothing to wait for
        ck.wait()
        ck.save(3, state(3)).wait(60)
        assert ck.steps() == [1, 3]


def joins():
    """Whether the main thread waits for the end of a save."""
    return main_is_in("Save._join", "Condition.wait")


def test_ctrl_c_while_saves_are_waited_for(folder, monkeypatch):
    """The save goes on, and keeps its room from the next one. A forked child has nothing to wait for."""
    hold, write = threading.Event(), _publishing.Draft.write
    monkeypatch.setattr(_publishing.Draft, "write", lambda self, *arguments: (hold.wait(PATIENCE), write(self, *arguments))[1])
    with Checkpoints(folder, None) as ck:
        first = ck.save(1, state(1))
        interrupt_when(joins)
        with pytest.raises(KeyboardInterrupt):
            ck.wait()
        in_fork(ck.close)
        when(lambda: main_is_in("DCPStager._begin"), hold.set)
        ck.save(2, state(2))
        ck.wait()
        assert hold.is_set() and first.done()
        assert loaded(ck, 1) == 1 and loaded(ck, 2) == 2


def test_ctrl_c_while_no_thread_can_be_started(folder, monkeypatch):
    """The save that waits in the main thread for the one before it ends the program, as any other wait does."""
    hold, publish, start = threading.Event(), _publishing.Draft.publish, threading.Thread.start
    monkeypatch.setattr(_publishing.Draft, "publish", lambda self, files: (hold.wait(PATIENCE), publish(self, files))[1])

    def refuse(thread):
        if thread.name == "hbmfs-save-2":
            interrupt_when(joins)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with Checkpoints(folder, memory=64 << 20) as ck:
        first = ck.save(1, state(1))
        with pytest.raises(KeyboardInterrupt), pytest.warns(RuntimeWarning, match="step 2 was not saved"):
            ck.save(2, state(2))
        assert not first.done()
        hold.set()
        ck.wait()
        assert first.done() and not ck._saving()
        ck.save(3, state(3)).wait(60)
        assert ck.steps() == [1, 3]


def test_failures_that_nobody_asked_for(folder):
    with pytest.raises(hbmfs.ExistsError), pytest.warns(RuntimeWarning, match="step 1 was not saved"), Checkpoints(folder) as ck:
        for _ in range(2):
            ck.save(1, state(1))


def test_waiting_has_an_end(folder, monkeypatch):
    hold = threading.Event()
    publish = _publishing.Draft.publish
    monkeypatch.setattr(_publishing.Draft, "publish", lambda self, files: (hold.wait(PATIENCE), publish(self, files))[1])
    with Checkpoints(folder) as ck:
        save = ck.save(1, state(1))
        with pytest.raises(hbmfs.WaitTimeoutError, match="step 1 was not safe after 0.1 s"):
            save.wait(0.1)
        assert not save.done() and ck.steps() == []
        hold.set()
        save.wait(60)


def test_a_second_one_waits_for_room(folder, monkeypatch):
    hold = threading.Event()
    write = _publishing.Draft.write
    monkeypatch.setattr(_publishing.Draft, "write", lambda self, *arguments: (hold.wait(PATIENCE), write(self, *arguments))[1])
    with Checkpoints(folder, None) as ck:
        first = ck.save(1, state(1))
        when(lambda: main_is_in("DCPStager._begin"), hold.set)
        second = ck.save(2, state(2))
        assert hold.is_set(), "it waited for the first"
        second.wait(60)
        assert first.done() and ck.steps() == [1, 2]


def test_two_writers_of_one_step(folder, monkeypatch):
    hold, held = threading.Event(), threading.Event()
    publish = _publishing.Draft.publish

    def wait(self, files):
        held.set()
        hold.wait(PATIENCE)
        publish(self, files)

    with Checkpoints(folder) as one, Checkpoints(folder) as two:
        monkeypatch.setattr(_publishing.Draft, "publish", wait)
        first = one.save(1, state(1))
        assert held.wait(60)
        with pytest.warns(RuntimeWarning, match="step 1 was not saved"):
            error = two.save(1, state(2)).exception(60)
        assert isinstance(error, (hbmfs.BusyError, hbmfs.ExistsError)), error
        hold.set()
        first.wait(60)
        assert loaded(two) == 1


def test_a_mount_that_nobody_can_write_is_read(folder, tmp_path):
    """As of a place in S3 that checkpoints were drained to."""
    with Checkpoints(folder) as ck:
        for step in (1, 2):
            ck.save(step, state(step)).wait(60)
    (folder / ".step-3.hbmfs.tmp").mkdir()
    point = tmp_path / "mnt"
    subprocess.run([os.environ["HBMFS_BINARY"], "mount", folder, point], check=True, stdout=subprocess.DEVNULL)
    try:
        with Checkpoints(point) as ck:
            assert ck.steps() == [1, 2] and loaded(ck) == 2 and loaded(ck, 1) == 1
            with pytest.warns(RuntimeWarning, match="step 3 was not saved"):
                assert isinstance(ck.save(3, state(3)).exception(60), hbmfs.AccessError)
        with pytest.raises(hbmfs.AccessError, match="shows a dataset"):
            Checkpoints(point / "missing")
    finally:
        subprocess.run([os.environ["HBMFS_BINARY"], "unmount", point], check=True, stdout=subprocess.DEVNULL)


def test_bad_arguments(folder):
    for options in (
        {"keep": 0},
        {"keep": True},
        {"deadline": 0},
        *({"name": name} for name in ("step", "a/{step}", ".{step}", "{step}{step}", "{other}{step}")),
    ):
        with pytest.raises(hbmfs.InvalidError):
            Checkpoints(folder, **options)
    with Checkpoints(folder) as ck:
        for step in (-1, 1.0, "1", True):
            with pytest.raises(hbmfs.InvalidError):
                ck.save(step, {})
        with pytest.raises(hbmfs.InvalidError):
            ck.save(1, torch.ones(3))
        heard = []

        def elsewhere():
            try:
                with ck.on_preemption():
                    pass
            except hbmfs.InvalidError as err:
                heard.append(str(err))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert "main thread" in heard[0]
    (folder / "file").write_text("")
    with pytest.raises(hbmfs.InvalidError, match="no directory"):
        Checkpoints(folder / "file")
