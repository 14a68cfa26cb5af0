"""Gap splits of Foong et al. (2019): for every input column, test between what is trained on.

The rows are sorted by the column (stably, in the order of the file); the middle third is tested,
the rest is trained on. On long tables both parts are drawn with the seed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reproduction.data import Split, UCIDataset

MOST_TRAINING_ROWS = 2900
MOST_TEST_ROWS = 2000
FEW, MOST_OTHERS, NUM_DRAWS_OF_ROWS = 20, 500, 50


class Column(NamedTuple):
    """An input column that has a gap split."""

    number: int
    num_distinct: int  # values


def gap_columns(x: NDArray[np.float64]) -> tuple[Column, ...]:
    """Return all columns that are not constant."""
    counts = [len(np.unique(values)) for values in x.T]
    return tuple(Column(k, count) for k, count in enumerate(counts) if count > 1)


def gap_split(values: NDArray[np.float64]) -> Split:
    """Cut out the middle third of the rows in the order of ``values``."""
    order, num_rows = np.argsort(values, kind="stable"), len(values)
    start, stop = num_rows // 3, 2 * num_rows // 3
    return Split(np.concatenate([order[:start], order[stop:]]), order[start:stop])


def with_gaps(dataset: UCIDataset, *, seed: int) -> UCIDataset:
    """Return the set with gap splits, one per column; a constant column has an empty one.

    Args:
        dataset: The table.
        seed: Draws the rows of parts that have more than :data:`MOST_TRAINING_ROWS` or
            :data:`MOST_TEST_ROWS`.
    """
    varying = {column.number for column in gap_columns(dataset.x)}
    nothing = Split(np.empty(0, np.int64), np.empty(0, np.int64))
    splits = [
        _capped(gap_split(values), (seed, k)) if k in varying else nothing
        for k, values in enumerate(dataset.x.T)
    ]
    return replace(dataset, splits=tuple(splits))


def few_rows(dataset: UCIDataset) -> UCIDataset:
    """Return the set with splits of :data:`FEW` rows and up to :data:`MOST_OTHERS` others.

    The k-th split is drawn from the seed k alone.
    """
    splits = []
    for k in range(NUM_DRAWS_OF_ROWS):
        order = np.random.default_rng(k).permutation(len(dataset.y))
        splits.append(Split(order[:FEW], order[FEW : FEW + MOST_OTHERS]))
    return replace(dataset, splits=tuple(splits))


def _capped(split: Split, entropy: tuple[int, int]) -> Split:
    rng = np.random.default_rng(entropy)
    limits = (MOST_TRAINING_ROWS, MOST_TEST_ROWS)
    return Split(*(_drawn(rows, most, rng) for rows, most in zip(split, limits, strict=True)))


def _drawn(rows: NDArray[np.int64], most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    if len(rows) <= most:
        return rows
    return rows[np.sort(rng.choice(len(rows), most, replace=False))]
