"""What is wrong with a file of cells, in words: line, column, and what to do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from whvi.errors import DataError
from whvi.tabular.inputs import place

if TYPE_CHECKING:
    import pandas as pd

    from whvi.tabular.reading import CellStyle


_OTHER_DATE = re.compile(r"\d{4}[-/.]\d\d?[-/.]\d\d?|\d\d?[./-]\d\d?[./-]\d{2,4}")
_MARKS = {",": "comma", ".": "point", " ": "blank", "'": "apostrophe"}
_LONGEST_MARK = 12  # characters of a text that may stand for a missing cell
_STRAY_SHARE = 0.5  # a column with more numbers than that was meant to hold numbers
_MOST_TEXTS = 20  # different ones in a column, if more than half of its cells differ


def undecodable(
    data: bytes,
    error: UnicodeDecodeError,
    style: CellStyle,
    guess_separator: Callable[[str, str], str],
) -> DataError:
    """Name the first byte that is not of the encoding."""
    before = data[: error.start].decode("latin-1")
    return DataError(
        f"{_place(before, guess_separator(before, '.'))}: byte 0x{data[error.start]:02X} is "
        f"not {error.encoding}; pass {style.spell('encoding', 'latin-1')} (or cp1252) if the file "
        "is older, or save it as UTF-8"
    )


def damaged(text: str, separator: str) -> DataError:
    """Name the first NUL."""
    return DataError(
        f"{_place(text[: text.index(chr(0))], separator)}: the file holds a NUL byte, so it is "
        "damaged, binary or UTF-16; export it again as UTF-8 text"
    )


def _place(before: str, separator: str) -> str:
    lines = before.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return f"line {len(lines)}, column {lines[-1].count(separator) + 1}"


def unusable_names(names: list[str], line: int, *, only_numbers: bool) -> DataError:
    """Say which column names are missing, numbers or repeated; ``line`` 0: they were given."""
    if not names:
        return DataError("line 1, column 1: the table is empty")
    where = f"line {line}" if line else "column_names"
    if "" in names:
        column = names.index("") + 1
        return DataError(f"{where}, column {column}: the column has no name; name it")
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if only_numbers:
        return DataError(
            f"{where}, column 1: expected column names, got only numbers ({names[0]!r}, …); add a "
            "header line"
        )
    positions = [k + 1 for k, name in enumerate(names) if name == repeated[0]]
    return DataError(
        f"{where}: the name {repeated[0]!r} stands at columns {positions}; names must differ"
    )


def ragged(row: Sequence[str], line: int, names: list[str], separator: str) -> DataError:
    """Say how many cells a row has, and where the first is missing or without a name."""
    message = f"line {line}: {len(row)} cells, expected {len(names)}"
    if len(row) < len(names):
        return DataError(f"{message}; column {names[len(row)]!r} and what follows are missing")
    message += f"; column {len(names) + 1} ({row[len(names)]!r}) has no name"
    if separator == "," and len(row) == 2 * len(names):
        message += " (a decimal comma? then cells must be separated by ';' or quoted)"
    return DataError(message)


def check_marks(cells: pd.Series, wrong: list[int], style: CellStyle) -> None:
    """Refuse a column of numbers, were it not for their marks; name the options to use."""
    texts = [cells.iloc[k].strip() for k in wrong]
    other = "," if style.decimal == "." else "."
    one = [{"decimal": other}, *({"thousands": m} for m in _MARKS if m != style.decimal)]
    two = [{"decimal": other, "thousands": m} for m in _MARKS if m != other]
    for readings in (one, two):  # both options only if one is not enough
        fit = [given for given in readings if all(map(_style(style, **given).is_number, texts))]
        if fit:
            looks = (" and ".join(_look(*each) for each in given.items()) for given in fit)
            options = (" ".join(style.spell(*each) for each in given.items()) for given in fit)
            raise DataError(
                f"{place(cells, wrong[0])}, column {cells.name!r}: {texts[0]!r} looks like "
                f"{' or '.join(looks)}; pass {' or '.join(options)}"
            )


def _style(style: CellStyle, decimal: str | None = None, thousands: str | None = None) -> CellStyle:
    decimal = decimal or style.decimal
    return replace(style, separator=None, decimal=decimal, thousands=thousands)


def _look(option: str, mark: str) -> str:
    if option == "decimal":
        return f"a decimal {_MARKS[mark]}"
    return f"{'an' if _MARKS[mark] == 'apostrophe' else 'a'} {_MARKS[mark]} between thousands"


def no_number(cells: pd.Series, k: int, style: CellStyle) -> str:
    """Say which cell of a column of numbers is none, and what to do if it stands for nothing."""
    text = str(cells.iloc[k])
    missing = style.spell("na-values", text) if len(text) <= _LONGEST_MARK else ""
    return (
        f"column {cells.name!r} holds {text!r:.60} (first in {place(cells, k)}), which is not a "
        f"number{f'; pass {missing} if it stands for a missing cell' * bool(missing)}"
    )


def category_problem(texts: pd.Series, name: str, style: CellStyle) -> str | None:
    """Say why a column of texts was meant to hold something else than categories, if it was."""
    filled = texts.dropna().map(str)
    strays = filled[~filled.map(style.is_number)]
    if len(filled) - len(strays) > _STRAY_SHARE * len(filled):
        return no_number(strays, 0, style)
    dates = filled[filled.map(lambda text: _OTHER_DATE.match(text) is not None)]
    if len(dates) > _STRAY_SHARE * len(filled):
        return (
            f"column {name!r} holds dates such as {dates.iloc[0]!r:.40}, which are read only if "
            "all are written as 2020-12-31"
        )
    different = filled.nunique()
    if different > _MOST_TEXTS and different > len(filled) / 2:
        return (
            f"column {name!r} holds {different} different texts in {len(filled)} rows (first: "
            f"{filled.iloc[0]!r:.40}), so it is no category"
        )
    return None
