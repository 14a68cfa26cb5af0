"""The columns of a table, and how they become the inputs of a network.

What a column holds is decided once, at fit, and written down in a :class:`TableSchema`; every later
table is read and encoded by it. Categories become one-hot columns, and where they are many also
their effects on the target; dates become numbers, missing values the median and an indicator. An
:class:`Embedding` scales them, bends tails and adds bins: :mod:`whvi.tabular.scaling` learns how.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, final, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from whvi._files import conform
from whvi.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Kind = Literal["numeric", "boolean", "categorical", "date"]

_MISSING_CATEGORY = "missing"
_MOST_CATEGORIES = 256  # of a column, the most frequent: the others are as unknown ones
_DAY = np.timedelta64(1, "D")
FARTHEST = 1e6  # inputs so many standard deviations from the mean are moved to that distance
BEND = 3.0  # heavy tails end at so many units
_BLOCK = 1 << 14  # rows that are embedded at once


# Types and encoding ----------------------------------------------------------------------------


_COLUMN = {
    **dict.fromkeys(("name", "kind", "dtype"), str),
    "categories": (list, type(None)),
    **dict.fromkeys(("minimum", "maximum", "fill"), (float, type(None))),
    "indicator": bool,
    "effects": (list, type(None)),
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
        effects: Of every category on the target, and of an unknown one: inputs besides one-hot.
    """

    name: str
    kind: Kind
    dtype: str
    categories: tuple[str, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None
    fill: float | None = None
    indicator: bool = False
    effects: tuple[tuple[float, ...], ...] | None = None

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
        lengths = {len(row) for row in self.effects or ()}
        if self.effects is not None and (len(lengths) != 1 or len(self.effects) != len(known) + 1):
            raise DataError(f"column {self.name!r} has effects of other categories than its own")

    @property
    def width(self) -> int:
        """How many inputs of the network it becomes."""
        if self.categories is not None:
            return len(self.categories) + len(self.effects[0] if self.effects else ())
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
        numbers = numbers_of(values[~missing], name, kind)
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
        """Return ``(N, width)``: numbers, or one-hot texts (all zeros for an unknown one).

        A missing number is NaN if the column was complete: the networks then see several values.
        """
        missing = values.isna().to_numpy()
        if self.categories is not None:
            known = self.positions(values)
            parts = [known[:, None] == np.arange(len(self.categories))]
            if self.effects is not None:
                parts.append(np.array(self.effects)[known])  # -1 is the last
            return np.concatenate(parts, axis=1, dtype=np.float64)
        if self.fill is None:
            return np.empty((len(values), 0))
        complete = self.kind != "date" and not self.indicator
        numbers = np.full(len(values), np.nan if complete else self.fill)
        numbers[~missing] = numbers_of(values[~missing], self.name, self.kind)
        parts = [numbers, *(_calendar(numbers) if self.kind == "date" else ())]
        return np.stack([*parts, missing][: self.width], axis=1).astype(np.float64)

    def positions(self, values: pd.Series) -> NDArray[np.int64]:
        """Return the number of each text among the categories, -1 for an unknown one."""
        missing = values.isna().to_numpy()
        texts = np.full(len(values), _MISSING_CATEGORY, dtype=object)
        texts[~missing] = [text_of(value) for value in values[~missing]]
        return np.asarray(pd.Index(self.categories).get_indexer(pd.Index(texts, dtype=object)))


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
        target_names: tuple[str, ...],
        target_kind: Kind = "numeric",
    ) -> TableSchema:
        """Decide for every column of a training table what it holds."""
        columns = tuple(Column.learn(values, str(name)) for name, values in table.items())
        if not any(column.width for column in columns):
            raise DataError("no column holds a value, so there is nothing to learn from")
        return cls(columns=columns, named=named, target_names=target_names, target_kind=target_kind)

    @property
    def kinds(self) -> dict[str, Kind]:
        """What every column and target holds, by name; see ``read_table(..., kinds=)``."""
        targets = dict.fromkeys(self.target_names, self.target_kind)
        return targets | {column.name: column.kind for column in self.columns}

    def encode(self, table: pd.DataFrame) -> NDArray[np.float64]:
        """Return the inputs before scaling, shape ``(N, sum of widths)``."""
        parts = [column.encode(table.iloc[:, i]) for i, column in enumerate(self.columns)]
        return np.concatenate(parts, axis=1)

    def rounded(self, table: pd.DataFrame) -> list[str]:
        """Say which columns of a training table hold whole numbers too large for a float."""
        return [
            f"column {column.name!r} holds whole numbers up to {column.maximum:.0f}, which are "
            "rounded; if they are identifiers, leave it out or make them texts"
            for column, (_, values) in zip(self.columns, table.items(), strict=True)
            if column.kind == "numeric"
            and 2.0**53 < (column.maximum or 0.0) < 2.0**64
            and not (values.dropna().to_numpy(dtype=np.float64) % 1).any()
        ]

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
            conform(entry["effects"] or [], [[float]], "effects")
            effects = entry["effects"] and tuple(map(tuple, entry["effects"]))
            plain = {"categories": None if known is None else (*known,), "effects": effects}
            columns.append(Column(**{**entry, **plain}))
        names = [column.name for column in columns]
        if values["target_kind"] not in get_args(Kind) or len(set(names)) < len(names):
            raise DataError(f"a target of unknown kind, or names that occur twice: {names!r:.80}")
        targets = tuple(values["target_names"])
        return cls(**{**values, "columns": tuple(columns), "target_names": targets})


def numbers_of(values: pd.Series, name: str, kind: Kind) -> NDArray[np.float64]:
    """Return a column without missing values as float64; dates as days since 1970."""
    if values.dtype.kind == "O":
        wrong = np.array([_value_kind(value) != "number" for value in values], dtype=bool)
        if wrong.any():
            unreadable = wrong & pd.to_numeric(values, errors="coerce").isna().to_numpy()
            row = int((unreadable if unreadable.any() else wrong).argmax())
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
    if count := int(infinite.sum()):
        raise DataError(
            f"column {name!r} holds {count} infinite value{'s' * (count > 1)} (inf, not "
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
    return f"{value:.17g}" if isinstance(value, float) else str(value)


def _value_kind(value: Any) -> str:
    if isinstance(value, str | bool | np.bool_):
        return "text"
    if isinstance(value, int | float | np.number):
        return "missing" if value != value else "number"
    return "missing" if value is None or value is pd.NA or value is pd.NaT else "other"


# Inputs of the networks ------------------------------------------------------------------------


class NetworkInputs(NamedTuple):
    """Rows in float32, ``(N, in)``, and one plus the distance from the range of training rows.

    ``stretch (N, 1)`` along bent columns, whose tails networks do not see, ``reach`` along all.
    """

    x: Tensor
    stretch: Tensor
    reach: Tensor


def member_levels(num_members: int) -> Tensor:
    """Return normal quantiles in the middle of equal shares: what members see in a hole."""
    levels: Tensor = torch.special.ndtri((torch.arange(num_members).double() + 0.5) / num_members)
    return levels


@final
@dataclass(frozen=True, eq=False)
class Embedding:
    r"""From encoded columns ``x`` to the inputs of the networks.

    .. math:: z = (x - m) / u, \qquad h = z / \sqrt{1 + (z/3)^2} \text{ (heavy tails) or } z,
              \qquad b_k = \mathrm{clip}((z_{c_k} - l_k) / (r_k - l_k), 0, 1)

    with ``K`` bins between quantiles, or none; then ``(h, b)`` is standardised.

    Attributes:
        middle, unit: ``m`` and ``u``, ``(w,)``.
        heavy: Whether tails are bent, ``(w,)``.
        least, most: Range of ``z`` in the training rows, ``(w,)``.
        column, left, right: Of the bins, ``(K,)``.
        mean, scale: Of ``(h, b)``, ``(w + K,)``.
    """

    middle: NDArray[np.float64]
    unit: NDArray[np.float64]
    heavy: NDArray[np.bool_]
    least: NDArray[np.float64]
    most: NDArray[np.float64]
    column: NDArray[np.int64]
    left: NDArray[np.float64]
    right: NDArray[np.float64]
    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    @property
    def num_inputs(self) -> int:
        """Inputs of the networks."""
        return len(self.mean)

    def of_members(
        self, encoded: NDArray[np.float64], device: torch.device | str, num_members: int
    ) -> NetworkInputs:
        """Embed rows; members see different values of a number that was never missing before."""
        if not np.isnan(encoded).any():
            return self(encoded, device)
        parts = [self(encoded, device, level=z) for z in member_levels(num_members).tolist()]
        return parts[0]._replace(x=torch.stack([part.x for part in parts]))

    def __call__(
        self, encoded: NDArray[np.float64], device: torch.device | str, *, level: float = 0.0
    ) -> NetworkInputs:
        """Embed rows ``(N, w)``; values beyond 10⁶ units are cut, and NaN becomes ``level``."""
        blocks = range(0, len(encoded), _BLOCK)
        parts = zip(*(self._embed(encoded[k : k + _BLOCK], level) for k in blocks), strict=True)
        return NetworkInputs(*(torch.as_tensor(np.concatenate(p), device=device) for p in parts))

    def _embed(self, rows: NDArray[np.float64], level: float) -> tuple[NDArray[np.float32], ...]:
        with np.errstate(over="ignore"):
            z = np.clip((rows - self.middle) / self.unit, -FARTHEST, FARTHEST)
        z = np.where(np.isnan(z), np.clip(level, self.least, self.most), z)
        inputs = (self.features(z) - self.mean) / self.scale
        squares = np.square(z - np.clip(z, self.least, self.most))
        sums = [s.sum(1, keepdims=True) for s in (squares[:, self.heavy], squares)]
        return tuple(p.astype(np.float32) for p in (inputs, *(1 + np.sqrt(s) for s in sums)))

    def features(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``(h, b)``."""
        return np.hstack([self.bent(z), self.shares(z, slice(None))])

    def bent(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``h``."""
        return np.where(self.heavy, z / np.sqrt(1 + np.square(z / BEND)), z)

    def shares(self, z: NDArray[np.float64], bins: slice) -> NDArray[np.float64]:
        """Return ``b_k`` of some of the bins."""
        left, right = self.left[bins], self.right[bins]
        return np.clip((z[:, self.column[bins]] - left) / (right - left), 0, 1)
