"""Packed batches: where documents begin in them, and best-fit packing that loses and repeats no token."""

import contextlib
import itertools
import json
import os
import pickle
import random
import threading

import hbmfs
import numpy as np
import pytest
import torch
from hbmfs.data._packing import best_fit_here, pack, pack_here
from hbmfs.data._segments import of_rows, of_rows_here
from long import trials
from numpy_dataset import NumpyDataset
from test_dataset import streams
from torch.utils.data import DataLoader
from waiting import PATIENCE


def documents(trial, count=60, longest=40):
    """A dataset whose tokens are all different, and its borders."""
    lengths = np.random.default_rng(trial).integers(0, longest, count)
    borders = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return NumpyDataset(np.arange(borders[-1], dtype=np.uint32), borders)


def check(batch, borders):
    """That what a batch says of its tokens, each of which is its own place in the dataset, is so. Gives the sequences."""
    tokens, cu, most, position, document, labels = (np.asarray(field) if field is not None else None for field in batch[:6])
    assert tokens.shape == position.shape == document.shape and cu.dtype == np.int32
    assert cu[0] == 0 and cu[-1] == tokens.size and np.all(np.diff(cu) > 0) and most == np.diff(cu).max(initial=0)
    assert set(range(0, tokens.size + 1, tokens.shape[1])) <= set(cu.tolist()), "a sequence goes from a row to the next"
    found = []
    for a, b in itertools.pairwise(cu):
        (number,) = set(document.reshape(-1)[a:b].tolist())
        assert position.reshape(-1)[a:b].tolist() == list(range(b - a))
        if number < 0:
            assert not tokens.reshape(-1)[a:b].any() and (labels is None or (labels.reshape(-1)[a:b] == -100).all())
            continue
        piece = tokens.reshape(-1)[a:b].astype(np.int64)
        assert np.array_equal(piece, np.arange(piece[0], piece[0] + len(piece)))
        assert borders[number] <= piece[0] and piece[-1] < borders[number + 1]
        found.append((number, int(piece[0]), len(piece)))
        if labels is not None:
            want = labels.reshape(-1)[a:b]
            assert np.array_equal(want[:-1], piece[1:]) and want[-1] in (piece[-1] + 1, -100)
    return found


# --- the stream cut where it comes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("targets", [False, True])
@pytest.mark.parametrize("trial", trials(8))
def test_borders_in_a_stream(trial, targets):
    ds = documents(trial)
    plain = hbmfs.TokenStream(ds, 5, 16, seed=trial, epochs=1, targets=targets, drop_last=False)
    packed = hbmfs.TokenStream(ds, 5, 16, seed=trial, epochs=1, targets=targets, drop_last=False, packed=True)
    for rows, batch in zip(plain, packed, strict=True):
        x, y = rows if targets else (rows, None)
        assert np.array_equal(batch.tokens, x)
        starts = np.searchsorted(ds.documents, x, side="right") - 1
        assert np.array_equal(batch.document_ids, starts)
        check(batch, ds.documents)
        if targets:
            same = np.searchsorted(ds.documents, y, side="right") - 1 == starts
            assert np.array_equal(batch.labels, np.where(same, y.astype(np.int64), -100))


def test_borders_in_a_mixture():
    sources = {"a": (documents(1), 0.7), "b": (documents(2), 0.3)}
    plain, packed = (hbmfs.Mixture(sources, 6, 10, exhausted="drop", drop_last=False, **options) for options in ({}, {"packed": True}))
    for rows, batch in zip(plain, packed, strict=True):
        assert np.array_equal(batch.tokens, rows)
        for row, numbers in zip(batch.tokens, batch.document_ids, strict=True):
            assert any(np.array_equal(np.searchsorted(ds.documents, row, side="right") - 1, numbers) for ds, _ in sources.values())
        assert np.array_equal(np.flatnonzero(batch.position_ids.reshape(-1) == 0), batch.cu_seqlens[:-1])


def test_documents_that_nobody_knows():
    for make in (lambda ds: hbmfs.TokenStream(ds, 2, 5, packed=True), lambda ds: hbmfs.PackedStream(ds, 2, 5), lambda ds: hbmfs.Mixture({"a": (ds, 1)}, 2, 5, packed=True)):
        with pytest.raises(hbmfs.InvalidError, match="no document borders"):
            make(NumpyDataset(np.zeros(100)))


@pytest.mark.parametrize("trial", trials(30))
def test_the_library_finds_the_same_documents_as_numpy(trial):
    random_ = np.random.default_rng(trial)
    borders = [np.append(0, np.cumsum(random_.integers(0, random_.integers(2, 90), random_.integers(2, 300)))) for _ in range(1 + trial % 3)]
    shortest = min(int(b[-1]) for b in borders)
    length = int(random_.integers(0, shortest + 1))
    starts = random_.integers(0, shortest - length + 1, random_.choice([0, 1, 5, 2500]))
    sources = random_.integers(0, len(borders), len(starts), np.int32) if trial % 3 else None
    (found, each), (here, each_here) = of_rows(borders, sources, starts, length), of_rows_here(borders, sources, starts, length)
    assert np.array_equal(each, each_here)
    for a, b in zip(found, here, strict=True):
        assert a.dtype == b.dtype and np.array_equal(a, b)


# --- best-fit -------------------------------------------------------------------------------------------------------


def one_by_one(lengths, room):
    """Best-fit decreasing by its definition."""
    left = []
    for length in sorted(lengths.tolist(), reverse=True):
        if fits := [(free, i) for i, free in enumerate(left) if free >= length]:
            left[min(fits)[1]] -= length
        else:
            left.append(room - length)
    return sorted(left)


@pytest.mark.parametrize("trial", trials(60))
def test_best_fit_is_best_fit(trial):
    random_ = np.random.default_rng(trial)
    room = int(random_.integers(1, 60))
    lengths = random_.integers(1, room + 1, random_.integers(1, 200))
    if trial % 2:
        lengths = np.minimum(room, 1 + (random_.pareto(1, len(lengths)) * 3).astype(np.int64))
    sample, count = best_fit_here(lengths, room)
    assert sorted(room - np.bincount(sample, weights=lengths, minlength=count)) == one_by_one(lengths, room)


@pytest.mark.parametrize("trial", trials(40))
def test_the_library_packs_as_numpy_does(trial):
    random_ = np.random.default_rng(trial)
    room, count = int(random_.integers(1, 80)), int(random_.integers(1, 400))
    borders = np.append(0, np.cumsum(random_.integers(0, 1 + random_.integers(1, 4 * room + 2), count)))
    begins = borders[:-1] if trial % 2 else random_.integers(0, 10_000, count)
    window = range(*sorted(random_.integers(0, count + 1, 2).tolist()))
    ours, here = (f(borders, begins, window, room, (trial, 2, -3) if trial % 3 else None) for f in (pack, pack_here))  # here as in a forked child
    assert ours.tokens == here.tokens
    for a, b in zip((ours.starts, *ours.segments, ours.borders), (here.starts, *here.segments, here.borders), strict=True):
        assert a.dtype == b.dtype and np.array_equal(a, b)


@pytest.mark.parametrize("trial", trials(12))
def test_packing_loses_and_repeats_no_token(trial):
    pick = random.Random(trial)
    ds, seq_len = documents(trial, longest=pick.choice([10, 40, 90])), pick.choice([16, 33])
    options = {"window": pick.choice([1, 7, 1000]), "shuffle": trial % 4 != 0, "targets": trial % 3 == 0, "dtype": pick.choice([None, "int64"])}
    stream = hbmfs.PackedStream(ds, pick.randrange(1, 9), seq_len, seed=trial, epochs=2, drop_last=False, **options)
    found = [piece for batch in stream for piece in check(batch, ds.documents)]
    for epoch in (found[: len(found) // 2], found[len(found) // 2 :]):
        tokens = sorted(t for _, first, length in epoch for t in range(first, first + length))
        assert tokens == list(range(len(ds)))
        for number, first, length in epoch:  # no document is cut that need not be
            begin, end = ds.documents[number : number + 2]
            assert (first, length) == (begin, end - begin) or (end - begin > seq_len and (length == seq_len or first + length == end))
    assert 0 < stream.fill_rate <= 1


@pytest.mark.parametrize("trial", trials(12))
def test_the_length_is_that_of_the_pass(trial):
    pick = random.Random(trial)
    ds, batch_size, world_size = documents(trial, count=pick.choice([1, 60])), pick.randrange(1, 9), pick.choice([1, 3])
    options = {"window": pick.choice([1, 7, 1000]), "shuffle": trial % 3 != 0, "epochs": pick.choice([1, 2]), "drop_last": trial % 2 == 0}
    stream = hbmfs.PackedStream(ds, batch_size, 16, seed=trial, rank=0, world_size=world_size, **options)
    steps = []
    for _ in range(3):  # passes, each of other epochs
        steps.append(len(stream))
        assert sum(1 for _ in stream) == steps[-1]
    again = hbmfs.PackedStream(ds, batch_size, 16, seed=trial, rank=0, world_size=world_size, **options)
    loader = DataLoader(again, batch_size=None)
    assert [len(loader), sum(1 for _ in loader), len(loader)] == [steps[0], steps[0], steps[1]]
    with pytest.raises(TypeError, match="give epochs=1"):
        len(hbmfs.PackedStream(ds, batch_size, 16))


def test_the_fill_rate():
    lengths = np.minimum(1024, np.random.default_rng(1).lognormal(5, 1, 5000).astype(np.int64) + 1)
    borders = np.concatenate([[0], np.cumsum(lengths)])
    stream = hbmfs.PackedStream(NumpyDataset(np.zeros(borders[-1], np.uint16), borders), 8, 1024, epochs=1, drop_last=False)
    free = sum(int((batch.document_ids < 0).sum()) for batch in stream)
    assert stream.fill_rate > 0.995
    assert abs(free / (free + borders[-1]) - (1 - stream.fill_rate)) < 1e-9


@pytest.mark.parametrize("lengths", [[0, 0, 5, 9], [0] * 9 + [30] + [0] * 9])
def test_windows_without_tokens(lengths):
    borders = np.append(0, np.cumsum(lengths))
    options = {"window": 1, "epochs": 2, "shuffle": False, "drop_last": False}
    stream = hbmfs.PackedStream(NumpyDataset(np.arange(borders[-1], dtype=np.uint16), borders), 2, 8, **options)
    assert stream.fill_rate == 1
    assert sorted(t for batch in stream for _, first, n in check(batch, borders) for t in range(first, first + n)) == sorted(list(range(borders[-1])) * 2)


def test_padding_is_the_token_that_was_asked_for():
    for dtype, pad in ((np.uint16, 65535), (np.uint32, 7)):
        ds = NumpyDataset(np.zeros(30, dtype), np.array([0, 9, 18, 30]))
        for batch in hbmfs.PackedStream(ds, 2, 16, epochs=1, drop_last=False, pad=pad):
            assert np.array_equal(batch.tokens == pad, batch.document_ids < 0)
        for wrong, words in ((-1, "no uint"), (1.5, "a whole number")):
            with pytest.raises(hbmfs.InvalidError, match=words):
                hbmfs.PackedStream(ds, 2, 16, pad=wrong)
    batches = [*hbmfs.PackedStream(ds, 2, 16, epochs=1, drop_last=False, pad=-1, dtype="int64")]
    assert batches and all(np.array_equal(batch.tokens == -1, batch.document_ids < 0) for batch in batches)


@pytest.mark.parametrize("trial", trials(25))
def test_stopping_anywhere_and_going_on_with_other_ranks(trial):
    pick = random.Random(trial)
    ds = documents(trial)
    options = {"seed": trial, "window": pick.choice([3, 10, 1000]), "epochs": pick.choice([1, 2, 3]), "drop_last": False}
    expected = [row.tolist() for batch in hbmfs.PackedStream(ds, 1, 16, **options) for row in batch.tokens]
    found, state = [], None
    while True:
        world_size, batch_size = pick.choice([1, 2, 5]), pick.randrange(1, 9)
        ranks = [hbmfs.PackedStream(ds, batch_size, 16, rank=r, world_size=world_size, **{**options, "depth": pick.randrange(1, 4)}) for r in range(world_size)]
        for stream in ranks:
            if state is not None:
                stream.load_state_dict(state)
        limit = pick.randrange(1, 12)
        taken = list(itertools.islice(zip(*ranks, strict=True), limit))
        found += [row.tolist() for step in taken for batch in step for row in batch.tokens]
        states = [stream.state_dict() for stream in ranks]
        assert all(s == states[0] for s in states)
        state = json.loads(json.dumps(states[0]))
        if len(taken) < limit:
            break
    assert found == expected
    again = hbmfs.PackedStream(ds, 1, 16, **options)
    again.load_state_dict(state)
    assert again.position == again._began == len(expected)
    assert sorted(t for batch in again for _, first, n in check(batch, ds.documents) for t in range(first, first + n)) == sorted(list(range(len(ds))) * options["epochs"])


@pytest.mark.parametrize("how", ["fork", "pickle"])
def test_another_process_goes_on_while_windows_are_packed(how):
    ds, options = documents(3), {"window": 10, "epochs": 2}
    expected = [batch.tokens.tolist() for batch in hbmfs.PackedStream(ds, 2, 16, **options)]
    stream = hbmfs.PackedStream(ds, 2, 16, **options)
    begun = [batch.tokens.tolist() for batch in itertools.islice(stream, 3)]
    parent, packs, over = os.getpid(), stream._pack, threading.Event()

    def slow(number):
        assert os.getpid() != parent or over.wait(PATIENCE)
        return packs(number)

    stream._pack, stream._coming = slow, {}
    number = stream._known[-1].number + 1
    waits = stream._come(number, 12)  # of threads that another process does not have
    if how == "pickle":
        del stream._pack
        again = pickle.loads(pickle.dumps(stream))
        assert begun + [batch.tokens.tolist() for batch in again] == expected
    else:
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            with contextlib.suppress(BaseException), os.fdopen(write, "w") as file:
                json.dump([batch.tokens.tolist() for batch in stream], file)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as file:
            assert begun + json.load(file) == expected
        os.waitpid(pid, 0)
    over.set()
    assert np.array_equal(waits().starts, packs(number).starts)


@pytest.mark.parametrize("damage", [{"packed": None}, {"packed": [0, 0]}, {"packed": [0, -1, 0]}, {"packed": [3, 0, 0], "consumed": 10**6}, {"seed": 5}, {"window": 2}])
def test_states_that_are_none(damage):
    stream = hbmfs.PackedStream(documents(1), 2, 16)
    with pytest.raises(hbmfs.InvalidError, match="the state"):
        stream.load_state_dict({**stream.state_dict(), **damage})


def test_the_daemon_hears_of_what_is_read():
    ds = documents(1)
    list(hbmfs.PackedStream(ds, 2, 16, epochs=1, drop_last=False))
    assert ds.told == [start for what, starts in ds.events if what == "begin" for start in starts]


# --- formats, devices ------------------------------------------------------------------------------------------------


def test_every_format_that_knows_documents(opened, mount, expect):
    seen = 0
    for where, _, found in streams(expect):
        if "document_starts" not in found:
            continue
        ds = opened(mount / where)
        tokens = np.load(mount / ".hbmfs" / "views" / where / "tokens.npy")
        for make in (lambda *a, **o: hbmfs.PackedStream(*a, pad=3, **o), lambda *a, **o: hbmfs.TokenStream(*a, packed=True, **o)):
            stream = make(ds, 3, 11, epochs=1, drop_last=False)
            batches = [[opened.numpy(field) for field in (b.tokens, b.document_ids, b.position_ids, b.cu_seqlens)] for b in stream]
            assert all(np.array_equal(np.append(np.flatnonzero(p.reshape(-1) == 0), p.size), cu) for _, _, p, cu in batches)
            given = np.concatenate([rows[documents >= 0] for rows, documents, _, _ in batches])
            assert all(np.all(rows[documents < 0] == 3) for rows, documents, _, _ in batches)
            whole = tokens if isinstance(stream, hbmfs.PackedStream) else tokens[: len(tokens) // 11 * 11]
            assert np.array_equal(np.sort(given), np.sort(whole)), where
        for source in (ds.subset(np.arange(ds.documents.size - 1)), hbmfs.Aligned({"one": ds, "two": ds})):  # their borders come without tokens
            first = next(iter(hbmfs.TokenStream(source, 1, 11, packed=True, seed=1)))
            assert np.array_equal(np.flatnonzero(opened.numpy(first.position_ids).reshape(-1) == 0), opened.numpy(first.cu_seqlens)[:-1])
        seen += 1
    assert seen >= 10


def test_batches_under_way(opened, mount, expect):
    ds = opened(mount / next(where for where, _, found in streams(expect) if "document_starts" in found))
    for make, on_gpu in (hbmfs.TokenStream, 8), (hbmfs.PackedStream, 16):
        assert make(ds, 2, 11).depth == (2 if ds.device == "cpu" else on_gpu)
        assert make(ds, 2, 11, depth=3).depth == 3
        assert make(ds, 1 << 20, 11).depth == 2


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32, np.float64])
def test_pieces_and_padding(opened, tmp_path, kind):
    tokens = (np.arange(1000) % 251).astype(kind)
    np.save(tmp_path / "tokens.npy", tokens)
    ds = opened(tmp_path / "tokens.npy")
    both = hbmfs.Aligned({"one": ds, "two": ds})
    starts, lengths = np.array([3, -1, 900, -1, 5]), np.array([7, 2, 100, 10, 1])
    want = np.concatenate([np.full(n, 9, kind) if a < 0 else tokens[a : a + n] for a, n in zip(starts, lengths, strict=True)]).reshape(4, 30)
    assert np.array_equal(opened.numpy(ds.begin_pieces(starts, lengths, (4, 30), pad=9).wait()), want)
    assert np.array_equal(opened.numpy(ds.begin_pieces(starts[:1], lengths[:1], (7,), pad=9).wait()), want.reshape(-1)[:7])
    got = both.begin_pieces(starts, lengths, (4, 30), pad=9).wait()
    assert np.array_equal(opened.numpy(got["one"]), want) and np.count_nonzero(opened.numpy(got["two"]) != want) == 12
    for wrong in ((np.array([-2, 0]), np.array([1, 1])), (np.array([-1, 1000]), np.array([1, 1]))):
        with pytest.raises(hbmfs.OutOfRangeError):
            ds.begin_pieces(*wrong, (2,))
    if ds.device == "cpu" and kind != np.float64:
        wide, free = ds.begin_pieces(starts, lengths, (4, 30), pad=-100, dtype="int64").wait(), np.repeat(starts < 0, lengths).reshape(4, 30)
        assert np.array_equal(wide, np.where(free, -100, want.astype(np.int64)))


@pytest.mark.parametrize("targets", [False, True])
def test_torch_makes_the_same(targets):
    """What is made on a GPU by torch, made here by torch on the CPU."""
    ds = documents(3)
    ds.tokens = ds.tokens.astype(np.uint16)
    sources = {"a": (ds, 0.7), "b": (documents(2), 0.3)}
    sources["b"][0].tokens = sources["b"][0].tokens.astype(np.uint16)
    for stream in (
        hbmfs.PackedStream(ds, 4, 16, targets=targets, pad=65535),
        hbmfs.TokenStream(ds, 4, 16, targets=targets, packed=True),
        hbmfs.Mixture(sources, 4, 16, targets=targets, packed=True),
    ):
        for plan in itertools.islice(stream._plan(0, 4), 8):
            with stream._queue() as queue:
                queue.put(plan, stream._row)
                rows, expanded = queue.get()
            ours, theirs = stream._shape((rows, expanded), plan), stream._shape((torch.from_numpy(rows), tuple(map(torch.from_numpy, expanded))), plan)
            for name, a, b in zip(ours._fields, ours, theirs, strict=True):
                assert (a is None and b is None) or (np.array_equal(a, np.asarray(b)) and str(getattr(a, "dtype", int)) in str(getattr(b, "dtype", int))), name


# --- training --------------------------------------------------------------------------------------------------------


class Attention(torch.nn.Module):
    """One block of a transformer that is told which tokens see each other in one of two ways."""

    def __init__(self, width=16):
        super().__init__()
        self.embed, self.place = torch.nn.Embedding(64, width), torch.nn.Embedding(64, width)
        self.qkv, self.up, self.down, self.head = (torch.nn.Linear(a, b) for a, b in ((width, 3 * width), (width, 64), (64, width), (width, 64)))

    def forward(self, batch, attend):
        x = self.embed(batch.tokens) + self.place(batch.position_ids)
        x = x + attend(batch, *self.qkv(x).chunk(3, -1))
        return self.head(x + self.down(torch.relu(self.up(x))))


def by_sequences(batch, q, k, v):
    """As varlen attention does: each sequence of cu_seqlens alone."""
    flat = [t.reshape(-1, t.shape[-1]) for t in (q, k, v)]
    attend = torch.nn.functional.scaled_dot_product_attention
    return torch.cat([attend(*(t[None, a:b] for t in flat), is_causal=True)[0] for a, b in itertools.pairwise(batch.cu_seqlens.tolist())]).view(q.shape)


def by_mask(batch, q, k, v):
    """A plain mask over whole rows."""
    same = batch.document_ids[:, :, None] == batch.document_ids[:, None, :]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=same & torch.ones(same.shape[1:], dtype=torch.bool).tril())


@pytest.fixture
def one_thread():
    """Threads cost small tensors more than they give."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("packing", ["best-fit", "cut"])
def test_training_with_sequences_and_with_a_mask_gives_the_same_loss(packing):
    random_ = np.random.default_rng(1)
    borders = np.concatenate([[0], np.cumsum(random_.integers(1, 40, 400))])
    ds = NumpyDataset((np.arange(borders[-1]) * 7 % 61).astype(np.uint16), borders)
    losses = {}
    for attend in (by_sequences, by_mask):
        torch.manual_seed(1)
        model = Attention()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        options = {"seed": 4, "targets": True, "dtype": "int64"}
        stream = hbmfs.PackedStream(ds, 2, 32, **options) if packing == "best-fit" else hbmfs.TokenStream(ds, 2, 32, packed=True, **options)
        kept = losses[attend] = []
        for raw in itertools.islice(stream, 150):
            batch = hbmfs.Packed(*(torch.as_tensor(field) if isinstance(field, np.ndarray) else field for field in raw))
            loss = torch.nn.functional.cross_entropy(model(batch, attend).flatten(0, 1), batch.labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            kept.append(float(loss.detach()))
    ours, theirs = (np.array(kept) for kept in losses.values())
    assert np.allclose(ours, theirs, rtol=2e-4, atol=2e-4), np.abs(ours - theirs).max()
    assert ours[-20:].mean() < 0.5 * ours[:5].mean(), "nothing was learnt"
