"""The command line: what is wrong is told in one line on stderr, with exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from reproduction import __main__ as command
from reproduction.__main__ import main
from reproduction.runner import Options
from reproduction.table1.work import ROWS
from whvi.errors import DataError

EXPERIMENTS = ("table1", "figure1", "figure2", "deep_gp", "gaps", "ood", "demo")
WRONG = {
    "no experiment": ("", "required: experiment"),
    "unknown figure": ("figure9", "invalid choice: 'figure9'"),
    "unknown method": ("table1 --methods magic -o {folder}", "invalid choice: 'magic'"),
    "unknown data set": ("table1 --data moon -o {folder}", "invalid choice: 'moon'"),
    "method of another": ("figure2 --methods whvi-best -o {folder}", "'whvi-best'"),
    "unknown protocol": ("table1 --protocol mine -o {folder}", "invalid choice: 'mine'"),
    "splits in words": ("table1 --splits few -o {folder}", "splits are written like 0-4,7"),
    "impossible shard": ("table1 --shard 3/2 -o {folder}", "written i/n"),
    "shard from zero": ("table1 --shard 0/2 -o {folder}", "written i/n"),
    "shard in words": ("figure2 --shard a/b -o {folder}", "written i/n"),
    "seeds in words": ("table1 --seeds some -o {folder}", "not negative, got 'some'"),
    "seed in words": ("figure1 --seed some -o {folder}", "not negative, got 'some'"),
    "option of another": ("figure1 --jobs 2 -o {folder}", "unrecognized arguments: --jobs"),
    "scores of another": ("figure2 --scores a -o {folder}", "unrecognized arguments: --scores"),
    "no such scores": ("table1 --scores a -o {folder}", "no file of choices 'a'"),
    "no jobs": ("table1 --jobs 0 -o {folder}", "above 0, or -1 for all, got '0'"),
    "demo into a file": ("demo -o {file}", "cannot make the folder"),
    "figure into a file": ("figure1 --quick -o {file}", "{file}"),
    "data that are not there": (
        "table1 --quick --no-progress --methods whvi --data-dir {folder} -o {folder}/t",
        "has no folder UCI_Datasets",
    ),
    "nothing to report, table1": ("table1 --report-only -o {folder}", "nothing to report"),
    "nothing to report, figure2": ("figure2 --report-only -o {folder}", "nothing to report"),
    "nothing to report, gaps": ("gaps --report-only -o {folder}", "nothing to report"),
    "nothing to report, ood": ("ood --report-only -o {folder}", "nothing to report"),
    "unknown backend": ("table1 --backend magic -o {folder}", "invalid choice: 'magic'"),
    "nothing to check": ("table1 --check -o {folder}", "no records to compare with"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_told_in_one_line(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    file.write_text("not a folder\n")
    words, message = (each.format(folder=folder, file=file) for each in WRONG[case])
    try:
        code = main(words.split())
    except SystemExit as stop:  # how argparse ends
        code = stop.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert list(folder.iterdir()) == []
    assert file.read_text() == "not a folder\n"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert "--quick" in capsys.readouterr().out


def test_it_runs_as_a_module_and_has_no_twin(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "reproduction", "figure1", "--quick", "-o", str(tmp_path)]
    result = subprocess.run(call, capture_output=True, text=True, check=True)
    assert result.stdout.split() == [
        str(tmp_path / name) for name in ("figure1.png", "figure1.svg", "summary.json")
    ]
    twins = [p for p in Path(command.__file__).parent.rglob("*.py") if "argparse" in p.read_text()]
    assert twins == [Path(command.__file__)]


def test_options_reach_the_experiment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = {}

    def fake(options: Options, **more: object) -> Path:
        seen.update(vars(options), **more)
        return options.output

    monkeypatch.setattr(command, "reproduce_table1", fake)
    words = "table1 --quick --methods whvi WHVIRegressor --data yacht --seeds 1 2 --splits 0-2,7"
    assert main([*words.split(), "--jobs", "3", "--shard", "2/3", "--data-dir", "d"]) == 0
    assert seen == {
        "output": command.RESULTS / "table1-quick",
        "quick": True,
        "methods": ["whvi", "WHVIRegressor"],
        "data": ["yacht"],
        "seeds": [1, 2],
        "splits": [0, 1, 2, 7],
        "jobs": 3,
        "backend": "local",
        "scheduler": None,
        "shard": (2, 3),
        "progress": True,
        "report_only": False,
        "data_dir": str(Path("d").absolute()),
        "protocol": "literature",
        "scores": None,
    }
    assert main(["table1", "--protocol", "random", "--no-progress"]) == 0
    assert seen["output"] == command.RESULTS / "table1-random"
    assert not seen["progress"]
    assert seen["jobs"] == 1
    assert main(["table1", "--backend", "dask", "--scheduler", "tcp://a:1", "-o", "there"]) == 0
    assert (seen["backend"], seen["scheduler"], seen["jobs"]) == ("dask", "tcp://a:1", -1)
    assert seen["output"] == Path("there").absolute()
    assert main(["table1", "--backend", "ray", "--address", "auto", "--jobs", "4"]) == 0
    assert (seen["backend"], seen["scheduler"], seen["jobs"]) == ("ray", "auto", 4)
    assert capsys.readouterr().out.endswith("README.md\n")


def test_errors_of_the_data_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(options: Options, **more: object) -> Path:
        raise DataError("no such\nfile")

    monkeypatch.setattr(command, "reproduce_table1", fail)
    assert main(["table1"]) == 2
    assert capsys.readouterr() == ("", "error: no such file\n")


def test_the_estimator_is_a_row_of_the_table() -> None:
    assert ROWS[:4] == ("whvi", "whvi-ensemble", "whvi-best", "WHVIRegressor")
