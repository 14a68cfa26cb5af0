"""Every example runs to its end, with warnings as errors, in its reduced form."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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


# With threads, process groups or filters of their own; and one to be seen to run from nothing.
OF_ITS_OWN = (
    "adapt_transformer",
    "bayesian_optimisation",
    "toy_regression",
    "train_distributed",
)


def run_here(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Run it in this process, which has imported what takes most of the time of a new one."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--quick", *arguments])
    output = io.StringIO()
    with torch.random.fork_rng(), contextlib.redirect_stdout(output):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return output.getvalue()


def run_apart(name: str, arguments: list[str]) -> str:
    filters = ["-W", "error", *OF_OTHERS.get(name, [])]
    command = [sys.executable, *filters, str(EXAMPLES / f"{name}.py"), "--quick", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(ARGUMENTS)


def test_no_example_needs_the_reproduction():
    assert not [path.name for path in EXAMPLES.glob("*.py") if "reproduction" in path.read_text()]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_example_runs(name, tmp_path, monkeypatch):
    if name == "adapt_transformer":
        pytest.importorskip("transformers", reason="transformers is not installed: make clients")
    if name == "bayesian_optimisation":
        pytest.importorskip("botorch", reason="botorch is not installed: make clients")
    arguments, expected = ARGUMENTS[name]
    monkeypatch.chdir(tmp_path)
    if name in OF_ITS_OWN:
        assert expected in run_apart(name, arguments)
    else:
        assert expected in run_here(name, arguments, monkeypatch)
