"""The columns of a table, and how they become the inputs of a network.

What a column holds is decided once, when a model is fitted, and written down in a
:class:`TableSchema`; every later table is read and encoded by it. Categories become one-hot
columns, missing values are filled if asked for, and all columns are standardised,
``z = (x - μ) / σ``, with ``μ`` and ``σ`` from training rows only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final, get_args

import numpy as np
import pandas as pd
import torch
from sklearn.preprocessing import OneHotEncoder
from torch import Tensor

from whvi.errors import ConfigError, DataError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Kind = Literal["numeric", "boolean", "categorical"]

_MISSING_CATEGORY = "missing"
# A spread of a few rounding errors is not information: dividing by it would blow it up to one.
_ROUNDING_SPREAD = 4 * np.finfo(np.float64).eps
_FARTHEST = 1e6  # inputs so many standard deviations from the mean are moved to that distance


# Types and encoding ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column as it was when the model was fitted.

    Attributes:
        name: Its name; ``x0``, ``x1``, … if it had none.
        kind: Numbers, truth values, or one of several texts.
        dtype: Data type of the column, as text.
        categories: Texts of a categorical column in sorted order.
        minimum, maximum: Range of a numeric column.
        fill: What a missing value is replaced by, if an imputer was asked for.
    """

    name: str
    kind: Kind
    dtype: str
    categories: tuple[str, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None
    fill: float | str | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind) or (self.kind == "categorical") != bool(self.categories):
            raise DataError(
                f"column {self.name!r} of kind {self.kind!r:.40} has categories "
                f"{self.categories!r:.80}: only categorical columns have them, and need them"
            )

    @property
    def width(self) -> int:
        """How many inputs of the network it becomes."""
        return 1 if self.categories is None else len(self.categories)

    @classmethod
    def learn(cls, values: pd.Series, name: str, *, impute: bool) -> Column:
        """Decide what a column holds; refuse what cannot be used, naming row and column."""
        kind = _kind(values, name)
        _check_missing(values, name, allowed=impute)
        present = values.dropna()
        if present.empty:
            raise DataError(f"column {name!r} holds no value at all; drop it")
        dtype = str(values.dtype)
        if kind == "categorical":
            fill = _MISSING_CATEGORY if impute else None
            fills = {fill} if fill and len(present) < len(values) else set()
            known = tuple(sorted({*map(str, present), *fills}))
            return cls(name=name, kind=kind, dtype=dtype, categories=known, fill=fill)
        numbers = finite_numbers(present, name)
        return cls(
            name=name,
            kind=kind,
            dtype=dtype,
            minimum=float(numbers.min()),
            maximum=float(numbers.max()),
            fill=float(np.median(numbers)) if impute else None,
        )

    def encode(self, values: pd.Series) -> NDArray[np.float64]:
        """Return ``(N, width)``: numbers, or one-hot texts (all zeros for an unknown one)."""
        _check_missing(values, self.name, allowed=self.fill is not None)
        if self.categories is None:
            filled = values if self.fill is None else values.fillna(self.fill)
            return finite_numbers(filled, self.name)[:, None]
        texts = values.astype(object).where(values.notna(), self.fill).map(str)
        encoder = OneHotEncoder(
            categories=[list(self.categories)], handle_unknown="ignore", sparse_output=False
        )
        one_hot: NDArray[np.float64] = encoder.fit_transform(texts.to_numpy(object)[:, None])
        return one_hot


@dataclass(frozen=True, kw_only=True)
class TableSchema:
    """All columns, whether they came with names, and names and kind of the targets."""

    columns: tuple[Column, ...]
    named: bool
    target_names: tuple[str, ...]
    target_kind: Kind = "numeric"

    @classmethod
    def learn(
        cls,
        table: pd.DataFrame,
        *,
        named: bool,
        target_names: Sequence[str],
        target_kind: Kind = "numeric",
        impute: bool = False,
    ) -> TableSchema:
        """Decide for every column of a training table what it holds."""
        columns = tuple(
            Column.learn(table.iloc[:, i], str(name), impute=impute)
            for i, name in enumerate(table.columns)
        )
        names = tuple(target_names)
        return cls(columns=columns, named=named, target_names=names, target_kind=target_kind)

    @property
    def kinds(self) -> dict[str, Kind]:
        """What every column and target holds, by name; see ``read_table(..., kinds=)``."""
        targets = dict.fromkeys(self.target_names, self.target_kind)
        return targets | {column.name: column.kind for column in self.columns}

    def encode(self, table: pd.DataFrame) -> NDArray[np.float64]:
        """Return the inputs before scaling, shape ``(N, sum of widths)``."""
        parts = [column.encode(table.iloc[:, i]) for i, column in enumerate(self.columns)]
        return np.concatenate(parts, axis=1)

    def unseen(self, table: pd.DataFrame) -> dict[str, list[str]]:
        """Return the texts of each categorical column that the fit has not seen."""
        found = {}
        for i, column in enumerate(self.columns):
            if column.categories is not None:
                texts = set(map(str, table.iloc[:, i].dropna()))
                if new := sorted(texts - set(column.categories)):
                    found[column.name] = new
        return found

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TableSchema:
        """Rebuild a schema from :func:`dataclasses.asdict`."""
        columns = []
        for entry in values["columns"]:
            known = entry["categories"]
            columns.append(Column(**{**entry, "categories": None if known is None else (*known,)}))
        if values["target_kind"] not in get_args(Kind):
            raise DataError(f"targets cannot be of kind {values['target_kind']!r:.40}")
        return cls(
            columns=tuple(columns),
            named=bool(values["named"]),
            target_names=tuple(values["target_names"]),
            target_kind=values["target_kind"],
        )


def finite_numbers(values: pd.Series, name: str) -> NDArray[np.float64]:
    """Return a column as float64; refuse all but numbers, missing ones and infinities included."""
    _check_missing(values, name, allowed=False)
    if values.dtype.kind == "O":
        wrong = [row for row, value in enumerate(values) if _value_kind(value) != "number"]
        if wrong:
            row = next((k for k in wrong if not _reads_as_number(values.iloc[k])), wrong[0])
            raise DataError(
                f"column {name!r} holds {values.iloc[row]!r:.60} (first in {place(values, row)}), "
                "which is not a number; correct the cell, encode or leave out the column"
            )
    else:
        _kind(values, name)  # refuses dates and complex numbers
    numbers: NDArray[np.float64] = values.to_numpy(dtype=np.float64)
    infinite = np.isinf(numbers)
    if infinite.any():
        raise DataError(
            f"column {name!r} holds {int(infinite.sum())} values that are infinite (inf, not "
            f"finite; first in {place(values, int(infinite.argmax()))}); drop or replace them"
        )
    return numbers


def place(values: pd.Series, position: int) -> str:
    """Name a row: by the line of the file it was read from, else by its position."""
    name = values.index.name
    return f"{name} {values.index[position]}" if name in ("line", "row") else f"row {position}"


def _kind(values: pd.Series, name: str) -> Kind:
    kind = values.dtype.kind
    if kind == "c":
        raise DataError(
            f"Complex data not supported: column {name!r} holds complex numbers; pass real and "
            "imaginary parts as two columns"
        )
    if kind in "mM":
        raise DataError(
            f"column {name!r} holds dates or times ({values.dtype}); turn it into numbers first, "
            "such as days since a fixed date"
        )
    if kind == "O" and not isinstance(values.dtype, pd.CategoricalDtype):
        return _kind_of_objects(values, name)
    return {"b": "boolean", "O": "categorical"}.get(kind, "numeric")  # type: ignore[return-value]


def _kind_of_objects(values: pd.Series, name: str) -> Kind:
    """Refuse what is neither text nor number, and numbers among texts, naming the first row."""
    kinds = [_value_kind(value) for value in values]
    if set(kinds) <= {"number", "missing"} and "number" in kinds:
        return "numeric"
    for wrong in ("other", "number"):
        if wrong in kinds:
            row = kinds.index(wrong)
            value = values.iloc[row]
            raise TypeError(
                f"column {name!r}, {place(values, row)}: an argument must be a string or a number, "
                f"one kind per column, got {type(value).__name__} {value!r:.80}"
            )
    return "categorical"


def _value_kind(value: Any) -> str:
    if isinstance(value, str | bool | np.bool_):
        return "text"
    if isinstance(value, int | float | np.number):
        return "missing" if value != value else "number"
    return "missing" if value is None or value is pd.NA or value is pd.NaT else "other"


def _reads_as_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return "_" not in str(value)  # 1_000 is no number in a table


def _check_missing(values: pd.Series, name: str, *, allowed: bool) -> None:
    missing = values.isna().to_numpy()
    if missing.any() and not allowed:
        raise DataError(
            f"column {name!r} holds {int(missing.sum())} missing values (NaN; first in "
            f"{place(values, int(missing.argmax()))}); drop or fill them, or fit with "
            "imputer='median' (--impute on the command line)"
        )


# Scaling ---------------------------------------------------------------------------------------


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
    def fit(cls, x: ArrayLike, *, axis: int = -2) -> Standardizer:
        """Measure mean and standard deviation along the rows.

        Args:
            x: Training rows, shape ``(..., N, d)``: every leading index is scaled on its own.
                For targets of shape ``(..., N)`` pass ``axis=-1``.
            axis: The rows, counted from the end.
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
        drift = shifted.mean(axis, keepdims=True)
        spread = np.sqrt(np.square(shifted - drift).mean(axis, keepdims=True))
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

    def network_inputs(self, x: ArrayLike, device: torch.device | str) -> Tensor:
        """Return the scaled rows in float32; values beyond 10⁶ standard deviations are cut."""
        with np.errstate(over="ignore"):
            scaled = np.clip(self.transform(x), -_FARTHEST, _FARTHEST)
        return torch.as_tensor(scaled, dtype=torch.float32, device=device)

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


@final
class NormalScores:
    r"""Inputs by their ranks: ``z = Φ⁻¹(share of training rows below x)``, a feature at a time.

    Every feature of the training rows becomes standard normal, however skewed or heavy-tailed it
    was. Equal values have the middle of their ranks; the outermost are half a row from 0 and 1.

    Args:
        x: Training rows of R replicas, shape ``(R, N, d)``.
    """

    def __init__(self, x: Tensor) -> None:
        self._sorted = x.mT.contiguous().sort(dim=-1).values  # (R, d, N)

    def __call__(self, x: Tensor) -> Tensor:
        """Map ``(R, M, d)`` to the same shape."""
        num_rows, values = self._sorted.shape[-1], x.mT.contiguous()
        below = torch.searchsorted(self._sorted, values)
        upto = torch.searchsorted(self._sorted, values, right=True)
        share = (below + upto).double() / (2 * num_rows)
        edge = 0.5 / num_rows
        z: Tensor = torch.special.ndtri(share.clamp(edge, 1 - edge)).to(x.dtype)
        return z.mT.contiguous()


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
