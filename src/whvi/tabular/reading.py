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
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from whvi.errors import ConfigError, DataError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from numpy.typing import NDArray

    Source = str | os.PathLike[str] | IO[bytes] | IO[str]

MISSING_CELLS = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})  # whatever the case
_SEPARATORS = ("\t", ";", "|", ",")  # a tie goes to the rarer: commas also stand in texts
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(e[+-]?\d+)?", re.IGNORECASE)
_NOT_TEXT = {
    b"PK\x03\x04": "a ZIP archive or spreadsheet; export it as CSV",
    b"\x1f\x8b": "compressed with gzip; decompress it",
    b"\x80": "a binary file; export it as CSV",
    b"\xd0\xcf\x11\xe0": "an old spreadsheet; export it as CSV",
    b"\xff\xfe": "encoded as UTF-16; pass encoding='utf-16'",
    b"\xfe\xff": "encoded as UTF-16; pass encoding='utf-16'",
}


def read_table(
    source: Source,
    *,
    separator: str | None = None,
    decimal: str = ".",
    encoding: str = "utf-8",
    column_names: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Read a CSV, TSV or Parquet table.

    Args:
        source: Path or open stream. Parquet is recognised by its content and needs ``pyarrow``.
        separator: Between cells; by default whichever of ``, ; | tab`` the first line holds most.
        decimal: ``"."`` or ``","``.
        encoding: Of a text file; a byte-order mark is dropped.
        column_names: Given if the file has no header line.

    Returns:
        A data frame with float64 for columns of numbers (missing cells are NaN) and text for all
        others. The index is the line of the file where a row ends, so that later errors can name
        it; ``attrs["sha256"]`` is the checksum of the bytes.

    Raises:
        DataError: The table is unreadable; the message names line and column.
    """
    pandas = _import_pandas()
    _check_options(separator, decimal)
    content = _read(source)
    if isinstance(content, str):  # already decoded by the stream
        content, encoding = content.encode(errors="surrogatepass"), "utf-8"
    data = content
    if data.startswith(b"PAR1"):
        frame = _read_parquet(pandas, data)
    else:
        text = _decode(data, encoding)
        separator = separator or _guess_separator(text, decimal)
        _check_nul(text, separator)
        names, rows, lines = _parse(text, separator, column_names)
        cells = zip(*rows, strict=True)
        columns = {
            name: _convert(name, column, lines, decimal)
            for name, column in zip(names, cells, strict=True)
        }
        frame = pandas.DataFrame(columns, index=pandas.Index(lines, name="line"))
    frame.attrs["sha256"] = hashlib.sha256(data).hexdigest()
    return frame


def numeric_columns(frame: pd.DataFrame, columns: Sequence[str]) -> NDArray[np.float64]:
    """Return columns as float64, shape ``(N, len(columns))``; every value is a finite number.

    Raises:
        DataError: A column is absent, or holds texts, dates, missing or infinite values; the
            message names the column and the first line (or row label) at fault.
    """
    if len(frame) == 0:
        raise DataError("the table has no rows")
    if not frame.columns.is_unique:
        raise DataError(f"column names must differ, got {list(frame.columns)[:20]}")
    arrays = [_numeric_column(frame, name) for name in columns]
    return np.stack(arrays, axis=1) if arrays else np.empty((len(frame), 0))


# From bytes to text --------------------


def _read(source: Source) -> bytes | str:
    if hasattr(source, "read"):
        return source.read()
    try:
        return Path(source).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read the table {os.fspath(source)!r}: {reason}") from error


def _decode(data: bytes, encoding: str) -> str:
    if encoding.lower().replace("-", "") == "utf8":
        for magic, meaning in _NOT_TEXT.items():
            if data.startswith(magic):
                raise DataError(f"line 1, column 1: this is no CSV file but {meaning}")
        encoding = "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("latin-1")
        raise DataError(
            f"{_place(before, _guess_separator(before, '.'))}: byte 0x{data[error.start]:02X} is "
            f"not {error.encoding}; pass encoding='latin-1' (or 'cp1252') if the file is older, "
            f"or save it as UTF-8"
        ) from error
    except LookupError as error:
        raise ConfigError(f"there is no encoding {encoding!r}") from error
    return text.removeprefix("\ufeff")


def _check_nul(text: str, separator: str) -> None:
    position = text.find("\0")
    if position >= 0:
        raise DataError(
            f"{_place(text[:position], separator)}: the file holds a NUL byte, so it is damaged, "
            f"binary or UTF-16; export it again as UTF-8 text"
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
    """Return column names, rows of cells, and the line where each row ends."""
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


def _records(reader: Any) -> Any:
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
            f"record that starts there"
        ) from error


def _check_names(names: list[str], line: int) -> None:
    if not names:
        raise DataError("line 1, column 1: the table is empty")
    place = f"line {line}" if line else "column_names"
    if "" in names:
        raise DataError(
            f"{place}, column {names.index('') + 1}: the column has no name; name it, or write the "
            f"table without row labels (in pandas: index=False)"
        )
    if line and all(_is_number(name) for name in names):
        raise DataError(
            f"{place}, column 1: expected column names, got only numbers ({names[0]!r}, …); add a "
            f"header line or pass column_names="
        )
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        positions = [k + 1 for k, name in enumerate(names) if name == repeated[0]]
        raise DataError(
            f"{place}: the name {repeated[0]!r} stands at columns {positions}; names must differ"
        )


def _ragged_message(row: list[str], line: int, names: list[str], separator: str) -> str:
    message = f"line {line}: {len(row)} cells, expected {len(names)}"
    if len(row) < len(names):
        return f"{message}; column {names[len(row)]!r} and what follows are missing"
    message += f"; column {len(names) + 1} ({row[len(names)]!r}) has no name"
    if separator == "," and len(row) == 2 * len(names):
        message += " (a decimal comma? then cells must be separated by ';' or quoted)"
    return message


# From cells to numbers --------------------


def _convert(name: str, cells: tuple[str, ...], lines: list[int], decimal: str) -> Any:
    """Return float64 if every cell is a number or missing, else the texts as they are."""
    if decimal == "." and not any("_" in cell for cell in cells):
        try:  # the same rules as below, in a tenth of the time; ``float`` strips blanks itself
            return np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
        except ValueError:
            pass
    return _convert_cellwise(name, [cell.strip() for cell in cells], lines, decimal)


def _convert_cellwise(name: str, cells: list[str], lines: list[int], decimal: str) -> Any:
    numbers = np.empty(len(cells))
    for k, cell in enumerate(cells):
        try:
            numbers[k] = _number(cell, decimal)
        except ValueError:
            if decimal == "." and _DECIMAL_COMMA.fullmatch(cell):
                raise DataError(
                    f"line {lines[k]}, column {name!r}: {cell!r} looks like a decimal comma; "
                    f"pass decimal=',' (or write the numbers with a point)"
                ) from None
            return np.array(cells, dtype=object)
    return numbers


def _number(cell: str, decimal: str) -> float:
    """Parse one cell; ``float`` alone would also take ``1_000``, which no table means."""
    if cell.lower() in MISSING_CELLS:
        return math.nan
    if "_" in cell or (decimal != "." and "." in cell):
        raise ValueError(cell)
    return float(cell.replace(decimal, ".") if decimal != "." else cell)


def _is_number(cell: str) -> bool:
    try:
        _number(cell.replace(",", "."), ".")
    except ValueError:
        return False
    return cell.lower() not in MISSING_CELLS


def _numeric_column(frame: pd.DataFrame, name: str) -> NDArray[np.float64]:
    if name not in frame.columns:
        near = difflib.get_close_matches(name, [str(each) for each in frame.columns], n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {list(frame.columns)[:20]}"
        raise DataError(f"the table has no column {name!r}; {hint}")
    series = frame[name]
    if series.dtype.kind not in "fiub":
        raise DataError(_text_message(frame, name))
    values: NDArray[np.float64] = series.to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        kind = "missing values" if np.isnan(values[bad]).all() else "values that are not finite"
        raise DataError(
            f"column {name!r} holds {len(bad)} {kind} (first in {_row(frame, bad[0])}); "
            f"drop or fill them before fitting"
        )
    return values


def _text_message(frame: pd.DataFrame, name: str) -> str:
    for k, cell in enumerate(frame[name]):
        if not (isinstance(cell, int | float) or (isinstance(cell, str) and _is_number(cell))):
            if isinstance(cell, str) and cell.lower() in MISSING_CELLS:
                continue
            shown = repr(cell)[:60]
            return (
                f"column {name!r} holds {shown} (first in {_row(frame, k)}), which is not a "
                f"number; encode or leave out the column"
            )
    return f"column {name!r} is of type {frame[name].dtype}; convert it to numbers"


def _row(frame: pd.DataFrame, position: int) -> str:
    return f"{frame.index.name or 'row'} {frame.index[position]}"


# Doors and optional packages --------------------


def _check_options(separator: str | None, decimal: str) -> None:
    if decimal not in (".", ","):
        raise ConfigError(f"decimal must be '.' or ',', got {decimal!r}")
    if separator is not None and (len(separator) != 1 or separator in '\r\n"'):
        raise ConfigError(f"separator must be a single character, got {separator!r}")
    if separator == decimal:
        raise ConfigError(f"separator and decimal are both {separator!r}; they must differ")


def _import_pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise MissingDependencyError(
            "reading tables needs pandas: pip install 'whvi[tables]'"
        ) from error
    return pandas


def _read_parquet(pandas: Any, data: bytes) -> Any:
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingDependencyError(
            "reading Parquet needs pyarrow: pip install pyarrow, or export the table as CSV"
        )
    try:
        frame = pandas.read_parquet(io.BytesIO(data), engine="pyarrow")
    except (OSError, ValueError) as error:
        raise DataError(f"the Parquet table is damaged: {error}") from error
    names = [str(name) for name in frame.columns]
    _check_names(names, 0)
    if len(frame) == 0:
        raise DataError("the table has column names but no rows")
    frame.columns = names
    frame.index = pandas.RangeIndex(1, len(frame) + 1, name="row")
    return frame
