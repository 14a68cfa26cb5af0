from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import whvi
from whvi import doctor
from whvi._kernel.backend import backend
from whvi.doctor import Check, Diagnosis, diagnose


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    return diagnose()


def run_doctor(**variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "whvi.doctor"],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_tells_the_truth_about_this_process(diagnosis):
    kernel = diagnosis.kernel
    assert kernel.is_active == (backend.kernel is not None)
    assert kernel.reason == backend.reason
    assert kernel.num_threads == torch.get_num_threads()
    assert diagnosis.versions["torch"] == torch.__version__
    assert diagnosis.versions["whvi"] == whvi.__version__
    if backend.kernel is not None:
        assert kernel.instruction_set in kernel.instruction_sets


def test_finds_right_results_right(diagnosis):
    assert diagnosis.is_healthy
    assert len(diagnosis.checks) == 2
    assert diagnosis.timing.active > 0


def test_every_optional_package_names_its_extra(diagnosis):
    from importlib.metadata import metadata

    extras = set(metadata("whvi").get_all("Provides-Extra") or [])
    assert set(doctor._EXTRAS.values()) <= extras
    assert set(diagnosis.optional) == set(doctor._EXTRAS)


def test_an_absent_package_is_no_illness(monkeypatch):
    monkeypatch.setitem(doctor._EXTRAS, "no-such-package", "plots")
    found = diagnose()
    assert found.is_healthy
    assert "no-such-package" in str(found)
    assert "absent (pip install 'whvi[plots]')" in str(found)


@pytest.mark.parametrize("error", [2.0, float("nan")])
def test_a_wrong_result_is_an_illness(diagnosis, monkeypatch, capsys, error):
    ill = Diagnosis(**{**vars(diagnosis), "checks": (Check("planted", error, 1.0),)})
    monkeypatch.setattr(doctor, "diagnose", lambda: ill)
    assert doctor.main() == 1
    assert "WRONG  planted" in capsys.readouterr().out


def test_leaves_the_number_of_threads_alone(set_threads):
    set_threads(2)
    diagnose()
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
