"""Tables in: which columns a model takes, and what is told about those it does not."""

from __future__ import annotations

import difflib
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from whvi.errors import ConfigError, DataError
from whvi.tabular.reading import MISSING_CELLS, numeric_columns, read_table

if TYPE_CHECKING:
    import pandas as pd

_MISSING_TEXTS = MISSING_CELLS - {"none"}  # which may well be a category
_OPTIONS = {  # what the reader calls it -> what the command line calls it
    "pass decimal=','": "pass --decimal ,",
    "pass encoding='utf-16'": "pass --encoding utf-16",
    "pass encoding='latin-1' (or 'cp1252')": "pass --encoding latin-1 (or cp1252)",
    "add a header line or pass column_names=": "add a header line",
}
_MOST_TEXTS = 20  # different ones in a column, if more than half of its cells differ
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?|\d\d?[./]\d\d?[./]\d{2,4}")
_STRAY_SHARE = 0.5  # a column with more numbers than that was meant to hold numbers


@dataclass(frozen=True)
class TableOptions:
    """How to read a table, and whether to say what is odd about it."""

    separator: str | None = None
    decimal: str = "."
    encoding: str = "utf-8"
    quiet: bool = False

    def note(self, message: str) -> None:
        """Tell something that is worth knowing and no error, on stderr."""
        if not self.quiet:
            print(f"note: {message}", file=sys.stderr)


def read(source: str, options: TableOptions) -> pd.DataFrame:
    """Read a table from a path or, for ``-``, from standard input; errors name the table."""
    separator = {"\\t": "\t", "tab": "\t"}.get(options.separator or "", options.separator)
    name = "standard input" if source == "-" else source
    try:
        frame = read_table(
            sys.stdin.buffer if source == "-" else source,
            separator=separator,
            decimal=options.decimal,
            encoding=options.encoding,
        )
    except DataError as error:
        message = str(error)
        for python, shell in _OPTIONS.items():
            message = message.replace(python, shell)
        raise DataError(message if repr(source) in message else f"{name}: {message}") from error
    return frame


def training_columns(
    frame: pd.DataFrame, target: str, drop: tuple[str, ...], *, impute: bool
) -> pd.DataFrame:
    """Return the columns to learn from: all but the target and those left out.

    Numbers must be finite, and missing cells are refused unless they are to be filled. Texts become
    categories; a column of texts that nearly all differ, or are nearly all numbers, is refused.
    """
    for name in (target, *drop):
        _check_present(frame, name)
    if target in drop:
        raise ConfigError(f"the target {target!r} cannot be dropped as well")
    names = [str(name) for name in frame.columns if name != target and name not in drop]
    if not names:
        raise DataError(f"there is no column to learn from besides {target!r}")
    texts = {name: _texts(frame, name) for name in names if not _is_numeric(frame[name])}
    for name, column in texts.items():
        _check_categories(frame, name, column)
    return _checked(frame[names].assign(**texts), impute=impute)


def model_columns(frame: pd.DataFrame, model: Any, options: TableOptions) -> pd.DataFrame:
    """Return the columns that a fitted model takes, in its order.

    Missing columns and columns of another type are errors that name them; extra columns and
    categories that training did not have are told by name, and prediction goes on.
    """
    schema = model.schema_
    wanted = [column.name for column in schema.columns]
    _check_wanted(frame, wanted)
    known = {*wanted, *schema.target_names}
    extra = [str(name) for name in frame.columns if name not in known]
    if extra:
        options.note(f"columns that the model does not use are ignored: {_listed(extra)}")
    columns = {}
    for column in schema.columns:
        if column.categories is None:
            if not _is_numeric(frame[column.name]):
                numeric_columns(frame, [column.name])  # raises, and names column, line and cell
            columns[column.name] = frame[column.name]
        else:
            columns[column.name] = _as_categories(frame, column)
    selected = _checked(frame[wanted].assign(**columns), impute=model.imputer is not None)
    for name, values in schema.unseen(selected).items():
        if len(values):
            options.note(
                f"column {name!r} holds categories that training did not have, taken as unknown: "
                f"{_listed([str(value) for value in values])}"
            )
    return selected


def target_column(frame: pd.DataFrame, model: Any) -> Any:
    """Return the true values: numbers for a regression, labels for a classification."""
    name = model.target_name_
    _check_present(frame, name)
    if not hasattr(model, "classes_"):
        return numeric_columns(frame, [name])[:, 0]
    return labels(frame, name)


def labels(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Return a column as labels: texts as they are, whole numbers as integers, booleans."""
    series = frame[name]
    if series.dtype.kind == "b":
        return np.asarray(series, dtype=bool)
    if _is_numeric(series):
        numbers = numeric_columns(frame, [name])[:, 0]
        whole = numbers.astype(np.int64) if np.abs(numbers).max() < 2**53 else numbers
        return whole if (whole == numbers).all() else numbers
    texts = _texts(frame, name)
    _check_filled(frame, name, texts)
    return texts


def is_text(frame: pd.DataFrame, name: str) -> bool:
    """Tell whether a column holds texts or booleans: then it is a target of classes."""
    _check_present(frame, name)
    return not _is_numeric(frame[name]) or frame[name].dtype.kind == "b"


# Inner rooms ---------------------------------------------------------------------------------


def _is_numeric(series: pd.Series) -> bool:
    return series.dtype.kind in "fiub"


def _texts(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Return the cells as texts; missing ones are ``None``."""
    found = np.empty(len(frame), dtype=object)
    for k, cell in enumerate(frame[name]):
        missing = cell is None or cell != cell or str(cell).strip().lower() in _MISSING_TEXTS
        found[k] = None if missing else str(cell).strip()
    return found


def _checked(x: pd.DataFrame, *, impute: bool) -> pd.DataFrame:
    for name in x.columns:
        if not _is_numeric(x[name]):
            if not impute:
                _check_filled(x, name, x[name].to_numpy())
        elif impute and np.isnan(x[name].to_numpy(dtype=np.float64, na_value=np.nan)).any():
            numeric_columns(x[x[name].notna()], [name])
        else:
            numeric_columns(x, [name])
    return x


def _check_filled(frame: pd.DataFrame, name: str, texts: np.ndarray) -> None:
    missing = [k for k, text in enumerate(texts) if text is None or text != text]  # None or NaN
    if missing:
        place = f"{frame.index.name or 'row'} {frame.index[missing[0]]}"
        raise DataError(
            f"column {name!r} holds {len(missing)} missing values (first in {place}); drop or fill "
            f"them, or pass --impute to 'whvi fit'"
        )


def _check_present(frame: pd.DataFrame, name: str) -> None:
    if name not in frame.columns:
        names = [str(each) for each in frame.columns]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {_listed(names)}"
        raise DataError(f"the table has no column {name!r}; {hint}")


def _check_wanted(frame: pd.DataFrame, wanted: list[str]) -> None:
    missing = [name for name in wanted if name not in frame.columns]
    if missing:
        raise DataError(
            f"the table lacks {len(missing)} of {len(wanted)} columns that the model was fitted "
            f"on: {_listed(missing)}; it has {_listed([str(name) for name in frame.columns])}"
        )


def _check_categories(frame: pd.DataFrame, name: str, texts: np.ndarray) -> None:
    filled = [text for text in texts if text is not None]
    numbers = [text for text in filled if _is_number(text)]
    if len(numbers) > _STRAY_SHARE * max(len(filled), 1):
        numeric_columns(frame, [name])  # raises, and names the first cell that is no number
    dates = [text for text in filled if _DATE.match(text)]
    if len(dates) > _STRAY_SHARE * max(len(filled), 1):
        raise DataError(
            f"column {name!r} holds dates such as {dates[0][:40]!r}; turn them into numbers, such "
            f"as days since the first, or leave the column out with --drop {name!r}"
        )
    different = len(set(filled))
    if different > _MOST_TEXTS and different > len(filled) / 2:
        raise DataError(
            f"column {name!r} holds {different} different texts in {len(filled)} rows (first: "
            f"{filled[0][:40]!r}), so it is no category; encode it, or leave it out with "
            f"--drop {name!r}"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _as_categories(frame: pd.DataFrame, column: Any) -> np.ndarray:
    """Return texts for a column of categories, also where all of them now look like numbers."""
    if not _is_numeric(frame[column.name]):
        return _texts(frame, column.name)
    found = np.empty(len(frame), dtype=object)
    for k, value in enumerate(frame[column.name]):
        found[k] = None if value != value else f"{value:.17g}" if value is not True else "True"
    if not set(found) & {None, *column.categories}:
        raise DataError(
            f"column {column.name!r} holds numbers such as {found[0]}, and held categories in "
            f"training: {_listed(list(column.categories))}"
        )
    return found


def _listed(names: list[str], most: int = 8) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
