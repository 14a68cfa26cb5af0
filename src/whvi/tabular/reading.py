"""Read tables from files and refuse what is damaged or doubtful, naming line and column.

Nothing is guessed silently: a decimal comma, a foreign encoding or a ragged row is an error that
says what to do. Cells are data: a cell that looks like a formula is a text, and stays one.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import importlib.util
import io
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from whvi.errors import ConfigError, DataError, MissingDependencyError
from whvi.tabular.inputs import Kind, finite_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Source = str | os.PathLike[str] | IO[bytes] | IO[str]

_MISSING_NUMBERS = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})  # whatever the case
_MISSING_TEXTS = _MISSING_NUMBERS - {"none"}  # which may well be a category
_TRUTH_VALUES = {"true": 1.0, "false": 0.0}
_SEPARATORS = ("\t", ";", "|", ",")  # a tie goes to the rarer: commas also stand in texts
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(e[+-]?\d+)?", re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?|\d\d?[./]\d\d?[./]\d{2,4}")
_STRAY_SHARE = 0.5  # a column with more numbers than that was meant to hold numbers
_MOST_TEXTS = 20  # different ones in a column, if more than half of its cells differ
_NOT_TEXT = {
    b"PK\x03\x04": "a ZIP archive or spreadsheet; export it as CSV",
    b"\x1f\x8b": "compressed with gzip; decompress it",
    b"\x80": "a binary file; export it as CSV",
    b"\xd0\xcf\x11\xe0": "an old spreadsheet; export it as CSV",
}
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def python_option(name: str, value: str) -> str:
    """Spell an option of :func:`read_table` in an error message."""
    return f"{name}={value!r}"


def read_table(
    source: Source,
    *,
    separator: str | None = None,
    decimal: str = ".",
    encoding: str = "utf-8",
    column_names: Sequence[str] | None = None,
    kinds: Mapping[str, Kind] | None = None,
    spell: Callable[[str, str], str] = python_option,
) -> pd.DataFrame:
    """Read a CSV, TSV or Parquet table.

    Args:
        source: Path or open stream. Parquet is recognised by its content and needs ``pyarrow``.
        separator: Between cells; by default whichever of ``, ; | tab`` the first line holds most.
        decimal: ``"."`` or ``","``.
        encoding: Of a text file; a byte-order mark is dropped.
        column_names: Given if the file has no header line.
        kinds: What columns hold, by name, such as ``model.schema_.kinds``: the column of a model
            that was fitted on texts stays a column of texts, even if all cells are ``01``. Other
            columns hold numbers if all of their cells are numbers or missing.
        spell: How error messages call an option.

    Returns:
        A data frame with float64 for columns of numbers (missing cells are NaN) and text for all
        others (missing cells are ``None``). The index is the line of the file where a row ends,
        so that later errors can name it; ``attrs["sha256"]`` is the checksum of the bytes.

    Raises:
        DataError: The table is unreadable; the message names line and column.
    """
    _check_options(separator, decimal)
    data = _read(source)
    if isinstance(data, str):  # already decoded by the stream
        data, encoding = data.encode(errors="surrogatepass"), "utf-8"
    kinds = kinds or {}
    if data.startswith(b"PAR1"):
        frame = _read_parquet(data, kinds)
    else:
        text = _decode(data, encoding, spell)
        separator = separator or _guess_separator(text, decimal)
        _check_nul(text, separator)
        names, rows, lines = _parse(text, separator, column_names)
        cells = zip(names, zip(*rows, strict=True), strict=True)
        typed = {n: _typed(n, c, lines, kinds.get(n), decimal, spell) for n, c in cells}
        frame = pd.DataFrame(typed, index=pd.Index(lines, name="line"))
    frame.attrs["sha256"] = hashlib.sha256(data).hexdigest()
    return frame


def numeric_columns(frame: pd.DataFrame, columns: Sequence[str]) -> NDArray[np.float64]:
    """Return columns as float64, shape ``(N, len(columns))``; every value is a finite number.

    Raises:
        DataError: A column is absent, or holds texts, dates, missing or infinite values; the
            message names the column and the first line (or row) at fault.
    """
    if len(frame) == 0:
        raise DataError("the table has no rows")
    if not frame.columns.is_unique:
        raise DataError(f"column names must differ, got {list(frame.columns)[:20]}")
    for name in columns:
        require_column(frame, name)
    arrays = [finite_numbers(frame[name], name) for name in columns]
    return np.stack(arrays, axis=1) if arrays else np.empty((len(frame), 0))


def require_column(frame: pd.DataFrame, name: str) -> None:
    """Refuse a name that is no column, with the nearest one that is."""
    if name not in frame.columns:
        names = [str(each) for each in frame.columns]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {listed(names)}"
        raise DataError(f"the table has no column {name!r}; {hint}")


def check_categories(texts: pd.Series, name: str) -> None:
    """Refuse a column of texts that was meant to hold something else than categories."""
    filled = texts.dropna().map(str)
    if filled.map(is_number).sum() > _STRAY_SHARE * len(filled):
        finite_numbers(filled, name)  # refuses the first that is none
    dates = filled[filled.map(lambda text: _DATE.match(text) is not None)]
    if len(dates) > _STRAY_SHARE * len(filled):
        raise DataError(
            f"column {name!r} holds dates such as {dates.iloc[0]!r:.40}; turn them into numbers, "
            "such as days since the first, or leave out the column"
        )
    different = filled.nunique()
    if different > _MOST_TEXTS and different > len(filled) / 2:
        raise DataError(
            f"column {name!r} holds {different} different texts in {len(filled)} rows (first: "
            f"{filled.iloc[0]!r:.40}), so it is no category; encode it, or leave out the column"
        )


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return names as a text; no more than the first few."""
    shown = ", ".join(repr(str(name)) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


# From bytes to text --------------------


def _read(source: Source) -> bytes | str:
    if hasattr(source, "read"):
        return source.read()
    try:
        return Path(source).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read the table {os.fspath(source)!r}: {reason}") from error


def _decode(data: bytes, encoding: str, spell: Callable[[str, str], str]) -> str:
    if encoding.lower().replace("-", "") == "utf8":
        for magic, meaning in _NOT_TEXT.items():
            if data.startswith(magic):
                raise DataError(f"line 1, column 1: this is no CSV file but {meaning}")
        if data.startswith(_UTF_16):
            hint = spell("encoding", "utf-16")
            raise DataError(f"line 1, column 1: the file is encoded as UTF-16; pass {hint}")
        encoding = "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("latin-1")
        raise DataError(
            f"{_place(before, _guess_separator(before, '.'))}: byte 0x{data[error.start]:02X} is "
            f"not {error.encoding}; pass {spell('encoding', 'latin-1')} (or cp1252) if the file "
            "is older, or save it as UTF-8"
        ) from error
    except LookupError as error:
        raise ConfigError(f"there is no encoding {encoding!r}") from error
    return text.removeprefix("\ufeff")


def _check_nul(text: str, separator: str) -> None:
    position = text.find("\0")
    if position >= 0:
        raise DataError(
            f"{_place(text[:position], separator)}: the file holds a NUL byte, so it is damaged, "
            "binary or UTF-16; export it again as UTF-8 text"
        )


def _place(before: str, separator: str) -> str:
    lines = before.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return f"line {len(lines)}, column {lines[-1].count(separator) + 1}"


def _guess_separator(text: str, decimal: str) -> str:
    first_line = next((line for line in text[:100_000].splitlines() if line.strip()), "")
    outside_quotes = re.sub(r'"[^"]*"', "", first_line)
    candidates = [each for each in _SEPARATORS if each != decimal]
    return max(candidates, key=outside_quotes.count)


# From text to cells --------------------


def _parse(
    text: str, separator: str, column_names: Sequence[str] | None
) -> tuple[list[str], list[list[str]], list[int]]:
    """Return column names, rows of cells, and the line where each row ends.

    By ``csv`` and not by ``pandas.read_csv``, which fills up short rows, accepts text after a
    quotation mark, and does not tell on which line a cell stands.
    """
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=True
    )
    records = _records(reader)
    no_names: tuple[list[str], int] = ([], 0)
    names, names_line = next(records, no_names) if column_names is None else (column_names, 0)
    names = [name.strip() for name in names]
    _check_names(names, names_line)
    rows, lines = [], []
    for row, line in records:
        if len(row) != len(names):
            raise DataError(_ragged_message(row, line, names, separator))
        rows.append(row)
        lines.append(line)
    if not rows:
        raise DataError(f"line {names_line + 1}: the table has column names but no rows")
    return names, rows, lines


def _records(reader: Any) -> Iterator[tuple[list[str], int]]:
    """Yield cells and the line they end on; blank lines are passed over."""
    start = 1
    try:
        for row in reader:
            if row:
                yield row, reader.line_num
            start = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"line {start}, column unknown: {error}; look for an unpaired quotation mark in the "
            "record that starts there"
        ) from error


def _check_names(names: list[str], line: int) -> None:
    if not names:
        raise DataError("line 1, column 1: the table is empty")
    where = f"line {line}" if line else "column_names"
    if "" in names:
        raise DataError(
            f"{where}, column {names.index('') + 1}: the column has no name; name it, or write the "
            "table without row labels (in pandas: index=False)"
        )
    if line and all(is_number(name.replace(",", ".")) for name in names):
        raise DataError(
            f"{where}, column 1: expected column names, got only numbers ({names[0]!r}, …); add a "
            "header line"
        )
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        positions = [k + 1 for k, name in enumerate(names) if name == repeated[0]]
        raise DataError(
            f"{where}: the name {repeated[0]!r} stands at columns {positions}; names must differ"
        )


def _ragged_message(row: list[str], line: int, names: list[str], separator: str) -> str:
    message = f"line {line}: {len(row)} cells, expected {len(names)}"
    if len(row) < len(names):
        return f"{message}; column {names[len(row)]!r} and what follows are missing"
    message += f"; column {len(names) + 1} ({row[len(names)]!r}) has no name"
    if separator == "," and len(row) == 2 * len(names):
        message += " (a decimal comma? then cells must be separated by ';' or quoted)"
    return message


# From cells to numbers and texts --------------------


def _typed(
    name: str,
    cells: tuple[str, ...],
    lines: list[int],
    kind: Kind | None,
    decimal: str,
    spell: Callable[[str, str], str],
) -> NDArray[Any]:
    """Return float64 or texts as ``kind`` says; without one, numbers where all cells are."""
    if kind == "categorical":
        return _texts(cells)
    if decimal == "." and not any("_" in cell for cell in cells):
        try:  # the same rules as below, in a tenth of the time; ``float`` strips blanks itself
            return np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
        except ValueError:
            pass
    numbers = np.empty(len(cells))
    for k, cell in enumerate(map(str.strip, cells)):
        try:
            numbers[k] = _number(cell, decimal, kind)
        except ValueError:
            if decimal == "." and _DECIMAL_COMMA.fullmatch(cell):
                raise DataError(
                    f"line {lines[k]}, column {name!r}: {cell!r} looks like a decimal comma; pass "
                    f"{spell('decimal', ',')} (or write the numbers with a point)"
                ) from None
            if kind is None:
                return _texts(cells)
            raise DataError(
                f"column {name!r} holds {cell!r:.60} (first in line {lines[k]}), which is not a "
                "number, and held numbers when the model was fitted"
            ) from None
    return numbers


def _texts(cells: Sequence[Any]) -> NDArray[Any]:
    """Return texts without blanks around them; missing ones are ``None``."""
    found = np.empty(len(cells), dtype=object)
    for k, cell in enumerate(cells):
        text = f"{cell:.17g}" if isinstance(cell, float) else str(cell).strip()
        found[k] = None if cell is None or text.lower() in _MISSING_TEXTS else text
    return found


def _number(cell: str, decimal: str, kind: Kind | None = None) -> float:
    """Parse one cell; ``float`` alone would also take ``1_000``, which no table means."""
    lower = cell.lower()
    if lower in _MISSING_NUMBERS:
        return math.nan
    if kind == "boolean" and lower in _TRUTH_VALUES:
        return _TRUTH_VALUES[lower]
    if "_" in cell or (decimal != "." and "." in cell):
        raise ValueError(cell)
    return float(cell.replace(decimal, ".") if decimal != "." else cell)


def is_number(cell: object) -> bool:
    """Tell whether a cell holds a number, and not a missing one."""
    try:
        return not math.isnan(_number(str(cell), "."))
    except ValueError:
        return False


# Options and optional packages --------------------


def _check_options(separator: str | None, decimal: str) -> None:
    if decimal not in (".", ","):
        raise ConfigError(f"decimal must be '.' or ',', got {decimal!r}")
    if separator is not None and (len(separator) != 1 or separator in '\r\n"'):
        raise ConfigError(f"separator must be a single character, got {separator!r}")
    if separator == decimal:
        raise ConfigError(f"separator and decimal are both {separator!r}; they must differ")


def _read_parquet(data: bytes, kinds: Mapping[str, Kind]) -> pd.DataFrame:
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingDependencyError(
            "reading Parquet needs pyarrow: pip install pyarrow, or export the table as CSV"
        )
    try:
        frame = pd.read_parquet(io.BytesIO(data), engine="pyarrow")
    except (OSError, ValueError) as error:
        raise DataError(f"the Parquet table is damaged: {error}") from error
    names = [str(name) for name in frame.columns]
    _check_names(names, 0)
    if len(frame) == 0:
        raise DataError("the table has column names but no rows")
    frame.columns = pd.Index(names)
    frame.index = pd.RangeIndex(1, len(frame) + 1, name="row")
    for name in names:
        if kinds.get(name) == "categorical" or frame[name].dtype.kind == "O":
            frame[name] = _texts(frame[name].tolist())
    return frame
