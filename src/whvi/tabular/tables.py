"""The door: whatever a user hands in as a table becomes a data frame, or is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import check_array, column_or_1d

from whvi.errors import DataError


def as_table(x: Any, estimator: str) -> tuple[pd.DataFrame, bool]:
    """Return ``x`` as a frame, and whether its columns came with names (all of them texts)."""
    if sparse.issparse(x):
        raise TypeError(
            f"sparse input is not supported by {estimator}; pass a dense array, for example "
            "x.toarray()"
        )
    if isinstance(x, pd.DataFrame) or hasattr(x, "__dataframe__"):
        frame = x if isinstance(x, pd.DataFrame) else pd.api.interchange.from_dataframe(x)
        _check_size(frame, estimator)
        named = all(isinstance(name, str) for name in frame.columns)
        _check_names(frame)
        return frame, named
    array = _two_dimensional(x, estimator)
    frame = pd.DataFrame(array, columns=[f"x{i}" for i in range(array.shape[1])])
    return frame, False


def _two_dimensional(x: Any, estimator: str) -> NDArray[Any]:
    """Use scikit-learn's own checks of shape and type, but leave values to the schema."""
    array = np.asarray(x) if not hasattr(x, "shape") else x
    holds_texts = getattr(array, "dtype", None) is not None and array.dtype.kind in "OUS"
    checked: NDArray[Any] = check_array(
        x,
        dtype=None if holds_texts else "numeric",
        ensure_all_finite=False,
        estimator=estimator,
        input_name="X",
    )
    return checked.astype(object) if checked.dtype.kind in "US" else checked


def _check_size(frame: pd.DataFrame, estimator: str) -> None:
    rows, columns = frame.shape
    if rows == 0 or columns == 0:
        what = "sample(s)" if rows == 0 else "feature(s)"
        raise DataError(
            f"found an empty table: 0 {what} (shape=({rows}, {columns})) while a minimum of 1 is "
            f"required by {estimator}"
        )


def _check_names(frame: pd.DataFrame) -> None:
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise DataError(f"column name {twice[0]!r} occurs more than once; rename one of them")


def regression_targets(y: Any, num_rows: int) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return targets as ``(N,)`` or ``(N, O)`` in float64, and their names."""
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None")
    names = target_names(y)
    array = np.asarray(y)
    if array.dtype.kind in "OUS":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"targets must be numbers, but {error}") from error
    array = check_array(
        array, ensure_2d=False, allow_nd=False, ensure_all_finite=False, dtype="numeric"
    )
    if array.ndim == 2 and array.shape[1] == 1:
        array = column_or_1d(array, warn=True)
    array = array.astype(np.float64)
    check_rows(array, num_rows)
    _check_finite_targets(array, names)
    return array, names


def target_names(y: Any) -> tuple[str, ...]:
    """Return the name of a series, the columns of a frame, else ``y`` or ``y0, y1, …``."""
    if isinstance(y, pd.DataFrame):
        return tuple(str(name) for name in y.columns)
    name = getattr(y, "name", None)
    if isinstance(y, pd.Series) and name is not None:
        return (str(name),)
    shape = np.asarray(y).shape
    return ("y",) if len(shape) < 2 or shape[1] == 1 else tuple(f"y{i}" for i in range(shape[1]))


def check_rows(y: NDArray[Any], num_rows: int) -> None:
    """Refuse targets that are not as many as the rows of the table."""
    if len(y) != num_rows:
        raise DataError(
            f"found input variables with inconsistent numbers of samples: X has {num_rows} rows, "
            f"y has {len(y)}"
        )


def _check_finite_targets(y: NDArray[np.float64], names: tuple[str, ...]) -> None:
    bad = np.argwhere(~np.isfinite(y))
    if len(bad):
        name = names[bad[0][1]] if y.ndim == 2 else names[0]
        value = y[tuple(bad[0])]
        raise DataError(
            f"target {name!r} holds {len(bad)} values that are missing or infinite (first: "
            f"{'NaN' if np.isnan(value) else 'infinity'} in row {int(bad[0][0])}); drop these rows"
        )
