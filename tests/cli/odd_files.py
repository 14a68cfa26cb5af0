"""Tables as people have them, and worse: hand-made texts, and files by seeds."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Callable

import numpy as np

Generator = np.random.Generator


def _numbered(cells: list[str], header: str = "x,y") -> str:
    return header + "\n" + "".join(f"{cell},{k % 5}\n" for k, cell in enumerate(cells))


def _many(*cells: str, times: int = 6) -> str:
    return _numbered(list(cells) * times)


# What the column x holds beside a harmless target y; or a whole file, if it has a line end.
HAND_MADE: dict[str, str | bytes] = {
    # numbers, nearly
    "percent": _many("5%", "10%", "7.5 %"),
    "currency": _many("$1", "$2.50", "€3"),
    "units": _many("5kg", "7kg", "8 kg"),
    "accounting": _many("(5)", "7", "-8"),
    "unicode minus": _many("−5", "7", "8"),
    "full-width digits": _many("５", "７"),
    "arabic digits": _many("٥", "٧"),
    "superscript": _many("5²", "7", "1"),
    "hexadecimal": _many("0x1F", "0x2A"),
    "underscores": _many("1_000", "2_000"),
    "fortran": _many("1d5", "2d5"),
    "exponent only": _many("1e5", "1E-5", "1e+05"),
    "overflow": _many("1e400", "1"),
    "underflow": _many("1e-400", "1"),
    "denormal": _many("5e-324", "2e-320"),
    "largest": _many("1.7976931348623157e308", "-1.7976931348623157e308"),
    "signed zeros": _many("-0.0", "0.0"),
    "plus signs": _many("+5", "+7"),
    "points alone": _many(".", ".5", "5."),
    "nan spellings": _many("NaN", "-nan", "nan(0)", "1"),
    "infinities": _many("Infinity", "-inf", "1"),
    "excel errors": _many("#N/A", "#DIV/0!", "1", "2"),
    "excel nulls": _many("#NULL!", "1", "2", "3"),
    "spaces between thousands": _many("1 000", "2 000"),
    "thin spaces": _many("1\u202f000", "2\u202f000"),
    "no-break spaces": _many("\u00a05", "7\u00a0"),
    "apostrophes": _many("'5", "'7"),
    "swiss thousands": _many("1'000", "2'000"),
    "indian thousands": _many('"1,00,000"', '"2,00,000"'),
    "mixed marks": _many('"1.000,5"', '"2,000.5"'),
    "several points": _many("1.2.3", "2.3.4"),
    "fractions": _many("1/2", "3/4"),
    "ranges": _many("10-20", "20-30"),
    "greater than": _many(">5", "<3", "4"),
    "booleans": _many("TRUE", "false", "True"),
    "booleans with holes": _many("TRUE", "", "FALSE"),
    "yes and no": _many("yes", "no", "Y"),
    "booleans and numbers": _many("True", "1", "0"),
    "long digits": _many("1" * 400, "2" * 400),
    "many decimals": _many("0." + "1" * 2000, "0.2"),
    "integers of 2^63": _many("9223372036854775807", "9223372036854775808"),
    # dates and times
    "times": _many("10:00", "11:30"),
    "times of day": _many("10:00:01", "23:59:60"),
    "impossible dates": _many("2020-02-30", "2020-13-01"),
    "some impossible dates": _many("2020-02-28", "2020-02-30"),
    "year 0": _many("0000-01-01", "2020-01-01"),
    "year 1": _many("0001-01-01", "9999-12-31"),
    "zones": _many("2020-01-01T10:00:00Z", "2020-01-01T10:00:00+02:00"),
    "zones and none": _many("2020-01-01T10:00", "2020-01-01T10:00:00Z"),
    "dates and times": _many("2020-01-01", "2020-01-01 10:00:00.123456789"),
    "months": _many("2020-01", "2020-02"),
    "american dates": _many("12/31/2020", "1/2/2021"),
    "words for months": _many("1 Jan 2020", "2 Feb 2020"),
    "compact dates": _many("20200101", "20201231"),
    "weeks": _many("2020-W01", "2020-W53"),
    "dates with holes": _many("2020-01-01", "", "NA"),
    "dates among texts": _many("2020-01-01", "soon", "later"),
    # texts
    "one text": _many("a"),
    "empty quotes": _many('""', '"a"'),
    "quotes in cells": _many('"a ""b"" c"', "d"),
    "quotes inside": _many('a"b', "c"),
    "line ends in cells": _many('"a\nb"', '"c\r\nd"'),
    "separators in cells": _many('"a,b"', '"c;d"'),
    "blanks": _many(" ", "  a", "a  "),
    "tabs in cells": _many('"a\tb"', "c"),
    "controls": _many("\x01", "\x7f", "a\x08b"),
    "escapes": _many("\x1b[31m", "b"),
    "emoji": _many("👩‍👩‍👧‍👦", "🇳🇴", "a"),
    "combining": _many("é", "e\u0301"),
    "right to left": _many("\u202eabc", "שלום"),
    "zero width": _many("a", "a\u200b", "\ufeffa"),
    "surrogates": _many("\U0001f600", "\U0010ffff"),
    "line separators": _many("a\u2028b", "c\u0085d"),
    "form feeds": _many("a\x0cb", "c\x1dd"),
    "none": _many("None", "none", "NONE"),
    "null": _many("null", "NULL", "\\N"),
    "question marks": _many("?", "1", "2"),
    "dashes": _many("-", "1", "2"),
    "formulas": _many("=1+1", "@SUM(A1)"),
    "markup": _many("<script>alert(1)</script>", "<b>"),
    "json": _many('"{""a"": 1}"', '"[1, 2]"'),
    "paths": _many("../../etc/passwd", "C:\\x"),
    "format strings": _many("%s%n", "{0.__class__}", "[bold]x[/bold]"),
    "a long text": _many("a" * 100_000, "b", times=2),
    "many texts": _numbered([f"text {k * 7919 % 101}" for k in range(60)]),
    "identifiers": _numbered([f"id-{k}" for k in range(60)]),
    "code numbers": _many("01", "1", "001"),
    "1.0 and 1": _many("1.0", "1", "01.00"),
    # names
    "blank names": _many("1", "2").replace("x,y", " ,y"),
    "quoted names": _many("1", "2").replace("x,y", '"x ""1""",y'),
    "names with line ends": _many("1", "2").replace("x,y", '"x\n1",y'),
    "names of keywords": _many("1", "2").replace("x,y", "index,y"),
    "names of predictions": _many("1", "2").replace("x,y", "mean,y"),
    "long names": _many("1", "2").replace("x,y", "x" * 10_000 + ",y"),
    "names of numbers": _many("1", "2").replace("x,y", "1,y"),
    "names that differ in blanks": "x, x,y\n" + "1,2,3\n" * 5,
    "names that differ in case": "X,x,y\n1,2,3\n2,3,4\n3,4,5\n",
    "names with marks": "x\ufeff,y\n1,2\n2,3\n3,4\n",
    "names that are formulas": "=x,y\n1,2\n2,3\n3,4\n",
    "the target twice": "y,y\n1,2\n2,3\n",
    # shapes
    "nothing": "",
    "a blank": " ",
    "a line end": "\n",
    "blank lines": "\n\n\nx,y\n\n1,2\n\n\n3,4\n\n",
    "lines of blanks": "x,y\n1,2\n  \n3,4\n",
    "lines of separators": "x,y\n1,2\n,\n3,4\n",
    "a title first": "Report of 2020\n\nx,y\n1,2\n3,4\n",
    "a comment first": "# made by hand\nx,y\n1,2\n3,4\n",
    "a separator line": "sep=;\nx;y\n1;2\n3;4\n",
    "a total last": _many("1", "2") + "Total,9\n",
    "a units line": "x,y\nm,kg\n1,2\n3,4\n",
    "no line end": "x,y\n1,2\n2,3\n3,4",
    "carriage returns": "x,y\r1,2\r2,3\r3,4\r",
    "mixed line ends": "x,y\r\n1,2\n2,3\r3,4\n",
    "an unpaired quote": 'x,y\n1,"2\n2,3\n',
    "a quote at the end": 'x,y\n1,2\n2,3"\n',
    "text after a quote": 'x,y\n"1"a,2\n2,3\n',
    "one column": "y\n1\n2\n3\n",
    "one row": "x,y\n1,2\n",
    "two rows": "x,y\n1,2\n2,3\n",
    "a header only": "x,y\n",
    "no header": "1,2\n3,4\n",
    "one separator": ",\n,\n",
    "pipes": "x|y\n1|2\n2|3\n3|4\n",
    "blanks between": "x y\n1 2\n2 3\n3 4\n",
    "colons": "x:y\n1:2\n2:3\n3:4\n",
    "decimal commas": "x;y\n1,5;2\n2,5;3\n3,5;4\n",
    "html": "<!DOCTYPE html><html><table><tr><td>x</td></tr></table></html>",
    "json lines": '{"x": 1, "y": 2}\n{"x": 2, "y": 3}\n',
    "markdown": "| x | y |\n|---|---|\n| 1 | 2 |\n| 2 | 3 |\n",
    "wide": ",".join([*(f"x{k}" for k in range(300)), "y"]) + "\n" + ("1," * 300 + "2\n") * 4,
    "constant": "x,y\n" + "3,4\n" * 20,
    "a constant target of texts": "x,y\n" + "".join(f"{k},a\n" for k in range(20)),
    "targets with holes": "x,y\n1,\n2,3\n3,4\n",
    "targets of dates": "x,y\n1,2020-01-01\n2,2020-01-02\n3,2020-01-03\n",
    "targets of texts": "x,y\n" + "".join(f"{k},{'abc'[k % 3]}\n" for k in range(20)),
    "targets that all differ": "x,y\n" + "".join(f"{k},t{k}\n" for k in range(20)),
    "targets of codes": "x,y\n" + "".join(f"{k},0{k % 3}\n" for k in range(20)),
    "huge targets": "x,y\n" + "".join(f"{k},{k}e300\n" for k in range(20)),
    "tiny targets": "x,y\n" + "".join(f"{k},{k}e-300\n" for k in range(20)),
    "targets of 2^53": "x,y\n" + "".join(f"{k},{2**53 + k % 3}\n" for k in range(20)),
    "targets that mix": "x,y\n1,2\n2,a\n3,4\n4,True\n",
    "infinite targets": "x,y\n1,inf\n2,3\n3,4\n",
    # bytes
    "UTF-8 with a mark": b"\xef\xbb\xbfx,y\n1,2\n2,3\n3,4\n",
    "two marks": b"\xef\xbb\xbf\xef\xbb\xbfx,y\n1,2\n2,3\n3,4\n",
    "UTF-16": "x,y\n1,2\n2,3\n".encode("utf-16"),
    "UTF-16 without a mark": "x,y\n1,2\n2,3\n".encode("utf-16-le"),
    "UTF-32": "x,y\n1,2\n2,3\n".encode("utf-32"),
    "Latin-1": "x,y\né,2\nå,3\n".encode("latin-1"),
    "half a character": b"x,y\n\xe2\x82,2\n2,3\n",
    "a NUL": b"x,y\n1\x00,2\n2,3\n",
    "an end of file": b"x,y\n1,2\n2,3\n\x1a",
    "gzip of nothing": gzip.compress(b""),
    "half a gzip": gzip.compress(b"x,y\n1,2\n2,3\n")[:15],
    "gzip of gzip": gzip.compress(gzip.compress(b"x,y\n1,2\n2,3\n3,4\n")),
    "bzip2": b"BZh91AY&SY\x00\x00\x00\x00",
    "a PDF": b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n",
    "a picture": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
    "half a Parquet": b"PAR1\x15\x04",
    "a Parquet of nothing": b"PAR1" + b"\x00" * 12 + b"PAR1",
}  # fmt: skip


# Files by seeds --------------------------------------------------------------------------------

_CELLS: list[Callable[[Generator, int], str]] = [
    *[lambda g, k: f"{g.normal():.4g}"] * 12,
    lambda g, k: str(g.integers(-5, 100)),
    lambda g, k: str(k),
    lambda g, k: f"{10.0 ** g.integers(-300, 300):g}",
    lambda g, k: f"{g.standard_cauchy():g}",
    *[lambda g, k: str(g.choice(["a", "b", "c"]))] * 6,
    lambda g, k: f"name {g.integers(0, 60)}",
    lambda g, k: f"0{g.integers(0, 9)}",
    lambda g, k: str(g.choice(["True", "False"])),
    lambda g, k: f"20{g.integers(10, 30)}-{g.integers(1, 13):02d}-{g.integers(1, 29):02d}",
    lambda g, k: f"{g.integers(1, 29)}.{g.integers(1, 13)}.20{g.integers(10, 30)}",
    lambda g, k: f"{g.integers(0, 24):02d}:{g.integers(0, 60):02d}",
    lambda g, k: f"{g.integers(1, 9)},{g.integers(0, 1000):03d}",
    lambda g, k: f"{g.integers(1, 9)},{g.integers(0, 10)}",
    lambda g, k: "same",
    lambda g, k: "",
    lambda g, k: "".join(chr(c) for c in g.integers(32, 0x3000, 4)),
]
_STRAYS = [
    "",
    "NA",
    "nan",
    "-",
    "?",
    "inf",
    "1e999",
    "old",
    "=1+1",
    "  ",
    '"',
    "0",
    "-1",
    "é",
    "\t",
]
_NAMES = [
    "x",
    "age",
    "größe",
    "self",
    "a b",
    "面積",
    "x.1",
    "mean",
    "label",
    "p_a",
    "%",
    "x,1",
    '"',
]


def odd_file(seed: int) -> tuple[str, bytes]:
    """Return the name and the content of a file; most have a column ``y``."""
    generator = np.random.default_rng(seed)
    separator = str(generator.choice([",", ",", ",", ";", "\t", "|"]))
    columns, names = _columns(generator)
    lines = [[_quoted(name, separator, generator) for name in names]]
    lines += [
        [_quoted(cell, separator, generator) for cell in row] for row in zip(*columns, strict=True)
    ]
    if generator.random() < 0.05 and len(lines) > 1:  # a ragged line
        line = lines[int(generator.integers(1, len(lines)))]
        line.append("1") if generator.random() < 0.5 else line.pop()
    end = str(generator.choice(["\n", "\n", "\n", "\r\n", "\r"]))
    if generator.random() < 0.1:
        lines = [[*line, ""] for line in lines]  # trailing separators
    text = end.join(separator.join(line) for line in lines)
    text += end * int(generator.integers(0, 3))
    encoding = str(generator.choice(["utf-8"] * 28 + ["utf-8-sig", "utf-16"]))
    data = text.encode(encoding, errors="replace")
    if generator.random() < 0.15:
        data = _damaged(data, generator)
    return _packed(data, generator)


def _columns(generator: Generator) -> tuple[list[list[str]], list[str]]:
    num_rows = int(generator.choice([0, 1, 2, 3, 12, 12, 12, 30, 30, 30, 60, 60, 60]))
    columns, names = [], []
    for _ in range(int(generator.choice([0, 1, 1, 2, 2, 3, 3, 4, 5]))):
        kind = _CELLS[int(generator.integers(len(_CELLS)))]
        column = [kind(generator, k) for k in range(num_rows)]
        rate = generator.choice([0, 0, 0.02, 0.3])
        stray = str(generator.choice(_STRAYS))
        columns.append([stray if generator.random() < rate else cell for cell in column])
        names.append(str(generator.choice(_NAMES)))
    if generator.random() < 0.95:
        names = [f"{name}{k}" if names.count(name) > 1 else name for k, name in enumerate(names)]
    target = _CELLS[int(generator.choice([0, 12, 16, 24] * 10 + [*range(len(_CELLS))]))]
    place = int(generator.integers(0, len(names) + 1))
    columns.insert(place, [target(generator, k) for k in range(num_rows)])
    names.insert(place, "y")
    return columns, names


def _quoted(cell: str, separator: str, generator: Generator) -> str:
    needs = any(mark in cell for mark in (separator, '"', "\n", "\r"))
    if (needs and generator.random() < 0.95) or generator.random() < 0.02:
        return '"' + cell.replace('"', '""') + '"'
    return cell


def _damaged(data: bytes, generator: Generator) -> bytes:
    for _ in range(int(generator.integers(1, 4))):
        at = int(generator.integers(0, len(data) + 1))
        how, length = int(generator.integers(4)), int(generator.integers(1, 20))
        if how == 0:
            data = data[:at]
        elif how == 1:
            data = data[:at] + data[at + length :]
        elif how == 2:
            data = data[:at] + data[at : at + length] * 2 + data[at + length :]
        else:
            data = data[:at] + generator.bytes(length // 5 + 1) + data[at:]
    return data


def _packed(data: bytes, generator: Generator) -> tuple[str, bytes]:
    kind = generator.random()
    if kind < 0.06:
        return "t.csv.gz", gzip.compress(data, mtime=0)
    if kind < 0.1:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr(zipfile.ZipInfo("t.csv"), data)
        return "t.zip", stream.getvalue()
    return "t.csv", data
