"""Samples of any fields: by number and in streams, whose batches hold the bytes that the files have."""

import contextlib
import itertools
import json
import math
import mmap
import os
import pickle
import random
import tarfile
import threading
import types

import hbmfs
import numpy as np
import pytest
import samples_folder
from hbmfs._lib._memory import Host, Pinned
from hbmfs._lib._native import NO_STREAM
from hbmfs.data.part import chosen
from hbmfs.data.permutation import Permutation
from long import trials
from numpy_dataset import NumpyDataset
from test_fork import in_fork
from waiting import until

SAMPLES = 257


@pytest.fixture(scope="module")
def fields():
    return samples_folder.made(SAMPLES)


@pytest.fixture(scope="module")
def whole(fields, tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples") / "fields"
    samples_folder.write(folder, fields, [("a", 200), ("b", 57)])
    with hbmfs.SampleDataset(folder) as ds:
        yield ds


def numpy(array):
    return array if isinstance(array, np.ndarray) else array.to_numpy()


def same(batch, fields, numbers):
    """Whether a batch has these samples, of all fields that it has."""
    for name, value in batch.items():
        if isinstance(value, hbmfs.Ragged):
            values, offsets = numpy(value.values), value.offsets
            assert offsets.dtype == np.int64 and len(offsets) == len(numbers) + 1 and offsets[0] == 0 and offsets[-1] == len(values)
            assert values.dtype == fields[name][0].dtype
            for i, number in enumerate(numbers):
                assert np.array_equal(values[offsets[i] : offsets[i + 1]], fields[name][number]), f"wrong bytes of {name} in sample {number}"
        else:
            assert numpy(value).dtype == fields[name].dtype
            assert np.array_equal(numpy(value), fields[name][numbers]), f"wrong bytes of {name}"
    return True


# --- by number ------------------------------------------------------------------------------------------------------


def test_samples_by_number(whole, fields):
    assert len(whole) == SAMPLES and len(list(whole)) == SAMPLES
    for number in (0, 1, SAMPLES - 1, -1):
        sample = whole[number]
        assert all(np.array_equal(sample[name], fields[name][number]) for name in fields)
    assert same(whole[3:90:7], fields, np.arange(3, 90, 7)) and same(whole[[5, 5, 0]], fields, [5, 5, 0]) and same(whole[[]], fields, [])
    several = whole.__getitems__([9, 2])
    assert [int(sample["number"]) for sample in several] == [9, 2] and np.array_equal(several[1]["jpg"], fields["jpg"][2])
    for number in (SAMPLES, -SAMPLES - 1):
        with pytest.raises(IndexError, match=f"sample {number} is not in"):
            whole[number]
    for numbers in ([SAMPLES], [-1]):
        with pytest.raises(hbmfs.OutOfRangeError, match="which has 257"):
            whole.gather(numbers)
    with pytest.raises(hbmfs.ArgumentError, match="give a sample's number"):
        whole["jpg"]


def test_fields_say_what_they_are(whole):
    assert {name: (f["kind"], f["dtype"].name, f["shape"], f["device"]) for name, f in whole.fields.items()} == {
        "jpg": ("ragged", "uint8", (), "cpu"),
        "latent": ("dense", "float16", (2, 3), "cpu"),
        "wide": ("ragged", "int64", (), "cpu"),
        "number": ("dense", "int64", (), "cpu"),
    }
    assert whole.fields["number"]["bytes"] == 8 * SAMPLES and whole.missing == {}


def test_the_daemon_counts_bytes_by_field(mount):
    def counted():
        clients = json.loads((mount / ".hbmfs/status").read_text())["control"]["clients"]
        return sum(use["bytes"] for client in clients for use in client["fields"] if use["field"] == "jpg")

    before = counted()
    with hbmfs.SampleDataset(mount / "webdataset", ["jpg"]) as ds:
        for _ in hbmfs.SampleStream(ds, 1, epochs=2):
            pass
        read = ds.stats()["fields"]["jpg"]["bytes"]
    assert sum(read.values()) == 2 * ds.fields["jpg"]["bytes"] > 0
    until(lambda: counted() >= before + sum(read.values()))


def test_chosen_fields(whole, fields):
    some = whole.select(["number", "jpg"])
    assert list(some.fields) == list(some[0]) == ["number", "jpg"] and same(some.gather([1, 2]), fields, [1, 2])
    assert list(whole.select({"wide": "cpu"})[0]) == ["wide"]
    for names in ([], {}):
        with pytest.raises(hbmfs.InvalidError, match="no field"):
            whole.select(names)
    with pytest.raises(hbmfs.InvalidError, match="has no field 'png': it has jpg, latent, wide, number"):
        whole.select(["png"])


def test_memory_that_cannot_be_pinned_is_told(whole, fields, monkeypatch):
    monkeypatch.setattr("hbmfs._lib._memory.Pinned.of_torch", lambda: None)
    with hbmfs.SampleDataset(whole.path) as own:
        with pytest.warns(hbmfs.SlowPathWarning, match="field 'jpg' goes to memory that is not pinned"):
            pinned = own.select({"jpg": "pinned", "number": "cpu"})
        assert pinned.fields["jpg"]["device"] == "pinned" and same(pinned.gather([4, 2]), fields, [4, 2])


class FakePinned(Pinned):
    """Pages that a fake GPU sees."""

    def __init__(self, gpu):
        self.gpu, self.pages = gpu, []

    def allocate(self, shape, dtype):
        memory = mmap.mmap(-1, max(1, -(-math.prod(shape) * dtype.itemsize // 4096)) * 4096)
        self.pages.append(np.frombuffer(memory, np.uint8))
        self.gpu.pin(self.pages[-1])
        value = np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)
        return value, value.ctypes.data, NO_STREAM

    def close(self):
        for pages in self.pages:
            self.gpu.unpin(pages)


def test_pinned_memory_is_on_the_host_wherever_torchs_default_is():
    torch = pytest.importorskip("torch")
    unpinned = types.SimpleNamespace(uint8=torch.uint8, empty=lambda shape, pin_memory, **options: torch.empty(shape, **options))
    with torch.device("meta"):
        value, *_ = Pinned(unpinned).allocate((3,), np.dtype(np.uint8))
    assert value.device.type == "cpu"


def test_the_gpu_copies_to_pinned_memory(whole, fields, gpu, monkeypatch):
    pinned = FakePinned(gpu)
    monkeypatch.setattr("hbmfs._lib._memory.Pinned.of_torch", lambda: pinned)
    chosen = {"jpg": "pinned", "latent": "pinned", "number": "cpu"}
    with gpu.reader(reuse=True, pinned=64 << 20) as reader, hbmfs.SampleDataset(whole.path, chosen, reader=reader) as ds:
        stream = hbmfs.SampleStream(ds, 32, epochs=2)
        for batch in stream:
            assert same(batch, fields, batch["number"]) and isinstance(batch["jpg"].values, np.ndarray)
        stats = ds.stats()["fields"]
        for name in ("jpg", "latent"):
            assert stats[name]["device"] == "pinned" and stats[name]["bytes"].keys() == {"mapped"} and "to memory of the host" in stats[name]["reason"]
        assert ds.fields["jpg"]["device"] == "pinned" and stats["number"]["bytes"].keys() == {"host"}
        pinned.close()


def test_a_forked_child_has_no_pinned_memory(whole, fields, gpu, monkeypatch):
    """With a reader of the host the field goes to plain memory there. With one of a GPU it is refused."""

    class Unusable(Pinned):
        def allocate(self, shape, dtype):
            raise RuntimeError("CUDA cannot be used in a forked process")

    monkeypatch.setattr("hbmfs._lib._memory.Pinned.of_torch", lambda: Unusable(None))
    chosen = {"jpg": "pinned", "latent": "pinned"}
    with hbmfs.Reader("cpu") as reader, hbmfs.SampleDataset(whole.path, chosen, reader=reader, tensors=False) as ds:
        assert in_fork(lambda: same(ds.gather([4, 2, 4]), fields, [4, 2, 4]))
        assert in_fork(lambda: type(ds.select(tensors=True).gather([4])["latent"]).__name__) == "Tensor"
    with gpu.reader(reuse=True, pinned=64 << 20) as reader, hbmfs.SampleDataset(whole.path, chosen, reader=reader) as ds:
        with pytest.raises(hbmfs.ForkedError, match="spawn"):
            in_fork(lambda: len(ds.gather([4, 2])))


@pytest.mark.parametrize("given", ["of the host", "that stages", None])
def test_pinned_memory_without_that_gpu(given, whole, fields, gpu, monkeypatch):
    monkeypatch.setattr("hbmfs._lib._memory.Pinned.of_torch", lambda: Host())
    monkeypatch.setattr("hbmfs._lib._device._current", lambda: 9)  # there is none
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(hbmfs.Reader("cpu") if given == "of the host" else gpu.reader(method="staged")) if given else None
        warns = contextlib.nullcontext() if given == "of the host" else pytest.warns(hbmfs.SlowPathWarning, match="field 'jpg' is copied to pinned memory by threads: ")
        with warns:
            ds = stack.enter_context(hbmfs.SampleDataset(whole.path, {"jpg": "pinned"}, reader=reader))
        assert same(ds.gather([4, 2]), fields, [4, 2]) and ds.stats()["bytes"].keys() == {"host"}


def test_a_field_that_is_not_shown(tmp_path):
    samples_folder.write(tmp_path / "fields", {"number": np.arange(3)})
    listed = json.loads((tmp_path / "fields/fields.json").read_text())["fields"]
    samples_folder.relist(tmp_path / "fields", fields=[*listed, {"name": "png", "file": "png", "kind": "dense", "missing": "its shapes differ"}])
    with hbmfs.SampleDataset(tmp_path) as ds:
        assert list(ds.fields) == ["number"] and ds.missing == {"png": "its shapes differ"}
        with pytest.raises(hbmfs.InvalidError, match="field 'png' of .* is not shown: its shapes differ"):
            ds.select(["png"])


def test_parts(whole, fields):
    numbers = [200, 3, 3, 17]
    some = whole.subset(numbers)
    assert len(some) == 4 and same(some[:], fields, numbers) and same(some.subset([3, 1]).gather([0, 1]), fields, [17, 3])
    mask = np.arange(SAMPLES) % 2 == 1
    assert same(whole.subset(mask)[:], fields, np.flatnonzero(mask)) and len(whole.subset([])) == 0
    train, val = whole.split("train", {"train": 0.8, "val": 0.2}, seed=3), whole.split("val", {"train": 0.8, "val": 0.2}, seed=3)
    assert sorted([*train.numbers, *val.numbers]) == list(range(SAMPLES)) and len(val) > 20
    longer = chosen([("new", 9), ("a", 200), ("b", 57)], "val", {"train": 0.8, "val": 0.2}, 3, "sample")
    assert np.array_equal(np.flatnonzero(longer[9:]), val.numbers)  # a sample stays where it is when shards are added
    for wrong in ([SAMPLES], [-1], [[1]], [0.5], np.ones(9, bool)):
        with pytest.raises((hbmfs.InvalidError, hbmfs.OutOfRangeError), match="sample"):
            whole.subset(wrong)
    with pytest.raises(hbmfs.InvalidError, match="is a part already"):
        train.split("val")


def test_0_samples(tmp_path):
    samples_folder.write(tmp_path / "fields", {"jpg": [], "latent": np.empty((0, 4), np.float32)})
    with hbmfs.SampleDataset(tmp_path) as ds:
        assert len(ds) == 0 and list(ds) == []
        empty = ds[:]
        assert empty["latent"].shape == (0, 4) and len(empty["jpg"].values) == 0 and empty["jpg"].offsets.tolist() == [0]
        with pytest.raises(hbmfs.InvalidError, match="has no samples"):
            hbmfs.SampleStream(ds, 2)


def test_a_sample_longer_than_all_memory_that_the_reader_has(tmp_path, gpu):
    fields = {"jpg": [np.random.default_rng(n).integers(0, 256, size, np.uint8) for n, size in enumerate([7, 1 << 20, 0, 70_001])], "number": np.arange(4)}
    samples_folder.write(tmp_path / "fields", fields)
    with gpu.reader(slot=64 << 10, arena=1 << 20) as reader, hbmfs.SampleDataset(tmp_path, {"jpg": "cuda:0", "number": "cpu"}, reader=reader) as ds:
        assert same(ds.gather([3, 1, 2, 0, 1]), fields, [3, 1, 2, 0, 1])
    with hbmfs.Reader("cpu", slot=64 << 10) as reader, hbmfs.SampleDataset(tmp_path, reader=reader) as ds:
        assert same(ds.gather([3, 1, 2, 0, 1]), fields, [3, 1, 2, 0, 1])


@pytest.mark.parametrize("method", ["auto", "mapped", "staged"])
def test_fields_on_a_gpu(method, whole, fields, gpu):
    with gpu.reader(method=method) as reader, hbmfs.SampleDataset(whole.path, {"latent": "cuda:0", "jpg": "cuda:0", "number": "cpu"}, reader=reader) as ds:
        for batch in hbmfs.SampleStream(ds, 32, epochs=1):
            assert same(batch, fields, batch["number"]) and isinstance(batch["jpg"].values, hbmfs.DeviceArray)
        del batch


def test_two_processes(whole, fields):
    again = pickle.loads(pickle.dumps(whole.subset([9, 4]).select(["jpg", "number"])))
    with again:
        assert same(again[:], fields, [9, 4]) and list(again.fields) == ["jpg", "number"]
    told, tell = os.pipe()
    if (child := os.fork()) == 0:
        right = same(whole.gather([8, 3, 3]), fields, [8, 3, 3]) and same(next(iter(hbmfs.SampleStream(whole, 9, shuffle=False))), fields, range(9))
        os.write(tell, b"1" if right else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    os.close(tell)
    assert os.read(told, 1) == b"1"
    os.close(told)


def test_a_closed_set(whole, tmp_path):
    ds = hbmfs.SampleDataset(whole.path)
    part, stream = ds.subset([1]), hbmfs.SampleStream(ds, 2)
    ds.close()
    for call in (lambda: ds[0], lambda: part[0], lambda: next(iter(stream)), lambda: ds.select(["jpg"])):
        with pytest.raises(hbmfs.ClosedError, match="closed"):
            call()
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(hbmfs.NotFoundError):
            hbmfs.SampleDataset(path)


def test_bytes_are_counted_by_field_and_path(whole):
    with hbmfs.SampleDataset(whole.path, ["jpg", "number"]) as ds:
        ds.gather([0, 1])
        stats = ds.stats()
    assert stats["fields"]["number"]["bytes"] == {"host": 16} and stats["bytes"]["host"] >= 16 and not stats["mounted"]


# --- in a mount -----------------------------------------------------------------------------------------------------


def test_samples_of_webdataset_in_a_mount(mount, source):
    members = {}
    for path in sorted((source / "webdataset").glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                key, _, field = member.name.partition(".")
                members.setdefault((path.name, key), {})[field] = tar.extractfile(member).read()
    with hbmfs.SampleDataset(mount / "webdataset") as ds:
        assert len(ds) == len(members) and ds.stats()["mounted"]
        for sample, want in zip(ds, members.values(), strict=True):
            assert {name: value.tobytes() for name, value in sample.items()} == want
        seen = [sample.tobytes() for batch in hbmfs.SampleStream(ds, 2, ["jpg"], epochs=1, drop_last=False, seed=3) for sample in batch["jpg"].rows()]
    assert sorted(seen) == sorted(want["jpg"] for want in members.values())


def test_samples_of_mds_in_a_mount(mount):
    views = mount / ".hbmfs/views/mds-multi/fields"
    with hbmfs.SampleDataset(views.parent) as ds:
        for name, field in ds.fields.items():
            if field["kind"] == "dense":
                assert np.array_equal(ds[:][name], np.load(views / f"{name}.npy"))
            else:
                values, offsets = ds[:][name]
                assert np.array_equal(values, np.load(views / f"{name}.values.npy")) and np.array_equal(offsets, np.load(views / f"{name}.offsets.npy"))
        first, again = next(iter(hbmfs.SampleStream(ds, 7, seed=1))), hbmfs.SampleDataset(mount / "mds-multi")
        with again:
            assert np.array_equal(first["id"], next(iter(hbmfs.SampleStream(again, 7, ["id"], seed=1)))["id"])
    with pytest.raises(hbmfs.InvalidError, match="sets of samples"):
        hbmfs.SampleDataset(mount)
    with pytest.raises(hbmfs.NotFoundError, match="hbmfs inspect"):
        hbmfs.SampleDataset(mount / "nanogpt")


# --- damaged files --------------------------------------------------------------------------------------------------

DAMAGES = {
    "they fall": lambda o: o.__setitem__(5, o[4] - 1),
    "they begin late": lambda o: o.__setitem__(0, 1),
    "they are negative": lambda o: o.__setitem__(0, -1),
    "they end early": lambda o: o.__setitem__(-1, o[-1] - 1),
    "they go beyond": lambda o: o.__setitem__(slice(-3, None), 1 << 62),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_offsets_are_refused(damage, tmp_path):
    samples_folder.write(tmp_path / "fields", {"jpg": [np.ones(3, np.uint8)] * 20})
    path = tmp_path / "fields/jpg.offsets.npy"
    offsets = np.load(path)
    DAMAGES[damage](offsets)
    np.save(path, offsets)
    with pytest.raises(hbmfs.FormatError, match="jpg.offsets.npy"):
        hbmfs.SampleDataset(tmp_path)


@pytest.mark.parametrize("offsets", [np.arange(0, 60, 3), np.arange(0, 66, 3), np.arange(0, 63, 3).astype(np.int32), np.arange(0, 63, 3).astype(np.float64)])
def test_offsets_of_another_form_are_refused(offsets, tmp_path):
    samples_folder.write(tmp_path / "fields", {"jpg": [np.ones(3, np.uint8)] * 20})
    np.save(tmp_path / "fields/jpg.offsets.npy", offsets)
    with pytest.raises(hbmfs.FormatError, match="jpg.offsets.npy has"):
        hbmfs.SampleDataset(tmp_path)


def test_files_that_are_cut_are_refused(tmp_path):
    samples_folder.write(tmp_path / "fields", {"jpg": [np.ones(3, np.uint8)] * 20, "number": np.arange(20)})
    for name in ("jpg.offsets.npy", "jpg.values.npy", "number.npy"):
        path = tmp_path / "fields" / name
        before = path.read_bytes()
        for size in (0, 5, 40, len(before) - 1):
            path.write_bytes(before[:size])
            with pytest.raises(hbmfs.Error, match=name):
                hbmfs.SampleDataset(tmp_path)
        path.write_bytes(before)
    hbmfs.SampleDataset(tmp_path).close()


WRONG = [
    {"samples": -1}, {"samples": 1 << 62}, {"samples": True}, {"samples": "3"}, {"samples": 21}, {"fields": None}, {"fields": [7]}, {"fields": [{"name": "a"}]},
    {"shards": [{"name": "a", "samples": 3}]}, {"shards": 5}, {"shards": [{"name": "a", "samples": 1 << 80}]},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_damaged_list_is_refused(wrong, tmp_path):
    samples_folder.write(tmp_path / "fields", {"number": np.arange(20)})
    samples_folder.relist(tmp_path / "fields", **wrong)
    with pytest.raises(hbmfs.FormatError, match=r"fields\.json|number\.npy"):
        hbmfs.SampleDataset(tmp_path)


@pytest.mark.parametrize("changed", [{"file": "../x"}, {"file": ""}, {"file": ".."}, {"kind": "x"}, {"dtype": "float32"}, {"dtype": "O"}, {"shape": [2]}, {"shape": [-1]}, {"shape": None}], ids=str)
def test_a_damaged_field_is_refused(changed, tmp_path):
    samples_folder.write(tmp_path / "fields", {"number": np.arange(20)})
    (field,) = json.loads((tmp_path / "fields/fields.json").read_text())["fields"]
    samples_folder.relist(tmp_path / "fields", fields=[{**field, **changed}])
    with pytest.raises((hbmfs.FormatError, hbmfs.DtypeError), match="fields.json|number.npy|dtype"):
        hbmfs.SampleDataset(tmp_path)
    (tmp_path / "fields/fields.json").write_text("[" * 100_000)
    with pytest.raises(hbmfs.FormatError, match="fields.json"):
        hbmfs.SampleDataset(tmp_path)


# --- streams --------------------------------------------------------------------------------------------------------


def ranks(ds, world_size, batch_size, seed, state=None, **options):
    streams = [hbmfs.SampleStream(ds, batch_size, ["number", "jpg"], seed=seed, rank=r, world_size=world_size, drop_last=False, **options) for r in range(world_size)]
    for stream in streams:
        if state is not None:
            stream.load_state_dict(state)
    return streams


def steps(streams, fields):
    for batches in itertools.zip_longest(*streams):
        assert all(same(batch, fields, batch["number"]) for batch in batches)
        yield [number for batch in batches for number in batch["number"].tolist()]


@pytest.mark.parametrize("trial", trials(30))
def test_every_sample_once_whatever_happens(trial, whole, fields):
    pick = random.Random(trial)
    seed, epochs, shuffle = pick.randrange(1 << 40), pick.choice([1, 1, 2]), pick.random() < 0.9
    options = {"epochs": epochs, "shuffle": shuffle}
    one = [Permutation(SAMPLES, seed, epoch)(np.arange(SAMPLES)) if shuffle else np.arange(SAMPLES) for epoch in range(epochs)]
    expected = np.concatenate(one).tolist()
    found, state = [], None
    for _ in range(pick.randrange(1, 6)):  # runs that are stopped, each of another shape
        streams = ranks(whole, pick.choice([1, 2, 8]), pick.randrange(1, 30), seed, state, depth=pick.randrange(1, 5), **options)
        limit = pick.randrange(0, 20)
        taken = list(itertools.islice(steps(streams, fields), limit))
        found += itertools.chain(*taken)
        states = [stream.state_dict() for stream in streams]
        assert all(s == states[0] for s in states), "the ranks stand at different places"
        state = json.loads(json.dumps(states[pick.randrange(len(states))]))
        if len(taken) < limit:
            break
    if len(found) < len(expected):
        found += itertools.chain(*steps(ranks(whole, pick.choice([1, 2, 8]), pick.randrange(1, 12), seed, state, **options), fields))
    assert found == expected


def test_states(whole):
    stream = hbmfs.SampleStream(whole, 8, seed=5)
    state = json.loads(json.dumps(stream.state_dict()))
    assert stream.state_after(3)["consumed"] == 24 and stream.epoch == 0 and stream.samples == SAMPLES
    hbmfs.SampleStream(whole, 3, ["jpg"], seed=5, rank=1, world_size=2, decode={"jpg": len}).load_state_dict(state)
    part = hbmfs.SampleStream(whole.subset([3, 1, 2]), 1, seed=5).state_dict()
    backwards = whole.subset(range(SAMPLES)[::-1])
    with pytest.raises(hbmfs.InvalidError, match="the state was taken with part=None"):
        hbmfs.SampleStream(backwards, 8, seed=5).load_state_dict(state)
    as_many = hbmfs.SampleStream(backwards, 8, seed=5).state_dict()
    for given, other in ((state, {"seed": 6}), (state, {"shuffle": False}), (part, {}), (as_many, {}), (hbmfs.TokenStream(tokens(), 2, 1).state_dict(), {})):
        with pytest.raises(hbmfs.InvalidError, match="the state"):
            hbmfs.SampleStream(whole, 8, **{"seed": 5, **other}).load_state_dict(given)
    with pytest.raises(hbmfs.InvalidError, match="the state has no 'seq_len'"):
        hbmfs.TokenStream(tokens(), 2, 1, seed=5).load_state_dict(state)
    assert "257 samples" in repr(stream) and " of [8] at sample 0" in repr(stream)


def tokens():
    return NumpyDataset(np.arange(99))


def test_a_mixture_of_samples(whole, fields):
    train, val = whole.split("train", {"train": 0.5, "val": 0.5}), whole.split("val", {"train": 0.5, "val": 0.5})
    mix = hbmfs.Mixture({"a": (train, 3), "b": (val, 1)}, 10, epochs=1, drop_last=False, seed=2)
    batches = list(itertools.islice(mix, 7))
    state = json.loads(json.dumps(mix.state_dict()))
    more = hbmfs.Mixture({"a": (train, 3), "b": (val, 1)}, 3, epochs=1, drop_last=False, seed=2)
    more.load_state_dict(state)
    batches += more
    assert all(same(batch, fields, batch["number"]) for batch in batches)
    assert sorted(n for batch in batches for n in batch["number"].tolist()) == list(range(SAMPLES))
    assert mix.counts["a"]["samples"] in (52, 53) and "tokens" not in mix.counts["a"]
    for sources, options in (({"a": (train, 1)}, {"seq_len": 4}), ({"a": (train, 1)}, {"packed": True}), ({"a": (train, 1), "b": (tokens(), 1)}, {})):
        with pytest.raises(hbmfs.InvalidError, match="samples"):
            hbmfs.Mixture(sources, 4, **options)
    with pytest.raises(hbmfs.InvalidError, match="tokens needs seq_len"):
        hbmfs.Mixture({"a": (tokens(), 1)}, 4)
    with pytest.raises(hbmfs.InvalidError, match="other fields"):
        hbmfs.Mixture({"a": (train, 1), "b": (val.select(["jpg"]), 1)}, 4)


def test_a_mixture_of_several_sets(whole, fields, tmp_path):
    others = samples_folder.made(90, seed=1)
    samples_folder.write(tmp_path / "fields", others)
    with hbmfs.SampleDataset(tmp_path) as second:
        for batch in hbmfs.Mixture({"a": (whole, 2), "b": (second.subset(np.arange(0, 90, 2)), 1)}, 12, epochs=1):
            values, offsets = batch["jpg"]
            for i, number in enumerate(batch["number"]):
                own = [values[offsets[i] : offsets[i + 1]].tolist(), batch["latent"][i].tolist()]
                assert own in [[of["jpg"][number].tolist(), of["latent"][number].tolist()] for of in (fields, others) if number < len(of["jpg"])]
    samples_folder.write(tmp_path / "other/fields", {**others, "latent": others["latent"].astype(np.float32)})
    with hbmfs.SampleDataset(tmp_path / "other") as second, pytest.raises(hbmfs.DtypeError, match="field 'latent' of other types"):
        hbmfs.Mixture({"a": (whole, 2), "b": (second, 1)}, 12)


# --- decoders -------------------------------------------------------------------------------------------------------


def test_decoders_keep_the_order(whole, fields):
    late = threading.Event()

    def slow(value):  # the first one is done last
        if not late.is_set():
            late.wait(0.01)
            late.set()
        return value.sum(dtype=np.int64)

    seen = []
    for batch in hbmfs.SampleStream(whole, 20, epochs=1, seed=4, decode={"jpg": slow, "latent": lambda value: value.shape}, decode_threads=5):
        assert batch["jpg"] == [fields["jpg"][n].sum(dtype=np.int64) for n in batch["number"]] and batch["latent"] == [(2, 3)] * 20
        seen += batch["number"].tolist()
    assert len(set(seen)) == 240


def test_decoders_run_while_batches_are_read_and_the_caller_works(whole):
    decoding = threading.Semaphore(0)
    stream = hbmfs.SampleStream(whole, 4, epochs=1, decode={"jpg": lambda value: decoding.release()}, depth=3)
    with stream:
        next(iter(iterator := iter(stream)))
        for _ in range(8):  # of the next batches, while nobody asks for them
            assert decoding.acquire(timeout=60)
        del iterator


def test_an_error_of_a_decoder_names_the_sample(whole):
    def refuse(value):
        if value == 77:
            raise OSError("not a number that I like")
        return value

    stream = hbmfs.SampleStream(whole.subset(np.arange(70, 90)), 5, seed=1, epochs=1, decode={"number": refuse})
    with pytest.raises(hbmfs.FormatError, match="sample 77 of .*: its field 'number' cannot be decoded: OSError"):
        list(stream)
    assert not [t for t in threading.enumerate() if t.name.startswith("hbmfs-decode")]
    with pytest.raises(hbmfs.InvalidError, match="decode= names 'png'"):
        hbmfs.SampleStream(whole, 5, decode={"png": refuse})
