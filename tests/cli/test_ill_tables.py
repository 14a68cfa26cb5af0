"""Ill tables × {fit, predict}: every cell says what is expected of it.

``WORKS``: exit code 0 (and finite numbers). Anything else: exit code 2 and a line that matches.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import time

import pytest

from tests.cli.small_tables import QUICK, rows, write
from whvi.cli import main
from whvi.tabular import load_model

WORKS = "works"
COLUMNS = ["size", "age", "town", "price"]
GOOD = rows(30, 3)


def text(table, columns=COLUMNS, separator=",", end="\n"):
    lines = [separator.join(columns)]
    lines += [separator.join(str(row[name]) for name in columns) for row in table]
    return (end.join(lines) + end).encode()


def with_cell(column, value, row=4):
    changed = [dict(each) for each in GOOD]
    changed[row][column] = value
    return text(changed)


def with_column(column, function):
    return text([{**row, column: function(k)} for k, row in enumerate(GOOD)])


# name: (file, what fit does, what predict does)
TABLES = {
    "good": (text(GOOD), WORKS, WORKS),
    "byte-order mark": (b"\xef\xbb\xbf" + text(GOOD), WORKS, WORKS),
    "CRLF": (text(GOOD, end="\r\n"), WORKS, WORKS),
    "TSV": (text(GOOD, separator="\t"), WORKS, WORKS),
    "semicolons": (text(GOOD, separator=";"), WORKS, WORKS),
    "NaN in X": (with_cell("size", "nan"), WORKS, WORKS),
    "empty cell in X": (with_cell("age", ""), WORKS, WORKS),
    "empty category": (with_cell("town", ""), WORKS, WORKS),
    "an empty column": (with_column("age", lambda k: ""), WORKS, WORKS),
    "an empty column of texts": (with_column("town", lambda k: "NA"), WORKS, WORKS),
    "nothing but holes": (b"size,age,town,price\n,,,1\n,,,2\n", "no column holds", WORKS),
    "NaN in y": (with_cell("price", "nan"), "'price' .*line 6", WORKS),
    "infinity in X": (with_cell("size", "inf"), "'size' .*line 6", "'size' .*line 6"),
    "minus infinity in X": (with_cell("size", "-inf"), "not finite", "not finite"),
    "infinity in y": (with_cell("price", "inf"), "'price' .*line 6", WORKS),
    "a text among numbers": (with_cell("age", "old"), "'age' holds 'old'.*line 6", "'age' .*'old'"),
    "a formula": (with_cell("age", "=1+1"), "'=1\\+1' .*line 6", "'=1\\+1' .*line 6"),
    "dates": (
        with_column("age", lambda k: f"2020-01-{k + 1:02d}"),
        WORKS,
        "'age' holds '2020-01-01'.*not a",
    ),
    "dates of some country": (
        with_column("age", lambda k: f"{k + 1}.01.2020"),
        "'age' holds dates such as '1.01.2020'.* 2020-12-31; .* --drop age",
        "'age' holds '1.01.2020'.*not a",
    ),
    "two wrong columns": (
        with_cell("age", "old").replace(b"A", b"2020/1/1").replace(b"B", b"2020/1/2"),
        "'age' holds 'old'.*'town' holds dates.*: --drop age --drop town",
        "'age' holds 'old'",
    ),
    "thousands": (
        with_column("size", lambda k: f'"1,{k:03d}"'),
        "'1,000' looks like a decimal comma or a comma between thousands.* or --thousands ,",
        "'1,000' looks like a decimal comma or a comma between thousands",
    ),
    "points between thousands": (
        with_column("size", lambda k: f'"{k % 3}.234,5"' if k else '"7,5"'),
        "'7,5' looks like a decimal comma and a point between thousands; pass --decimal , "
        "--thousands .;",
        "'7,5' looks like a decimal comma and a point between thousands",
    ),
    "blanks between thousands": (
        with_column("price", lambda k: f"1 00{k % 9}"),
        "'1 000' looks like a blank between thousands; pass --thousands ' '",
        WORKS,
    ),
    "apostrophes between thousands": (
        with_column("size", lambda k: f"1'00{k % 9}"),
        """looks like an apostrophe between thousands; pass --thousands "'";""",
        "looks like an apostrophe between thousands",
    ),
    "a text for missing cells": (
        with_cell("age", "-"),
        "'age' holds '-' .*; pass --na-values - if it stands for a missing cell",
        "'age' holds '-' .*; pass --na-values -",
    ),
    "booleans": (with_column("age", lambda k: k % 2 == 0), WORKS, "'age' holds 'True'"),
    "other width": (b"size,age,price\n1,2,3\n4,5,6\n7,8,9\n", WORKS, "lacks 1 of 3.*'town'"),
    "other order": (text(GOOD, COLUMNS[::-1]), WORKS, WORKS),
    "an extra column": (text([{**r, "id": 1} for r in GOOD], [*COLUMNS, "id"]), WORKS, WORKS),
    "other names": (text(GOOD).replace(b"size", b"length"), WORKS, "'size'"),
    "numbers for categories": (with_column("town", lambda k: k), WORKS, WORKS),  # all unknown
    "an unseen category": (with_cell("town", "Z"), WORKS, WORKS),
    "1e30": (with_column("size", lambda k: 1e30 * (k - 9)), WORKS, WORKS),
    "1e-30": (with_column("size", lambda k: 1e-30 * (k - 9)), WORKS, WORKS),
    "mixed scales": (with_column("size", lambda k: 10.0 ** (k - 15)), WORKS, WORKS),
    "the largest numbers": (with_column("size", lambda k: (-1) ** k * 1.7e308), WORKS, WORKS),
    "a huge target": (with_column("price", lambda k: k * 1e200), "'price' holds 2.9e.*unit", WORKS),
    "a day that is not": (
        with_column("age", lambda k: f"2020-02-{k + 1:02d}"),
        "'age' is to hold dates .*, got '2020-02-30' .*line 31.*: --drop age",
        "not a number",
    ),
    "a constant column": (with_column("size", lambda k: 3), WORKS, WORKS),
    "all columns constant": (text([{**GOOD[0], "price": k} for k in range(30)]), WORKS, WORKS),
    "a constant target": (with_column("price", lambda k: 3), WORKS, WORKS),
    "duplicated rows": (text(GOOD[:3] * 10), WORKS, WORKS),
    "one row": (text(GOOD[:1]), "row|works", WORKS),
    "two rows": (text(GOOD[:2]), "row|works", WORKS),
    "no columns to learn from": (b"price\n1\n2\n3\n", "no column to learn", "lacks 3 of 3"),
    "empty": (b"", "line 1, column 1: the table is empty", "the table is empty"),
    "header only": (b"size,age,town,price\n", "line 2: .*no rows", "line 2: .*no rows"),
    "ragged": (text(GOOD) + b"1,2\n", "line 32: 2 cells", "line 32: 2 cells"),
    "NUL": (text(GOOD) + b"1,2,\0,4\n", "line 32, column 3: .*NUL", "line 32, column 3"),
    "Latin-1": (
        text(GOOD) + "1,2,Å,4\n".encode("latin-1"),
        "line 32, column 3: .*--encoding latin-1",
        "line 32, column 3",
    ),
    "decimal comma": (
        b"size;age;town;price\n1,5;2;A;3\n",
        "line 2, column 'size': .*--decimal ,",
        "line 2, column 'size': .*--decimal ,",
    ),
    "duplicate names": (b"size,size,town,price\n1,2,A,3\n", "line 1: .*'size'", "line 1: .*'size'"),
    "row labels": (b",size,age,town,price\n0,1,2,A,3\n1,2,2,A,3\n", WORKS, WORKS),
    "a column without a name": (b"size,,town,price\n1,2,A,3\n", "has no name", "has no name"),
    "trailing commas": (text(GOOD).replace(b"\n", b",\n"), WORKS, WORKS),
    "a column named self": (text(GOOD).replace(b"size", b"self"), WORKS, "'size'"),
    "no header": (b"1,2,3,4\n5,6,7,8\n", "expected column names.*header", "expected column names"),
    "binary": (b"\x80\x04\x95" + bytes(90), "binary", "binary"),
    "a spreadsheet": (b"PK\x03\x04" + bytes(90), "export it as CSV", "export it as CSV"),
}


def check(expected, code, captured):
    if expected == WORKS:
        assert code == 0, captured.err
        return
    if code == 0:
        assert "works" in expected, "expected to be refused"
        return
    assert code == 2
    assert captured.err.count("\n") == 1
    assert re.search(f"^error: .*({expected})", captured.err), captured.err


@pytest.mark.parametrize("case", TABLES)
def test_fit(case, tmp_path, capsys):
    data, expected, _ = TABLES[case]
    path = tmp_path / "table.csv"
    path.write_bytes(data)
    model = tmp_path / "m.whvi"
    call = ["fit", str(path), "-t", "price", "-o", str(model), "--likelihood", "gaussian"]
    code = main([*call, *QUICK])
    check(expected, code, capsys.readouterr())
    assert model.exists() == (code == 0)
    assert sorted(each.name for each in tmp_path.iterdir()) == (
        ["m.whvi", "table.csv"] if code == 0 else ["table.csv"]
    )


@pytest.mark.parametrize("case", TABLES)
def test_predict(case, files, tmp_path, capsys):
    data, _, expected = TABLES[case]
    path, output = tmp_path / "table.csv", tmp_path / "out.csv"
    path.write_bytes(data)
    start = time.perf_counter()
    code = main(["predict", files["house"], str(path), "-o", str(output), "-q"])
    assert time.perf_counter() - start < 10  # a hostile table is no way to stop a machine
    check(expected, code, capsys.readouterr())
    assert output.exists() == (code == 0)
    if code == 0:
        for row in csv.DictReader(io.StringIO(output.read_text())):
            assert all(math.isfinite(float(value)) for value in row.values())


def test_missing_cells_are_ordinary(tmp_path, capsys):
    data, model = tmp_path / "t.csv", str(tmp_path / "m")
    table = [dict(row) for row in GOOD]
    table[3]["size"], table[5]["town"] = "", ""
    write(data, COLUMNS, table)
    call = ["fit", str(data), "-t", "price", "-o", model, "--likelihood", "gaussian"]
    assert main([*call, *QUICK]) == 0
    assert main(["predict", model, str(data)]) == 0
    assert "nan" not in capsys.readouterr().out
    for line in (",3,A", ",,", "1,,A"):  # one row, and columns without any value
        data.write_text(f"size,age,town\n{line}\n")
        assert main(["predict", model, str(data), "-q"]) == 0
        assert "nan" not in capsys.readouterr().out


def test_extra_columns_and_unseen_categories_are_told_by_name(files, tmp_path, capsys):
    data = tmp_path / "t.csv"
    data.write_text("id,size,age,town\n7,1,2,A\n8,1,2,Oslo\n")
    assert main(["predict", files["house"], str(data)]) == 0
    notes = capsys.readouterr().err.splitlines()
    assert notes[0] == "note: columns that the model does not use are ignored: 'id'"
    assert "column 'town' holds categories that training did not have" in notes[1]
    assert "'Oslo'" in notes[1]


def test_categories_that_look_like_numbers(tmp_path, capsys):
    data, model = tmp_path / "t.csv", str(tmp_path / "m")
    codes = ["1", "2", "x", "y"]
    data.write_text("c,y\n" + "".join(f"{codes[k % 4]},{k % 4}\n" for k in range(40)))
    call = ["fit", str(data), "-t", "y", "-o", model, "--likelihood", "gaussian"]
    assert main([*call, *QUICK]) == 0
    data.write_text("c\n1\n2\n")
    capsys.readouterr()
    assert main(["predict", model, str(data)]) == 0
    assert capsys.readouterr().err == ""


def test_a_category_stays_a_text_whatever_the_other_rows_hold(tmp_path, capsys):
    """At fit ``01`` and ``x`` are texts; later a table of ``01`` alone is not read as numbers."""
    data, model = tmp_path / "t.csv", str(tmp_path / "m")
    codes = ["01", "1", "x"]
    data.write_text("c,y\n" + "".join(f"{codes[k % 3]},{k % 3}\n" for k in range(60)))
    call = ["fit", str(data), "-t", "y", "-o", model, "--likelihood", "gaussian"]
    assert main([*call, "--steps", "30", "--members", "1", "--hidden", "8", "-q"]) == 2
    assert "'c' holds 'x'" in capsys.readouterr().err  # mostly numbers: most likely a stray text
    codes = ["01", "1", "x", "y"]
    data.write_text("c,y\n" + "".join(f"{codes[k % 4]},{k % 4}\n" for k in range(60)))
    assert main([*call, *QUICK]) == 0
    found = {}
    for name, cells in (("mixed", ["01", "1", "x"]), ("same", ["01", "01"]), ("ones", ["1"])):
        data.write_text("\n".join(["c", *cells]) + "\n")
        capsys.readouterr()
        assert main(["predict", model, str(data)]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""  # no note on categories that training did not have
        found[name] = captured.out.splitlines()[1:]
    assert found["same"] == [found["mixed"][0]] * 2
    assert found["ones"] == [found["mixed"][1]]
    assert found["mixed"][0] != found["mixed"][1]


def test_kinds_of_columns_can_be_given(tmp_path, capsys):
    data, model = tmp_path / "t.csv", str(tmp_path / "m")
    data.write_text("code,x,y\n" + "".join(f"0{k % 3},{k},{k % 7}\n" for k in range(40)))
    call = ["fit", str(data), "-t", "y", "-o", model, "--likelihood", "gaussian", *QUICK]
    assert main([*call, "--categorical", "code"]) == 0
    assert load_model(model).schema_.columns[0].categories == ("00", "01", "02")
    data.write_text("code,x,y\n" + "".join(f"{k},{k},{k % 7}\n" for k in range(9)) + "n.v.,1,2\n")
    assert main([*call, "--numeric", "code"]) == 2
    assert (
        "'code' holds 'n.v.' (first in line 11), which is not a number" in capsys.readouterr().err
    )
    assert main([*call, "--na-values", "n.v."]) == 0
    assert load_model(model).schema_.columns[0].indicator
    assert main([*call, "--numeric", "cod"]) == 2
    assert "did you mean 'code'" in capsys.readouterr().err


def test_blanks_of_any_kind_stand_between_thousands(tmp_path, capsys):
    data, model = tmp_path / "t.csv", str(tmp_path / "m")
    cells = ["1 000", "1\u00a0000", "1\u202f000", "1000"]
    data.write_text("x,y\n" + "".join(f"{cells[k % 4]},{k}\n" for k in range(40)))
    call = ["fit", str(data), "-t", "y", "-o", model, "--likelihood", "gaussian", *QUICK]
    assert main([*call, "--thousands", " "]) == 0
    column = load_model(model).schema_.columns[0]
    assert (column.minimum, column.maximum) == (1000, 1000)


def test_a_time_zone_is_refused_where_dates_had_none(tmp_path, capsys):
    data, model = tmp_path / "t.csv", str(tmp_path / "m")
    data.write_text("day,y\n" + "".join(f"2020-01-{k + 1:02d},{k}\n" for k in range(28)))
    call = ["fit", str(data), "-t", "y", "-o", model, "--likelihood", "gaussian", *QUICK]
    assert main(call) == 0
    for first in ("", "2020-01-01\n", "2020-01-01T10:00+01:00\n"):
        data.write_text(f"day\n{first}2020-01-01T10:00Z\n")
        assert main(["predict", model, str(data)]) == 2
        assert "'day' is to hold dates like 2020-12-31, got '2020-" in capsys.readouterr().err


def test_a_prediction_does_not_depend_on_the_other_rows(tmp_path, capsys):
    """Any subset, any order: codes, numbers, dates, unknown and missing cells."""
    header, codes = "code,x,day,flag", ["01", "1", "x", "y", ""]
    train = [
        f"{codes[k % 5]},{k if k % 6 else ''},2020-01-{k % 28 + 1:02d},{k % 2 == 0}"
        for k in range(80)
    ]
    data, model = tmp_path / "t.csv", str(tmp_path / "m")
    data.write_text(f"{header},y\n" + "".join(f"{row},{k % 9}\n" for k, row in enumerate(train)))
    call = ["fit", str(data), "-t", "y", "-o", model, "--likelihood", "gaussian", *QUICK]
    assert main(call) == 0
    rows_ = [
        "01,1,2020-05-05,True",
        "1,none,,False",
        "7,2e3,2020-05-05 10:00,True",
        ",,,",
        *train[:9],
    ]

    def predicted(lines):
        data.write_text("\n".join([header, *lines]) + "\n")
        capsys.readouterr()
        assert main(["predict", model, str(data), "-q"]) == 0
        return capsys.readouterr().out.splitlines()[1:]

    together = predicted(rows_)
    assert [predicted([row])[0] for row in rows_] == together
    assert predicted(rows_[::-1]) == together[::-1]
    assert predicted(rows_[2:7]) == together[2:7]


def test_labels_keep_their_leading_zeros(tmp_path, capsys):
    data, model = tmp_path / "t.csv", str(tmp_path / "m")
    data.write_text("x,y\n" + "".join(f"{k % 3},{['01', '1', 'x'][k % 3]}\n" for k in range(60)))
    assert main(["fit", str(data), "-t", "y", "-o", model, *QUICK]) == 0
    data.write_text("x,y\n0,01\n0,01\n")
    assert main(["evaluate", model, str(data), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_rows"] == 2


def test_labels_that_are_all_codes_keep_their_text(tmp_path, capsys):
    data, model = tmp_path / "t.csv", str(tmp_path / "m")
    data.write_text("x,y\n" + "".join(f"{k % 3},00{k % 3}\n" for k in range(60)))
    call = ["fit", str(data), "-t", "y", "-o", model, *QUICK, "--task", "classification"]
    assert main(call) == 0
    assert load_model(model).classes_.tolist() == ["000", "001", "002"]
    assert main(["predict", model, str(data)]) == 0
    assert "p_001" in capsys.readouterr().out.splitlines()[0]
    assert main(["evaluate", model, str(data)]) == 0


def test_kept_columns_are_copied_as_they_are(files, tmp_path, capsys):
    data = tmp_path / "t.csv"
    data.write_text("id,size,age,town\n007,1,2,A\n-8,1,2,B\n,1,2,B\n")
    assert main(["predict", files["house"], str(data), "--keep", "id", "-q"]) == 0
    kept = [line.split(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert kept == ["id", "007", "-8", ""]


def test_kept_columns_of_the_model_are_copied_too(files, tmp_path, capsys):
    """They are numbers for the model, and texts for the reader."""
    cells = ["100000000000000000", "00001", "1e3", "NA", "5."]
    data = tmp_path / "t.csv"
    data.write_text("size,age,town\n" + "".join(f"{cell},2,A\n" for cell in cells))
    assert main(["predict", files["house"], str(data), "--keep", "size", "-q"]) == 0
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()[1:]] == cells


def test_a_column_of_identifiers_is_refused(tmp_path, capsys):
    data = tmp_path / "t.csv"
    data.write_text("who,x,y\n" + "".join(f"person {k},{k},{k}\n" for k in range(60)))
    assert main(["fit", str(data), "-t", "y", "-o", str(tmp_path / "m")]) == 2
    assert "60 different texts" in capsys.readouterr().err
    assert (
        main(["fit", str(data), "-t", "y", "-o", str(tmp_path / "m"), "--drop", "who", *QUICK]) == 0
    )


def test_a_label_that_training_did_not_have(files, tmp_path, capsys):
    data = tmp_path / "t.csv"
    data.write_text("size,age,town,kind\n1,2,A,free\n")
    assert main(["evaluate", files["label"], str(data)]) == 2
    assert "'free'" in capsys.readouterr().err


def test_fractions_are_no_classes(tmp_path, capsys):
    data, model = tmp_path / "t.csv", str(tmp_path / "m")
    data.write_text("x,y\n1,0.5\n2,1\n3,0.5\n")
    call = ["fit", str(data), "-t", "y", "-o", model, "--task", "classification", *QUICK]
    assert main(call) == 2
    assert "holds numbers such as 0.5, and classes are texts or whole" in capsys.readouterr().err


def test_labels_that_nearly_all_differ_are_told_in_a_note(tmp_path, capsys):
    data, model = tmp_path / "t.csv", str(tmp_path / "m")
    data.write_text("x,y\n" + "".join(f"{k},t{k}\n" for k in range(30)))
    assert main(["fit", str(data), "-t", "y", "-o", model, *QUICK[:-1]]) == 0
    assert "note: the target 'y' holds 30 different labels in 30 rows" in capsys.readouterr().err


def test_a_wide_table(tmp_path, capsys):
    """More than 256 inputs: blocks of 320, which the reader of the file must expect too."""
    data, model = tmp_path / "t.csv", str(tmp_path / "m")
    names = [f"x{k}" for k in range(300)]
    lines = [",".join(str((k * j) % 7) for j in range(301)) for k in range(20)]
    data.write_text("\n".join([",".join([*names, "y"]), *lines]) + "\n")
    call = ["fit", str(data), "-t", "y", "-o", model, "--likelihood", "gaussian", *QUICK]
    assert main(call) == 0
    assert main(["predict", model, str(data)]) == 0
