"""TokenStream inside of torch's DataLoader and torchdata's StatefulDataLoader."""

import itertools
import pickle

import hbmfs
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

SEQ_LEN = 5


@pytest.fixture
def ds(tmp_path):
    path = tmp_path / "tokens.npy"
    np.save(path, np.arange(100 * SEQ_LEN, dtype=np.int32))
    with hbmfs.open(path, device="cpu") as opened:
        yield opened


def stream(ds, **options):
    return hbmfs.TokenStream(ds, 4, SEQ_LEN, **{"seed": 3, "epochs": 1, **options})


def as_lists(batches):
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("loader", [DataLoader, StatefulDataLoader])
def test_without_workers(ds, loader):
    ours = stream(ds)
    assert isinstance(ours, IterableDataset)
    loaded = loader(ours, batch_size=None, num_workers=0)
    batches = list(loaded)
    assert len(batches) == len(loaded) == 25
    assert all(isinstance(batch, torch.Tensor) and batch.dtype == torch.int32 for batch in batches)
    assert as_lists(batches) == as_lists(stream(ds))
    assert ours.position == 100, "the loader read ahead"
    second = as_lists(loaded)
    assert len(second) == 25 and second != as_lists(batches)


def test_pairs_stay_pairs(ds):
    for x, y in DataLoader(stream(ds, targets=True, dtype="int64"), batch_size=None, num_workers=0):
        assert x.dtype == torch.int64 and torch.equal(y.view(-1), x.view(-1) + 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_forked_workers_keep_the_order(ds, workers):
    loaded = DataLoader(stream(ds, drop_last=False, epochs=2), batch_size=None, num_workers=workers)
    assert as_lists(loaded) == as_lists(stream(ds, drop_last=False, epochs=2))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [0, 1, 7, 24])
def test_a_stateful_loader_resumes(ds, workers, stop):
    expected = as_lists(stream(ds))
    loaded = StatefulDataLoader(stream(ds), batch_size=None, num_workers=workers)
    found = as_lists(itertools.islice(loaded, stop))
    state = pickle.loads(pickle.dumps(loaded.state_dict()))
    again = StatefulDataLoader(stream(ds), batch_size=None, num_workers=workers)
    again.load_state_dict(state)
    found += as_lists(again)
    assert found == expected


def test_a_stateful_loader_goes_on_after_an_epoch(ds):
    expected = as_lists(stream(ds, epochs=2))
    loaded = StatefulDataLoader(stream(ds), batch_size=None, num_workers=0)
    found = as_lists(loaded)
    state = loaded.state_dict()
    again = StatefulDataLoader(stream(ds), batch_size=None, num_workers=0)
    again.load_state_dict(state)
    assert found + as_lists(again) == expected


def test_workers_that_stay_go_on_with_the_next_epoch(ds):
    loaded = DataLoader(stream(ds), batch_size=None, num_workers=2, persistent_workers=True)
    assert as_lists(loaded) + as_lists(loaded) == as_lists(stream(ds, epochs=2))


def test_workers_that_stay_go_on_after_resuming_at_the_end(ds):
    def loader():
        return StatefulDataLoader(stream(ds, drop_last=False), batch_size=None, num_workers=2, persistent_workers=True)

    first = loader()
    found = as_lists(itertools.islice(first, 25))
    second = loader()
    second.load_state_dict(first.state_dict())
    found += as_lists(second)  # nothing is left
    found += as_lists(second)
    assert found == as_lists(stream(ds, epochs=2))


def test_a_copy_for_a_spawned_worker_stands_at_the_same_place(ds):
    # test_fork.py spawns; here is what goes over to the child.
    ours = stream(ds)
    found = as_lists(itertools.islice(ours, 7))
    copy = pickle.loads(pickle.dumps(ours))
    assert found + as_lists(copy) == as_lists(stream(ds))
    assert ours.position == 28
    copy.dataset.close()
