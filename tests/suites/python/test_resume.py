"""Stopping anywhere and going on with another world size: every sample exactly once, in the same global order."""

import copy
import itertools
import json
import random

import hbmfs
import numpy as np
import pytest
from long import trials
from numpy_dataset import NumpyDataset

SAMPLES, SEQ_LEN = 257, 3


def dataset(samples=SAMPLES):
    return NumpyDataset(np.repeat(np.arange(samples, dtype=np.uint32), SEQ_LEN))


def ranks(ds, world_size, batch_size, seed, state=None, **options):
    streams = [
        hbmfs.TokenStream(ds, batch_size, SEQ_LEN, seed=seed, rank=r, world_size=world_size, drop_last=False, **options)
        for r in range(world_size)
    ]
    for stream in streams:
        if state is not None:
            stream.load_state_dict(state)
    return streams


def steps(streams):
    """What all ranks get, step by step, the ranks' batches one after another."""
    for batches in itertools.zip_longest(*streams):
        yield [sample for batch in batches for sample in batch[:, 0].tolist()]


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    path = tmp_path_factory.mktemp("resume") / "tokens.npy"
    np.save(path, dataset().tokens)
    with hbmfs.open(path) as ds:
        yield ds


@pytest.mark.parametrize("trial", trials(60))
def test_every_sample_once_in_the_same_order_whatever_happens(trial, on_disk):
    # Most trials are of the order alone; in some the batches come through the library.
    ds = on_disk if trial % 6 == 0 else dataset()
    pick = random.Random(trial)
    seed, epochs, shuffle = pick.randrange(1 << 40), pick.choice([1, 1, 2, 3]), pick.random() < 0.9
    options = {"epochs": epochs, "shuffle": shuffle}
    (whole,) = ranks(ds, 1, 1, seed, **options)
    expected = list(itertools.chain(*steps([whole])))
    assert sorted(expected) == sorted(list(range(SAMPLES)) * epochs)

    found, state = [], None
    for _ in range(pick.randrange(1, 6)):  # runs that are stopped, each of another shape
        streams = ranks(ds, pick.choice([1, 2, 8]), pick.randrange(1, 12), seed, state, depth=pick.randrange(1, 5), **options)
        limit = pick.randrange(0, 40)
        taken = list(itertools.islice(steps(streams), limit))
        found += itertools.chain(*taken)
        states = [stream.state_dict() for stream in streams]
        assert all(s == states[0] for s in states), "the ranks stand at different places"
        state = json.loads(json.dumps(states[pick.randrange(len(states))]))
        if len(taken) < limit:
            break
    if len(found) < len(expected):
        streams = ranks(ds, pick.choice([1, 2, 8]), pick.randrange(1, 12), seed, state, **options)
        found += itertools.chain(*steps(streams))
    assert found == expected


def test_what_was_read_ahead_does_not_count():
    stream = hbmfs.TokenStream(dataset(), 5, SEQ_LEN, depth=4)
    assert stream.state_dict()["consumed"] == 0
    for step, _ in enumerate(itertools.islice(stream, 7), 1):
        assert stream.state_dict()["consumed"] == stream.position == 5 * step


def test_a_state_is_a_copy():
    stream = hbmfs.TokenStream(dataset(), 5, SEQ_LEN)
    iterator = iter(stream)
    next(iterator)
    state = stream.state_dict()
    before = copy.deepcopy(state)
    next(iterator)
    assert state == before


def test_the_state_of_a_finished_pass_begins_the_next_one():
    first = hbmfs.TokenStream(dataset(), 5, SEQ_LEN, epochs=1)
    assert len(list(first)) == SAMPLES // 5
    again = hbmfs.TokenStream(dataset(), 5, SEQ_LEN, epochs=1)
    again.load_state_dict(first.state_dict())
    assert again.epoch == 1
    assert np.array_equal(np.concatenate(list(again)), np.concatenate(list(first)))


def test_a_run_that_stopped_after_its_last_batch_is_over():
    stopped = hbmfs.TokenStream(dataset(), 5, SEQ_LEN, epochs=1)
    assert len(list(itertools.islice(stopped, len(stopped)))) == SAMPLES // 5
    again = hbmfs.TokenStream(dataset(), 5, SEQ_LEN, epochs=1)
    again.load_state_dict(stopped.state_dict())
    assert list(again) == []
    longer = hbmfs.TokenStream(dataset(), 5, SEQ_LEN, epochs=2)
    longer.load_state_dict(stopped.state_dict())
    assert len(list(longer)) == 2 * SAMPLES // 5 - SAMPLES // 5
    shorter = hbmfs.TokenStream(dataset(), 5, SEQ_LEN, epochs=1)
    shorter.load_state_dict({**stopped.state_dict(), "consumed": 2 * SAMPLES})
    assert list(shorter) == []


@pytest.mark.parametrize("drop_last", [False, True])
def test_no_more_is_consumed_than_there_is(drop_last):
    stream = hbmfs.TokenStream(dataset(), 5, SEQ_LEN, epochs=1, drop_last=drop_last)
    iterator = iter(stream)
    for _ in range(len(stream)):
        next(iterator)
    assert stream.position == (SAMPLES // 5 * 5 if drop_last else SAMPLES)
    again = hbmfs.TokenStream(dataset(), 5, SEQ_LEN, epochs=1, drop_last=drop_last)
    again.load_state_dict(stream.state_dict())
    assert list(again) == [] and again.position == SAMPLES


def test_loading_a_state_ends_a_running_iteration():
    stream = hbmfs.TokenStream(dataset(), 5, SEQ_LEN)
    state = stream.state_dict()
    iterator = iter(stream)
    first = next(iterator)
    stream.load_state_dict(state)
    with pytest.raises(RuntimeError, match="iter"):
        next(iterator)
    assert np.array_equal(next(iter(stream)), first)


def stream_of(options, borders=None):
    whole = NumpyDataset(dataset().tokens, np.array(borders or [0, 257 * 3]))
    return hbmfs.TokenStream(**{"dataset": whole, "batch_size": 5, "seq_len": SEQ_LEN, "seed": 1, **options})


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"seed": 2}, "seed"),
        ({"seq_len": 4}, "seq_len"),
        ({"shuffle": False}, "shuffle"),
        ({"targets": True}, "targets"),
        ({"dataset": dataset(SAMPLES + 1)}, "tokens"),
        ({"documents": True}, "documents"),
        ({"documents": True, "borders": [0, 1, 257 * 3]}, "samples"),
    ],
)
def test_states_of_another_order_are_refused(other, name):
    other = dict(other)
    borders = other.pop("borders", None)
    state = stream_of({"documents": True} if borders else {}).state_dict()
    stream = stream_of(other, borders)
    with pytest.raises(ValueError, match=f"{name}="):
        stream.load_state_dict(state)
    assert stream.position == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.clear(),
        lambda state: state.pop("seed"),
        lambda state: state.pop("consumed"),
        lambda state: state.update(consumed=-1),
        lambda state: state.update(consumed="5"),
        lambda state: state.update(consumed=2**63),
        lambda state: state.update(began=1),
        lambda state: state.pop("began"),
        lambda state: state.update(version=2),
    ],
)
def test_states_that_are_none(damage):
    stream = hbmfs.TokenStream(dataset(), 5, SEQ_LEN)
    state = stream.state_dict()
    damage(state)
    with pytest.raises(ValueError, match="state"):
        stream.load_state_dict(state)
    for other in (None, [], 5):
        with pytest.raises(ValueError, match="state"):
            stream.load_state_dict(other)


def test_a_pass_that_another_world_size_cannot_fill_ends():
    streams = ranks(dataset(), 1, 250, 1, epochs=1)
    list(itertools.islice(steps(streams), 1))
    state = streams[0].state_dict()
    dropping = hbmfs.TokenStream(dataset(), 100, SEQ_LEN, seed=1, epochs=1, world_size=2)
    dropping.load_state_dict(state)
    assert list(dropping) == []
    assert dropping.epoch == 1
    assert len(list(dropping)) == 1
