"""What may come as table, targets and weights: frames, arrays, tensors, sparse matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy import sparse
from sklearn.utils.validation import check_array

from whvi.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_DENSE_BYTES = 1 << 30
"""Of a sparse table once every cell is written out; a fit needs several times as much."""


def plain(x: Any) -> Any:
    """Return tensors and sparse matrices as arrays, other frames as frames of pandas.

    Gradients and devices are left behind. Whatever else comes is returned as it is.

    Raises:
        DataError: Written out, a sparse table would be too large.
    """
    if isinstance(x, torch.Tensor):
        if x.layout != torch.strided:
            _check_size(x.shape)
            x = x.to_dense()
        small = x.is_floating_point() and x.itemsize < 4  # some of these numpy does not know
        return (x.float() if small else x).numpy(force=True)
    if sparse.issparse(x):
        _check_size(x.shape)
        return x.toarray()
    if isinstance(x, pd.DataFrame):
        return _dense_columns(x)
    if hasattr(x, "to_pandas"):  # polars, pyarrow
        return x.to_pandas()
    return pd.api.interchange.from_dataframe(x) if hasattr(x, "__dataframe__") else x


def _dense_columns(frame: pd.DataFrame) -> pd.DataFrame:
    held = [i for i, dtype in enumerate(frame.dtypes) if isinstance(dtype, pd.SparseDtype)]
    if not held:
        return frame
    _check_size((len(frame), len(held)))
    columns = [frame.iloc[:, i] for i in range(frame.shape[1])]
    for i in held:
        columns[i] = columns[i].sparse.to_dense()
    return pd.concat(columns, axis=1)


def _check_size(shape: Any) -> None:
    size = 8 * int(np.prod(shape, dtype=object))
    if size > MOST_DENSE_BYTES:
        raise DataError(
            f"a sparse table of {' x '.join(f'{n:,}' for n in shape)} cells takes "
            f"{size / 2**30:,.1f} GiB with all cells written out, as the networks need them; the "
            f"most is {MOST_DENSE_BYTES / 2**30:.0f} GiB: keep fewer columns (such as by "
            "sklearn.decomposition.TruncatedSVD), or predict fewer rows at a time"
        )


def as_table(x: Any, estimator: str) -> tuple[pd.DataFrame, bool]:
    """Return :func:`plain` input as a frame, and whether its columns came with names (texts)."""
    if isinstance(x, pd.DataFrame):
        rows, columns = x.shape
        if rows == 0 or columns == 0:
            what = "sample(s)" if rows == 0 else "feature(s)"
            raise DataError(
                f"found an empty table: 0 {what} (shape=({rows}, {columns})) while a minimum of 1 "
                f"is required by {estimator}"
            )
        if not x.columns.is_unique:
            twice = x.columns[x.columns.duplicated()][0]
            raise DataError(f"column name {twice!r} occurs more than once; rename one of them")
        return x, all(isinstance(name, str) for name in x.columns)
    # scikit-learn's own checks of shape and type; values are left to the schema
    holds_texts = getattr(x if hasattr(x, "shape") else np.asarray(x), "dtype", None)
    texts = holds_texts is not None and holds_texts.kind in "OUS"
    array = check_array(
        x,
        dtype=None if texts else "numeric",
        ensure_all_finite=False,
        estimator=estimator,
        input_name="X",
    )
    array = array.astype(object) if array.dtype.kind in "US" else array
    return pd.DataFrame(array, columns=[f"x{i}" for i in range(array.shape[1])]), False


# Weights ---------------------------------------------------------------------------------------


def row_weights(sample_weight: Any, num_rows: int) -> NDArray[np.float64] | None:
    """Return weights as ``(N,)`` numbers of at least 0; ``None`` if all are one."""
    try:
        weights = np.asarray(plain(sample_weight), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"sample_weight must be numbers, but {error}") from error
    if weights.shape != (num_rows,):
        raise DataError(
            f"sample_weight must have shape ({num_rows},), one for every row of X, got "
            f"{weights.shape}"
        )
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise DataError(
            f"sample_weight holds {len(bad)} values that are negative, missing or infinite "
            f"(first: {weights[bad[0]]} in row {bad[0]}); give 0 to rows that shall not count"
        )
    return None if (weights == 1).all() else weights


class Rows(NamedTuple):
    """Rows of a table with their targets, and how often each counts; ``None``: once."""

    table: pd.DataFrame
    y: Any
    weights: NDArray[np.float64] | None = None

    def weighted(self, weights: NDArray[np.float64] | None) -> Rows:
        """Return the rows with these weights.

        Those of weight 0 are left out: the rest of a fit is as if they had not been there.
        """
        if weights is None or weights.all() or self.y is None or len(self.y) != len(weights):
            return self._replace(weights=weights)  # other lengths are refused later
        kept = weights > 0
        if not kept.any():
            raise DataError(f"all {len(weights)} weights are zero: there is nothing to learn from")
        left = weights[kept]
        return (
            Rows(numbered(self.table), self.y)
            .take(kept)
            ._replace(weights=None if (left == 1).all() else left)
        )

    def take(self, which: NDArray[Any]) -> Rows:
        """Return some of the rows, by a mask or by position."""
        is_frame = isinstance(self.y, pd.Series | pd.DataFrame)
        y = self.y.iloc[which] if is_frame else np.asarray(self.y)[which]
        weights = None if self.weights is None else self.weights[which]
        return Rows(self.table.iloc[which], y, weights)


def numbered(table: pd.DataFrame) -> pd.DataFrame:
    """Give rows the numbers by which errors name them, unless they have some."""
    if table.index.name in ("line", "row"):
        return table
    return table.set_axis(pd.RangeIndex(len(table), name="row"))
