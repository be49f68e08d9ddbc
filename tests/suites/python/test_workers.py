"""Streams in the workers of a DataLoader: what a state of one of them may be loaded into, and going on from the number of batches."""

import contextlib
import itertools
import json
import multiprocessing.context
import pickle
import random
import warnings

import hbmfs
import numpy as np
import pytest
from long import trials
from numpy_dataset import NumpyDataset
from torch.utils.data import DataLoader
from torch.utils.data._utils import worker as torch_worker
from torchdata.stateful_dataloader import StatefulDataLoader

SEQ_LEN = 3


def dataset(samples, first=0):
    tokens = np.repeat(np.arange(first, first + samples, dtype=np.uint32), SEQ_LEN)
    return NumpyDataset(tokens, np.arange(0, len(tokens) + 1, SEQ_LEN) if samples % 2 else np.r_[0 : len(tokens) : 2, len(tokens)])


KINDS = {
    "tokens": lambda *shape, **options: hbmfs.TokenStream(dataset(97), *shape, epochs=2, **options),
    "packed": lambda *shape, **options: hbmfs.TokenStream(dataset(97), *shape, epochs=1, packed=True, **options),
    "mixture": lambda *shape, **options: hbmfs.Mixture({"a": (dataset(60), 0.3), "b": (dataset(50, 100), 0.7)}, *shape, exhausted="drop", **options),
    "windows": lambda *shape, **options: hbmfs.PackedStream(dataset(80), *shape, window=7, epochs=1, **options),
    "aligned": lambda *shape, **options: hbmfs.TokenStream(hbmfs.Aligned({"x": dataset(97), "y": dataset(97, 1000)}), *shape, epochs=1, **options),
    "part": lambda *shape, **options: hbmfs.TokenStream(hbmfs.data.part.Part(dataset(97), np.arange(3, 96)), *shape, epochs=1, **options),
}


def rows(batch):
    """The samples of a batch."""
    batch = batch["x"] if isinstance(batch, dict) else batch.tokens if hasattr(batch, "tokens") else batch
    if isinstance(batch, dict):
        batch = batch["x"]
    return [tuple(row) for row in np.asarray(batch).tolist()]


@contextlib.contextmanager
def as_worker(number, of):
    """This process as a worker of a DataLoader."""
    torch_worker._worker_info = torch_worker.WorkerInfo(id=number, num_workers=of, seed=0, dataset=None) if of else None
    try:
        yield
    finally:
        torch_worker._worker_info = None


class Loader:
    """What a DataLoader does with workers that stay, in this process: each has a copy of the stream, and they take turns."""

    def __init__(self, stream, workers):
        self.streams = [pickle.loads(pickle.dumps(stream)) for _ in range(workers)] if workers else [stream]
        self.workers = workers

    def __iter__(self):
        return self.begin_with(0)

    def begin_with(self, first):
        """The batches, of which the first one is that worker's."""
        iterators = [iter(stream) for stream in self.streams]
        done = set()
        for number in itertools.cycle([*range(first, len(iterators)), *range(first)]):
            if number not in done:
                with as_worker(number, self.workers):
                    batch = next(iterators[number], None)
                if batch is None:
                    done.add(number)
                else:
                    yield batch
            if len(done) == len(iterators):
                return

    def states(self):
        found = []
        for number, stream in enumerate(self.streams):
            with as_worker(number, self.workers):
                found.append(json.loads(json.dumps(stream.state_dict())))
        return found


def ranks(kind, world_size, batch_size, state=None, **options):
    streams = [KINDS[kind](batch_size, SEQ_LEN, seed=5, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    for stream in streams:
        if state is not None:
            stream.load_state_dict(state)
    return streams


@pytest.mark.parametrize("trial", trials(12))
@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_batches_is_enough(kind, trial):
    """Stopped anywhere, also inside of a round, and gone on with other workers, ranks and batches: every sample once, in the same order."""
    pick = random.Random(f"{kind} {trial}")
    (whole,) = ranks(kind, 1, 1, drop_last=False)
    expected = [row for batch in whole for row in rows(batch)]
    found, state = [], None
    while True:
        world_size, workers, limit = pick.choice([1, 2, 4]), pick.choice([0, 1, 2, 3]), pick.randrange(1, 12)
        streams = ranks(kind, world_size, pick.randrange(1, 7), state, drop_last=False)
        taken = list(itertools.islice(zip(*(Loader(stream, workers) for stream in streams), strict=True), limit))
        found += [row for step in taken for batch in step for row in rows(batch)]
        if len(taken) < limit:
            break
        states = [stream.state_after(len(taken)) if workers else stream.state_dict() for stream in streams]
        assert all(one == states[0] for one in states)
        state = json.loads(json.dumps(states[-1]))
    assert found == expected


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_state_after_batches_is_that_of_reading_them(kind, drop_last):
    """Also behind the ends of passes, asked for in any order, and with another stream beside it."""
    (ours,) = ranks(kind, 1, 4, drop_last=drop_last)
    (read,) = ranks(kind, 1, 4, drop_last=drop_last)
    states, number = [read.state_dict()], 0
    while number < 90:
        for _ in read:
            number += 1
            states.append(read.state_dict())
    for batches in [*range(0, number, 7), 5, 88, 3]:
        state = ours.state_after(batches)
        assert (state["consumed"], state["began"]) == (states[batches]["consumed"], states[batches]["began"]), batches
        assert kind == "windows" or state == states[batches], batches
        found, expected = (ranks(kind, 1, 3, one, drop_last=drop_last)[0] for one in (state, states[batches]))
        assert [rows(batch) for batch in itertools.islice(found, 5)] == [rows(batch) for batch in itertools.islice(expected, 5)]
    assert ours.position == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_one_of_several_workers(kind):
    """Each goes on with its own where the shape is the same, by itself. In another shape, samples would be lost and repeated: it is refused."""
    (whole,) = ranks(kind, 1, 8)
    expected = [rows(batch) for batch in whole]
    loader = Loader(ranks(kind, 1, 8)[0], 2)
    found = [rows(batch) for batch in itertools.islice(loader, 3)]
    states = loader.states()
    again = Loader(ranks(kind, 1, 8)[0], 2)
    for number, state in enumerate(states):
        with as_worker(number, 2):
            again.streams[number].load_state_dict(state)
            ranks(kind, 2, 4)[0].load_state_dict(state)  # a step of as many samples
    assert found + [rows(batch) for batch in again.begin_with(1)] == expected
    for number, state in enumerate(states):
        for worker, workers, batch_size in [(number, 2, 4), (1 - number, 2, 8), (number, 3, 8), (0, 1, 8), (0, 0, 8), (0, 0, 4)]:
            (other,) = ranks(kind, 1, batch_size)
            with as_worker(worker, workers), pytest.raises(hbmfs.InvalidError, match=rf"worker {number} of 2, with 8 samples.*state_after\(batches\)"):
                other.load_state_dict(state)
            assert other.position == 0


def test_a_state_of_the_only_worker_is_that_of_the_stream():
    (stream,) = ranks("tokens", 1, 8)
    loader = Loader(stream, 1)
    found = [row for batch in itertools.islice(loader, 3) for row in rows(batch)]
    (again,) = ranks("tokens", 1, 5, loader.states()[0], drop_last=False)
    assert found + [row for batch in again for row in rows(batch)] == [row for batch in ranks("tokens", 1, 1)[0] for row in rows(batch)]


@pytest.mark.parametrize(("samples", "world_size", "batch_size", "other"), [(64, 2, 4, 4), (960, 4, 4, 8)])
def test_another_world_size_after_one_batch(samples, world_size, batch_size, other):
    """With torchdata's own loader: what it saved is refused, and the number of batches is exact, with three workers where there were two."""

    def stream(batch_size, rank=0, world_size=1):
        return hbmfs.TokenStream(dataset(samples), batch_size, SEQ_LEN, seed=1, rank=rank, world_size=world_size, epochs=1)

    streams = [stream(batch_size, rank, world_size) for rank in range(world_size)]
    found, saved = [], []
    for each in streams:
        loader = StatefulDataLoader(each, batch_size=None, num_workers=2)
        iterator = iter(loader)
        found += rows(next(iterator))
        saved.append(loader.state_dict())
    again = StatefulDataLoader(stream(other), batch_size=None, num_workers=2)
    again.load_state_dict(saved[0])
    with pytest.raises(hbmfs.InvalidError, match="it does not say how far the other workers were"):
        next(iter(again))
    resumed = stream(other)
    resumed.load_state_dict(streams[-1].state_after(1))
    found += [row for batch in DataLoader(resumed, batch_size=None, num_workers=3) for row in rows(batch)]
    assert found == [row for batch in stream(1) for row in rows(batch)]


def test_a_state_that_counts_nothing_is_warned_of():
    (stream,) = ranks("mixture", 1, 4)
    loader = DataLoader(stream, batch_size=None, num_workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream.state_dict()
        taken = list(itertools.islice(loader, 5))
        state = stream.state_after(5)
    with pytest.warns(RuntimeWarning, match=r"counts no batch that DataLoader workers read: save state_after\(batches\)") as heard:
        assert stream.state_dict()["consumed"] == 0
    assert heard[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream.load_state_dict(state)
        assert stream.state_dict() == state and len(taken) == 5
        next(iter(stream))
        assert stream.state_dict()["consumed"] == 24


def test_a_stream_that_goes_to_a_spawned_worker_is_warned_of():
    (stream,) = ranks("tokens", 1, 4)
    pickle.dumps(stream)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream.state_dict()
    multiprocessing.context.set_spawning_popen(object())
    try:
        copy = pickle.loads(pickle.dumps(stream))
    finally:
        multiprocessing.context.set_spawning_popen(None)
    with pytest.warns(RuntimeWarning, match="counts no batch"):
        stream.state_dict()
    next(iter(copy))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy.state_dict()


def test_batches_that_cannot_be():
    (stream,) = ranks("tokens", 1, 4)
    with pytest.raises(hbmfs.InvalidError, match="batches is -1"):
        stream.state_after(-1)
    whole = hbmfs.TokenStream(dataset(10), 8, SEQ_LEN, seed=5, epochs=1)
    small = hbmfs.TokenStream(dataset(10), 4, SEQ_LEN, seed=5, epochs=1)
    small.load_state_dict(whole.state_after(1))
    assert small.state_after(1)["began"] == 10  # what is left fills no batch
