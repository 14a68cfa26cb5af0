"""Divide rows into training and test parts: pure functions of the seed.

Split ``k`` of seed ``s`` is drawn from its own generator, so it does not depend on how many other
splits are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from whvi._checks import check_positive_int
from whvi.errors import ConfigError, DataError
from whvi.tabular.scaling import Standardizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray


class Split(NamedTuple):
    """Row numbers of two disjoint parts that together are all rows."""

    train: NDArray[np.int64]
    test: NDArray[np.int64]


class Replicas(NamedTuple):
    """The parts of R splits of one table, stacked along a leading axis."""

    x_train: NDArray[np.float64]  # (R, N_train, d)
    y_train: NDArray[np.float64]  # (R, N_train)
    x_test: NDArray[np.float64]  # (R, N_test, d)
    y_test: NDArray[np.float64]  # (R, N_test)


def random_splits(
    num_rows: int, num_splits: int, seed: int, *, test_fraction: float = 0.1
) -> tuple[Split, ...]:
    """Draw the paper's own protocol: independent random 90/10 splits.

    Args:
        num_rows: Rows of the table, at least 2.
        num_splits: How many splits; asking for more leaves the first ones as they were.
        seed: Not negative.
        test_fraction: Share of test rows; their number is rounded, and each part keeps a row.
    """
    check_positive_int("num_splits", num_splits)
    num_test = _part_size(num_rows, test_fraction)
    return tuple(_cut(_permutation(num_rows, seed, k), num_test) for k in range(num_splits))


def train_validation_split(num_rows: int, fraction: float, seed: int) -> Split:
    """Divide training rows once more, into fitting rows and a ``fraction`` for validation.

    The numbers are positions ``0 … num_rows - 1`` within the training part: for row numbers of the
    whole table write ``outer.train[inner.train]`` and ``outer.train[inner.test]``.
    """
    num_validation = _part_size(num_rows, fraction)
    return _cut(_permutation(num_rows, seed), num_validation)


def count_duplicates(x_train: ArrayLike, x_test: ArrayLike) -> int:
    """Count the test rows that also stand, number for number, among the training rows.

    To count rows whose target is repeated too, append it: ``np.column_stack([x, y])``.
    """
    train, test = (np.asarray(x, dtype=np.float64) for x in (x_train, x_test))
    known = set(_row_bytes(train))
    return sum(row in known for row in _row_bytes(test))


def stack_replicas(x: ArrayLike, y: ArrayLike, splits: Sequence[Split]) -> Replicas:
    """Gather the rows of R splits into arrays with a leading replica axis.

    Args:
        x: Inputs, shape ``(N, d)``.
        y: Target, shape ``(N,)``.
        splits: R pairs of row numbers; all training parts of one size, all test parts too.

    Returns:
        Copies in the units of the table; :func:`standardize_replicas` scales them.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    train = np.stack([split.train for split in splits])
    test = np.stack([split.test for split in splits])
    return Replicas(x[train], y[train], x[test], y[test])


def _permutation(num_rows: int, *entropy: int) -> NDArray[np.int64]:
    if entropy[0] < 0:
        raise ConfigError(f"seed must not be negative, got {entropy[0]}")
    return np.random.default_rng(entropy).permutation(num_rows)


def _part_size(num_rows: int, fraction: float) -> int:
    check_positive_int("num_rows", num_rows)
    if num_rows < 2:
        raise DataError(f"cannot split {num_rows} row into two parts")
    if not 0 < fraction < 1:
        raise ConfigError(f"the fraction must lie between 0 and 1, got {fraction!r}")
    return min(max(round(fraction * num_rows), 1), num_rows - 1)


def _cut(order: NDArray[np.int64], num_test: int) -> Split:
    return Split(train=order[num_test:], test=order[:num_test])


def _row_bytes(x: NDArray[np.float64]) -> list[bytes]:
    # adding zero turns -0.0 into 0.0, which is the same number in other bytes
    return [row.tobytes() for row in np.ascontiguousarray(x + 0.0)]


class ScaledReplicas(NamedTuple):
    """Standardised replicas and the way back to the user's units."""

    data: Replicas
    x: Standardizer  # mean and scale of shape (R, 1, d)
    y: Standardizer  # mean and scale of shape (R, 1)


def standardize_replicas(replicas: Replicas) -> ScaledReplicas:
    """Standardise inputs and targets of each replica by its own training rows.

    Both parts are scaled, targets too: compare predictions in the user's units with
    ``scaled.y.inverse(...)`` or with the ``y_test`` of the argument.
    """
    x = Standardizer.fit(replicas.x_train)
    y = Standardizer.fit(replicas.y_train, axis=-1)
    data = Replicas(
        x.transform(replicas.x_train),
        y.transform(replicas.y_train),
        x.transform(replicas.x_test),
        y.transform(replicas.y_test),
    )
    return ScaledReplicas(data, x, y)
