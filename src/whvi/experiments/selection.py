"""Choose hyper-parameters for every split on an inner validation part of its own training rows.

A choice shared by several splits would leak: training rows of one split are test rows of another.
So every split chooses alone, and never sees its test rows. Splits, inner parts, candidates and
ensemble members train as replicas of one pass wherever their settings allow it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whvi.data import (
    Replicas,
    Split,
    UCIDataset,
    stack_replicas,
    standardize_replicas,
    train_validation_split,
)
from whvi.experiments.calibration import FACTORS, best_factor, mnll_by_factor, pool_members
from whvi.experiments.methods.protocol import DataSize, Fitted, Method, Settings
from whvi.predictive import Predictive

VALIDATION_FRACTION = 0.15
_SMALL = 5000  # training rows below which two inner parts are averaged
_SELECTION_MEMBERS = 2  # of an ensemble: enough to rank candidates
_SELECTION_DRAWS = 64
_QUICK_LIMITS = {"steps": 600, "n_estimators": 100, "max_iter": 100}
_UNITS_AT_ONCE = 1 << 14  # replicas × width that train in one pass: their state fits the cache


@dataclass(frozen=True)
class Choice:
    """What one split chose.

    Attributes:
        settings: The winner.
        noise_factor: Its recalibration, see :mod:`whvi.experiments.calibration`.
        scores: Of every candidate on validation rows, standardised units: ``rmse``, ``mnll`` (with
            its best factor), ``noise_factor``.
        seconds: Share of the time that choosing took.
    """

    settings: Settings
    noise_factor: float
    scores: tuple[dict[str, float], ...]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "settings": dict(self.settings),
            "noise_factor": self.noise_factor,
            "scores": list(self.scores),
            "seconds": self.seconds,
        }


def choose(
    method: Method, dataset: UCIDataset, splits: Sequence[int], *, seed: int, quick: bool = False
) -> list[Choice]:
    """Choose settings for each of ``splits``, every one by itself.

    The winner has the least ``log RMSE + MNLL``: both scores of the table, in nats.

    Args:
        method: Gives the candidates.
        dataset: The table and its splits.
        splits: Numbers of the splits.
        seed: Of training; inner parts depend on it too.
        quick: Take the first candidate only, with few steps.
    """
    start = time.perf_counter()
    num_train = len(dataset.splits[splits[0]].train)
    grid = candidates(method, DataSize(num_train, dataset.x.shape[1]), quick=quick)
    repeats = 2 if num_train < _SMALL and not quick else 1
    parts = [
        inner_split(dataset.splits[k], seed=seed, split=k, repeat=r)
        for k, r in product(splits, range(repeats))
    ]
    scaled = standardize_replicas(stack_replicas(dataset.x, dataset.y, parts)).data
    square_error, mnll, is_mixture = _held_out_scores(method, grid, scaled, seed)
    per_split = (len(splits), repeats)
    rmse = square_error.unflatten(0, per_split).mean(1).sqrt()
    curves = mnll.unflatten(0, per_split).mean(1)
    best = best_factor(curves, repeats * scaled.y_test.shape[1], is_mixture=is_mixture)
    mnll = curves.gather(-1, best.unsqueeze(-1)).squeeze(-1)
    share = (time.perf_counter() - start) / len(splits)
    return [_choice(grid, rmse[k], mnll[k], FACTORS[best[k]], share) for k in range(len(splits))]


def _held_out_scores(
    method: Method, grid: Sequence[Settings], data: Replicas, seed: int
) -> tuple[Tensor, Tensor, bool]:
    """Train every candidate on every inner part and score it on the held-out rows.

    Args:
        method: What to train.
        grid: G candidates.
        data: P inner parts, standardised; their ``test`` rows are the validation rows.
        seed: Of training.

    Returns:
        Mean squared errors ``(P, G)``, MNLL for every noise factor ``(P, G, K)``, and whether the
        predictions are mixtures.
    """
    x, y, held_x, held_y = (torch.as_tensor(part).float() for part in data)
    members = min(method.num_members, _SELECTION_MEMBERS)
    tasks = [(p, c) for c in range(len(grid)) for p in range(len(x))]
    square_error = torch.empty(len(x), len(grid), dtype=torch.float64)
    mnll = torch.empty(len(x), len(grid), len(FACTORS), dtype=torch.float64)
    is_mixture = False
    for group in groups(method, [grid[c] for _, c in tasks], members):
        replicas = [tasks[i] for i in group for _ in range(members)]
        rows = [p for p, _ in replicas]
        fitted = method.fit([grid[c] for _, c in replicas], x[rows], y[rows], seed=seed)
        predictive = predict(fitted, held_x[rows], members, _SELECTION_DRAWS)
        is_mixture = predictive.num_components > 1
        part, candidate = torch.tensor([tasks[i] for i in group]).unbind(1)
        targets = held_y[part].double()
        square_error[part, candidate] = (predictive.mean - targets).square().mean(-1)
        mnll[part, candidate] = mnll_by_factor(predictive, targets)
    return square_error, mnll, is_mixture


def _choice(
    grid: Sequence[Settings], rmse: Tensor, mnll: Tensor, factor: Tensor, seconds: float
) -> Choice:
    objective = rmse.log() + mnll
    winner = int(torch.where(objective.isfinite(), objective, math.inf).argmin())
    scores = tuple(
        {"rmse": r, "mnll": m, "noise_factor": f}
        for r, m, f in zip(rmse.tolist(), mnll.tolist(), factor.tolist(), strict=True)
    )
    return Choice(grid[winner], scores[winner]["noise_factor"], scores, seconds)


def candidates(method: Method, size: DataSize, *, quick: bool) -> tuple[Settings, ...]:
    """Return the grid; in a quick run its first member with few steps or trees."""
    grid = method.grid(size)
    if not quick:
        return grid
    first = dict(grid[0])
    for key, most in _QUICK_LIMITS.items():
        if key in first:
            first[key] = min(int(first[key]), most)
    return (first,)


def inner_split(outer: Split, *, seed: int, split: int, repeat: int) -> Split:
    """Divide the training rows of a split into fitting and validation rows of the table."""
    entropy = int(np.random.SeedSequence((seed, split, repeat)).generate_state(1)[0])
    inner = train_validation_split(len(outer.train), VALIDATION_FRACTION, entropy)
    return Split(outer.train[inner.train], outer.train[inner.test])


def predict(fitted: Fitted, x: Tensor, num_members: int, num_draws: int) -> Predictive:
    """Predict with about ``num_draws`` components, shared out among the members."""
    each = max(1, num_draws // num_members)
    return pool_members(fitted.predict(x, num_draws=each), num_members)


def groups(method: Method, settings: Sequence[Settings], members: int) -> Iterator[list[int]]:
    """Divide fits into groups that train in one pass: same structure, not too many."""
    found: dict[str, list[int]] = {}
    for i, each in enumerate(settings):
        shared = {key: value for key, value in each.items() if key not in method.per_replica}
        found.setdefault(json.dumps(shared, sort_keys=True), []).append(i)
    for indices in found.values():
        width = int(settings[indices[0]].get("width", 128))
        size = max(1, _UNITS_AT_ONCE // (width * members))
        for start in range(0, len(indices), size):
            yield indices[start : start + size]
