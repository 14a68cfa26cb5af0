"""The library's answers on the toy, beside those of NUTS for the same network."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import whvi
from reproduction.gaps import toy
from reproduction.records import Record, RecordStore, commit, software_versions
from whvi.likelihoods import Gaussian

NUTS = "NUTS"
NUTS_FILE, FITS_FILE = "toy_nuts.json", "toy.jsonl"
_NUM_STEPS, _QUICK_STEPS, _NUM_DRAWS = 6000, 60, 1000


@dataclass(frozen=True)
class ToyFit:
    """Mean and standard deviation of ``f`` on the grid; R-hat if they are those of chains."""

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    rhat: list[float] = field(default_factory=list)


def read_toy(folder: Path) -> dict[str, ToyFit]:
    """Return what is there, NUTS first."""
    found = {}
    if (folder / NUTS_FILE).is_file():
        record = json.loads((folder / NUTS_FILE).read_text())
        mean, std = np.array(record["mean"]), np.array(record["std"])
        found[NUTS] = ToyFit(mean, std, record["rhat"])
    for record in RecordStore(folder / FITS_FILE).read().values():
        found[record["method"]] = ToyFit(np.array(record["mean"]), np.array(record["std"]))
    return found


def gap_ratio(fit: ToyFit, fits: Mapping[str, ToyFit]) -> dict[str, float | None]:
    """Return the standard deviation in the middle of the gap, over that of NUTS, and at the data.

    The middle is ``|x| < 0.4``; at the data is ``0.9 < |x| < 1.9``; both are means over the grid.
    """
    distance = np.abs(toy.GRID)
    middle, data = distance < 0.4, (distance > 0.9) & (distance < 1.9)
    reference = fits.get(NUTS)
    ratio = (
        None if reference is None else float(fit.std[middle].mean() / reference.std[middle].mean())
    )
    return {
        "middle": float(fit.std[middle].mean()),
        "ratio": ratio,
        "at_data": float(fit.std[data].mean()),
    }


def run_toy(folder: Path, *, quick: bool) -> None:
    """Train the network of the toy and record what it says of ``f``, once."""
    store = RecordStore(folder / FITS_FILE)
    for name, make in (("whvi", toy_records), ("WHVIRegressor", estimator_records)):
        if (name, "toy", 0, 0) not in store.read():
            store.append(make(quick=quick))


def toy_records(*, quick: bool) -> list[Record]:
    """Return mean and deviation of ``f`` by a trained diagonal ``q(g)``, and linearised."""
    with torch.random.fork_rng():
        torch.manual_seed(0)  # new layers draw from the global generator
        model, likelihood = structured_network(), true_noise()
    x, y = (torch.tensor(part, dtype=torch.float32) for part in toy.toy_data())
    steps = _QUICK_STEPS if quick else _NUM_STEPS
    settings: dict[str, Any] = {"num_steps": steps, "batch_size": 60, "learning_rate": 1e-2}
    config = whvi.FitConfig(**settings, warmup_steps=steps // 10, seed=0)
    whvi.fit(model, likelihood, (x, y), config=config)
    grid = torch.tensor(toy.GRID, dtype=torch.float32).unsqueeze(-1)
    generator = torch.Generator().manual_seed(1)
    f = whvi.draw_functions(model, grid, num_draws=_NUM_DRAWS, generator=generator).double()
    linearized = whvi.linearize(model, likelihood, (x, y), noise="keep")
    moments = linearized.function_moments(grid)
    answers = {
        "whvi": (f.mean(0), f.std(0)),
        "whvi-linearized": (moments.mean, moments.variance.sqrt()),
    }
    return _records(answers, settings, quick)


def estimator_records(*, quick: bool) -> list[Record]:
    """Return the same by ``WHVIRegressor`` with hidden layers of that width, else its defaults."""
    settings: dict[str, Any] = {"hidden_layer_sizes": toy.WIDTHS[1:-1], "likelihood": "gaussian"}
    model = whvi.WHVIRegressor(**settings, max_iter=_QUICK_STEPS if quick else None, random_state=0)
    predictive = model.fit(*toy.toy_data()).predict_dist(toy.GRID[:, None])
    return _records({"WHVIRegressor": (predictive.mean, predictive.epistemic)}, settings, quick)


def _records(
    answers: Mapping[str, tuple[Tensor, Tensor]], settings: dict[str, Any], quick: bool
) -> list[Record]:
    about = {"settings": settings, "quick": quick, "commit": commit()}
    return [
        {
            "method": name, "dataset": "toy", "split": 0, "seed": 0,
            "mean": mean.flatten().tolist(), "std": std.flatten().tolist(),
            **about, "versions": software_versions(),
        }
        for name, (mean, std) in answers.items()
    ]  # fmt: skip


def structured_network(*, dtype: torch.dtype | None = None) -> nn.Sequential:
    """Build the network of the toy, all of its layers structured."""
    first, *hidden, last = toy.WIDTHS
    return whvi.mlp(first, hidden, last, last_layer=whvi.WHVILinear, dtype=dtype)


def true_noise() -> Gaussian:
    """Return the likelihood with the noise of the data, which is not trained."""
    likelihood = Gaussian(log_noise_variance=2 * math.log(toy.NOISE))
    likelihood.requires_grad_(False)
    return likelihood
