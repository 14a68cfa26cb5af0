from __future__ import annotations

import numpy as np
import pytest

from reproduction.data import UCIDataset, random_splits
from reproduction.methods import Method
from reproduction.methods.networks import NetworkMethod


@pytest.fixture
def toy() -> UCIDataset:
    """Eighty rows of a smooth function with noise, three splits."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3))
    y = 50 + 10 * np.sin(x[:, 0]) + rng.normal(size=80)
    return UCIDataset("toy", x, y, random_splits(80, 3, seed=0), sha256="0" * 64)


def tiny(beta: float, **options: float | str) -> dict[str, float | int | str]:
    """Settings of a small network that trains for a moment."""
    settings = {"width": 16, "depth": 1, "steps": 12, "batch": 16, "lr": 1e-2}
    return {**settings, "noise": "constant", "beta": beta, **options}


@pytest.fixture
def tiny_method() -> Method:
    grid = (tiny(1.0), tiny(0.1), tiny(0.5, noise="heteroscedastic"))
    return NetworkMethod("tiny", "structured", lambda size: grid, num_members=2)


def record(
    method: str, dataset: str, split: int, rmse: float, mnll: float, *, seed: int = 0
) -> dict[str, object]:
    """A line of Table 1 as the report reads it."""
    name = {"method": method, "dataset": dataset, "split": split, "seed": seed}
    scores = {"rmse": rmse, "mnll": mnll, "crps": rmse / 2, "coverage95": 0.9}
    draws = {"rmse_per_draw": rmse + 1, "mnll_per_draw": mnll + 1}
    return {**name, **scores, **draws, "num_parameters": 100, "seconds": 2.5, "num_duplicates": 1}
