"""``whvi predict``: the text of a row's prediction depends on that row alone, to the last digit."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from tests.cli.small_tables import QUICK
from whvi.cli import main

NAMES = ["number", "code", "name", "day", "flag", "holes", "many"]
MANY = [f"word {k}" for k in range(40)]  # more than are told apart one by one


def row(generator, k):
    """One row of every kind of cell: numbers, codes, texts, dates, truth values, holes."""
    return [
        f"{generator.standard_cauchy():.6g}",
        ["01", "1", "x", "y"][k % 4],
        str(generator.choice(["Oslo", "Å, B", 'the "C"', ""])),
        f"20{generator.integers(10, 24)}-{generator.integers(1, 13):02d}-11" if k % 5 else "NA",
        str(bool(generator.integers(2))),
        f"{generator.normal():.4f}" if generator.random() < 0.7 else "",
        str(generator.choice(MANY)),
    ]


@pytest.fixture(scope="module", params=["regression", "classes"])
def model(request, tmp_path_factory):
    folder, generator = tmp_path_factory.mktemp("m"), np.random.default_rng(0)
    path, model = folder / "t.csv", str(folder / "m.whvi")
    targets = [f"{generator.normal():.3f}" for _ in range(150)]
    if request.param == "classes":
        targets = [
            ["low", "middle", "high"][int(float(t) > -0.5) + int(float(t) > 0.5)] for t in targets
        ]
    write(path, [[*row(generator, k), t] for k, t in enumerate(targets)], [*NAMES, "y"])
    likelihood = ["--likelihood", "gaussian"] if request.param == "regression" else []
    assert (
        main(
            ["fit", str(path), "-t", "y", "-o", model, *QUICK, *likelihood, "--categorical", "code"]
        )
        == 0
    )
    return model


def write(path, rows, names=NAMES):
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([names, *rows])


def predicted(model, rows, tmp_path, capsys):
    path = tmp_path / "t.csv"
    write(path, rows)
    capsys.readouterr()
    assert main(["predict", model, str(path), "-q"]) == 0
    return capsys.readouterr().out.splitlines()[1:]


@pytest.fixture(scope="module")
def rows():
    generator = np.random.default_rng(1)
    found = [row(generator, k) for k in range(70)]  # more than one pass of 64 rows
    found[3] = ["", "", "", "", "", "", ""]
    found[4] = ["1e300", "07", "nowhere", "1066-10-14", "", "", "new"]
    found[5] = ["-5", "1", "Oslo", "2030-01-01 10:30", "True", "NA", "word 1"]
    return found


def test_one_row_alone(model, rows, tmp_path, capsys):
    together = predicted(model, rows, tmp_path, capsys)
    for k in (0, 3, 4, 5, 63, 64, 69):
        assert predicted(model, [rows[k]], tmp_path, capsys) == [together[k]], k


def test_any_subset_in_any_order_with_any_companions(model, rows, tmp_path, capsys):
    together = predicted(model, rows, tmp_path, capsys)
    generator = np.random.default_rng(2)
    for size in (2, 9, 33, 66, 70):
        chosen = generator.permutation(len(rows))[:size]
        found = predicted(model, [rows[k] for k in chosen], tmp_path, capsys)
        assert found == [together[k] for k in chosen]
    strange = [["0", "01", "Oslo", "NA", "True", "0", "x"]] * 200  # another size of everything
    assert predicted(model, [*strange, *rows], tmp_path, capsys)[200:] == together
    assert predicted(model, [rows[0]] * 3, tmp_path, capsys) == [together[0]] * 3


def test_columns_that_look_otherwise_in_a_batch(model, rows, tmp_path, capsys):
    """Batches whose codes are all numbers, whose days or numbers are all missing."""
    together = predicted(model, rows, tmp_path, capsys)
    for alike in (
        [k for k, each in enumerate(rows) if each[1] in ("01", "1")],
        [k for k, each in enumerate(rows) if each[3] == "NA"],
        [k for k, each in enumerate(rows) if each[5] == ""],
        [k for k, each in enumerate(rows) if each[2] == ""],
    ):
        assert len(alike) > 2
        found = predicted(model, [rows[k] for k in alike], tmp_path, capsys)
        assert found == [together[k] for k in alike]


def test_the_order_of_columns_and_the_format_of_the_file(model, rows, tmp_path, capsys):
    together = predicted(model, rows, tmp_path, capsys)
    turned = tmp_path / "turned.tsv"
    lines = io.StringIO()
    csv.writer(lines, delimiter="\t").writerows([NAMES[::-1], *(each[::-1] for each in rows)])
    turned.write_text(lines.getvalue(), encoding="utf-8")
    capsys.readouterr()
    assert main(["predict", model, str(turned), "-q"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == together
