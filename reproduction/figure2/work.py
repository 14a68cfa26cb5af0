"""One fit of Figure 2: simulate, split, train, score."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from reproduction.data import random_splits, simulate, stack_replicas, standardize_replicas
from reproduction.figure2.cells import Cell
from reproduction.figure2.models import function_moments
from reproduction.records import Record, software_versions
from reproduction.runner import Unit
from whvi.gp.optimise import fit_collapsed

NUM_POINTS, QUICK_POINTS = 10_000, 2_500
_TEST_FRACTION = 0.2


@dataclass(frozen=True)
class Effort:
    """How hard a model is trained; see :func:`whvi.gp.optimise.fit_collapsed`."""

    starts: int
    iterations: int
    subset: int = 4000


def effort(method: str, side: int, *, quick: bool) -> Effort:
    """Return what every model of a size gets: more starts where a start is cheap."""
    if quick:
        return Effort(2, 25, 1000)
    if method == "sparse-gp":  # its only search is L-BFGS, which needs more evaluations
        return Effort({8: 8, 16: 8, 32: 6, 64: 4}.get(side, 2), 400)
    starts = {8: 32, 16: 24, 32: 12, 64: 6}.get(side, 2)
    return Effort(starts, 100 if side <= 64 else 50)


@dataclass(frozen=True)
class Figure2Work:
    """Computes a unit of the figure: one cell on one data set with one seed.

    Attributes:
        quick: Fewer rows and little training: a test of the machinery, not of the methods.
    """

    quick: bool = False

    def __call__(self, unit: Unit) -> Iterator[Record]:
        """Yield the records of ``unit``; its splits are the sides of the matching models."""
        for side in unit.splits:
            yield self._record(unit, side)

    def _record(self, unit: Unit, side: int) -> Record:
        cell = Cell.of_name(unit.method)
        num_points = QUICK_POINTS if self.quick else NUM_POINTS
        x, y = simulate(unit.dataset, num_points, unit.seed)
        splits = random_splits(num_points, 1, unit.seed, test_fraction=_TEST_FRACTION)
        scaled = standardize_replicas(stack_replicas(x, y, splits))
        train_x, train_y, test_x, test_y = (torch.as_tensor(part[0]) for part in scaled.data)
        basis = cell.build(x.shape[-1], side)
        training = effort(cell.method, side, quick=self.quick)
        begin, wall_begin = time.process_time(), time.perf_counter()
        fit = fit_collapsed(
            basis,
            train_x,
            train_y,
            covariance=cell.covariance,
            starts=training.starts,
            iterations=training.iterations,
            subset=training.subset,
            seed=unit.seed,
        )
        seconds = time.process_time() - begin  # on one thread: other programs do not count
        wall_seconds = time.perf_counter() - wall_begin
        mean, variance = function_moments(fit, test_x)
        errors = test_y - mean
        total = variance + fit.noise_variance
        mnll = 0.5 * (errors.square() / total + total.log() + math.log(2 * math.pi)).mean()
        return {
            "cell": cell.name,
            "method": cell.method,
            "covariance": cell.covariance,
            "count_inducing": cell.count_inducing,
            "dataset": unit.dataset,
            "side": side,
            "seed": unit.seed,
            "num_parameters": cell.count(basis),
            "num_coefficients": basis.num_coefficients,
            "rmse": float(errors.square().mean().sqrt()),
            "mnll": float(mnll),
            "target_std": float(scaled.y.scale[0, 0]),
            "bound": fit.bound,
            "noise_variance": fit.noise_variance,
            "seconds": seconds,
            "wall_seconds": wall_seconds,
            "num_train": len(train_y),
            "num_test": len(test_y),
            "starts": training.starts,
            "iterations": training.iterations,
            "quick": self.quick,
            "versions": software_versions(),
        }
