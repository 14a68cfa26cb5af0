"""Every example runs to its end, with warnings as errors, in its reduced form."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

for package in ("matplotlib", "rich", "sklearn"):
    pytest.importorskip(package)

EXAMPLES = Path(__file__).parents[1] / "examples"
ARGUMENTS = {  # what each prints at the end
    "adapt_transformer": ([], "adapter: "),
    "bayesian_optimisation": (["--output", "bo"], "median final regret"),
    "classify_digits": ([], "wrong predictions"),
    "deep_gp": ([], "two layers"),
    "gp_regression": (["--output", "gp.png"], "picture: gp.png"),
    "layers_in_pytorch": ([], "90 % interval covers"),
    "train_distributed": (["--output", "run"], "test MNLL"),
    "toy_regression": (["--output", "toy.png"], "picture: toy.png"),
    "vae": (["--output", "vae.png"], "picture: vae.png"),
}


OF_OTHERS = {  # warnings of packages, not of ours
    "bayesian_optimisation": ["-W", "ignore::DeprecationWarning"],  # linear_operator, on import
}


def run(name: str, arguments: list[str], folder: Path) -> str:
    filters = ["-W", "error", *OF_OTHERS.get(name, [])]
    command = [sys.executable, *filters, str(EXAMPLES / f"{name}.py"), "--quick", *arguments]
    result = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(ARGUMENTS)


def test_no_example_needs_the_reproduction():
    assert not [path.name for path in EXAMPLES.glob("*.py") if "reproduction" in path.read_text()]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_example_runs(name, tmp_path):
    if name == "adapt_transformer":
        pytest.importorskip("transformers", reason="transformers is not installed: make clients")
    if name == "bayesian_optimisation":
        pytest.importorskip("botorch", reason="botorch is not installed: make clients")
    arguments, expected = ARGUMENTS[name]
    assert expected in run(name, arguments, tmp_path)
