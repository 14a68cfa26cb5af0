from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import whvi
from whvi import doctor
from whvi._kernel.backend import backend
from whvi.doctor import Check


@pytest.fixture
def printed(capsys) -> str:
    assert doctor.main() == 0
    return capsys.readouterr().out


def run_doctor(**variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "whvi.doctor"],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_tells_the_truth_about_this_process(printed):
    assert f"torch threads  {torch.get_num_threads()}\n" in printed
    assert f"torch          {torch.__version__}\n" in printed
    assert f"whvi           {whvi.__version__}\n" in printed
    if backend.kernel is None:
        assert f"({backend.reason})" in printed
    else:
        assert f"compiled, {backend.kernel.instruction_set()}," in printed
        assert backend.kernel.instruction_set() in backend.kernel.instruction_sets()


def test_finds_right_results_right(printed):
    assert [check.is_passed for check in doctor.run_checks()] == [True, True]
    assert printed.count("  ok     ") == 2
    assert "fwht of 256 x 1024 float32, one thread: " in printed


def test_lists_every_optional_package_with_its_extra():
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    for package, extra in doctor._EXTRAS.items():
        listed = rf'^{extra} = (\[\n(.*,\n)*)?.*"{package}>='
        assert re.search(listed, project, re.MULTILINE), package
    assert doctor._EXTRAS["jinja2"] == "report"
    assert {"pyarrow", "openpyxl", "onnx", "onnxruntime"} <= doctor._EXTRAS.keys()


def test_an_absent_package_is_no_illness(monkeypatch, capsys):
    monkeypatch.setitem(doctor._EXTRAS, "no-such-package", "plots")
    assert doctor.main() == 0
    assert "  no-such-packageabsent (pip install 'whvi[plots]')" in capsys.readouterr().out


@pytest.mark.parametrize("error", [2.0, float("nan")])
def test_a_wrong_result_is_an_illness(monkeypatch, capsys, error):
    monkeypatch.setattr(doctor, "run_checks", lambda: [Check("planted", error, 1.0)])
    assert doctor.main() == 1
    assert "WRONG  planted" in capsys.readouterr().out


def test_leaves_the_number_of_threads_alone(set_threads):
    set_threads(2)
    doctor.main()
    assert torch.get_num_threads() == 2


def test_runs_as_a_program_with_the_kernel():
    if backend.kernel is None:
        pytest.skip(f"needs the compiled kernel: {backend.reason}")
    result = run_doctor(WHVI_KERNEL="1", WHVI_ISA="baseline")
    assert (result.returncode, result.stderr) == (0, "")
    assert "compiled, baseline, 1 thread" in result.stdout
    assert "WHVI_ISA         baseline" in result.stdout


def test_runs_as_a_program_without_the_kernel():
    result = run_doctor(WHVI_KERNEL="0")
    assert (result.returncode, result.stderr) == (0, "")
    assert "plain torch, 1 thread (turned off by WHVI_KERNEL=0)" in result.stdout
    assert "WHVI_KERNEL      0" in result.stdout
