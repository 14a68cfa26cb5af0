"""What is learned from the training rows of a table: scales, tails, bins, effects of texts.

And :class:`Targets`, what networks are to predict of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from torch import Tensor

from whvi.errors import ConfigError, DataError, ShapeError
from whvi.tabular.inputs import FARTHEST, Embedding, Kind, TableSchema

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

# A spread of a few rounding errors is not information: dividing by it would blow it up to one.
_ROUNDING_SPREAD = 4 * np.finfo(np.float64).eps


@dataclass(frozen=True, slots=True, eq=False)
class Standardizer:
    """A shift and a scale per column, in float64.

    Unlike scikit-learn's ``StandardScaler`` it scales replicas side by side, does not overflow,
    and rounds constant columns to exactly zero.

    Attributes:
        mean: Mean of each column, in its unit; the rows' axis has length 1.
        scale: Standard deviation (divisor N) of each column, in its unit; 1 where a column is
            constant.
        axis: The rows, counted from the end: -2 for inputs, -1 for targets.
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    axis: int = -2

    @classmethod
    def fit(
        cls, x: ArrayLike, *, axis: int = -2, weights: NDArray[np.float64] | None = None
    ) -> Standardizer:
        """Measure mean and standard deviation along the rows.

        Args:
            x: Training rows, shape ``(..., N, d)``: every leading index is scaled on its own.
                For targets of shape ``(..., N)`` pass ``axis=-1``.
            axis: The rows, counted from the end.
            weights: How often each row counts, ``(N,)``.
        """
        x = np.asarray(x, dtype=np.float64)
        if axis >= 0:
            raise ConfigError(f"axis must be counted from the end (-2 or -1), got {axis}")
        if x.ndim < -axis or x.shape[axis] == 0:
            raise ShapeError(f"x must have at least one row along axis {axis}, got {x.shape}")
        _check_finite(x)
        # Powers of two bring every column below 1 without rounding, so no square overflows.
        exponent = np.frexp(np.abs(x).max(axis, keepdims=True))[1]
        unit = np.ldexp(x, -exponent)
        # Sums of differences from the first row are exact where a column is constant.
        first = np.take(unit, [0], axis)
        shifted = unit - first
        average = partial(np.average, axis=axis, weights=weights, keepdims=True)
        drift = average(shifted)
        spread = np.sqrt(average(np.square(shifted - drift)))
        scale = np.ldexp(spread, exponent)
        varies = (spread > _ROUNDING_SPREAD) & (scale > 0)
        return cls(
            mean=np.ldexp(np.where(varies, first + drift, first), exponent),
            scale=np.where(varies, scale, 1.0),
            axis=axis,
        )

    def transform(self, x: ArrayLike) -> NDArray[np.float64]:
        """Return ``(x - mean) / scale``, without a unit, in the shape of ``x``."""
        x = self._checked(x)
        result: NDArray[np.float64] = (x - self.mean) / self.scale
        return result

    def inverse(self, z: ArrayLike) -> NDArray[np.float64]:
        """Return ``z * scale + mean``, in the unit of the column."""
        z = self._checked(z)
        result: NDArray[np.float64] = z * self.scale + self.mean
        return result

    def _checked(self, x: ArrayLike) -> NDArray[np.float64]:
        """Refuse shapes that numpy would stretch, or pair with the wrong replica."""
        x = np.asarray(x, dtype=np.float64)
        may_lead = self.mean.ndim == -self.axis  # fitted without replicas: serves any leading axes
        expected = list(self.mean.shape)
        found = list(x.shape[max(x.ndim - self.mean.ndim, 0) :] if may_lead else x.shape)
        if len(found) == len(expected):
            expected[self.axis] = found[self.axis]
        if found != expected:
            raise ShapeError(f"expected shape {self._pattern()}, as in fit, got {x.shape}")
        return x

    def _pattern(self) -> str:
        sizes = [str(size) for size in self.mean.shape]
        sizes[self.axis] = "N"
        leading = "..., " if self.mean.ndim == -self.axis else ""
        return f"({leading}{', '.join(sizes)})"


class Targets(NamedTuple):
    """What the networks are to predict.

    Attributes:
        values: ``(N, outputs)`` as the networks see them: standard units, counts, class numbers.
        num_outputs: Target columns, or classes.
        names, kind: For the schema.
        scaling: From standard units to the user's, if there is one.
        classes: Labels in the order of their numbers, if they are labels.
        counts: The user's numbers, if they are counts.
        heavy: Whether a few of them are very far from the others.
        notes: What was found and changed.
    """

    values: Tensor
    num_outputs: int
    names: tuple[str, ...]
    kind: Kind = "numeric"
    scaling: Standardizer | None = None
    classes: NDArray[Any] | None = None
    counts: Tensor | None = None
    heavy: bool = False
    notes: tuple[str, ...] = ()

    def memberships(self) -> NDArray[np.float64]:
        """Return what texts can have effects on: the values, or one column per class but one."""
        if self.classes is None:
            return self.values.double().numpy()
        return np.asarray(self.values.numpy() == np.arange(1, self.num_outputs), dtype=np.float64)


def real_targets(y: Any) -> NDArray[Any]:
    """Return the targets of a regression as an array of numbers; texts of numbers are read."""
    array = np.asarray(y)
    if array.dtype.kind in "mM":
        raise DataError(
            "targets must be numbers, but are dates or durations; subtract a date and divide by a "
            "unit, such as np.timedelta64(1, 'D')"
        )
    if array.dtype.kind not in "OUS":
        return array
    if array.dtype.kind == "O":  # a missing integer is no number
        array = np.where(pd.isna(array), np.nan, array)
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"targets must be numbers, but {error}") from error


def check_rows(y: NDArray[Any], num_rows: int) -> None:
    """Refuse targets that are not as many as the rows of the table."""
    if len(y) != num_rows:
        raise DataError(
            f"found input variables with inconsistent numbers of samples: X has {num_rows} rows, "
            f"y has {len(y)}"
        )


def target_names(y: Any) -> tuple[str, ...]:
    """Return the name of a series, the columns of a frame, else ``y`` or ``y0, y1, …``."""
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None")
    if isinstance(y, pd.DataFrame):
        return tuple(str(name) for name in y.columns)
    name = getattr(y, "name", None)
    if isinstance(y, pd.Series) and name is not None:
        return (str(name),)
    shape = np.asarray(y).shape
    return ("y",) if len(shape) < 2 or shape[1] == 1 else tuple(f"y{i}" for i in range(shape[1]))


def _check_finite(x: NDArray[np.float64]) -> None:
    finite = np.isfinite(x)
    if finite.all():
        return
    bad = np.argwhere(~finite)
    index = tuple(int(i) for i in bad[0])
    raise DataError(
        f"x holds {len(bad)} values that are not finite (first: {x[index]} at index {index}); "
        f"drop or fill them before scaling"
    )


# Inputs ----------------------------------------------------------------------------------------

_AT_ONCE = 8  # bins
_HEAVY = 5.0  # interquartile ranges from the median: normal columns stay within 3.5


def learn_embedding(encoded: NDArray[np.float64], *, num_bins: int = 0) -> Embedding:
    """Learn scales and tails of encoded columns ``(N, w)``, and where their bins end.

    Where tails are heavy the middle is the median and the unit the interquartile range (or the
    standard deviation, if that is zero), elsewhere mean and standard deviation. Columns of two
    values have no bins. Rough functions need bins: a step is a weight of one of them.
    """
    usual = Standardizer.fit(encoded)
    # a quarter, exactly, so that differences of the largest numbers are finite
    low, median, high = 4 * np.quantile(encoded / 4, [0.25, 0.5, 0.75], axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        robust = np.where(high > low, high - low, usual.scale[0])
        farthest = np.abs(encoded - median).max(0) / robust
    varied = np.array([len(np.unique(column)) > 2 for column in encoded.T], dtype=bool)
    heavy = (farthest > _HEAVY) & varied
    middle = np.where(heavy, median, usual.mean[0])
    unit = np.where(heavy, robust, usual.scale[0])
    with np.errstate(over="ignore"):
        z = np.clip((encoded - middle) / unit, -FARTHEST, FARTHEST)
    column, left, right = _bins(z, np.flatnonzero(varied & (num_bins > 1)), num_bins)
    mean, scale = np.zeros(z.shape[1] + len(column)), np.ones(z.shape[1] + len(column))
    raw = Embedding(middle, unit, heavy, z.min(0), z.max(0), column, left, right, mean, scale)
    if heavy.any():  # the others are standardised already
        found = Standardizer.fit(raw.bent(z)[:, heavy])
        mean[np.flatnonzero(heavy)], scale[np.flatnonzero(heavy)] = found.mean[0], found.scale[0]
    for k in range(0, len(column), _AT_ONCE):  # bins may be many
        few = slice(k, k + _AT_ONCE)
        found = Standardizer.fit(raw.shares(z, few))
        mean[len(heavy) :][few], scale[len(heavy) :][few] = found.mean[0], found.scale[0]
    return raw


def _bins(
    z: NDArray[np.float64], columns: NDArray[np.int64], num_bins: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return column, left and right end of every bin: between quantiles that differ."""
    levels, none = np.linspace(0, 1, num_bins + 1), np.empty(0)
    edges = [np.unique(np.quantile(z[:, c], levels)) for c in columns]
    left = np.concatenate([none, *(e[:-1] for e in edges)])
    right = np.concatenate([none, *(e[1:] for e in edges)])
    return np.repeat(columns, [len(e) - 1 for e in edges]), left, right


# Texts of many values --------------------------------------------------------------------------

_FEW_TEXTS = 10  # up to here one-hot columns are enough
_MOST_EFFECTS = 8
_EFFECT_ROWS = 10  # that speak for no effect
_EFFECT_FOLDS = 5


def learn_effects(
    schema: TableSchema,
    table: pd.DataFrame,
    targets: NDArray[np.float64],
    seed: int,
    weights: NDArray[np.float64] | None = None,
) -> tuple[TableSchema, NDArray[np.float64]]:
    """Learn the effects of texts on the targets where a column has more than ten of them.

    The effect of a category with ``n`` rows is the sum of their targets over ``n + 10``; a last
    number is the log of its share of the rows. Training rows are encoded with effects that other
    folds of them have, so that no row is told its own target.

    Args:
        schema: Of the table.
        table: Training rows.
        targets: Standardised numbers or class memberships, ``(N, K)``.
        seed: Of the folds.
        weights: How often each row counts, ``(N,)``.

    Returns:
        The schema with effects, and the encoded training rows.
    """
    fold = np.random.default_rng(seed).permutation(len(table)) % _EFFECT_FOLDS
    columns, encoded = [], []
    for i, column in enumerate(schema.columns):
        values = table.iloc[:, i]
        if len(column.categories or ()) > _FEW_TEXTS and 0 < targets.shape[1] <= _MOST_EFFECTS:
            assert column.categories is not None
            known, count = column.positions(values), len(column.categories)
            effects = _effects(known, targets, count, weights)
            column = replace(column, effects=tuple(map(tuple, effects.tolist())))
            rows = column.encode(values)
            for k in range(_EFFECT_FOLDS):
                rest = fold != k
                of_rest = None if weights is None else weights[rest]
                others = _effects(known[rest], targets[rest], count, of_rest)
                rows[fold == k, count:] = others[known[fold == k]]
            encoded.append(rows)
        else:
            encoded.append(column.encode(values))
        columns.append(column)
    return replace(schema, columns=tuple(columns)), np.concatenate(encoded, axis=1)


def _effects(
    known: NDArray[np.int64],
    targets: NDArray[np.float64],
    num_categories: int,
    weights: NDArray[np.float64] | None,
) -> NDArray[np.float64]:
    """Return the effects of each category, and of unknown ones in the last row."""
    where = np.where(known < 0, num_categories, known)
    rows = np.bincount(where, weights, num_categories + 1)
    centred = targets - np.average(targets, axis=0, weights=weights)
    if weights is not None:
        centred *= weights[:, None]
    sums = [np.bincount(where, column, num_categories + 1) for column in centred.T]
    means = np.stack(sums, axis=1) / (rows + _EFFECT_ROWS)[:, None]
    share = np.log((rows + 0.5) / rows.sum())
    return np.column_stack([means, share])
