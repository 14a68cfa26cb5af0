"""``WHVIRegressor`` with defaults beside what a practitioner would take instead: trees.

    python -m benchmarks.versus_trees [--data NAME ...] [--seeds 1 2 3] [--json FILE]

Test parts of the sets are not touched: each fold trains on 85 % of the training rows of the first
split and scores the other 15 %. Seed 0 is the fold on which the defaults were chosen: judge by
others. Trees give no distribution; theirs is a Gaussian around their
prediction whose variance is that of residuals on a tenth of the training rows that they left out.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor

from benchmarks.machine import describe_machine
from reproduction.data import load_uci, train_validation_split
from whvi.tabular import WHVIRegressor

NAMES = ("boston", "concrete", "energy", "kin8nm", "naval", "powerplant", "protein", "yacht")
_HELD_OUT = 0.15
_RESIDUAL_ROWS = 0.1
_TREES = {
    "extra trees": lambda seed: ExtraTreesRegressor(300, random_state=seed),
    "boosting": lambda seed: HistGradientBoostingRegressor(random_state=seed),
}
Array = NDArray[np.float64]
Scores = dict[str, float]


def folds(name: str, seeds: Sequence[int]) -> Iterator[tuple[Array, Array, Array, Array]]:
    """Yield training and held-out rows within the training part of the first split."""
    data = load_uci(name)
    rows = data.splits[0].train
    for seed in seeds:
        train, test = (rows[part] for part in train_validation_split(len(rows), _HELD_OUT, seed))
        yield data.x[train], data.y[train], data.x[test], data.y[test]


def score_trees(kind: str, x: Array, y: Array, x_new: Array, y_new: Array, seed: int) -> Scores:
    fit, rest = train_validation_split(len(x), _RESIDUAL_ROWS, seed)
    residual = y[rest] - _TREES[kind](seed).fit(x[fit], y[fit]).predict(x[rest])
    variance = float(np.mean(residual**2))
    error = _TREES[kind](seed).fit(x, y).predict(x_new) - y_new
    half_width = 1.6448536269514722 * math.sqrt(variance)
    return {
        "rmse": float(np.sqrt(np.mean(error**2))),
        "mnll": float(0.5 * math.log(2 * math.pi * variance) + np.mean(error**2) / (2 * variance)),
        "coverage90": float(np.mean(np.abs(error) <= half_width)),
    }


def score_whvi(x: Array, y: Array, x_new: Array, y_new: Array, seed: int) -> Scores:
    model = WHVIRegressor(random_state=seed).fit(x, y)
    predictive = model.predict_dist(x_new)
    target = torch.as_tensor(y_new)
    lower, upper = predictive.interval(0.9)
    return {
        "rmse": float((predictive.mean - target).square().mean().sqrt()),
        "mnll": float(-predictive.log_prob(target).mean()),
        "coverage90": float(((lower <= target) & (target <= upper)).double().mean()),
    }


def measure(name: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Score all methods on a set; values are means over folds."""
    scores: dict[str, list[Scores]] = {}
    for seed, fold in zip(seeds, folds(name, seeds), strict=True):
        for method in ("WHVIRegressor", *_TREES):
            start = time.perf_counter()
            found = (
                score_trees(method, *fold, seed) if method in _TREES else score_whvi(*fold, seed)
            )
            found["seconds"] = time.perf_counter() - start
            scores.setdefault(method, []).append(found)
    means = {
        method: {key: float(np.mean([entry[key] for entry in entries])) for key in entries[0]}
        for method, entries in scores.items()
    }
    return {"data": name, "seeds": list(seeds), "scores": means}


def line(record: dict[str, Any]) -> str:
    """Return one row of the table, with the ratio of errors to the better trees."""
    scores = record["scores"]
    ours = scores["WHVIRegressor"]
    ratio = ours["rmse"] / min(scores[kind]["rmse"] for kind in _TREES)
    cells = [record["data"]]
    for method in scores.values():
        cells.append(f"{method['rmse']:.4g} / {method['mnll']:.3f} / {method['coverage90']:.0%}")
    return "| " + " | ".join([*cells, f"{ratio:.2f}", f"{ours['seconds']:.0f}"]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="one fold each")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print("RMSE / MNLL / coverage of 90 % intervals; last: our RMSE ÷ better trees, our seconds\n")
    print(
        "| data | WHVIRegressor | extra trees | boosting | ratio | s |\n|---|---|---|---|---|---|"
    )
    records = []
    for name in options.data:
        records.append(measure(name, options.seeds))
        print(line(records[-1]), flush=True)
        if options.json:
            content = {"machine": describe_machine(torch.get_num_threads()), "records": records}
            options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
