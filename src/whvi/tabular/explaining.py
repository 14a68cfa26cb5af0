r"""Which columns matter, and why a row is predicted as it is; both by columns of the user's table.

*Importance* of a column: how much worse predictions become when its values change places between
rows (Breiman, 2001).

*Contributions* of the columns of a row ``x`` are Shapley values against a background of rows ``b``.
One after the other, in an order ``π``, the cells of ``b`` become those of ``x``; what that changes
is put down to the column, averaged over background rows and orders (Štrumbelj & Kononenko, 2014),

.. math:: \phi_j(x) = \mathrm{mean}_{b, \pi} \bigl[ f(x_{\pi \le j}, b_{\pi > j})
          - f(x_{\pi < j}, b_{\pi \ge j}) \bigr], \qquad
          \mathrm{mean}_b f(b) + \sum_j \phi_j(x) = f(x),

where the sum is exact, however few orders there are. Every weight draw is a function ``f`` with
contributions of its own: their mean belongs to the mean prediction, their standard deviation says
how sure the model is of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from whvi._checks import check_positive_int
from whvi.errors import ConfigError, DataError
from whvi.predictive import Predictive
from whvi.tabular.base import WHVIEstimator
from whvi.tabular.predictor import Predictor

Array = NDArray[np.float64]

_BLOCK = 2048  # rows whose mixtures are scored at once
_VALUES_AT_ONCE = 1 << 23  # inputs, or values of functions, of the steps of some walks


# Importance ------------------------------------------------------------------------------------


def importances(
    model: WHVIEstimator,
    X: Any,
    y: Any,
    *,
    score: Literal["mnll", "rmse"] = "mnll",
    num_repeats: int = 5,
    random_state: int = 0,
) -> pd.DataFrame:
    """Return the permutation importance of every column, the most important first.

    Args:
        model: Fitted.
        X, y: Rows, best those that were not trained on, and their targets.
        score: What gets worse: the mean negative log-likelihood in nats per row, or the root mean
            squared error of one target, in its units.
        num_repeats: How often the values of a column change places.
        random_state: Seed of the permutations.

    Returns:
        ``column``, ``importance``, and ``standard_error`` for other rows of the same kind.
    """
    check_positive_int("num_repeats", num_repeats)
    table = model._checked(X)
    if len(table) < 2:
        raise DataError(
            f"columns are permuted between rows: at least 2 are needed, got {len(table)}"
        )
    encoded = model._predictor.schema.encode(table)
    targets = _numbers(model, y, len(encoded))
    if score not in ("mnll", "rmse") or (score == "rmse" and targets.dim() == 2):
        raise ConfigError(f"score must be 'mnll', or for one target 'rmse', got {score!r}")
    if score == "rmse" and hasattr(model, "classes_"):
        raise ConfigError("score must be 'mnll' for labels, which have no mean; got 'rmse'")
    rng = np.random.default_rng(random_state)
    places = np.stack([rng.permutation(len(encoded)) for _ in range(num_repeats)])
    columns = model.schema_.columns
    found = permutation_importances(
        lambda rows: _row_losses(model._predictor, rows, targets, score),
        encoded,
        _owners(model._predictor),
        places,
        of_mean=(lambda loss: loss) if score == "mnll" else np.sqrt,
        num_columns=len(columns),
    )
    table = pd.DataFrame(found, columns=["importance", "standard_error"])
    table.insert(0, "column", [column.name for column in columns])
    return table.sort_values("importance", ascending=False, kind="stable", ignore_index=True)


def permutation_importances(
    losses: Callable[[Array], Array],
    encoded: Array,
    owner: NDArray[np.int64],
    places: NDArray[np.int64],
    *,
    of_mean: Callable[[Any], Any],
    num_columns: int,
) -> Array:
    """Return importance and standard error of every column, ``(d, 2)``.

    A row has an influence as the one that gets a value and as the one that gives it; the standard
    error counts both.

    Args:
        losses: Maps rows to their losses ``(N,)``.
        encoded: Rows ``(N, w)``.
        owner: Number of the column that each of ``w`` inputs belongs to.
        places: Permutations ``(R, N)`` of the rows.
        of_mean: From the mean of the losses to the score.
        num_columns: d.
    """
    before, found = losses(encoded), np.zeros((num_columns, 2))
    slope = _slope(of_mean, before.mean())
    for column in np.unique(owner):
        inputs, after = owner == column, np.empty(places.shape)
        for k, place in enumerate(places):
            rows = encoded.copy()
            rows[:, inputs] = encoded[np.ix_(place, np.flatnonzero(inputs))]
            after[k] = losses(rows)
        gain = after * _slope(of_mean, after.mean()) - before * slope
        given = np.take_along_axis(gain, places.argsort(axis=1), axis=1)
        influence = (gain + given).mean(axis=0)
        found[column, 0] = of_mean(after.mean()) - of_mean(before.mean())
        found[column, 1] = influence.std(ddof=1) / math.sqrt(len(influence))
    return found


def _slope(of_mean: Callable[[Any], Any], mean: float) -> float:
    """Return the derivative, by which errors of a mean become errors of its score."""
    step = 1e-6 * abs(mean) + 1e-300
    return float((of_mean(mean + step) - of_mean(mean)) / step)


def _row_losses(predictor: Predictor, encoded: Array, y: Tensor, score: str) -> Array:
    found = []
    for k in range(0, len(encoded), _BLOCK):
        p, targets = predictor.predict(encoded[k : k + _BLOCK]), y[k : k + _BLOCK]
        found.append(-p.log_prob(targets) if score == "mnll" else (p.mean - targets).square())
    losses: Array = torch.cat(found).cpu().numpy()
    return losses


def _numbers(model: WHVIEstimator, y: Any, num_rows: int) -> Tensor:
    """Return targets as the predictive distribution has them: numbers, or numbers of classes."""
    model._targets(y, num_rows)  # which refuses what cannot be used
    if model._predictor.classes is None:
        rows = np.asarray(y, dtype=np.float64).reshape(num_rows, -1)
        return torch.tensor(rows if rows.shape[1] > 1 else rows[:, 0])
    labels = np.asarray(y).reshape(-1)
    number = pd.Index(model._predictor.classes).get_indexer(pd.Index(labels))
    if (number < 0).any():
        row = int((number < 0).argmax())
        label = str(labels[row])
        raise DataError(f"row {row} has the label {label!r}, which training did not have; drop it")
    return torch.as_tensor(number, dtype=torch.float64)


def _owners(predictor: Predictor) -> NDArray[np.int64]:
    widths = [column.width for column in predictor.schema.columns]
    return np.repeat(np.arange(len(widths)), widths)


# Contributions ---------------------------------------------------------------------------------


class Contributions(NamedTuple):
    """Why rows are predicted as they are: ``base + mean.sum(1)`` is the prediction.

    With several targets, or classes (whose probabilities are explained), every array has an axis
    more, the last one.
    """

    columns: tuple[str, ...]
    base: Array  # mean prediction of the background
    mean: Array  # (N, d)
    std: Array  # (N, d): over weight draws


def contributions(
    model: WHVIEstimator,
    X: Any,
    background: Any,
    *,
    num_background: int = 64,
    num_orders: int = 2,
    random_state: int = 0,
) -> Contributions:
    """Return how much every column moves the prediction of every row away from the background's.

    A row's contributions do not depend on the rows beside it. They take about ``d`` times
    ``num_background · num_orders`` predictions each.

    Args:
        model: Fitted.
        X: Rows to explain.
        background: Rows to compare with, such as the training rows: a model does not keep them.
        num_background: How many of them, drawn at random.
        num_orders: In which columns are switched, for every background row: an order and its
            reverse, then others; all of them if there are no more.
        random_state: Seed of both.
    """
    check_positive_int("num_background", num_background)
    check_positive_int("num_orders", num_orders)
    tables = [model._checked(table) for table in (X, background)]
    predictor = dataclasses.replace(model._predictor, single=True)
    rng = np.random.default_rng(random_state)
    rows, others = (predictor.schema.encode(table) for table in tables)
    if len(others) > num_background:
        others = others[np.sort(rng.choice(len(others), num_background, replace=False))]
    d, owner = len(predictor.schema.columns), _owners(predictor)
    orders = np.stack([_orders(d, num_orders, rng) for _ in others])
    num_near = math.prod(predictor.functions.shape)

    def values(rows: Array) -> Array:
        return predictor.evaluate(rows, lambda p: _draws(p, num_near))

    at_background = values(others)
    each = [shapley_values(values, row, others, at_background, owner, orders) for row in rows]
    mean, std = (
        np.stack(part) for part in zip(*(_moments(e, num_near) for e in each), strict=True)
    )
    base = _moments(at_background.mean(0, keepdims=True), num_near)[0][0]
    names = tuple(column.name for column in predictor.schema.columns)
    if mean.shape[-1] == 1 and predictor.classes is None:
        return Contributions(names, base[0], mean[..., 0], std[..., 0])
    return Contributions(names, base, mean, std)


def shapley_values(
    values: Callable[[Array], Array],
    row: Array,
    background: Array,
    at_background: Array,
    owner: NDArray[np.int64],
    orders: NDArray[np.int64],
) -> Array:
    """Return the contributions of every column to every value of a row, ``(d, ...)``.

    Args:
        values: Maps rows ``(M, w)`` to values ``(M, ...)``.
        row: Inputs ``(w,)``.
        background: Inputs ``(B, w)`` of other rows.
        at_background: Their values ``(B, ...)``.
        owner: Number of the column that each input belongs to.
        orders: For each of them, in which columns are switched, ``(B, P, d)``.
    """
    d, end = orders.shape[-1], values(row[None])
    walks = [(b, order) for b, several in enumerate(orders) for order in several]
    at_once = max(1, _VALUES_AT_ONCE // (d * max(len(row), end.size)))
    total = np.zeros((d, *end.shape[1:]))
    for k in range(0, len(walks), at_once):
        starts = np.array([b for b, _ in walks[k : k + at_once]])
        rank = np.stack([order for _, order in walks[k : k + at_once]]).argsort(axis=1)
        switched = rank[:, None, owner] < np.arange(1, d)[:, None]  # (walks, d - 1, w)
        steps = np.where(switched, row, background[starts][:, None])
        between = values(steps.reshape(-1, len(row))) if d > 1 else end[:0]
        path = np.empty((len(starts), d + 1, *end.shape[1:]))
        path[:, 0], path[:, -1] = at_background[starts], end
        path[:, 1:-1] = between.reshape(len(starts), d - 1, *end.shape[1:])
        change = np.diff(path, axis=1)
        total += change[np.arange(len(starts))[:, None], rank].sum(axis=0)
    return total / len(walks)


def _orders(d: int, num_orders: int, rng: np.random.Generator) -> NDArray[np.int64]:
    if d < 10 and math.factorial(d) <= num_orders:
        return np.array(list(itertools.permutations(range(d))))
    found = []
    for _ in range(-(-num_orders // 2)):
        order = rng.permutation(d)
        found += [order, order[::-1]]
    return np.stack(found[:num_orders])


def _draws(p: Predictive, num_near: int) -> Tensor:
    """Return what every draw says of every row, ``(N, S, O)``.

    Near and far draws are scaled by their shares, so that the sum of their means is the mean.
    """
    means = p.component_means()
    means = means.unsqueeze(-1) if means.dim() == 2 else means
    if p.weights is not None:
        counts = means.new_full((len(means), 1), len(means) - num_near)
        counts[:num_near] = num_near
        means = means * (p.weights * counts).unsqueeze(-1)
    return means.movedim(0, 1)


def _moments(values: Array, num_near: int) -> tuple[Array, Array]:
    """Return mean and standard deviation over draws of ``(d, S, O)``, each ``(d, O)``."""
    parts = [part for part in (values[:, :num_near], values[:, num_near:]) if part.shape[1]]
    variance = sum((part.var(axis=1) for part in parts), np.zeros(()))
    return sum((part.mean(axis=1) for part in parts), np.zeros(())), np.sqrt(variance)
