"""The order of samples: a permutation that is computed, not kept."""

import numpy as np
import pytest
from hbmfs.data._samples import Samples, starts_of_order
from hbmfs.data.permutation import LARGEST, Permutation
from numpy_dataset import NumpyDataset


def test_every_number_appears_once():
    sizes = list(range(1, 260)) + [4095, 4096, 4097, 65536, 99991, 300_000]
    for n in sizes:
        for seed, epoch in ((0, 0), (1, 0), (-7, 12), (1 << 80, 1)):
            order = Permutation(n, seed, epoch)(np.arange(n))
            assert order.dtype == np.int64
            assert np.array_equal(np.sort(order), np.arange(n)), (n, seed, epoch)


def test_no_two_of_a_huge_number_agree():
    for n in (2**33 + 1, 10**15, LARGEST):
        places = np.concatenate([np.arange(50_000), n - 1 - np.arange(50_000)])
        order = Permutation(n, 3)(places)
        assert order.min() >= 0 and order.max() < n
        assert len(np.unique(order)) == len(places)


def test_the_order_does_not_change_between_versions():
    # A change here would send every run that resumes through other data. Do not adapt the numbers.
    assert Permutation(10, 1)(np.arange(10)).tolist() == [0, 9, 6, 3, 4, 1, 8, 7, 2, 5]
    assert Permutation(10**12, 42, 3)([0, 1, 2, 10**12 - 1]).tolist() == [365740399140, 116140259488, 719770809667, 74453598976]


def test_any_shape_and_any_part_of_it():
    order = Permutation(1000, 5)
    whole = order(np.arange(1000))
    assert np.array_equal(order(np.arange(1000).reshape(10, 100)), whole.reshape(10, 100))
    assert np.array_equal(order([7, 3, 3]), whole[[7, 3, 3]])
    assert order(999) == whole[999]
    assert order([]).shape == (0,)


def test_seeds_and_epochs_give_unrelated_orders():
    n = 20_000
    orders = [Permutation(n, seed, epoch)(np.arange(n)) for seed in (0, 1) for epoch in (0, 1, 2)]
    for i, a in enumerate(orders):
        # Of two random orders about one place agrees, and ranks correlate by about 0.007.
        assert abs(np.corrcoef(a, np.arange(n))[0, 1]) < 0.04
        assert abs(np.corrcoef(a[:-1], a[1:])[0, 1]) < 0.04
        for b in orders[:i]:
            assert np.count_nonzero(a == b) < 12
            assert abs(np.corrcoef(a, b)[0, 1]) < 0.04


def test_each_part_of_the_order_takes_from_everywhere():
    n, parts = 100_000, 50
    order = Permutation(n, 9)(np.arange(n))
    counts = np.histogram2d(np.arange(n), order, bins=parts)[0]
    expected = n / parts**2
    chi_squared = ((counts - expected) ** 2 / expected).sum() / (parts - 1) ** 2
    assert 0.85 < chi_squared < 1.15


@pytest.mark.parametrize("n", [0, -1, LARGEST + 1])
def test_sizes_that_cannot_be(n):
    with pytest.raises(ValueError, match="cannot permute"):
        Permutation(n, 0)


@pytest.mark.parametrize("place", [-1, 10, [0, 10]])
def test_places_that_are_not(place):
    with pytest.raises(IndexError, match="0 to 9"):
        Permutation(10, 0)(place)


@pytest.mark.parametrize("n", [1, 2, 10, 1000, 99991, 1 << 40, LARGEST])
def test_the_library_has_the_same_order(n):
    samples = Samples(NumpyDataset(np.zeros(1, np.uint16)), 1, 1, False)
    samples.count = n
    places = np.sort(np.random.default_rng(n % 97).integers(0, n, 3000))
    assert np.array_equal(starts_of_order(samples, 3, places), Permutation(n, 3)(places))
