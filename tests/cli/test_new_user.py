"""A new user types the commands of README and docs/cli.md, line by line, in an empty folder."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.small_tables import QUICK, rows, write
from whvi.cli import main

ROOT = Path(__file__).parents[2]
LONG = {"doctor"}  # have tests of their own
ABSENT = set() if find_spec("onnxscript") else {"export"}  # needs an extra


def commands(page: str) -> list[list[str]]:
    """The indented lines that begin with ``whvi``, without comments and optional parts."""
    lines = re.findall(r"^ {4}whvi (.*)$", (ROOT / page).read_text(), flags=re.MULTILINE)
    without_options = [re.sub(r"\[[^]]*\]", "", line) for line in lines]
    return [shlex.split(line, comments=True) for line in without_options]


@pytest.mark.parametrize("page", ["README.md", "docs/cli.md"])
def test_every_command_works_as_written(page, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    columns = ["size", "age", "town", "price"]
    write(tmp_path / "train.csv", columns, rows(60, 0))
    write(tmp_path / "test.csv", columns, rows(40, 1))
    write(tmp_path / "new.csv", columns[:3], rows(10, 2))
    for words in commands(page):
        if words[0] not in LONG | ABSENT:
            options = [*QUICK, "--likelihood", "gaussian"] if words[0] == "fit" else []
            assert main([*words, *options]) == 0, words


def test_there_are_commands():
    verbs = {words[0] for words in commands("docs/cli.md")}
    assert verbs >= {"fit", "evaluate", "predict", "report", "info"}
