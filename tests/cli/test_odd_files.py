"""500 hand-made and fuzzed files through the command: done, or one line that says what is wrong."""

from __future__ import annotations

import csv
import io
import math
import shlex

import pytest

from tests.cli.odd_files import HAND_MADE, odd_file
from whvi.cli import main

ADVICE = "to leave out what cannot be used: "
TINY = ["--steps", "2", "--members", "1", "--hidden", "4", "-q"]
SPLITS = [[], [], ["--holdout", ".3"], ["--cv", "2"], ["--task", "classification"]]
CASES: list[str | int] = [*HAND_MADE, *range(500 - len(HAND_MADE))]
EVERY_DAY = CASES[::16]  # what the usual suite runs; the others are nightly


def call(words, capsys):
    """Run a command: 0, or 2 and one line on stderr; any exception or warning is a failure."""
    capsys.readouterr()
    code = main(words)
    captured = capsys.readouterr()
    assert code in (0, 2), words
    if code == 2:
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1
        assert len(captured.err) < 20_000
        assert captured.err[:-1].isprintable()
    else:
        assert captured.err == ""
    return code, captured.out or captured.err


def take(name, data, words, files, tmp_path, capsys):
    """Fit the file, predict and evaluate it by its own and by another model."""
    path, model = tmp_path / name, tmp_path / "m.whvi"
    path.write_bytes(data)
    fit = ["fit", str(path), "-t", "y", "-o", str(model), *TINY, *words]
    code, said = call(fit, capsys)
    if ADVICE in said:  # it can be followed, once
        code, said = call([*fit, *shlex.split(said.partition(ADVICE)[2])], capsys)
        assert ADVICE not in said
    assert model.exists() == (code == 0)
    models = [files["house"], str(model)] if code == 0 else [files["house"]]
    for each in models:
        code, out = call(["predict", each, str(path), "-q"], capsys)
        assert code == 0 or each != str(model)  # what can be fitted can be predicted
        for row in csv.DictReader(io.StringIO(out)) if code == 0 else ():
            assert all(math.isfinite(float(v)) for k, v in row.items() if k != "label")
        code, _ = call(["evaluate", each, str(path), "-q"], capsys)
        assert code == 0 or each != str(model)
    assert {each.name for each in tmp_path.iterdir()} <= {name, "m.whvi"}


@pytest.mark.parametrize("case", EVERY_DAY)
def test_odd_file(case, files, tmp_path, capsys):
    if isinstance(case, int):
        name, data = odd_file(case)
        take(name, data, SPLITS[case % len(SPLITS)], files, tmp_path, capsys)
    else:
        data = HAND_MADE[case]
        data = data.encode() if isinstance(data, str) else data
        take("t.csv", data, [], files, tmp_path, capsys)


@pytest.mark.nightly
@pytest.mark.parametrize("case", [case for case in CASES if case not in EVERY_DAY])
def test_many_odd_files(case, files, tmp_path, capsys):
    test_odd_file(case, files, tmp_path, capsys)


def test_there_are_enough():
    assert len(CASES) == 500
