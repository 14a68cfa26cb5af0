"""Deep Gaussian processes against single-layer ones, on a UCI table and on a simulator.

Three models with structured weights and the same random features see the same rows: a single-layer
process with the collapsed bound, the same by minibatches of the ELBO, and a deep one with one
hidden layer of four functions by the same minibatches. Test rows are used once, at the end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import whvi
from reproduction.data import load_uci, simulate
from reproduction.report import replace_file
from whvi.gp import DeepGP, RandomFeatureGP
from whvi.likelihoods import Gaussian
from whvi.predictive import Predictive

NUM_FEATURES = 1024
Rows = tuple[Tensor, Tensor, Tensor, Tensor]
Scores = dict[str, dict[str, float]]


def reproduce_deep_gp(folder: Path, *, data_dir: str | None = None, quick: bool = False) -> Path:
    """Compare the models and write ``summary.json``; returns the folder.

    Args:
        folder: For the file.
        data_dir: Folder that holds ``UCI_Datasets``.
        quick: A few steps, on the simulator only.
    """
    summary = {"borehole": compare(simulator_rows(quick=quick), quick=quick)}
    if not quick:
        summary["kin8nm"] = compare(table_rows(data_dir), quick=quick)
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    return folder


def simulator_rows(*, quick: bool) -> Rows:
    """Borehole, 10,000 scrambled Sobol' points, 80 % for training."""
    num = 500 if quick else 10_000
    x, y = (torch.tensor(v) for v in simulate("borehole", num, seed=0))
    order = torch.randperm(num, generator=torch.Generator().manual_seed(0))
    train, test = order[: int(0.8 * num)], order[int(0.8 * num) :]
    return x[train], y[train], x[test], y[test]


def table_rows(data_dir: str | None) -> Rows:
    """kin8nm, the literature's split 0."""
    table = load_uci("kin8nm", data_dir)
    train, test = table.splits[0]
    x, y = torch.tensor(table.x), torch.tensor(table.y)
    return x[train], y[train], x[test], y[test]


def compare(rows: Rows, *, quick: bool) -> Scores:
    """Return RMSE, mean negative log predictive density and seconds of every model."""
    models: dict[str, Callable[[], Predictive]] = {
        "one layer, collapsed bound": lambda: _collapsed(rows, quick=quick),
        "one layer, minibatches": lambda: _minibatches(rows, (), quick=quick),
        "two layers, minibatches": lambda: _minibatches(rows, (4,), quick=quick),
    }
    results = {}
    for name, run in models.items():
        with torch.random.fork_rng():
            torch.manual_seed(0)  # starting points come from the global generator
            start = time.process_time()
            predictive = run()
        seconds = time.process_time() - start
        lower, upper = predictive.interval(0.9)
        y = rows[3]
        rmse = (predictive.mean - y).square().mean().sqrt()
        results[name] = {
            "rmse": rmse.item(),
            "rmse_over_std": (rmse / y.std()).item(),
            "mnll": -predictive.log_prob(y).mean().item(),
            "coverage_90": ((y > lower) & (y < upper)).double().mean().item(),
            "cpu_seconds": round(seconds, 1),
        }
    return results


def _collapsed(rows: Rows, *, quick: bool) -> Predictive:
    model = RandomFeatureGP(rows[0].shape[1], NUM_FEATURES)
    model.fit(*rows[:2], starts=1 if quick else 3, iterations=5 if quick else 60)
    return model.predictive(rows[2])


def _minibatches(rows: Rows, hidden: tuple[int, ...], *, quick: bool) -> Predictive:
    x, y, test_x, _ = rows
    mean, scale = x.mean(0), x.std(0)
    likelihood = Gaussian()
    likelihood.set_target_scaling(y)
    model = DeepGP(x.shape[1], hidden, num_features=NUM_FEATURES)
    config = whvi.FitConfig(num_steps=20 if quick else 4000, batch_size=128, learning_rate=2e-2)
    whvi.fit(model, likelihood, (((x - mean) / scale).float(), y.float()), config=config)
    f = whvi.draw_functions(
        model,
        ((test_x - mean) / scale).float(),
        num_draws=4 if quick else 64,
        generator=torch.Generator().manual_seed(1),
        batch_size=100,
    )
    return likelihood.predictive(f)
