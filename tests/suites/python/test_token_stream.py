"""TokenStream against NumPy: which samples, in which order, on which rank, and what is under way meanwhile."""

import hashlib
import itertools
from types import SimpleNamespace

import hbmfs
import numpy as np
import pytest
from numpy_dataset import NumpyDataset
from test_dataset import streams


def numbered(count, seq_len, extra=0):
    """A dataset where every token of sample i is i."""
    return NumpyDataset(np.repeat(np.arange(count, dtype=np.uint32), seq_len)[: count * seq_len - extra])


def drawn(stream):
    """The numbers of the samples that a stream over numbered() gives out, batch by batch."""
    return [batch[:, 0].tolist() for batch in stream]


@pytest.fixture
def token_file(tmp_path, opened):
    """Writes tokens to a file and opens it with hbmfs, on the CPU and on the fake GPU."""

    def make(tokens):
        np.save(tmp_path / "tokens.npy", tokens)
        return opened(tmp_path / "tokens.npy")

    make.numpy = opened.numpy
    return make


# --- samples --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int32])
def test_samples_in_order_are_the_tokens(token_file, dtype):
    tokens = np.random.default_rng(1).integers(0, 60_000, 1003).astype(dtype)
    stream = hbmfs.TokenStream(token_file(tokens), 4, 10, shuffle=False, epochs=1)
    batches = [token_file.numpy(batch) for batch in stream]
    assert len(batches) == len(stream) == 25
    assert all(batch.shape == (4, 10) and batch.dtype == dtype for batch in batches)
    assert np.concatenate(batches).ravel().tolist() == tokens[:1000].tolist()


def test_every_sample_of_the_shuffled_stream_is_one_of_the_file(token_file):
    tokens = np.random.default_rng(2).integers(0, 60_000, 20_000).astype(np.uint16)
    samples = {row.tobytes() for row in tokens.reshape(-1, 20)}
    stream = hbmfs.TokenStream(token_file(tokens), 50, 20, seed=3, epochs=1)
    found = [row.tobytes() for batch in stream for row in token_file.numpy(batch)]
    assert len(found) == 1000 and set(found) == samples
    assert found != [row.tobytes() for row in tokens.reshape(-1, 20)]


def test_targets_are_one_token_further(token_file):
    tokens = np.arange(1001, dtype=np.uint16)
    ds = token_file(tokens)
    stream = hbmfs.TokenStream(ds, 5, 100, seed=1, targets=True, dtype="int64", epochs=1)
    assert stream.samples == 10
    pairs = list(stream)
    assert len(pairs) == 2
    if ds.device == "cpu":
        assert all(x.flags.c_contiguous and y.flags.c_contiguous for x, y in pairs)
    pairs = [tuple(map(token_file.numpy, pair)) for pair in pairs]
    for x, y in pairs:
        assert x.shape == y.shape == (5, 100)
        assert x.dtype == y.dtype == np.int64
        assert np.array_equal(y, x + 1)
    assert sorted(np.concatenate([x for x, _ in pairs])[:, 0]) == list(range(0, 1000, 100))


WIDER = [(a, b) for a in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8") for b in (a, "i4", "i8") if a == b or np.can_cast(a, b, "safe")]


@pytest.mark.parametrize("targets", [False, True])
@pytest.mark.parametrize("kinds", sorted(set(WIDER)), ids="-".join)
def test_tokens_of_every_type_become_wider(token_file, kinds, targets):
    """The numbers of each type, the least and the greatest too, as NumPy converts them."""
    narrow, wide = map(np.dtype, kinds)
    limits = np.iinfo(narrow)
    tokens = np.random.default_rng(5).integers(limits.min, limits.max, 2051, narrow, endpoint=True)
    tokens[::7], tokens[::11] = limits.min, limits.max
    ds = token_file(tokens)
    samples = {tokens[i * 41 : (i + 1) * 41 + targets].astype(wide).tobytes() for i in range((2051 - targets) // 41)}
    streams_of = [hbmfs.TokenStream(ds, 4, 41, seed=1, targets=targets, dtype=wide, epochs=1, drop_last=False)]
    streams_of.append(
        hbmfs.Mixture({"a": (ds, 1), "b": (ds, 1)}, 4, 41, targets=targets, dtype=wide, exhausted="drop", drop_last=False)
    )
    for stream in streams_of:
        found = set()
        for batch in stream:
            x, y = map(token_file.numpy, batch if targets else (batch, batch))
            assert x.dtype == y.dtype == wide and x.shape == y.shape
            rows = np.concatenate([x, y[:, -1:]], 1) if targets else x
            assert not targets or np.array_equal(x[:, 1:], y[:, :-1])
            found |= {row.tobytes() for row in rows}
        assert found == samples
    got = token_file.numpy(ds.gather([0, 1, 2000], 51, dtype=wide))
    assert got.dtype == wide and np.array_equal(got, np.stack([tokens[i : i + 51] for i in (0, 1, 2000)]).astype(wide))


def test_targets_need_a_token_after_the_last_sample():
    assert hbmfs.TokenStream(NumpyDataset(np.zeros(1000)), 1, 100, targets=True).samples == 9
    assert hbmfs.TokenStream(NumpyDataset(np.zeros(1000)), 1, 100).samples == 10


@pytest.mark.parametrize("targets", [False, True])
def test_documents_are_never_crossed(targets):
    random = np.random.default_rng(4)
    for trial in range(20):
        lengths = random.integers(0, 60, 40)
        borders = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        tokens = np.arange(borders[-1], dtype=np.uint32)
        seq_len = int(random.integers(1, 17))
        expected = []
        for begin, end in itertools.pairwise(borders):
            while begin + seq_len + targets <= end:
                expected.append(tokens[begin : begin + seq_len].tolist())
                begin += seq_len
        ds = NumpyDataset(tokens, borders)
        options = {"documents": True, "targets": targets, "epochs": 1, "drop_last": False}
        stream = hbmfs.TokenStream(ds, 7, seq_len, shuffle=False, **options)
        assert stream.samples == len(expected)
        assert rows(stream, targets) == expected
        shuffled = rows(hbmfs.TokenStream(ds, 7, seq_len, seed=trial, **options), targets)
        assert sorted(shuffled) == sorted(expected)


def rows(stream, targets):
    if targets:
        pairs = list(stream)
        assert all(np.array_equal(y, x + 1) for x, y in pairs)
        return [row for x, _ in pairs for row in x.tolist()]
    return [row for batch in stream for row in batch.tolist()]


def test_every_stream_of_tokens_in_a_mount(opened, mount, expect):
    documents = 0
    for where, dtype, found in streams(expect):
        tokens = np.load(mount / ".hbmfs" / "views" / where / "tokens.npy")
        assert hashlib.sha256(tokens.tobytes()).hexdigest() == found["tokens_sha256"]
        ds = opened(mount / where)
        expected = {False: samples_of([0, len(tokens)])}
        if "document_starts" in found:
            expected[True] = samples_of(found["document_starts"])
            documents += 1
        for within, starts in expected.items():
            want = [tokens[s : s + 5].tolist() for s in starts]
            for shuffle in (False, True):
                stream = hbmfs.TokenStream(ds, 8, 5, shuffle=shuffle, documents=within, epochs=1, drop_last=False)
                batches = [opened.numpy(batch) for batch in stream]
                assert {batch.dtype for batch in batches} == {dtype}, where
                given = np.concatenate(batches).tolist()
                assert sorted(given) == sorted(want) if shuffle else given == want, (where, within, shuffle)
    assert documents >= 10


def samples_of(borders):
    return [s for begin, end in itertools.pairwise(borders) for s in range(begin, end - 4, 5)]


# --- order ----------------------------------------------------------------------------------------------------------


def test_each_epoch_has_every_sample_once_in_an_order_of_its_own():
    stream = hbmfs.TokenStream(numbered(60, 8), 10, 8, seed=7, epochs=3)
    order = list(itertools.chain(*drawn(stream)))
    epochs = [order[i : i + 60] for i in (0, 60, 120)]
    assert all(sorted(epoch) == list(range(60)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_iterating_again_goes_on_with_the_next_epochs():
    one = hbmfs.TokenStream(numbered(60, 8), 10, 8, seed=7, epochs=1)
    three = hbmfs.TokenStream(numbered(60, 8), 10, 8, seed=7, epochs=3)
    again = [batch for _ in range(3) for batch in drawn(one)]
    assert again == drawn(three)
    assert one.epoch == 3 and one.position == 180


def test_breaking_out_loses_nothing():
    expected = drawn(hbmfs.TokenStream(numbered(60, 8), 10, 8, seed=7, epochs=1))
    stream = hbmfs.TokenStream(numbered(60, 8), 10, 8, seed=7, epochs=1, depth=4)
    found = [drawn(itertools.islice(stream, 2)) for _ in range(3)]
    assert list(itertools.chain(*found)) == expected


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("batch_size", [1, 6])
def test_the_global_order_is_that_of_one_rank(world_size, batch_size):
    whole = list(itertools.chain(*drawn(hbmfs.TokenStream(numbered(1000, 3), 1, 3, seed=5, epochs=2))))
    ranks = [
        drawn(hbmfs.TokenStream(numbered(1000, 3), batch_size, 3, seed=5, epochs=2, rank=r, world_size=world_size))
        for r in range(world_size)
    ]
    assert len({len(batches) for batches in ranks}) == 1
    interleaved = [sample for step in zip(*ranks) for batch in step for sample in batch]
    # What is left out lies at the very end, and is less than a step.
    assert interleaved == whole[: len(interleaved)]
    assert len(whole) - len(interleaved) < batch_size * world_size


def test_a_step_reaches_over_the_end_of_an_epoch():
    stream = hbmfs.TokenStream(numbered(7, 2), 5, 2, seed=5)
    order = list(itertools.chain(*drawn(itertools.islice(stream, 7))))
    assert all(sorted(order[i : i + 7]) == list(range(7)) for i in range(0, 35, 7))
    assert stream.epoch == 5
    many_epochs_in_a_step = hbmfs.TokenStream(numbered(7, 2), 35, 2, seed=5)
    assert drawn(itertools.islice(many_epochs_in_a_step, 1)) == [order]


@pytest.mark.parametrize("left", [0, 1, 3, 4, 5, 11])
def test_the_remainder_is_left_out_or_spread_over_the_ranks(left):
    count, world_size, batch_size = 24 + left, 4, 3

    def ranks(drop_last):
        return [
            hbmfs.TokenStream(
                numbered(count, 2), batch_size, 2, seed=1, epochs=1, rank=r, world_size=world_size, drop_last=drop_last
            )
            for r in range(world_size)
        ]

    dropping = ranks(True)
    given = [drawn(stream) for stream in dropping]
    assert all(len(batches) == len(stream) == 2 for batches, stream in zip(given, dropping))
    assert all(stream.position == count for stream in dropping)

    keeping = ranks(False)
    kept = [drawn(stream) for stream in keeping]
    assert all(len(batches) == len(stream) == 2 + (left > 0) for batches, stream in zip(kept, keeping))
    assert [batches[:2] for batches in kept] == given
    sizes = [len(batches[2]) for batches in kept] if left else [0] * 4
    assert sum(sizes) == left and max(sizes) - min(sizes) <= 1
    order = [sample for step in zip(*kept) for batch in step for sample in batch]
    assert sorted(order) == list(range(count))


def test_an_empty_batch_has_the_shape_of_the_others(token_file):
    ds = token_file(np.arange(50, dtype=np.uint16))
    stream = hbmfs.TokenStream(ds, 4, 10, epochs=1, rank=0, world_size=6, drop_last=False)
    batch = token_file.numpy(*stream)
    assert batch.shape == (0, 10) and batch.dtype == np.uint16


# --- what is under way ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [1, 3, 16])
def test_the_daemon_hears_of_every_batch_in_order_before_it_is_read(ahead):
    ds = numbered(400, 2)
    read = [batch[:, 0].tolist() for batch in hbmfs.TokenStream(ds, 4, 2, seed=2, epochs=1, ahead=ahead)]
    assert [start // 2 for start in ds.told] == list(itertools.chain(*read))
    told = begun = 0
    for what, which in ds.events:
        if what == "prefetch":
            told = which
        elif what == "begin":
            begun += len(which)
            # A whole window of batches is known beyond the one that is begun, as long as there are any.
            assert told >= min(400, begun + 4 * ahead) or told - begun >= 4 * (ahead - 1)
            assert told - begun <= 4 * 2 * ahead
    assert begun == told == 400


def test_windows_are_larger_while_the_device_sees_all():
    ds, file, sizes = numbered(4000, 2), SimpleNamespace(seen=False), []
    ds._open = lambda: file
    stream = hbmfs.TokenStream(ds, 4, 2, seed=2, epochs=1, ahead=3)
    plan = stream._batches
    stream._batches = lambda firsts, rows: sizes.append(len(firsts)) or plan(firsts, rows)
    batches, read = iter(stream), []
    for file.seen, steps, least, most in ((False, 100, 3, 3), (True, 400, 48, 64), (False, 300, 3, 3)):
        read += [batch[:, 0].tolist() for batch in itertools.islice(batches, steps)]
        assert least <= sizes[-1] <= most
    read += [batch[:, 0].tolist() for batch in batches]
    assert sorted(itertools.chain(*read)) == list(range(4000))


@pytest.mark.parametrize(("ahead", "mounted"), [(0, True), (16, False)])
def test_no_plan_when_none_is_wanted_or_nobody_is_there(ahead, mounted):
    ds = NumpyDataset(np.zeros(800), mounted=mounted)
    assert len(list(hbmfs.TokenStream(ds, 4, 2, epochs=1, ahead=ahead))) == 100
    assert ds.told == []


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_as_many_batches_are_under_way_as_asked_for(depth):
    ds = numbered(400, 2)
    for _ in itertools.islice(hbmfs.TokenStream(ds, 4, 2, depth=depth), 20):
        assert ds.under_way == depth
    assert ds.most_under_way == depth


def test_leaving_a_loop_cancels_what_was_under_way():
    ds = numbered(400, 2)
    iterator = iter(hbmfs.TokenStream(ds, 4, 2, depth=3))
    next(iterator)
    assert ds.under_way == 3
    iterator.close()
    assert ds.under_way == 0
    assert [what for what, _ in ds.events].count("cancel") == 3


def test_an_error_while_reading_cancels_the_rest_and_loses_nothing():
    class Interrupted(NumpyDataset):
        waits = 0

        def begin_gather(self, *args, **options):
            request = super().begin_gather(*args, **options)
            wait = request.wait

            def interrupted(timeout=None):
                self.waits += 1
                rows = wait(timeout)
                if self.waits == 4:
                    raise KeyboardInterrupt
                return rows

            request.wait = interrupted
            return request

    tokens = np.repeat(np.arange(100, dtype=np.uint32), 2)
    stream = hbmfs.TokenStream(Interrupted(tokens), 5, 2, seed=1, epochs=1)
    found = []
    with pytest.raises(KeyboardInterrupt):
        found.extend(batch[:, 0].tolist() for batch in stream)
    assert len(found) == 3 and stream.dataset.under_way == 0
    found += drawn(stream)
    assert found == drawn(hbmfs.TokenStream(NumpyDataset(tokens), 5, 2, seed=1, epochs=1))


def test_a_second_iteration_ends_the_first():
    stream = hbmfs.TokenStream(numbered(40, 2), 4, 2)
    first = iter(stream)
    next(first)
    next(iter(stream))
    with pytest.raises(RuntimeError, match="iter"):
        next(first)


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"seq_len": -1}, "seq_len is -1"),
        ({"world_size": 0}, "world_size is 0"),
        ({"rank": 2, "world_size": 2}, "give 0 to 1"),
        ({"rank": -1}, "rank is -1"),
        ({"depth": 0}, "depth is 0"),
        ({"ahead": -1}, "ahead is -1"),
        ({"epochs": 0}, "epochs is 0"),
        ({"seq_len": 101}, "smaller seq_len"),
        ({"seq_len": 100, "targets": True}, "has only 100 tokens, fewer than the 101 tokens of one sample"),
        ({"documents": True}, "no document borders"),
        ({"batch_size": 11, "epochs": 1}, "drop_last=False"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        hbmfs.TokenStream(NumpyDataset(np.zeros(100)), **{"batch_size": 1, "seq_len": 10, **options})
    assert isinstance(caught.value, hbmfs.Error)


def test_ranks_that_nobody_told_apart(monkeypatch):
    """Where torch.distributed runs several ranks, a stream that knows of none would give all of them the same samples."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 8)
    ds = NumpyDataset(np.zeros(100))
    with pytest.raises(hbmfs.InvalidError, match="8 ranks.*rank= and world_size="):
        hbmfs.TokenStream(ds, 1, 10)
    with pytest.raises(hbmfs.InvalidError, match="rank= and world_size="):
        hbmfs.TokenStream(ds, 1, 10, world_size=2)
    assert hbmfs.TokenStream(ds, 1, 10, rank=0, world_size=1).world_size == 1  # all of them in one tensor-parallel group
    assert hbmfs.TokenStream(ds, 1, 10, rank=1, world_size=2).rank == 1
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    assert hbmfs.TokenStream(ds, 1, 10).world_size == 1


def test_numbers_that_are_none():
    with pytest.raises(TypeError):
        hbmfs.TokenStream(NumpyDataset(np.zeros(100)), 1.5, 10)
    with pytest.raises(TypeError, match="endless"):
        len(hbmfs.TokenStream(NumpyDataset(np.zeros(100)), 1, 10))


def test_documents_that_are_all_too_short():
    ds = NumpyDataset(np.zeros(100), np.arange(0, 101, 5))
    with pytest.raises(ValueError, match="no document of memory has the 6 tokens of one sample"):
        hbmfs.TokenStream(ds, 1, 6, documents=True)


def test_documents_that_overlap():
    ds = NumpyDataset(np.zeros(100), np.array([0, 50, 20, 100]))
    with pytest.raises(ValueError, match="one behind the other"):
        hbmfs.TokenStream(ds, 1, 6, documents=True)


def test_a_closed_dataset_is_an_error_of_its_own(token_file):
    ds = token_file(np.arange(100, dtype=np.uint16))
    stream = hbmfs.TokenStream(ds, 2, 10)
    iterator = iter(stream)
    next(iterator)
    ds.close()
    with pytest.raises(hbmfs.Error):
        for _ in range(4):
            next(iterator)
    with pytest.raises(hbmfs.ClosedError):
        next(iter(stream))
