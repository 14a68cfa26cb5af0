"""Deep Gaussian processes against single-layer ones, on a UCI table and on a simulator.

Three models with structured weights and the same random features see the same rows: a single-layer
process with the collapsed bound, the same by minibatches of the ELBO, and a deep one with one
hidden layer of four functions by the same minibatches. Test rows are used once, at the end.

    python examples/deep_gp.py [--data FOLDER] [--output FILE] [--quick]

``--data`` names the folder ``UCI_Datasets``; without it (and without the variable WHVI_DATA) the
table is downloaded.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor

import whvi
from reproduction.data import load_uci, simulate
from whvi.gp import DeepGP, RandomFeatureGP
from whvi.likelihoods import Gaussian
from whvi.predictive import Predictive

NUM_FEATURES = 1024
Rows = tuple[Tensor, Tensor, Tensor, Tensor]


def simulator_rows(quick: bool) -> Rows:
    """Borehole, 10,000 scrambled Sobol' points, 80 % for training."""
    num = 500 if quick else 10_000
    x, y = (torch.tensor(v) for v in simulate("borehole", num, seed=0))
    order = torch.randperm(num, generator=torch.Generator().manual_seed(0))
    train, test = order[: int(0.8 * num)], order[int(0.8 * num) :]
    return x[train], y[train], x[test], y[test]


def table_rows(folder: Path | None) -> Rows:
    """kin8nm, the literature's split 0."""
    table = load_uci("kin8nm", folder)
    train, test = table.splits[0]
    x, y = torch.tensor(table.x), torch.tensor(table.y)
    return x[train], y[train], x[test], y[test]


def collapsed(rows: Rows, quick: bool) -> Predictive:
    model = RandomFeatureGP(rows[0].shape[1], NUM_FEATURES)
    model.fit(*rows[:2], starts=1 if quick else 3, iterations=5 if quick else 60)
    return model.predictive(rows[2])


def minibatches(rows: Rows, hidden: tuple[int, ...], quick: bool) -> Predictive:
    x, y, test_x, _ = rows
    mean, scale = x.mean(0), x.std(0)
    likelihood = Gaussian()
    likelihood.set_target_scaling(y)
    model = DeepGP(x.shape[1], hidden, num_features=NUM_FEATURES)
    config = whvi.FitConfig(num_steps=20 if quick else 4000, batch_size=128, learning_rate=2e-2)
    standard = ((x - mean) / scale).float()
    whvi.fit(model, likelihood, (standard, y.float()), config=config)
    generator = torch.Generator().manual_seed(1)
    rows_32 = ((test_x - mean) / scale).float()
    f = whvi.draw_functions(
        model, rows_32, num_samples=4 if quick else 64, generator=generator, batch_size=100
    )
    return likelihood.predictive(f)


def compare(rows: Rows, quick: bool) -> dict[str, dict[str, float]]:
    """Return RMSE, mean negative log predictive density and seconds of every model."""
    models = {
        "one layer, collapsed bound": lambda: collapsed(rows, quick),
        "one layer, minibatches": lambda: minibatches(rows, (), quick),
        "two layers, minibatches": lambda: minibatches(rows, (4,), quick),
    }
    results = {}
    for name, run in models.items():
        torch.manual_seed(0)
        start = time.process_time()
        predictive = run()
        lower, upper = predictive.interval(0.9)
        y = rows[3]
        results[name] = {
            "rmse": (predictive.mean - y).square().mean().sqrt().item(),
            "rmse_over_std": ((predictive.mean - y).square().mean().sqrt() / y.std()).item(),
            "mnll": -predictive.log_prob(y).mean().item(),
            "coverage_90": ((y > lower) & (y < upper)).double().mean().item(),
            "cpu_seconds": round(time.process_time() - start, 1),
        }
        print(f"  {name:28s} " + "  ".join(f"{k} {v:.4g}" for k, v in results[name].items()))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--output", type=Path, default=Path("deep_gp.json"))
    parser.add_argument("--quick", action="store_true", help="a few steps, simulator only")
    options = parser.parse_args()
    summary = {}
    print("borehole")
    summary["borehole"] = compare(simulator_rows(options.quick), options.quick)
    if not options.quick:
        print("kin8nm")
        summary["kin8nm"] = compare(table_rows(options.data), options.quick)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(summary, indent=2) + "\n")
    print(f"summary: {options.output}")


if __name__ == "__main__":
    main()
