"""Choose hyper-parameters for every split on an inner validation part of its own training rows.

A choice shared by several splits would leak: training rows of one split are test rows of another.
So every split chooses alone, and never sees its test rows. Splits, inner parts, candidates and
ensemble members train as replicas of one pass wherever their settings allow it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reproduction.data import (
    Replicas,
    Split,
    UCIDataset,
    stack_replicas,
    standardize_replicas,
    train_validation_split,
)
from reproduction.methods import DataSize, Fitted, Method, Settings
from reproduction.methods.calibration import FACTORS, mnll_by_factor, pool_members
from whvi.predictive import Predictive
from whvi.tabular.calibration import best_factor

VALIDATION_FRACTION = 0.15
_SMALL = 5000  # training rows below which the scores of several inner parts are averaged
_INNER_PARTS = 5  # of these: one alone is too few rows to rank candidates
_SELECTION_DRAWS = 64
_WORK = ("steps", "batch", "width")  # the time of a network goes about with their product
_QUICK_LIMITS = {"steps": 600, "n_estimators": 100, "max_iter": 100}
_UNITS_AT_ONCE = 1 << 14  # replicas × width that train in one pass: their state fits the cache


Scores = dict[str, float]
"""Of one candidate on the validation rows of one split, standardised units: ``rmse``, ``mnll``
(with its best noise factor) and that ``noise_factor``."""
Known = Mapping[int, Mapping[str, Scores]]
"""Scores by split and :func:`key` of the candidate, from an earlier choice of the same family."""


@dataclass(frozen=True)
class Choice:
    """What one split chose.

    Attributes:
        settings: The winner.
        noise_factor: Its recalibration, see :mod:`whvi.tabular.calibration`.
        scores: Of every candidate, by its :func:`key`.
        seconds: Share of the time that choosing took.
    """

    settings: Settings
    noise_factor: float
    scores: Mapping[str, Scores]
    seconds: float

    def in_short(self) -> dict[str, Any]:
        """Return what was chosen, without the scores, ready for JSON."""
        return {
            "settings": dict(self.settings),
            "noise_factor": self.noise_factor,
            "seconds": self.seconds,
        }

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {**self.in_short(), "scores": dict(self.scores)}


def key(settings: Settings) -> str:
    """Name a candidate by its settings."""
    return json.dumps(dict(settings), sort_keys=True)


def choose(
    method: Method,
    dataset: UCIDataset,
    splits: Sequence[int],
    *,
    seed: int,
    quick: bool = False,
    known: Known = MappingProxyType({}),
    repeats: int | None = None,
) -> list[Choice]:
    """Choose settings for each of ``splits``, every one by itself.

    The winner has the least ``log RMSE + MNLL``: both scores of the table, in nats. Candidates are
    compared as single models; for an ensemble the noise factor of the winner is then fitted anew
    with all members.

    Args:
        method: Gives the candidates.
        dataset: The table and its splits.
        splits: Numbers of the splits.
        seed: Of training; inner parts depend on it too.
        quick: Take the first candidate only, with few steps.
        known: Scores that need not be computed again.
        repeats: Inner parts whose scores are averaged; by default :func:`num_inner_parts`.
    """
    start = time.perf_counter()
    num_train = len(dataset.splits[splits[0]].train)
    grid = candidates(method, DataSize(num_train, dataset.x.shape[1]), quick=quick)
    repeats = repeats or (1 if quick else num_inner_parts(num_train))
    fresh = [c for c in grid if not all(key(c) in known.get(k, {}) for k in splits)]
    scores: list[dict[str, Scores]] = [dict(known.get(k, {})) for k in splits]
    if fresh:
        tasks = [(k, c) for k in range(len(splits)) for c in fresh]
        numbers, settings = [splits[k] for k, _ in tasks], [c for _, c in tasks]
        found = _score(method, dataset, numbers, settings, repeats, members=1, seed=seed)
        for (k, c), each in zip(tasks, found, strict=True):
            scores[k][key(c)] = each
    winners = [_winner(grid, each) for each in scores]
    factors = [scores[k][key(c)]["noise_factor"] for k, c in enumerate(winners)]
    if method.num_members > 1 and not quick:
        found = _score(method, dataset, splits, winners, 1, members=method.num_members, seed=seed)
        factors = [each["noise_factor"] for each in found]
    share = (time.perf_counter() - start) / len(splits)
    return [
        Choice(c, factor, {key(each): own[key(each)] for each in grid}, share)
        for c, factor, own in zip(winners, factors, scores, strict=True)
    ]


def num_inner_parts(num_rows: int) -> int:
    """Return on how many inner parts of so many training rows a candidate is scored."""
    return _INNER_PARTS if num_rows < _SMALL else 1


def training_work(method: Method, size: DataSize) -> float:
    """Return steps × rows × units of all that one split trains: its choice and its final fit."""
    each = [math.prod(float(c.get(k, 0)) for k in _WORK) for c in method.grid(size)]
    return num_inner_parts(size.num_rows) * sum(each) + method.num_members * max(each)


def _score(
    method: Method,
    dataset: UCIDataset,
    splits: Sequence[int],
    settings: Sequence[Settings],
    repeats: int,
    *,
    members: int,
    seed: int,
) -> list[Scores]:
    """Train ``settings[i]`` on inner parts of ``splits[i]`` and score it on the held-out rows.

    Args:
        method: What to train.
        dataset: The table and its splits.
        splits: A split for every task.
        settings: A candidate for every task.
        repeats: Inner parts per task, whose scores are averaged.
        members: Models that are pooled in every part.
        seed: Of training and of the inner parts.
    """
    numbers = sorted(set(splits))
    parts = [
        inner_split(dataset.splits[k], seed=seed, split=k, repeat=r)
        for k, r in product(numbers, range(repeats))
    ]
    scaled = standardize_replicas(stack_replicas(dataset.x, dataset.y, parts)).data
    tasks = [
        (numbers.index(k) * repeats + r, i) for i, k in enumerate(splits) for r in range(repeats)
    ]
    square_error, curves, is_mixture = _held_out_scores(
        method, [p for p, _ in tasks], [settings[i] for _, i in tasks], scaled, members, seed
    )
    rmse = square_error.unflatten(0, (-1, repeats)).mean(1).sqrt()
    curves = curves.unflatten(0, (-1, repeats)).mean(1)
    best = best_factor(curves, repeats * scaled.y_test.shape[1], FACTORS, is_mixture=is_mixture)
    mnll = curves.gather(-1, best.unsqueeze(-1)).squeeze(-1)
    return [
        {"rmse": r, "mnll": m, "noise_factor": f}
        for r, m, f in zip(rmse.tolist(), mnll.tolist(), FACTORS[best].tolist(), strict=True)
    ]


def _held_out_scores(
    method: Method,
    parts: Sequence[int],
    settings: Sequence[Settings],
    data: Replicas,
    members: int,
    seed: int,
) -> tuple[Tensor, Tensor, bool]:
    """Train ``settings[i]`` on inner part ``parts[i]`` and score it on the held-out rows.

    Args:
        method: What to train.
        parts: T positions in ``data``.
        settings: T candidates.
        data: Inner parts, standardised; their ``test`` rows are the validation rows.
        members: Models that are pooled.
        seed: Of training.

    Returns:
        Mean squared errors ``(T,)``, MNLL for every noise factor ``(T, K)``, and whether the
        predictions are mixtures.
    """
    x, y, held_x, held_y = (torch.as_tensor(part).float() for part in data)
    square_error = torch.empty(len(parts), dtype=torch.float64)
    mnll = torch.empty(len(parts), len(FACTORS), dtype=torch.float64)
    is_mixture = False
    for group in groups(method, settings, members):
        replicas = [i for i in group for _ in range(members)]
        rows = [parts[i] for i in replicas]
        fitted = method.fit([settings[i] for i in replicas], x[rows], y[rows], seed=seed)
        predictive = predict(fitted, held_x[rows], members, _SELECTION_DRAWS)
        is_mixture = predictive.num_components > 1
        targets = held_y[[parts[i] for i in group]].double()
        square_error[group] = (predictive.mean - targets).square().mean(-1)
        mnll[group] = mnll_by_factor(predictive, targets)
    return square_error, mnll, is_mixture


def _winner(grid: Sequence[Settings], scores: Mapping[str, Scores]) -> Settings:
    def objective(candidate: Settings) -> float:
        found = scores[key(candidate)]
        value = math.log(found["rmse"]) + found["mnll"]
        return value if math.isfinite(value) else math.inf

    return min(grid, key=objective)


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
