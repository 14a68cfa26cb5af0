"""The columns of a table, and how they become the inputs of a network.

What a column holds is decided once, when a model is fitted, and written down in a
:class:`TableSchema`; every later table is read and encoded by it. Categories become one-hot
columns, dates become numbers, missing values the median and an indicator, and all columns are
standardised, ``z = (x - μ) / σ``, with ``μ`` and ``σ`` from training rows only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from whvi._files import conform
from whvi.errors import ConfigError, DataError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Kind = Literal["numeric", "boolean", "categorical", "date"]

_MISSING_CATEGORY = "missing"
_MOST_CATEGORIES = 256  # of a column, the most frequent: the others are as unknown ones
_DAY = np.timedelta64(1, "D")
# A spread of a few rounding errors is not information: dividing by it would blow it up to one.
_ROUNDING_SPREAD = 4 * np.finfo(np.float64).eps
FARTHEST = 1e6  # inputs so many standard deviations from the mean are moved to that distance


# Types and encoding ----------------------------------------------------------------------------


_COLUMN = {
    **dict.fromkeys(("name", "kind", "dtype"), str),
    "categories": (list, type(None)),
    **dict.fromkeys(("minimum", "maximum", "fill"), (float, type(None))),
    "indicator": bool,
}
_SCHEMA = {"columns": [_COLUMN], "named": bool, "target_names": [str], "target_kind": str}


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column as it was when the model was fitted.

    Attributes:
        name: Its name; ``x0``, ``x1``, … if it had none.
        kind: Numbers, truth values, dates, or one of several texts.
        dtype: Data type of the column, as text.
        categories: The most frequent texts of a categorical column in sorted order; missing ones
            have a category of their own if there were any.
        minimum, maximum: Range of a column of numbers; of dates, in days since 1970. ``None`` if
            it held no value at all: such a column is no input.
        fill: The median, which stands for a missing value.
        indicator: Whether an input of its own says that a value is missing, as some were.
    """

    name: str
    kind: Kind
    dtype: str
    categories: tuple[str, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None
    fill: float | None = None
    indicator: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind) or (self.kind == "categorical") != bool(self.categories):
            raise DataError(
                f"column {self.name!r} of kind {self.kind!r:.40} has categories "
                f"{self.categories!r:.80}: only categorical columns have them, and need them"
            )
        ends = [end for end in (self.minimum, self.fill, self.maximum) if end is not None]
        known, right = self.categories or (), len(ends) in (0, 3) and ends == sorted(ends)
        if not right or (ends and known) or len(set(known)) < len(known):
            raise DataError(f"column {self.name!r} has range {ends}, categories {known!r:.80}")

    @property
    def width(self) -> int:
        """How many inputs of the network it becomes."""
        if self.categories is not None:
            return len(self.categories)
        if self.minimum is None:
            return 0
        return (4 if self.kind == "date" else 1) + self.indicator

    @classmethod
    def learn(cls, values: pd.Series, name: str) -> Column:
        """Decide what a column holds; refuse what cannot be used, naming row and column."""
        dtype, kind = str(values.dtype), _kind(values, name)
        missing = values.isna().to_numpy()
        if missing.all():
            return cls(name=name, kind="numeric", dtype=dtype)
        if kind == "categorical":
            counts = values.dropna().map(text_of).value_counts()
            texts = {*counts.index[:_MOST_CATEGORIES], *[_MISSING_CATEGORY] * bool(missing.any())}
            return cls(name=name, kind=kind, dtype=dtype, categories=tuple(sorted(texts)))
        numbers = _numbers(values[~missing], name, kind)
        return cls(
            name=name,
            kind=kind,
            dtype=dtype,
            minimum=float(numbers.min()),
            maximum=float(numbers.max()),
            fill=float(np.median(numbers)),
            indicator=bool(missing.any()),
        )

    def encode(self, values: pd.Series) -> NDArray[np.float64]:
        """Return ``(N, width)``: numbers, or one-hot texts (all zeros for an unknown one)."""
        missing = values.isna().to_numpy()
        if self.categories is not None:
            texts = np.full(len(values), _MISSING_CATEGORY, dtype=object)
            texts[~missing] = [text_of(value) for value in values[~missing]]
            known = pd.Index(self.categories).get_indexer(pd.Index(texts, dtype=object))
            return np.asarray(known[:, None] == np.arange(self.width), dtype=np.float64)
        if self.fill is None:
            return np.empty((len(values), 0))
        numbers = np.full(len(values), self.fill)
        numbers[~missing] = _numbers(values[~missing], self.name, self.kind)
        parts = [numbers]
        if self.kind == "date":
            parts += _calendar(numbers)
        return np.stack([*parts, missing][: self.width], axis=1).astype(np.float64)


def _calendar(days: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Return year, month and weekday of days since 1970."""
    dates = pd.DatetimeIndex(np.floor(days).astype("datetime64[D]"))
    parts = (dates.year, dates.month, dates.day_of_week)
    return [part.to_numpy(dtype=np.float64) for part in parts]


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
    ) -> TableSchema:
        """Decide for every column of a training table what it holds."""
        columns = tuple(
            Column.learn(table.iloc[:, i], str(name)) for i, name in enumerate(table.columns)
        )
        if not any(column.width for column in columns):
            raise DataError("no column holds a value, so there is nothing to learn from")
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
                texts = set(map(text_of, table.iloc[:, i].dropna()))
                if new := sorted(texts - set(column.categories)):
                    found[column.name] = new
        return found

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TableSchema:
        """Rebuild a schema from :func:`dataclasses.asdict`, as JSON has it."""
        conform(values, _SCHEMA, "schema")
        columns = []
        for entry in values["columns"]:
            known = entry["categories"]
            conform(known or [], [str], "categories")
            columns.append(Column(**{**entry, "categories": None if known is None else (*known,)}))
        names = [column.name for column in columns]
        if values["target_kind"] not in get_args(Kind) or len(set(names)) < len(names):
            raise DataError(f"a target of unknown kind, or names that occur twice: {names!r:.80}")
        targets = tuple(values["target_names"])
        return cls(**{**values, "columns": tuple(columns), "target_names": targets})


def finite_numbers(values: pd.Series, name: str) -> NDArray[np.float64]:
    """Return a column as float64; refuse all but numbers, missing ones and infinities included."""
    missing = values.isna().to_numpy()
    if missing.any():
        raise DataError(
            f"column {name!r} holds {int(missing.sum())} missing values (NaN; first in "
            f"{place(values, int(missing.argmax()))}); drop or fill them"
        )
    return _numbers(values, name, "numeric")


def _numbers(values: pd.Series, name: str, kind: Kind) -> NDArray[np.float64]:
    """Return a column without missing values as float64; dates as days since 1970."""
    if values.dtype.kind == "O":
        wrong = [row for row, value in enumerate(values) if _value_kind(value) != "number"]
        if wrong:
            row = next((k for k in wrong if not _reads_as_number(values.iloc[k])), wrong[0])
            raise DataError(
                f"column {name!r} holds {values.iloc[row]!r:.60} (first in {place(values, row)}), "
                "which is not a number; correct the cell, encode or leave out the column"
            )
    elif (_kind(values, name) == "date") != (kind == "date"):  # which also refuses complex numbers
        raise DataError(
            f"column {name!r} holds {'numbers' if kind == 'date' else 'dates or times'}, which it "
            "did not hold when the model was fitted"
        )
    if kind == "date":
        elapsed = values.to_numpy("datetime64[us]") - np.datetime64(0, "us")
        return np.asarray(elapsed / _DAY, dtype=np.float64)
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
    if kind == "m":
        raise DataError(f"column {name!r} holds durations ({values.dtype}); make them numbers")
    if kind == "O" and not isinstance(values.dtype, pd.CategoricalDtype):
        return _kind_of_objects(values, name)
    found: dict[str, Kind] = {"b": "boolean", "O": "categorical", "M": "date"}
    return found.get(kind, "numeric")


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


def text_of(value: Any) -> str:
    """Return a category as text; whole numbers without a point, whatever their data type."""
    is_float = isinstance(value, float) and not isinstance(value, bool)
    return f"{value:.17g}" if is_float else str(value)


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
            scaled = np.clip(self.transform(x), -FARTHEST, FARTHEST)
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
