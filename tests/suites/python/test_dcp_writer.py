"""DCPWriter in one process: what they write, torch's reader and ours read."""

import gc
import os
import pickle
import zipfile

import hbmfs
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hbmfs.checkpoints import _publishing, torch_save
from hbmfs.checkpoints._dcp_layout import LARGE
from test_dcp import load_both, random_tensor, same, state
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemReader, FileSystemWriter

pytestmark = [pytest.mark.filterwarnings("ignore:torch.distributed is disabled"), pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")]


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
    assert sorted(entry.name for entry in _publishing.complete(path)) == sorted(os.listdir(path))
    for entry in _publishing.complete(path):
        _publishing.verify(entry.path)
    return sorted(os.listdir(path))


def refused(call):
    """The exception behind torch's own."""
    with pytest.raises(dcp.api.CheckpointException) as caught:
        call()
    (failure,) = caught.value.failures.values()
    return failure[0]


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


def test_a_path_stays_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    writer = hbmfs.DCPWriter("a")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    dcp.save(state(1), storage_writer=writer, no_dist=True)
    assert sorted(os.listdir(tmp_path)) == ["a", "elsewhere"] and not os.listdir(tmp_path / "elsewhere")
    with pytest.raises(hbmfs.InvalidError, match="is an address"):
        hbmfs.DCPWriter("s3://bucket/a")
