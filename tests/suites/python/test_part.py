"""Parts of datasets: splits that stay when shards are added, chosen documents, and datasets side by side."""

import gc
import itertools
import json
import os
import subprocess
import tracemalloc

import hbmfs
import numpy as np
import pytest
from hbmfs.data import part
from hbmfs.data.permutation import mixed
from numpy_dataset import NumpyDataset
from test_dataset import streams
from test_packed import check, documents


def chosen(ds, numbers):
    return np.concatenate([ds.tokens[a:b] for a, b in (ds.documents[n : n + 2] for n in numbers)])


# --- some documents -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trial", range(10))
def test_a_subset_reads_like_a_dataset_of_these_documents(trial):
    ds, random_ = documents(trial), np.random.default_rng(trial)
    numbers = np.sort(random_.choice(60, 25, replace=False)) if trial % 2 else random_.permutation(60)[:25]
    some, want = hbmfs.Part(ds, numbers), chosen(ds, numbers)
    assert len(some) == len(want) and some.dtype == ds.dtype
    plain = NumpyDataset(want, some.documents)
    for length in (1, 5, 33, len(want)):
        starts = random_.integers(0, len(want) - length + 1, 20)
        for dtype in (None, np.int64):
            got = some.gather(starts, length, dtype=dtype)
            assert np.array_equal(got, plain.begin_gather(starts, length, dtype=dtype).wait()) and got.dtype == (dtype or ds.dtype)
        out = np.empty((20, length), ds.dtype)
        assert some.gather(starts, length, out=out) is out and np.array_equal(out, some.gather(starts, length))
    for options in ({}, {"documents": True}, {"targets": True}, {"packed": True}):
        for ours, theirs in zip(*(hbmfs.TokenStream(d, 3, 7, seed=trial, epochs=1, **options) for d in (some, plain)), strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None)
    packed = hbmfs.PackedStream(some, 3, 16, epochs=1, drop_last=False, window=9)
    tokens = np.concatenate([batch.tokens[batch.document_ids >= 0] for batch in packed])
    assert sorted(tokens.tolist()) == sorted(want.tolist())


def test_a_part_in_a_mixture():
    one, two = documents(1), documents(2)
    mix = hbmfs.Mixture({"a": (hbmfs.Part(one, np.arange(0, 60, 2)), 0.5), "b": (two, 0.5)}, 4, 8, exhausted="drop", drop_last=False)
    rows = sorted(tuple(row) for batch in mix for row in batch.tolist())
    want = [chosen(one, range(0, 60, 2)), two.tokens]
    assert rows == sorted(tuple(row) for tokens in want for row in tokens[: len(tokens) // 8 * 8].reshape(-1, 8).tolist())


def test_states_of_other_parts_are_refused():
    ds = NumpyDataset(np.arange(100), np.arange(0, 101, 10))
    for make in (lambda d: hbmfs.TokenStream(d, 2, 5), lambda d: hbmfs.PackedStream(d, 2, 10), lambda d: hbmfs.Mixture({"a": (d, 1)}, 2, 5)):
        state = json.loads(json.dumps(make(hbmfs.Part(ds, [1, 2, 3])).state_dict()))
        make(hbmfs.Part(ds, [1, 2, 3])).load_state_dict(state)
        with pytest.raises(hbmfs.InvalidError, match="the state was taken with"):
            make(hbmfs.Part(ds, [1, 2, 4])).load_state_dict(state)
        backwards = hbmfs.Part(ds, range(10)[::-1])  # of as many tokens as the whole
        for given, other in ((backwards, ds), (ds, backwards)):
            with pytest.raises(hbmfs.InvalidError, match="the state was taken with"):
                make(other).load_state_dict(make(given).state_dict())


@pytest.mark.parametrize("numbers", [[], [10], [-1], [[1]], [0.5], "x", np.ones(9, bool)])
def test_documents_that_are_none(numbers):
    with pytest.raises(hbmfs.InvalidError, match="document"):
        hbmfs.Part(NumpyDataset(np.arange(100), np.arange(0, 101, 10)), numbers)


def test_a_row_outside_of_a_part():
    some = hbmfs.Part(NumpyDataset(np.arange(100), np.arange(0, 101, 10)), [1, 2])
    for starts, length, wrong in (([0], 21, 0), ([3, -1], 2, -1), ([0, 15], 6, 15)):
        with pytest.raises(hbmfs.OutOfRangeError, match=f"tokens from {wrong} on is not inside"):
            some.gather(starts, length)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u8"])
def test_numbers_of_any_type(dtype):
    """The document behind the last one has a number that the type may not have."""
    ds, last = NumpyDataset(np.arange(655_360), np.arange(0, 655_361, 10)), min(np.iinfo(dtype).max, 65_535)
    numbers = np.array([last, 3], dtype)
    some = hbmfs.Part(ds, numbers)
    numbers[:] = 0  # it is the caller's
    assert np.array_equal(some.gather([0], 20)[0], chosen(ds, [last, 3])) and some.digest == hbmfs.Part(ds, [last, 3]).digest
    with pytest.raises(hbmfs.InvalidError, match=f"document {2**63} is not in"):
        hbmfs.Part(ds, np.array([2**63], np.uint64))


def test_parts_of_every_format(opened, mount, expect):
    seen = 0
    for where, _, found in streams(expect):
        starts = found.get("document_starts")
        if starts is None:
            continue
        ds = opened(mount / where)
        tokens = np.load(mount / ".hbmfs/views" / where / "tokens.npy")
        numbers = [n for n in range(len(starts) - 1) if n % 3 != 1]
        some = ds.subset(documents=numbers)
        want = np.concatenate([tokens[starts[n] : starts[n + 1]] for n in numbers])
        within = [(at, 3) for at in some.documents[:-1][np.diff(some.documents) >= 3]]
        for at, n in within:
            assert np.array_equal(opened.numpy(some.gather([at], n))[0], want[at : at + n])
        assert np.array_equal(opened.numpy(some.gather([0], len(want)))[0], want)
        seen += 1
    assert seen >= 10


# --- splits ---------------------------------------------------------------------------------------------------------


def test_splits_have_every_document_once(opened, mount):
    ds = opened(mount / "megatron-merge")
    for shares in ({"train": 0.5, "val": 0.5}, {"train": 0.6, "val": 0.3, "test": 0.1}, {"a": 1}, {"a": 0, "b": 1}):
        numbers = []
        for name in shares:
            try:
                numbers.append(ds.split(name, shares, seed=3).numbers)
            except hbmfs.InvalidError as err:
                assert "larger share" in str(err)
        assert sorted(np.concatenate(numbers).tolist()) == list(range(len(ds.documents) - 1))
    assert len(part.shards_of(ds)) > 1


def test_a_split_has_its_share():
    ds = NumpyDataset(np.zeros(400_000, np.uint16), np.arange(0, 400_001, 2))
    ds.path = "/data/tokens.bin"
    train, val = part.split(ds, "train", None, 0), part.split(ds, "val", None, 0)
    assert len(train.numbers) + len(val.numbers) == 200_000 and abs(len(val.numbers) - 2000) < 250
    assert set(part.split(ds, "val", None, 1).numbers) != set(val.numbers)


def test_a_large_split_has_few_hashes_at_once():
    shards = [("a", 1 << 21), ("b", 0), ("c", 10)]
    tracemalloc.start()
    mask = part.chosen(shards, "train", None, 0, "document")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(mask) == (1 << 21) + 10 and peak < 24 << 20
    hashes = np.concatenate([mixed(part._key(0, name), np.arange(n)) for name, n in shards])
    assert np.array_equal(mask, hashes < np.uint64((1 << 64) * 99 // 100))


def test_splits_are_those_of_the_states_of_earlier_versions():
    shards, shares = [("train/a-0.bin", 700_000), ("b", 0), ("c", 11)], {"train": 0.5, "val": 0.25, "test": 0.25}
    digests = {name: part.digest_of(np.flatnonzero(part.chosen(shards, name, shares, 7, "document"))) for name in shares}
    assert digests == {"train": "d07507e1455bc518", "val": "c334ade1496d76d4", "test": "afb78ba7339fc951"}


def test_a_document_stays_where_it_is_when_shards_are_added(tmp_path):
    def dataset(shards):
        folder = tmp_path / str(len(shards))
        folder.mkdir()
        (folder / "shards.json").write_text(json.dumps([{"name": name, "tokens": n, "documents": n} for name, n in shards]))
        count = sum(n for _, n in shards)
        ds = NumpyDataset(np.arange(count), np.arange(count + 1))
        ds.path = str(folder / "tokens.npy")
        return ds

    before, after = dataset([("b", 500), ("d", 700)]), dataset([("a", 300), ("b", 500), ("c", 90), ("d", 800)])
    val = set(part.split(before, "val", {"train": 0.9, "val": 0.1}, 0).numbers.tolist())
    now = part.split(after, "val", {"train": 0.9, "val": 0.1}, 0).numbers.tolist()
    moved = {n - 300 for n in now if 300 <= n < 800} | {n - 390 for n in now if 890 <= n < 1590}
    assert moved == val and len(val) > 80


def test_hashes_stay_as_they_are():
    """Splits of runs under way depend on them."""
    assert [hex(n) for n in mixed(1, np.array([0, 1, 1 << 40])).tolist()] == ["0x910a2dec89025cc1", "0xbeeb8da1658eec67", "0x4b232129431b8899"]
    assert part._key(0, "a/b.bin") == int.from_bytes(bytes.fromhex("ced72b68b6b0b37a"), "little")


@pytest.mark.parametrize(("name", "shares"), [("test", None), ("a", {"a": 0.5}), ("a", {"a": 1.5, "b": -0.5})])
def test_splits_that_are_none(name, shares):
    with pytest.raises(hbmfs.InvalidError, match="split"):
        part.split(NumpyDataset(np.arange(100), np.arange(0, 101, 10)), name, shares, 0)


@pytest.mark.parametrize("text", ["{", "[]", '[{"name": "a"}]', '[{"name": "a", "documents": -1}]', '[{"name": "a", "documents": 11}]', "3"])
def test_a_list_of_shards_that_is_damaged(tmp_path, text):
    (tmp_path / "shards.json").write_text(text)
    ds = NumpyDataset(np.arange(100), np.arange(0, 101, 10))
    ds.path = str(tmp_path / "tokens.npy")
    with pytest.raises(hbmfs.FormatError, match=r"shards\.json"):
        part.split(ds, "train", None, 0)


# --- side by side ---------------------------------------------------------------------------------------------------


def aligned(trial=1):
    ds = documents(trial)
    mask = NumpyDataset((ds.tokens % 3 == 0).astype(np.uint8), ds.documents)
    return ds, mask, hbmfs.Aligned({"tokens": ds, "mask": mask})


def test_the_same_samples_of_both():
    ds, _, both = aligned()
    for batch in hbmfs.TokenStream(both, 4, 8, epochs=1):
        assert np.array_equal(batch["mask"], batch["tokens"] % 3 == 0) and batch["mask"].dtype == np.uint8
    for batch in hbmfs.TokenStream(both, 4, 8, epochs=1, targets=True, dtype="int64"):
        assert all(np.array_equal(m, t % 3 == 0) for t, m in zip(batch["tokens"], batch["mask"], strict=True))
        assert batch["tokens"][1].dtype == np.int64
    for batch in itertools.chain(hbmfs.PackedStream(both, 4, 16, epochs=1), hbmfs.TokenStream(both, 4, 8, epochs=1, packed=True)):
        check(batch, ds.documents)
        real = batch.document_ids >= 0
        assert np.array_equal(batch.beside["mask"][real], batch.tokens[real] % 3 == 0)
    for batch in itertools.chain(hbmfs.PackedStream(both, 4, 16, epochs=1, targets=True), hbmfs.TokenStream(both, 4, 8, epochs=1, packed=True, targets=True)):
        some = batch.labels >= 0
        assert some.any() and np.array_equal(batch.beside["mask"][some], batch.labels[some] % 3 == 0)


def test_parts_side_by_side():
    ds, mask, _ = aligned()
    numbers = np.arange(0, 60, 4)
    both = hbmfs.Aligned({"tokens": hbmfs.Part(ds, numbers), "mask": hbmfs.Part(mask, numbers)})
    found = [t for batch in hbmfs.PackedStream(both, 4, 16, epochs=1, drop_last=False) for t in batch.tokens[batch.document_ids >= 0].tolist()]
    assert sorted(found) == sorted(chosen(ds, numbers).tolist())
    with pytest.raises(hbmfs.InvalidError, match="different parts"):
        hbmfs.Aligned({"tokens": hbmfs.Part(ds, [0, 1]), "mask": hbmfs.Part(mask, [1, 0])})


@pytest.mark.parametrize("options", [{}, {"targets": True}, {"packed": True}, {"packed": True, "targets": True}])
def test_mixtures_of_datasets_side_by_side(options):
    sources = {str(i): (aligned(i)[2], weight) for i, weight in ((1, 0.7), (2, 0.3))}
    for batch in itertools.islice(hbmfs.Mixture(sources, 6, 8, dtype="int64", **options), 20):
        if "packed" in options:
            tokens, mask = batch.labels if "targets" in options else batch.tokens, batch.beside["mask"]
            assert np.array_equal(mask[tokens >= 0], tokens[tokens >= 0] % 3 == 0)
        else:
            pairs = zip(batch["tokens"], batch["mask"], strict=True) if options else [(batch["tokens"], batch["mask"])]
            assert all(np.array_equal(m, t % 3 == 0) and t.dtype == np.int64 and m.dtype == np.uint8 for t, m in pairs)
    with pytest.raises(hbmfs.InvalidError, match="align all of them alike"):
        hbmfs.Mixture({**sources, "3": (documents(3), 1)}, 6, 8, dtype="int64")


def test_files_side_by_side(opened, tmp_path):
    tokens = np.arange(5000, dtype=np.uint16)
    np.save(tmp_path / "tokens.npy", tokens)
    np.save(tmp_path / "mask.npy", (tokens % 2).astype(np.uint8))
    both = hbmfs.Aligned({"tokens": opened(tmp_path / "tokens.npy"), "mask": opened(tmp_path / "mask.npy")})
    for batch in itertools.islice(hbmfs.TokenStream(both, 4, 100, seed=2), 5):
        assert np.array_equal(opened.numpy(batch["mask"]), opened.numpy(batch["tokens"]) % 2)
    with pytest.raises(hbmfs.InvalidError, match="not aligned: tokens has 5000 tokens"):
        hbmfs.Aligned({"tokens": both.datasets["tokens"], "mask": NumpyDataset(np.zeros(3))})


def test_a_split_as_a_view_for_any_loader(source, mount, tmp_path):
    with hbmfs.open(mount / "megatron") as ds:
        val = ds.split("val", {"train": 0.5, "val": 0.5})
        want = val.gather([0], len(val))[0]
        np.savetxt(tmp_path / "val.txt", val.numbers, fmt="%d")
    point, command = tmp_path / "mount", os.environ["HBMFS_BINARY"]
    options = ["--log-file", tmp_path / "log", "--select", f"val={tmp_path / 'val.txt'}"]
    subprocess.run([command, "mount", *options, source / "megatron", point], check=True, capture_output=True)
    try:
        with hbmfs.open(point / ".hbmfs/views/val") as part_:
            assert np.array_equal(part_.read(0, len(part_)), want) and part_.documents.tolist() == val.documents.tolist()
        theirs = hbmfs.megatron.IndexedDataset(str(point / ".hbmfs/views/val/megatron"))
        assert np.array_equal(np.concatenate(theirs[:]), want)
        theirs.close()
        del theirs, part_
        gc.collect()  # what they mapped would keep the mount busy
    finally:
        subprocess.run([command, "umount", point], check=True, capture_output=True)
