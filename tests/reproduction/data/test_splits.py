from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reproduction.data import count_duplicates, random_splits, stack_replicas
from reproduction.data import train_validation_split as inner_split
from whvi.errors import ConfigError, DataError

FROZEN_TEST = [4]
FROZEN_INNER = [4, 6, 2]


def assert_partition(split, num_rows):
    joined = np.sort(np.concatenate([split.train, split.test]))
    np.testing.assert_array_equal(joined, np.arange(num_rows))
    assert len(split.train) >= 1
    assert len(split.test) >= 1


rows, seeds = st.integers(2, 300), st.integers(0, 2**40)
fractions = st.floats(0.001, 0.999)


@settings(max_examples=50, deadline=None)
@given(rows, st.integers(1, 5), seeds, fractions)
def test_random_splits_are_disjoint_complete_and_pure(num_rows, num_splits, seed, fraction):
    splits = random_splits(num_rows, num_splits, seed, test_fraction=fraction)
    again = random_splits(num_rows, num_splits + 2, seed, test_fraction=fraction)
    assert len(splits) == num_splits
    for split, same in zip(splits, again, strict=False):
        assert_partition(split, num_rows)
        np.testing.assert_array_equal(split.test, same.test)
        np.testing.assert_array_equal(split.train, same.train)
        assert abs(len(split.test) - fraction * num_rows) <= 1


@settings(max_examples=50, deadline=None)
@given(rows, fractions, seeds)
def test_inner_split_is_a_partition(num_rows, fraction, seed):
    assert_partition(inner_split(num_rows, fraction, seed), num_rows)


def test_ninety_ten():
    train, test = random_splits(506, 1, 0)[0]
    assert (len(train), len(test)) == (455, 51)


def test_splits_and_seeds_differ():
    first, second = random_splits(1000, 2, 5)
    other = random_splits(1000, 1, 6)[0]
    assert not np.array_equal(first.test, second.test)
    assert not np.array_equal(first.test, other.test)


def test_the_global_generator_is_not_moved():
    state = np.random.get_state()[1].copy()
    random_splits(50, 1, 3)
    np.testing.assert_array_equal(np.random.get_state()[1], state)


def test_frozen_example_guards_published_results():
    """Records name only (seed, k): the rows they stand for must never change."""
    assert random_splits(10, 1, 0)[0].test.tolist() == FROZEN_TEST
    assert inner_split(10, 0.3, 0).test.tolist() == FROZEN_INNER


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: random_splits(1, 1, 0), DataError),
        (lambda: random_splits(0, 1, 0), ConfigError),
        (lambda: random_splits(10, 0, 0), ConfigError),
        (lambda: random_splits(10, 1, -1), ConfigError),
        (lambda: random_splits(10, 1, 0, test_fraction=0.0), ConfigError),
        (lambda: random_splits(10, 1, 0, test_fraction=1.0), ConfigError),
        (lambda: random_splits(10, 1, 0, test_fraction=float("nan")), ConfigError),
        (lambda: inner_split(10, 2.0, 0), ConfigError),
    ],
)
def test_refusals(call, error):
    with pytest.raises(error):
        call()


def test_count_duplicates_counts_test_rows():
    train = [[1.0, 2.0], [1.0, 2.0], [0.0, 5.0]]
    test = [[1.0, 2.0], [-0.0, 5.0], [2.0, 1.0], [1.0, 2.0]]
    assert count_duplicates(train, test) == 3
    assert count_duplicates(test, train) == 3
    assert count_duplicates(np.empty((0, 2)), test) == 0


def test_count_duplicates_against_brute_force():
    rng = np.random.default_rng(0)
    train, test = rng.integers(0, 3, (40, 3)), rng.integers(0, 3, (30, 3))
    brute = sum(any((row == other).all() for other in train) for row in test)
    assert 0 < brute < 30
    assert count_duplicates(train, test) == brute


def test_stacked_replicas_are_the_rows_of_each_split():
    x, y = np.arange(40.0).reshape(20, 2), np.arange(20.0)
    splits = random_splits(20, 3, 0)
    stacked = stack_replicas(x, y, splits)
    assert stacked.x_train.shape == (3, 18, 2)
    for k, (train, test) in enumerate(splits):
        np.testing.assert_array_equal(stacked.x_train[k], x[train])
        np.testing.assert_array_equal(stacked.y_train[k], y[train])
        np.testing.assert_array_equal(stacked.x_test[k], x[test])
        np.testing.assert_array_equal(stacked.y_test[k], y[test])
    stacked.x_train[:] = 0  # copies: the table is left alone
    assert x[1, 1] == 3.0
