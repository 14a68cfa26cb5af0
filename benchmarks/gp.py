"""Gaussian process with weights ``vec(W)`` of side 64 (4,096 features): fit and prediction.

A fit is that of ``RandomFeatureGP(weights="whvi")`` with its default effort, from rows in the
user's units to the posterior, run once, with freed memory kept as the estimators do: seconds of the
clock on two threads, and of the processor on one thread, to which other programs add nothing.
A prediction is the mean alone, or mean and variance.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.records import Cell, timed_cell
from benchmarks.timing import Effort, Rival
from whvi.gp import RandomFeatureGP
from whvi.training.process import keep_freed_memory

TITLE = "Gaussian process, side 64"
FIT_ROWS = (10_000, 200_000)
PREDICT_ROWS = 100_000
_QUICK_FIT_ROWS, _QUICK_PREDICT_ROWS = (2_000,), 2_000
_NUM_FEATURES, _INPUTS, _NOISE = 4096, 8, 0.05
_LONGEST_PREDICTION = 30.0  # seconds


def cells(effort: Effort, quick: bool) -> Iterator[Cell]:
    """Fits on few and many rows, then predictions."""
    before = torch.get_num_threads()
    keep_freed_memory()
    try:
        for rows in _QUICK_FIT_ROWS if quick else FIT_ROWS:
            yield _fit_cell(rows)
        rows = _QUICK_PREDICT_ROWS if quick else PREDICT_ROWS
        yield from _prediction_cells(rows, effort._replace(longest_call=_LONGEST_PREDICTION))
    finally:
        torch.set_num_threads(before)


def simulate(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs ``(rows, 8)`` in the unit cube and a smooth function of seven of them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, _INPUTS, generator=generator, dtype=torch.float64)
    waves = torch.sin(3 * math.pi * x[:, 0] * x[:, 1]) + 0.5 * torch.cos(4 * x[:, 5] + 2 * x[:, 6])
    noise = torch.randn(rows, generator=generator, dtype=torch.float64)
    return x, waves + 2 * (x[:, 2] - 0.5).square() + x[:, 3] * x[:, 4] + _NOISE * noise


def _model() -> RandomFeatureGP:
    return RandomFeatureGP(_INPUTS, _NUM_FEATURES, weights="whvi")


def _fit_cell(rows: int) -> Cell:
    x, y = simulate(rows, seed=0)
    torch.set_num_threads(2)
    start = time.perf_counter()
    _model().fit(x, y)
    clock = time.perf_counter() - start
    torch.set_num_threads(1)
    start = time.process_time()
    _model().fit(x, y)
    return Cell(
        {"work": "fit", "rows": rows},
        {"2 threads": clock, "1 thread, processor": time.process_time() - start},
        {},
    )


def _prediction_cells(rows: int, effort: Effort) -> Iterator[Cell]:
    model = _model()
    model.fit(*simulate(1000, seed=0), starts=1, iterations=2)
    x, _ = simulate(rows, seed=1)
    calls = {"mean": model.predict_mean, "mean and variance": model.predict_function}
    for work, call in calls.items():
        rivals = {
            name: Rival(partial(call, x), prepare=partial(torch.set_num_threads, number))
            for name, number in (("2 threads", 2), ("1 thread", 1))
        }
        yield timed_cell({"work": work, "rows": rows}, rivals, effort)
