from __future__ import annotations

import numpy as np

from reproduction.data import UCIDataset
from reproduction.gaps import splits
from reproduction.gaps.splits import few_rows, gap_columns, gap_split, with_gaps


def dataset(num_rows: int) -> UCIDataset:
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=num_rows), np.ones(num_rows), np.arange(num_rows) % 2])
    return UCIDataset("toy", x, rng.normal(size=num_rows), (), sha256="0" * 64)


def test_the_middle_third_is_tested() -> None:
    values = np.array([5.0, 1.0, 4.0, 0.0, 2.0, 3.0, 6.0])
    train, test = gap_split(values)
    assert test.tolist() == [4, 5]  # 7 // 3 = 2 up to 14 // 3 = 4: values 2 and 3
    assert sorted([*train, *test]) == list(range(7))
    assert values[train].tolist() == [0.0, 1.0, 4.0, 5.0, 6.0]


def test_ties_keep_the_order_of_the_file() -> None:
    assert gap_split(np.array([1.0, 0.0, 0.0, 0.0, 0.0, 1.0])).test.tolist() == [3, 4]


def test_constant_columns_have_no_split() -> None:
    assert gap_columns(dataset(9).x) == ((0, 9), (2, 2))
    parts = with_gaps(dataset(9), seed=0).splits
    assert [len(part.test) for part in parts] == [3, 0, 3]


def test_long_parts_are_drawn_with_the_seed() -> None:
    whole = dataset(9000)
    capped, same, other = (with_gaps(whole, seed=k).splits[0] for k in (0, 0, 1))
    full = gap_split(whole.x[:, 0])
    assert len(capped.train) == splits.MOST_TRAINING_ROWS
    assert len(capped.test) == splits.MOST_TEST_ROWS
    assert set(capped.train) <= set(full.train)
    assert set(capped.test) <= set(full.test)
    assert len(set(capped.train)) == len(capped.train)
    assert np.array_equal(capped.train, same.train)
    assert not np.array_equal(capped.train, other.train)


def test_few_rows_depend_on_their_own_seed_alone() -> None:
    small, large = (few_rows(dataset(num_rows)).splits for num_rows in (60, 9000))
    assert len(small) == len(large) == splits.NUM_DRAWS_OF_ROWS
    assert {len(train) for train, _ in (*small, *large)} == {splits.FEW}
    assert {len(test) for _, test in small} == {40}
    assert {len(test) for _, test in large} == {splits.MOST_OTHERS}
    assert not any(set(train) & set(test) for train, test in (*small, *large))
    assert set(small[0].train) != set(small[1].train)
    order = np.random.default_rng(3).permutation(60)
    assert np.array_equal(small[3].train, order[:20])
