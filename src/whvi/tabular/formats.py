"""Tables that are no plain text files: Parquet, Excel, compressed; dates; odd margins."""

from __future__ import annotations

import decimal
import gzip
import importlib.util
import io
import shlex
import zipfile
import zlib
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from whvi.errors import ConfigError, DataError, MissingDependencyError
from whvi.tabular.inputs import place, text_of

if TYPE_CHECKING:
    from whvi.tabular.inputs import Kind

_NO_TABLE = {
    b"\xd0\xcf\x11\xe0": "an old spreadsheet; save it as .xlsx or CSV",
    b"\x80": "a binary file; export it as CSV",
}
_NOT_WRITTEN = ("xls", "xlsm", "ods", "zip", "bz2", "xz", "zst", "7z", "feather", "json", "html")
_EXCEL_ROWS = 1 << 20


def unpacked(data: bytes) -> bytes | pd.DataFrame:
    """Return the text of a compressed file, or the values of a Parquet or Excel table."""
    for magic, meaning in _NO_TABLE.items():
        if data.startswith(magic):
            raise DataError(f"line 1, column 1: this is no CSV file but {meaning}")
    try:
        if data.startswith(b"PAR1"):
            return _parquet(data)
        if data.startswith(b"\x1f\x8b"):
            return _inner(gzip.decompress(data))
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if "xl/workbook.xml" in archive.namelist():
                return _excel(data)
            names = [n for n in archive.namelist() if not n.endswith("/") and "__MACOSX" not in n]
            if len(names) != 1:
                raise DataError(
                    f"the ZIP archive must hold one table, and holds {len(names)} files"
                )
            return _inner(archive.read(names[0]))
    except (OSError, ValueError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"line 1, column 1: the compressed file is damaged, export it as CSV: {error}"
        ) from error


def _inner(data: bytes) -> bytes | pd.DataFrame:
    return unpacked(data) if data.startswith((b"PAR1", b"PK\x03\x04")) else data


def without_margins(
    names: list[str], rows: list[list[str]], is_number: Callable[[object], bool]
) -> tuple[list[str], list[list[str]], tuple[str, ...]]:
    """Leave out an empty last column (trailing separators) and row labels without a name (R)."""
    width, notes = len(names), []
    if rows and width > 1 and not names[-1] and all(row[width - 1 :] in ([""], []) for row in rows):
        names, rows = names[:-1], [row[: width - 1] for row in rows]
    elif rows and all(len(row) == width + 1 for row in rows):
        firsts = [row[0] for row in rows]
        is_counted = firsts == [str(k + 1) for k in range(len(rows))]
        if not any(row[-1] for row in rows):
            rows = [row[:-1] for row in rows]
        elif is_counted or not any(map(is_number, firsts)):
            names = ["", *names]
    if len(names) > 1 and not names[0]:
        names, rows = names[1:], [row[1:] for row in rows]
        notes.append("the first column has no name: taken for row labels, and left out")
    return names, rows, tuple(notes)


def check_format(name: str) -> None:
    """Refuse the name of a file to write whose format cannot be written."""
    ending = name.lower().removesuffix(".gz").rpartition(".")[2]
    packed = name.lower().endswith(".gz")
    if ending in _NOT_WRITTEN or (packed and ending in ("parquet", "xlsx")):
        raise ConfigError(
            f"{name!r}: predictions are written as .csv, .tsv (also .gz), .parquet or .xlsx"
        )
    for suffix, package in ((".parquet", "pyarrow"), (".xlsx", "openpyxl")):
        if name.lower().endswith(suffix):
            require(package, f"writing {suffix}")


def write_packed(table: pd.DataFrame, stream: IO[bytes], name: str, separator: str) -> None:
    """Write a Parquet, Excel or compressed CSV file, as the name says."""
    if name.lower().endswith(".parquet"):
        table.to_parquet(stream, index=False)
    elif name.lower().endswith(".xlsx"):
        if len(table) >= _EXCEL_ROWS:
            raise DataError(f"{len(table):,} rows do not fit an Excel sheet; write CSV")
        table = table.rename(columns=_excel_cell)
        for k, dtype in enumerate(table.dtypes):
            if dtype.kind == "O" or isinstance(dtype, pd.DatetimeTZDtype):
                table.isetitem(k, table.iloc[:, k].astype(object).map(_excel_cell))
        table.to_excel(stream, index=False, engine="openpyxl")
    else:
        with gzip.GzipFile(fileobj=stream, mode="wb", mtime=0) as packed:
            text = io.TextIOWrapper(packed, encoding="utf-8", newline="")
            table.to_csv(text, sep=separator, index=False, lineterminator="\n")
            text.flush()


def _excel_cell(value: Any) -> Any:
    """Return a value that Excel can hold: no control characters, no time zone but in a text."""
    if isinstance(value, str):
        return "".join(c if c >= " " or c in "\t\n\r" else ascii(c)[1:-1] for c in value)
    return value.isoformat() if getattr(value, "tzinfo", None) is not None else value


def python_option(name: str, value: str) -> str:
    """Spell an option of :func:`read_table` in an error message."""
    return f"{name.replace('-', '_')}={value!r}"


def shell_option(name: str, value: str) -> str:
    """Spell an option of the command in an error message."""
    return f"--{name} " + ('"\'"' if value == "'" else shlex.quote(value))


def require(package: str, what: str) -> None:
    """Refuse to go on without an optional package."""
    if importlib.util.find_spec(package) is None:
        raise MissingDependencyError(f"{what} needs {package}: pip install {package}, or use CSV")


def _parquet(data: bytes) -> pd.DataFrame:
    require("pyarrow", "reading Parquet")
    import pyarrow
    import pyarrow.parquet

    frame = pd.read_parquet(io.BytesIO(data), engine="pyarrow")
    fields = pyarrow.parquet.read_schema(io.BytesIO(data))
    whole = [field.name for field in fields if pyarrow.types.is_integer(field.type)]
    if frame.columns.is_unique:  # identifiers with a hole would become floats, and be rounded
        for name in (each for each in whole if each in frame and frame[each].dtype.kind == "f"):
            column = pd.read_parquet(
                io.BytesIO(data), columns=[name], dtype_backend="numpy_nullable"
            )
            frame[name] = column[name]
    return frame


def _excel(data: bytes) -> pd.DataFrame:
    """Read the first sheet; dates and numbers are what the cells hold, not how they look."""
    require("openpyxl", "reading Excel files")
    import openpyxl

    book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    rows = [row for row in book.worksheets[0].iter_rows(values_only=True) if set(row) != {None}]
    names, *cells = rows or [()]
    width = len(names)
    while width and names[width - 1] is None:
        width -= 1
    columns = list(zip(*(row[:width] for row in cells), strict=True)) or [()] * width
    named = ["" if name is None else str(name).strip() for name in names[:width]]
    found = [pd.Series(list(column), dtype=object) for column in columns]
    return (
        pd.concat(found, axis=1, keys=range(width)).set_axis(named, axis=1)
        if found
        else pd.DataFrame()
    )


def typed_values(values: pd.Series, kind: Kind | None) -> pd.Series:
    """Return the values of one column as numbers, truth values or dates; or texts, as objects.

    Raises:
        DataError: They are lists, bytes or something else that is neither; the column is named.
    """
    if values.dtype.kind != "O" or isinstance(values.dtype, pd.CategoricalDtype):
        if kind == "categorical":
            return values.astype(object).where(values.notna(), None)
        holey = values.dtype.kind in "iu" and values.hasnans
        return values.astype(np.float64) if holey else values
    missing = values.isna()
    cells = [None if gone else _plain(v) for v, gone in zip(values, missing, strict=True)]
    for k, cell in enumerate(cells):
        if not isinstance(cell, str | bool | int | float | pd.Timestamp | None):
            raise DataError(
                f"column {values.name!r}, {place(values, k)}: expected numbers or texts, got "
                f"{type(cell).__name__} {cell!r:.60}; leave out the column"
            )
    kinds = {type(cell) for cell in cells} - {type(None)}
    if kind == "categorical" or (str in kinds and kind is None):
        return _series(cells, values, object)
    if str in kinds and pd.Timestamp not in kinds:  # numbers or dates as texts
        return _series(["" if c is None else text_of(c) for c in cells], values, object)
    if kinds <= {bool} and kind in (None, "boolean") and kinds:
        return _series(cells, values, "boolean")
    if kinds <= {bool, int, float}:
        return _series([np.nan if cell is None else float(cell) for cell in cells], values, float)
    if kinds == {pd.Timestamp}:
        return _series(cells, values, "datetime64[us]")
    raise DataError(
        f"column {values.name!r} mixes {' and '.join(sorted(k.__name__ for k in kinds))}; one kind "
        "per column is expected"
    )


def dates(texts: pd.Series) -> pd.Series:
    """Return dates written as 2020-12-31 as datetime64."""
    try:
        found = pd.to_datetime(texts, format="ISO8601")
    except ValueError:  # also of several time zones
        found = None
    if found is not None and isinstance(found.dtype, np.dtype):  # without a time zone
        return found.astype("datetime64[us]")
    k = next(k for k, text in enumerate(texts) if text is not None and not _is_plain_date(text))
    raise DataError(
        f"column {texts.name!r} is to hold dates like 2020-12-31, got {texts.iloc[k]!r:.60} "
        f"(first in {place(texts, k)})"
    )


def _is_plain_date(text: str) -> bool:
    try:
        return pd.to_datetime(text, format="ISO8601").tzinfo is None
    except ValueError:
        return False


def _series(cells: list[Any], like: pd.Series, dtype: Any) -> pd.Series:
    return pd.Series(cells, like.index, dtype=dtype, name=like.name)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, decimal.Decimal):
        return float(value)
    return pd.Timestamp(value) if hasattr(value, "year") else value
