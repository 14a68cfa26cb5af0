"""What every test shares: hypothesis profiles, generators, the UCI folder, the kernel's knobs."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import settings

from whvi._kernel.backend import backend

# Scripts that tests start import `tests` and `reproduction`, which are not installed.
_ROOT = Path(__file__).parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(_ROOT), str(_ROOT / "src"), os.environ.get("PYTHONPATH", "")]
).rstrip(os.pathsep)

# Derandomized: the same examples on every run, so that a failure is one everybody sees.
_SHARED = {"deadline": None, "derandomize": True, "database": None}
settings.register_profile("fast", max_examples=100, **_SHARED)
settings.register_profile("nightly", max_examples=10_000, **_SHARED)
settings.load_profile("fast")

INSTRUCTION_SETS = ("avx512", "avx2", "baseline")


@pytest.fixture(autouse=True)
def _global_generators() -> None:
    """A test that draws from a global generator finds the same state whatever ran before it."""
    random.seed(20)
    np.random.seed(20)
    torch.manual_seed(20)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20)


@pytest.fixture(scope="session")
def uci_root() -> str:
    """The folder of the real UCI sets; tests that need it skip where it is absent."""
    root = os.environ.get("WHVI_DATA")
    if not root:
        pytest.skip("needs the UCI files: set WHVI_DATA to the folder that holds UCI_Datasets")
    return root


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """``torch.set_num_threads`` for the length of a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def kernel() -> Iterator[ModuleType]:
    """The compiled kernel, its instruction set put back afterwards; skips where there is none."""
    if backend.kernel is None:
        pytest.skip(f"needs the compiled kernel: {backend.reason}")
    before = backend.kernel.instruction_set()
    yield backend.kernel
    backend.kernel.use(before)


@pytest.fixture(params=INSTRUCTION_SETS)
def instruction_set(request: pytest.FixtureRequest, kernel: ModuleType) -> str:
    """Run the test once with each instruction set that this processor has."""
    name: str = request.param
    if name not in kernel.instruction_sets():
        pytest.skip(f"this processor or build has no {name}")
    kernel.use(name)
    return name
