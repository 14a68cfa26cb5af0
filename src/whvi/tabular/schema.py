"""The columns of a table: what they are called, what they hold, and which values are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from whvi.errors import DataError

Kind = Literal["numeric", "boolean", "categorical"]
_MISSING_CATEGORY = "missing"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column as it was at fitting time.

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
            raise DataError(f"column {self.name!r} is described as {self.kind!r:.40} untruly")

    @property
    def width(self) -> int:
        """How many inputs of the network it becomes."""
        return 1 if self.categories is None else len(self.categories)


@dataclass(frozen=True, kw_only=True)
class TableSchema:
    """All columns, whether they came with names, and the names of the targets."""

    columns: tuple[Column, ...]
    named: bool
    target_names: tuple[str, ...]

    def encode(self, table: pd.DataFrame) -> NDArray[np.float64]:
        """Return the inputs before scaling, shape ``(N, sum of widths)``: texts one-hot.

        A text that was not there at fitting time is none of the known ones: all zeros.
        """
        parts = [_encode_column(table.iloc[:, i], column) for i, column in enumerate(self.columns)]
        return np.concatenate(parts, axis=1)

    def unseen(self, table: pd.DataFrame) -> dict[str, list[str]]:
        """Return the texts of each categorical column that fitting has not seen."""
        found = {}
        for i, column in enumerate(self.columns):
            if column.categories is not None:
                texts = _texts(table.iloc[:, i].dropna())
                new = sorted(set(texts) - set(column.categories))
                if new:
                    found[column.name] = new
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TableSchema:
        """Rebuild a schema from :meth:`as_dict`."""
        columns = []
        for entry in values["columns"]:
            categories = entry["categories"]
            columns.append(
                Column(**{**entry, "categories": None if categories is None else tuple(categories)})
            )
        return cls(
            columns=tuple(columns),
            named=bool(values["named"]),
            target_names=tuple(values["target_names"]),
        )


def learn_schema(
    table: pd.DataFrame, *, named: bool, target_names: Sequence[str], impute: bool
) -> TableSchema:
    """Decide for every column what it holds; refuse what cannot be used, naming row and column."""
    columns = tuple(
        _learn_column(table.iloc[:, i], str(name), impute=impute)
        for i, name in enumerate(table.columns)
    )
    return TableSchema(columns=columns, named=named, target_names=tuple(target_names))


def _learn_column(values: pd.Series, name: str, *, impute: bool) -> Column:
    kind = _kind(values, name)
    _check_missing(values, name, allowed=impute)
    present = values.dropna()
    if present.empty:
        raise DataError(f"column {name!r} holds no value at all; drop it")
    dtype = str(values.dtype)
    if kind == "categorical":
        texts = _texts(present)
        fill = _MISSING_CATEGORY if impute else None
        known = sorted({*texts, *((fill,) if fill and len(present) < len(values) else ())})
        return Column(name=name, kind=kind, dtype=dtype, categories=tuple(known), fill=fill)
    numbers = _numbers(present, name)
    return Column(
        name=name,
        kind=kind,
        dtype=dtype,
        minimum=float(numbers.min()),
        maximum=float(numbers.max()),
        fill=float(np.median(numbers)) if impute else None,
    )


def _kind(values: pd.Series, name: str) -> Kind:
    dtype = values.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return "categorical"
    if pd.api.types.is_bool_dtype(dtype):
        return "boolean"
    if pd.api.types.is_complex_dtype(dtype):
        raise DataError(
            f"Complex data not supported: column {name!r} holds complex numbers; pass real and "
            "imaginary parts as two columns"
        )
    if pd.api.types.is_numeric_dtype(dtype):
        return "numeric"
    if pd.api.types.is_datetime64_any_dtype(dtype) or pd.api.types.is_timedelta64_dtype(dtype):
        raise DataError(
            f"column {name!r} holds dates or times ({dtype}); turn it into numbers first, such as "
            "days since a fixed date"
        )
    return "numeric" if _holds_numbers(values) else _kind_of_texts(values, name)


def _holds_numbers(values: pd.Series) -> bool:
    """Tell whether a column of objects holds numbers only."""
    present = values.dropna()
    return len(present) > 0 and all(
        isinstance(v, int | float | np.number) and not isinstance(v, bool) for v in present
    )


def _kind_of_texts(values: pd.Series, name: str) -> Kind:
    """Refuse what is neither text nor number, and numbers among texts, naming the first row."""
    kinds = [_value_kind(value) for value in values]
    for wrong in ("other", "number"):
        if wrong in kinds:
            row = kinds.index(wrong)
            value = values.iloc[row]
            raise TypeError(
                f"column {name!r}, row {row}: an argument must be a string or a number, one kind "
                f"per column, got {type(value).__name__} {value!r:.80}"
            )
    return "categorical"


def _value_kind(value: Any) -> str:
    if isinstance(value, str | bool | np.bool_):
        return "text"
    if isinstance(value, int | float | np.number):
        return "missing" if value != value else "number"
    return "missing" if value is None or value is pd.NA or value is pd.NaT else "other"


def _check_missing(values: pd.Series, name: str, *, allowed: bool) -> None:
    missing = values.isna().to_numpy()
    if missing.any() and not allowed:
        raise DataError(
            f"column {name!r} holds {int(missing.sum())} missing values (NaN; first in row "
            f"{int(missing.argmax())}); drop or fill them, or set imputer='median'"
        )


def _numbers(values: pd.Series, name: str) -> NDArray[np.float64]:
    """Convert to float64 and refuse infinities."""
    numbers: NDArray[np.float64] = values.to_numpy(dtype=np.float64)
    infinite = np.isinf(numbers)
    if infinite.any():
        raise DataError(
            f"column {name!r} holds {int(infinite.sum())} values that are infinite (inf; first in "
            f"row {int(infinite.argmax())}); drop or replace them"
        )
    return numbers


def _texts(values: pd.Series) -> list[str]:
    return [str(value) for value in values]


def _encode_column(values: pd.Series, column: Column) -> NDArray[np.float64]:
    _check_missing(values, column.name, allowed=column.fill is not None)
    if column.categories is not None:
        texts = pd.Series(values.astype(object).where(values.notna(), column.fill))
        place = {category: i for i, category in enumerate(column.categories)}
        codes = np.array([place.get(text, -1) for text in _texts(texts)])
        one_hot: NDArray[np.bool_] = codes[:, None] == np.arange(len(column.categories))
        return one_hot.astype(np.float64)
    kind = _kind(values, column.name)
    if kind == "categorical":
        row = next(i for i, v in enumerate(values) if isinstance(v, str | bool | np.bool_))
        raise DataError(
            f"column {column.name!r} was {column.kind} when the model was fitted, but row {row} "
            f"holds the text {values.iloc[row]!r}; an argument must be a number"
        )
    if column.fill is not None:
        values = values.fillna(column.fill)
    return _numbers(values, column.name)[:, None]
