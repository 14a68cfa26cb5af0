"""Hostile files run nothing: an audit hook sees no pickle, exec, process or socket."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.small_tables import QUICK
from whvi.cli import main
from whvi.cli.commands import harmless

# Libraries compile texts of their own (type hints, named tuples), and imports run the code of
# installed files. What an honest run of the same commands does is heard first, and is no alarm.
LISTENER = """
import json, os, sys
from whvi.cli import main
honest, hostile = json.loads(sys.argv[1])
ALARMS = ("pickle.", "subprocess.", "socket.", "os.system", "os.exec", "os.posix_spawn",
          "os.spawn", "os.fork", "urllib.")
heard, listening = set(), False
def hook(event, arguments):
    if not listening:
        return
    if event.startswith(ALARMS):
        heard.add(event + " " + repr(arguments)[:200])
    if event == "compile" and not os.path.exists(str(arguments[1])):
        heard.add("compile " + repr(arguments[0])[:200])
    if event == "exec" and not os.path.exists(arguments[0].co_filename):
        heard.add("exec " + arguments[0].co_filename + " " + arguments[0].co_name)
def run(calls):
    global heard, listening
    heard, listening = set(), True
    codes = [main(words) for words in calls]
    listening = False
    return codes, heard
sys.addaudithook(hook)
_, usual = run(honest)
codes, seen = run(hostile)
print(json.dumps([codes, sorted(seen - usual), len(usual)]))
"""


class Bomb:
    def __reduce__(self):
        return os.system, ("touch hacked",)


FORMULAS = ["=cmd|'/c calc'!A1", "+A1", "-A1", "@SUM(A1)", '=HYPERLINK("http://x")']


@pytest.fixture
def attacks(files, tmp_path):
    bomb = tmp_path / "bomb"
    bomb.write_bytes(pickle.dumps(Bomb()))
    formula = tmp_path / "formula.csv"
    cells = [f'1,2,"{text.replace(chr(34), chr(34) * 2)}",3,dear' for text in FORMULAS]
    formula.write_text("\n".join(["size,age,town,price,kind", *cells]) + "\n")
    config = tmp_path / "config.whvi"
    config.write_text(json.dumps({"estimator": "__import__('os').system('touch hacked')"}))
    return {"bomb": str(bomb), "formula": str(formula), "config": str(config)}


def test_hostile_files_run_nothing(files, attacks, tmp_path):
    out = str(tmp_path / "out")
    fit = ["-t", "price", "--drop", "kind", *QUICK, "--likelihood", "gaussian", "-o", out + ".whvi"]
    honest = [
        ["fit", files["train"], *fit],
        ["predict", files["house"], files["test"], "-q", "-o", out + ".csv"],
        ["evaluate", files["house"], files["test"], "-q"],
    ]
    hostile = [
        ["predict", attacks["bomb"], files["new"]],
        ["predict", attacks["config"], files["new"]],
        ["predict", files["house"], attacks["bomb"]],
        ["fit", attacks["bomb"], *fit],
        ["fit", attacks["formula"], *fit],
        ["evaluate", files["house"], attacks["formula"], "-q"],
        ["predict", files["house"], attacks["formula"], "--keep", "town", "-q", "-o", out + ".csv"],
    ]
    command = [sys.executable, "-c", LISTENER, json.dumps([honest, hostile])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stderr
    codes, seen, _ = json.loads(result.stdout.splitlines()[-1])
    assert codes == [2, 2, 2, 2, 0, 0, 0]
    assert seen == []
    assert not (tmp_path / "hacked").exists()
    kept = Path(out + ".csv").read_text().splitlines()[1:]
    assert all(line.lstrip('"').startswith("'") for line in kept)  # a spreadsheet shows texts


@pytest.mark.parametrize("deed", ["pickle.loads(pickle.dumps(print)) and 0", "exec('1 + 1')"])
def test_the_listener_can_hear(deed, tmp_path):
    script = "import pickle\n" + LISTENER.replace("from whvi.cli import main", "")
    script = script.replace("main(words)", deed)
    result = subprocess.run(
        [sys.executable, "-c", script, '[[], ["x"]]'], capture_output=True, text=True, cwd=tmp_path
    )
    _, seen, _ = json.loads(result.stdout)
    assert seen


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_are_written_as_texts(text):
    assert harmless(text) == f"'{text}"


def test_numbers_stay_numbers():
    assert harmless(-1.5) == -1.5
    assert harmless("plain") == "plain"


def test_an_output_replaces_a_link_and_not_what_it_points_to(files, tmp_path):
    precious, link = tmp_path / "precious.txt", tmp_path / "out.csv"
    precious.write_text("keep me")
    link.symlink_to(precious)
    assert main(["predict", files["house"], files["new"], "-o", str(link)]) == 0
    assert precious.read_text() == "keep me"
    assert not link.is_symlink()


def test_a_link_to_the_input_is_the_input(files, tmp_path, capsys):
    link = tmp_path / "out.csv"
    link.symlink_to(files["new"])
    assert main(["predict", files["house"], files["new"], "-o", str(link)]) == 2
    assert "is also an input" in capsys.readouterr().err


def test_a_column_name_is_no_path(files, tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    data = tmp_path / "t.csv"
    data.write_text("../../up,y\n" + "".join(f"{k},{k % 5}\n" for k in range(40)))
    call = ["fit", str(data), "-t", "y", *QUICK, "--likelihood", "gaussian", "-o", "m"]
    assert main([*call, "--checkpoint", "folder"]) == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["t.csv", "work"]
    assert sorted(each.name for each in (tmp_path / "work").iterdir()) == ["folder", "m"]
