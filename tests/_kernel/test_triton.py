"""Runs ``triton_cases.py`` in a process of its own: Triton reads its settings at import."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = Path(__file__).with_name("triton_cases.py")
CPU_ONLY = """
import torch, sys, whvi
whvi.fwht(torch.randn(2, 8).bfloat16())
assert "whvi._kernel.triton" not in sys.modules
from whvi._kernel.backend import gpu_kernels
print(gpu_kernels())
"""


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TRITON", "WHVI_"))}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**environment, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_kernels_in_the_interpreter() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: make clients")
    options = ("-q", "-x", "-n", "0", "-p", "no:cacheprovider")
    found = run("-m", "pytest", *options, str(CASES), TRITON_INTERPRET="1", WHVI_KERNEL="0")
    assert found.returncode == 0, found.stdout + found.stderr


def test_cpu_tensors_do_not_import_them_and_a_variable_turns_them_off() -> None:
    found = run("-c", CPU_ONLY, WHVI_TRITON="0")
    assert (found.stdout, found.returncode) == ("None\n", 0), found.stderr
