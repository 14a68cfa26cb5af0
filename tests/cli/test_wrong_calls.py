"""Wrong calls: exit code 2, one line on stderr that says what to do, nothing written."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.cli.small_tables import QUICK
from whvi.cli import main

# name: (words, what the line says); {train}, {house}, {folder} and so on are filled in
FIT = "fit {train} --target price --drop kind -o {folder}/out.whvi"
WRONG = {
    "unknown verb": ("train", "No such command 'train'"),
    "unknown option": ("fit --epochs 3", "No such option"),
    "fit without anything": ("fit", "Missing argument 'TABLE'"),
    "fit without target": ("fit {train} -o {folder}/m", "Missing option '--target'"),
    "fit without output": ("fit {train} --target price", "Missing option '--output'"),
    "two tables": (FIT + " {test}", "unexpected extra argument"),
    "absent table": ("fit no.csv -t price -o {folder}/m", "'no.csv': No such file"),
    "table is a folder": ("fit {folder} -t price -o {folder}/m", "Is a directory"),
    "absent target": ("fit {train} -t prise -o {folder}/m", "did you mean 'price'"),
    "absent column to drop": (FIT + " --drop nothing", "no column 'nothing'"),
    "target dropped": (FIT + " --drop price", "cannot be dropped"),
    "nothing left": (FIT + " --drop size --drop age --drop town", "no column to learn from"),
    "unknown likelihood": (FIT + " --likelihood cauchy", "'cauchy' is not one of"),
    "unknown task": (FIT + " --task sorting", "'sorting' is not one of"),
    "no members": (FIT + " --members 0", "'--members'"),
    "members in words": (FIT + " --members five", "'--members'"),
    "no steps": (FIT + " --steps 0", "'--steps'"),
    "negative seed": (FIT + " --seed -1", "'--seed'"),
    "seed of 33 bits": (FIT + " --seed 4294967296", "'--seed'"),
    "nothing held out": (FIT + " --holdout 0", "strictly between 0 and 1, got 0"),
    "groups of the target": (FIT + " --cv 2 --group price", "--group names the target 'price'"),
    "two kinds": (FIT + " --categorical age --numeric age", "--numeric both name 'age'"),
    "hidden in words": (FIT + " --hidden wide", "--hidden takes widths such as 128,128"),
    "hidden of zero": (FIT + " --hidden 128,0", "--hidden takes widths"),
    "texts as numbers": ("fit {train} -t kind --task regression -o {folder}/m", "not a number"),
    "noise of classes": (
        "fit {train} -t kind --likelihood gaussian -o {folder}/m",
        "holds texts, which are classes",
    ),
    "noise of a classification": (FIT + " --task classification --likelihood poisson", "regress"),
    "negative counts": (FIT + " --likelihood poisson", "poisson|count|negative|whole"),
    "model to stdout": ("fit {train} -t price -o -", "a model is a file"),
    "model into a folder": ("fit {train} -t price -o {folder}", "is a folder"),
    "model into nowhere": ("fit {train} -t price -o {folder}/a/b", "does not exist"),
    "model onto the table": ("fit {copy} -t price -o {copy}", "is also an input"),
    "absent model": ("predict no.whvi {new}", "no.whvi"),
    "table as model": ("predict {train} {new}", "model file"),
    "model as table": ("predict {house} {house}", "line 1, column"),
    "level in percent": ("predict {house} {new} --level 90", "strictly between 0 and 1, got 90"),
    "level of zero": ("evaluate {house} {test} --level 0", "strictly between 0 and 1"),
    "level in words": ("report {house} {test} -o {folder}/r --level high", "'--level'"),
    "level not a number": ("predict {house} {new} --level nan", "strictly between 0 and 1"),
    "absent column to keep": ("predict {house} {new} --keep id", "no column 'id'"),
    "kept name is taken": ("predict {house} {mean} --keep mean", "a column 'mean' already"),
    "predictions onto the table": ("predict {house} {copy} -o {copy}", "is also an input"),
    "predictions onto the model": ("predict {house} {new} -o {house}", "is also an input"),
    "no target to judge by": ("evaluate {house} {new}", "no column 'price'"),
    "report without output": ("report {house} {test}", "Missing option '--output'"),
    "report on one row": ("report {label} {one} -o {folder}/r", "at least 2 are needed, got 1"),
    "report without target": ("report {house} {new} -o {folder}/r", "no column 'price'"),
    "wrong separator": ("predict {house} {new} --separator ,,", "single character"),
    "wrong decimal": ("predict {house} {new} --decimal x", "'x' is not one of"),
    "separator is decimal": ("predict {house} {new} --separator , --decimal ,", "must differ"),
    "wrong encoding": ("predict {house} {new} --encoding klingon", "no encoding 'klingon'"),
    "info of nothing": ("info no.whvi", "no.whvi"),
    "info of a table": ("info {train}", "model file"),
}


@pytest.fixture
def places(files, tmp_path):
    copy, mean, one = (tmp_path / f"{name}.csv" for name in ("copy", "mean", "one"))
    folder = tmp_path / "folder"
    shutil.copy(files["train"], copy)
    mean.write_text("size,age,town,mean\n1,2,A,3\n")
    one.write_text("size,age,town,kind\n1,2,A,dear\n")
    folder.mkdir()
    paths = {"copy": copy, "mean": mean, "one": one, "folder": folder}
    return files | {name: str(path) for name, path in paths.items()}


def test_there_are_enough():
    assert len(WRONG) >= 40


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_told_in_one_line(case, places, capsys, monkeypatch, tmp_path):
    words, message = WRONG[case]
    words = [word.format(**places) for word in words.split()]
    if words[0] == "fit" and "--target" in words:  # should it not be refused, it is over soon
        words = ["fit", *QUICK, *words[1:]]
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    assert re.search(message if "|" in message else re.escape(message), captured.err)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before
