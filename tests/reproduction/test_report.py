from __future__ import annotations

import math

import pytest

from reproduction.report import paired_differences
from tests.reproduction.conftest import record


def test_only_shared_splits_count() -> None:
    records = [
        record("whvi", "a", 0, 1.0, 5.0),
        record("whvi", "a", 1, 2.0, 6.0),
        record("whvi", "a", 2, 100.0, 100.0),
        record("rival", "a", 0, 2.0, 5.0),
        record("rival", "a", 1, 5.0, 5.0),
        record("rival", "a", 7, -100.0, 0.0),
    ]
    (pair,) = paired_differences(records, "whvi")
    assert (pair.dataset, pair.rival, pair.num_splits) == ("a", "rival", 2)
    assert pair.differences["rmse"].mean == pytest.approx(2.0)  # 1 and 3
    assert pair.differences["rmse"].standard_error == pytest.approx(math.sqrt(2 / 2))
    assert pair.differences["mnll"].mean == pytest.approx(-0.5)  # 0 and −1


def test_seeds_and_data_sets_are_kept_apart() -> None:
    records = [
        record("whvi", "a", 0, 1.0, 0.0),
        record("whvi", "a", 0, 3.0, 0.0, seed=1),
        record("rival", "a", 0, 5.0, 0.0, seed=1),
        record("whvi", "b", 0, 9.0, 0.0),
        record("rival", "b", 0, 9.5, 0.0),
    ]
    found = {
        pair.dataset: pair.differences["rmse"].mean for pair in paired_differences(records, "whvi")
    }
    assert found == {"a": 2.0, "b": 0.5}


def test_without_the_reference_or_a_shared_split_there_is_nothing_to_compare() -> None:
    apart = [record("whvi", "a", 0, 1.0, 0.0), record("rival", "a", 1, 1.0, 0.0)]
    assert paired_differences(apart, "whvi") == []
    assert paired_differences(apart, "whvi-best") == []
    assert paired_differences([], "whvi") == []


def test_one_split_has_no_standard_error() -> None:
    (pair,) = paired_differences(
        [record("whvi", "a", 0, 1.0, 0.0), record("rival", "a", 0, 2.0, 0.0)], "whvi"
    )
    assert pair.differences["rmse"].standard_error == 0.0
