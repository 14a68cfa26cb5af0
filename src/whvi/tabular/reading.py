"""Read tables from files and refuse what is damaged or doubtful, naming line and column.

Nothing is guessed silently: a decimal comma, a foreign encoding or a ragged row is an error that
says what to do. Cells are data: a cell that looks like a formula is a text, and stays one.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import io
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from whvi.errors import ConfigError, DataError
from whvi.tabular.formats import dates, python_option, typed_values, unpacked, without_margins
from whvi.tabular.inputs import Kind, numbers_of, place, text_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Source = str | os.PathLike[str] | IO[bytes] | IO[str]

_MISSING_NUMBERS = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})  # whatever the case
_MISSING_TEXTS = _MISSING_NUMBERS - {"none"}  # which may well be a category
_TRUTH_VALUES = {"true": 1.0, "false": 0.0}
_SEPARATORS = ("\t", ";", "|", ",")  # a tie goes to the rarer: commas also stand in texts
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?")
_PACKED = (b"PAR1", b"PK\x03\x04", b"\x1f\x8b", b"\xd0\xcf\x11\xe0", b"\x80")
_ALIKE = {" ": "[ \u00a0\u202f]", "'": "['’]"}  # marks between thousands that look the same
_MARKED = re.compile(r"[+-]?[\d.,'’\s]+([eE][+-]?\d+)?")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, kw_only=True)
class CellStyle:
    """How the cells of a text file are written.

    Attributes:
        separator: Between cells; by default whichever of ``, ; | tab`` the first line holds most.
        decimal: ``"."`` or ``","``.
        thousands: Between groups of three digits, such as ``","`` or a blank of any kind; by
            default not allowed.
        encoding: Of a text file; a byte-order mark is dropped.
        na_values: Texts that stand for a missing cell, besides the usual ones.
        spell: How error messages call an option.
    """

    separator: str | None = None
    decimal: str = "."
    thousands: str | None = None
    encoding: str = "utf-8"
    na_values: Sequence[str] = ()
    spell: Callable[[str, str], str] = python_option

    def __post_init__(self) -> None:
        missing = (self.na_values,) if isinstance(self.na_values, str) else self.na_values
        object.__setattr__(self, "na_values", tuple(map(str, missing)))
        if self.decimal not in (".", ","):
            raise ConfigError(f"decimal must be '.' or ',', got {self.decimal!r}")
        marks = {"separator": self.separator, "thousands": self.thousands}
        given = [mark for mark in (self.decimal, *marks.values()) if mark]
        for name, mark in marks.items():
            if mark is not None and (len(mark) != 1 or mark in '\r\n"'):
                raise ConfigError(f"{name} must be a single character, got {mark!r}")
        if len(set(given)) < len(given):
            raise ConfigError(f"separator, decimal and thousands must differ, got {given}")

    def is_missing(self, cell: str, *, text: bool) -> bool:
        """Tell whether a cell without blanks around it stands for nothing."""
        usual = _MISSING_TEXTS if text else _MISSING_NUMBERS
        return cell.lower() in usual or cell in self.na_values

    def number(self, cell: str, kind: Kind | None = None) -> float:
        """Parse one cell; ``float`` alone would also take ``1_000``, which no table means."""
        if self.is_missing(cell, text=False):
            return math.nan
        if kind == "boolean" and cell.lower() in _TRUTH_VALUES:
            return _TRUTH_VALUES[cell.lower()]
        if self.thousands and self.is_grouped(cell, self.thousands):
            cell = re.sub(_ALIKE.get(self.thousands, re.escape(self.thousands)), "", cell)
        if "_" in cell or (self.decimal != "." and "." in cell):
            raise ValueError(cell)
        return float(cell.replace(self.decimal, ".") if self.decimal != "." else cell)

    def is_number(self, cell: object) -> bool:
        """Tell whether a cell holds a number, and not a missing one."""
        try:
            return not math.isnan(self.number(str(cell)))
        except ValueError:
            return False

    def is_grouped(self, cell: str, mark: str) -> bool:
        """Tell whether a cell is a number with ``mark`` between groups of three digits."""
        marks = _ALIKE.get(mark, re.escape(mark)), re.escape(self.decimal)
        return re.fullmatch(r"[+-]?\d{{1,3}}({}\d{{3}})+({}\d*)?".format(*marks), cell) is not None


is_number = CellStyle().is_number


@dataclass(frozen=True)
class Table:
    """A table as it stands in its file: texts of a CSV file, values of a Parquet file.

    Attributes:
        columns: Cells by column name.
        index: Named ``line`` (of the file where a row ends) or ``row``, so that errors name it.
        style: How the cells are written.
        sha256: Checksum of the bytes.
        notes: What was left out.
    """

    columns: Mapping[str, Sequence[Any]]
    index: pd.Index
    style: CellStyle
    sha256: str
    notes: tuple[str, ...] = ()

    def frame(
        self, names: Sequence[str] | None = None, kinds: Mapping[str, Kind] | None = None
    ) -> pd.DataFrame:
        """Return columns with types: those of ``kinds``, else what all of their cells are."""
        found = {}
        for name in self.columns if names is None else names:
            dtype = None if self.index.name == "row" else object  # values, or texts
            cells = pd.Series(self.columns[name], self.index, dtype=dtype, name=name)
            found[name] = _typed(cells, (kinds or {}).get(name), self.style)
        frame = pd.DataFrame(found, index=self.index)
        frame.attrs["sha256"] = self.sha256
        return frame

    def original(self, names: Sequence[str]) -> pd.DataFrame:
        """Return columns as they stand in the file."""
        return pd.DataFrame({name: self.columns[name] for name in names}, index=self.index)


def open_table(
    source: Source, style: CellStyle | None = None, column_names: Sequence[str] | None = None
) -> Table:
    """Read the cells of a file, whose content tells what it is; see :func:`read_table`."""
    style, data = style or CellStyle(), _read(source)
    if isinstance(data, str):  # already decoded by the stream
        data, style = data.encode(errors="surrogatepass"), replace(style, encoding="utf-8")
    sha256, content = hashlib.sha256(data).hexdigest(), data
    if data.startswith(_PACKED):
        content = unpacked(data)
    if isinstance(content, pd.DataFrame):
        names = [str(name) for name in content.columns]
        _check_names(names, 0)
        if len(content) == 0:
            raise DataError("the table has column names but no rows")
        rows = pd.RangeIndex(1, len(content) + 1, name="row")
        values = [content.iloc[:, k].set_axis(rows) for k in range(len(names))]
        return Table(dict(zip(names, values, strict=True)), rows, style, sha256)
    text = _decode(content, style)
    separator = style.separator or guess_separator(text, style.decimal)
    if "\0" in text:
        from whvi.tabular import complaints

        raise complaints.damaged(text, separator)
    names, cells, lines, notes = _parse(text, separator, column_names)
    columns = dict(zip(names, zip(*cells, strict=True), strict=True))
    return Table(columns, pd.Index(lines, name="line"), style, sha256, notes)


def read_table(
    source: Source,
    *,
    column_names: Sequence[str] | None = None,
    kinds: Mapping[str, Kind] | None = None,
    **style: Any,
) -> pd.DataFrame:
    """Read a CSV, TSV, Parquet or Excel table, which may be compressed (``.gz``, ``.zip``).

    Args:
        source: Path or open stream. Parquet needs ``pyarrow``, Excel ``openpyxl``.
        column_names: Given if the file has no header line.
        kinds: What columns hold, by name, such as ``model.schema_.kinds``: the column of a model
            that was fitted on texts stays a column of texts, even if all cells are ``01``. Other
            columns hold numbers, or dates such as ``2020-12-31``, if all of their cells do.
        **style: Options of :class:`CellStyle`, such as ``separator`` and ``decimal``.

    Returns:
        A data frame with float64 for columns of numbers (missing cells are NaN), datetime64 for
        dates and text for all others (missing cells are ``None``). The index is the line of the
        file where a row ends; ``attrs["sha256"]`` is the checksum of the bytes.

    Raises:
        DataError: The table is unreadable; the message names line and column.
    """
    return open_table(source, CellStyle(**style), column_names).frame(kinds=kinds)


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
    found = np.empty((len(frame), len(columns)))
    for k, name in enumerate(columns):
        require_column(frame, name)
        missing = frame[name].isna().to_numpy()
        if count := int(missing.sum()):
            raise DataError(
                f"column {name!r} holds {count} missing value{'s' * (count > 1)} (NaN; first in "
                f"{place(frame[name], int(missing.argmax()))}); drop or fill them"
            )
        found[:, k] = numbers_of(frame[name], name, "numeric")
    return found


def require_column(frame: pd.DataFrame | Table, name: str) -> None:
    """Refuse a name that is no column, with the nearest one that is."""
    if name not in frame.columns:
        names = [str(each) for each in frame.columns]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {listed(names)}"
        raise DataError(f"the table has no column {name!r}; {hint}")


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return names as a text; no more than the first few, and of each its beginning."""
    shown = ", ".join(f"{str(name)!r:.80}" for name in names[:most])
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


def _decode(data: bytes, style: CellStyle) -> str:
    encoding, spell = style.encoding, style.spell
    if encoding.lower().replace("-", "") == "utf8":
        if data.startswith(_UTF_16):
            hint = spell("encoding", "utf-16")
            raise DataError(f"line 1, column 1: the file is encoded as UTF-16; pass {hint}")
        encoding = "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        from whvi.tabular import complaints

        raise complaints.undecodable(data, error, style, guess_separator) from error
    except LookupError as error:
        raise ConfigError(f"there is no encoding {encoding!r}") from error
    return text.removeprefix("\ufeff")


def guess_separator(text: str, decimal: str) -> str:
    """Return the separator that the first line holds most, outside quotation marks."""
    first_line = next((line for line in text[:100_000].splitlines() if line.strip()), "")
    outside_quotes = re.sub(r'"[^"]*"', "", first_line)
    return max((each for each in _SEPARATORS if each != decimal), key=outside_quotes.count)


# From text to cells --------------------


def _parse(
    text: str, separator: str, column_names: Sequence[str] | None
) -> tuple[list[str], list[list[str]], list[int], tuple[str, ...]]:
    """Return column names, rows of cells, the line where each row ends, and what was left out.

    By ``csv``: ``pandas.read_csv`` fills up short rows and does not tell where a cell stands.
    """
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=True
    )
    rest = _records(reader)
    given = (column_names or [], 0)
    found_names, names_line = next(rest, given) if column_names is None else given
    names = [name.strip() for name in found_names]
    found = list(rest)
    rows, lines = [row for row, _ in found], [line for _, line in found]
    notes: tuple[str, ...] = ()
    if rows and names and (not names[0] or not names[-1] or len(rows[0]) == len(names) + 1):
        names, rows, notes = without_margins(names, rows, is_number)
    _check_names(names, names_line)
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(names):
            from whvi.tabular import complaints

            raise complaints.ragged(row, line, names, separator)
    if not rows:
        raise DataError(f"line {names_line + 1}: the table has column names but no rows")
    return names, rows, lines, notes


def _records(reader: Any) -> Iterator[tuple[list[str], int]]:
    """Yield cells of a ``csv.reader`` and the line they end on; blank lines are passed over."""
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
    only_numbers = line and all(is_number(name.replace(",", ".")) for name in names)
    if only_numbers or not all(names) or len(set(names)) < max(len(names), 1):
        from whvi.tabular import complaints

        raise complaints.unusable_names(names, line, only_numbers=bool(names and only_numbers))


# From cells to numbers and texts --------------------


def _typed(cells: pd.Series, kind: Kind | None, style: CellStyle) -> pd.Series:
    """Return float64, datetime64 or texts as ``kind`` says; without one, as all cells are."""
    if cells.index.name == "row":  # values, not texts
        cells = typed_values(cells, kind)
        if cells.dtype.kind != "O":
            return cells
        kind = kind or ("date" if _is_date(_texts(cells, style), style) else "categorical")
    if kind == "categorical":
        return _texts(cells, style)
    if kind == "date" or (kind is None and _is_date(cells, style)):
        return dates(_texts(cells, style))
    try:
        return pd.Series(_numbers(cells, kind, style), cells.index, name=cells.name)
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        if kind is None:
            return _texts(cells, style)
        from whvi.tabular import complaints

        raise DataError(complaints.no_number(cells, int(error.args[0]), style)) from None


def _numbers(cells: pd.Series, kind: Kind | None, style: CellStyle) -> NDArray[np.float64]:
    """Return numbers; the argument of a ``ValueError`` is the position of the first other cell."""
    texts = cells.tolist()
    if style.decimal == "." and not style.na_values and not any("_" in cell for cell in texts):
        try:  # the same rules as below, in a tenth of the time; ``float`` strips blanks itself
            return np.fromiter(map(float, texts), dtype=np.float64, count=len(texts))
        except ValueError:
            pass
    numbers, wrong = np.empty(len(texts)), list[int]()
    for k, cell in enumerate(map(str.strip, texts)):
        try:
            numbers[k] = style.number(cell, kind)
        except ValueError:
            if not _MARKED.fullmatch(cell):
                raise ValueError(wrong[0] if wrong else k) from None
            wrong.append(k)
    if wrong:
        from whvi.tabular import complaints

        complaints.check_marks(cells, wrong, style)
        raise ValueError(wrong[0])
    return numbers


def _texts(cells: pd.Series, style: CellStyle) -> pd.Series:
    """Return texts without blanks around them; missing ones are ``None``."""
    found = np.empty(len(cells), dtype=object)
    for k, cell in enumerate(cells):
        text = "" if cell is None else text_of(cell).strip()
        found[k] = None if style.is_missing(text, text=True) else text
    return pd.Series(found, cells.index, name=cells.name)


def _is_date(cells: pd.Series, style: CellStyle) -> bool:
    filled = [t for t in map(str.strip, cells.dropna()) if not style.is_missing(t, text=True)]
    return bool(filled) and all(map(_DATE.fullmatch, filled))
