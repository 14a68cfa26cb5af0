"""Scores of predictions: pure functions of tensors that return a scalar, the mean over all rows.

Targets must have exactly the shape of the predictions: nothing is broadcast. With replicas, score
each member of ``predictive.unbind()``. Lower is better except for ``accuracy`` and ``auroc``;
``coverage`` should equal the level of its interval. NaN gives NaN or raises ``DataError``.
``probs`` have shape ``(N, C)``, ``labels`` are integers 0, …, C − 1 of shape ``(N,)``, and ``pit``
is ``predictive.cdf(y)`` of any shape.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from whvi._checks import check_finite, check_positive_int
from whvi.errors import ConfigError, DataError, ShapeError

if TYPE_CHECKING:
    from whvi.predictive import Predictive

_PAIRS_AT_ONCE = 1 << 21  # elements of one (S, S, rows) block: 16 MB in float64
_PANEL_LEVELS = (1e-5, 0.01, 0.2, 0.5, 0.8, 0.99, 1 - 1e-5)


# Regression ----------------------------------------------------------------------------------


def rmse(prediction: Tensor, y: Tensor) -> Tensor:
    """Return the root mean squared error, in units of ``y``."""
    _check_same("prediction", prediction, y)
    return (prediction - y).square().mean().sqrt()


def mnll(log_prob: Tensor) -> Tensor:
    """Return the mean negative log-likelihood in nats per row, from ``predictive.log_prob(y)``."""
    if log_prob.numel() == 0:
        raise ShapeError("mnll of zero rows is undefined")
    return -log_prob.mean()


def coverage(lower: Tensor, upper: Tensor, y: Tensor) -> Tensor:
    """Return the fraction of targets within ``[lower, upper]``, to be compared with the level."""
    _check_interval(lower, upper, y)
    return ((lower <= y) & (y <= upper)).double().mean()


def interval_score(lower: Tensor, upper: Tensor, y: Tensor, *, level: float) -> Tensor:
    r"""Return the mean interval score (Gneiting & Raftery, 2007, eq. 43), in units of ``y``.

    :math:`(u - l) + \frac{2}{\alpha} (l - y)_+ + \frac{2}{\alpha} (y - u)_+`, α = 1 − level.
    """
    _check_interval(lower, upper, y)
    if not 0 < level < 1:
        raise ConfigError(f"level must lie strictly between 0 and 1, got {level!r}")
    miss = (lower - y).clamp_min(0) + (y - upper).clamp_min(0)
    return (upper - lower + 2 / (1 - level) * miss).mean()


def calibration_error(pit: Tensor) -> Tensor:
    r"""Return how far the PIT values are from uniform: :math:`\int_0^1 |\hat F(p) - p| \, dp`.

    The area between the calibration curve and the diagonal (Kuleshov et al., 2018), exact and
    without bins; between 0 and 1/2. For continuous targets.
    """
    u = check_pit(pit).sort().values
    num = len(u)
    edges = torch.linspace(0, 1, num + 1, dtype=u.dtype, device=u.device)
    start, end = edges[:-1], edges[1:]
    # The i-th smallest value is matched with the probabilities between start and end.
    inside = ((u - start).square() + (end - u).square()) / 2
    outside = (u - (start + end) / 2).abs() / num
    return torch.where((u >= start) & (u <= end), inside, outside).sum()


def crps(predictive: Predictive, y: Tensor) -> Tensor:
    r"""Return the mean continuous ranked probability score, in units of ``y``.

    :math:`\int (F(x) - 1[y \le x])^2 \, dx = E|X - y| - \tfrac12 E|X - X'|`, per output. Gaussian
    mixtures use the closed form, discrete ones the sum over all integers, in panels far out; others
    Gauss–Legendre quadrature of the cdf in panels between its quantiles and ``y`` (relative errors
    below 1e-4).
    """
    return crps_values(predictive, y).mean()


def crps_values(predictive: Predictive, y: Tensor) -> Tensor:
    """Return the same for every row, before the mean is taken."""
    if predictive.batch_shape:
        raise ShapeError(
            f"crps takes one mixture per row, got batch_shape {predictive.batch_shape}; "
            "score each of predictive.unbind(), or predictive.pool()"
        )
    y = y.double()
    shape = predictive.mean.shape
    if y.dim() == len(shape) + 1 and y.shape[-1] == 1:
        y = y.squeeze(-1)
    _check_same("predictive mean", predictive.mean, y)
    gaussian = predictive.gaussian_components()
    if gaussian is not None:
        return _crps_gaussian(*gaussian, y, predictive.weights)
    return (_crps_sum if predictive.discrete else _crps_quadrature)(predictive, y)


def _crps_gaussian(loc: Tensor, scale: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Return the CRPS of Gaussian mixtures (Grimit et al., 2006), per target.

    :math:`\sum_s w_s A(y - \mu_s, \sigma_s) - \tfrac12 \sum_{s,t} w_s w_t
    A(\mu_s - \mu_t, \sqrt{\sigma_s^2 + \sigma_t^2})` with
    :math:`A(m, \sigma) = E|N(m, \sigma^2)|`. Pairs are formed for a block of rows at a time.
    """
    num = loc.shape[0]
    if weights is None:
        weights = loc.new_full((num, loc.shape[1]), 1 / num)
    weights = weights[(..., *[None] * (loc.dim() - 2))].expand(loc.shape).reshape(num, -1)
    flat_loc, flat_scale = loc.reshape(num, -1), scale.reshape(num, -1)
    error = (weights * _mean_absolute(y.reshape(-1) - flat_loc, flat_scale)).sum(0)
    size = max(1, _PAIRS_AT_ONCE // num**2)
    parts = (flat_loc.split(size, 1), flat_scale.split(size, 1), weights.split(size, 1))
    spread = torch.cat([_pairwise_spread(*block) for block in zip(*parts, strict=True)])
    return (error - spread / 2).reshape(y.shape)


def _pairwise_spread(loc: Tensor, scale: Tensor, weights: Tensor) -> Tensor:
    """Return ``E|X - X'|`` of mixtures with parameters ``(S, rows)``."""
    pair_scale = torch.hypot(scale[:, None], scale[None])
    distance = _mean_absolute(loc[:, None] - loc[None], pair_scale)
    return torch.einsum("sn,stn,tn->n", weights, distance, weights)


def _mean_absolute(mean: Tensor, scale: Tensor) -> Tensor:
    """Return ``E|N(mean, scale²)|``."""
    t = mean / scale
    density = torch.exp(-0.5 * t.square()) / math.sqrt(2 * math.pi)
    signed: Tensor = mean * torch.special.erf(t / math.sqrt(2))
    return 2 * scale * density + signed


def _crps_quadrature(predictive: Predictive, y: Tensor) -> Tensor:
    nodes, weights = np.polynomial.legendre.leggauss(12)  # on [-1, 1]
    ends = [predictive.quantile(q) for q in _PANEL_LEVELS]
    split = torch.minimum(torch.maximum(y, ends[0]), ends[-1])
    edges = torch.stack([*ends, split]).sort(0).values
    total = (y - split).abs()  # beyond the last quantile the integrand is 1
    for start, end in pairwise(edges.unbind()):
        after = (start >= split).double()
        for node, weight in zip((nodes + 1).tolist(), weights.tolist(), strict=True):
            gap = predictive.cdf(start + (end - start) / 2 * node) - after
            total = total + weight * (end - start) / 2 * gap.square()
    return total


def _crps_sum(predictive: Predictive, y: Tensor) -> Tensor:
    """Sum ``(F(k) - 1[y <= k])²`` over all integers; beyond the extreme quantiles it is 0 or 1."""
    check_finite("y", y)
    low, high = predictive.quantile(1e-9), predictive.quantile(1 - 1e-9)
    split = torch.minimum(torch.maximum(y.ceil(), low), high)
    below = _sum_squares(predictive, 0.0, low, split)
    above = _sum_squares(predictive, 1.0, split, high + 1)
    return (y.ceil() - split).abs() + below + above


def _sum_squares(predictive: Predictive, after: float, start: Tensor, end: Tensor) -> Tensor:
    """Sum ``(F(k) - after)²`` over the integers of ``[start, end)``, panel by panel.

    Panels grow with the distance from ``start``, as the cdf of a count near ``k`` changes over
    ``sqrt(k)``. Rows that are done are not evaluated again: one long sum does not slow the others.
    """
    total, offset = torch.zeros_like(start), 0
    while bool((left := (end - start - offset).clamp_min(0)).any()):
        length = max(1, math.isqrt(offset), offset // 128)
        sizes = left.clamp_max(length)
        for size in sizes[sizes > 0].unique():
            wanted = sizes == size
            rows = wanted.reshape(len(wanted), -1).any(1).nonzero()[:, 0]
            here = predictive[rows]
            for node, weight in zip(*_sum_rule(int(size)), strict=True):
                gap = here.cdf(start[rows] + (offset + node)) - after
                total[rows] += weight * gap.square() * wanted[rows]
        offset += length
    return total


def _sum_rule(length: int) -> tuple[list[float], list[float]]:
    """Return whole numbers from 0, and weights that sum quintics as all of ``length`` would."""
    if length <= 12:
        return [float(k) for k in range(length)], [1.0] * length
    half, square = (length - 1) / 2, length**2
    chebyshev = np.cos(np.pi * (np.arange(6) + 0.5) / 6)
    nodes = np.rint(half * (1 - chebyshev))
    # of powers of k - half, whose odd ones cancel
    sums = np.array([1, 0, (square - 1) / 12, 0, (square - 1) * (3 * square - 7) / 240, 0]) * length
    weights = np.linalg.solve(
        np.vander(nodes / half - 1, increasing=True).T, sums / half ** np.arange(6)
    )
    return nodes.tolist(), weights.tolist()


# Classification ------------------------------------------------------------------------------


def accuracy(predicted: Tensor, labels: Tensor) -> Tensor:
    """Return the fraction of correct labels, for example of ``predictive.mode``."""
    _check_same("predicted", predicted, labels)
    return (predicted == labels).double().mean()


def brier(probs: Tensor, labels: Tensor) -> Tensor:
    r"""Return the mean Brier score :math:`\sum_c (p_c - 1[y = c])^2`, between 0 and 2.

    With two classes this is twice the binary score :math:`(p_1 - y)^2`.
    """
    check_probs(probs, labels)
    hot = torch.nn.functional.one_hot(labels.long(), probs.shape[-1])
    return (probs - hot).square().sum(-1).mean()


def ece(probs: Tensor, labels: Tensor, *, num_bins: int = 15) -> Tensor:
    r"""Return the expected calibration error of the top class (Guo et al., 2017, eq. 3).

    :math:`\sum_b \frac{n_b}{N} |\mathrm{accuracy}_b - \mathrm{confidence}_b|` over equal bins
    ``(b/B, (b+1)/B]`` of the confidence, ``B = num_bins``.
    """
    confidence, correct, bins = confidence_bins(probs, labels, num_bins)
    gap = correct - confidence
    per_bin = gap.new_zeros(num_bins).index_add(0, bins, gap)
    return per_bin.abs().sum() / len(labels)


def confidence_bins(probs: Tensor, labels: Tensor, num_bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for every row, the confidence, 1 if its label is correct else 0, and the bin."""
    check_probs(probs, labels)
    check_positive_int("num_bins", num_bins)
    confidence, predicted = probs.double().max(-1)
    bins = ((confidence * num_bins).ceil() - 1).clamp(0, num_bins - 1).long()
    return confidence, (predicted == labels).double(), bins


def auroc(scores: Tensor, positives: Tensor) -> Tensor:
    """Return the area under the ROC curve: P(a positive scores above a negative), ties count 1/2.

    ``scores`` are higher for likely positives; ``positives`` are 0/1 or booleans; both ``(N,)``.
    """
    _check_same("scores", scores, positives)
    check_finite("scores", scores)
    positive = positives == 1
    num_positive = int(positive.sum())
    num_negative = int((positives == 0).sum())
    if num_positive + num_negative != len(scores) or num_positive * num_negative == 0:
        raise DataError(
            f"auroc needs labels 0 and 1, at least one of each; got {num_positive} ones and "
            f"{num_negative} zeros among {len(scores)}"
        )
    negative_scores = scores[~positive].sort().values
    positive_scores = scores[positive].contiguous()
    below = torch.searchsorted(negative_scores, positive_scores).double().sum()
    not_above = torch.searchsorted(negative_scores, positive_scores, right=True).double().sum()
    above: Tensor = (below + not_above) / 2
    return above / (num_positive * num_negative)


# Input validation ----------------------------------------------------------------------------


def _check_same(name: str, value: Tensor, y: Tensor) -> None:
    if value.shape != y.shape or value.numel() == 0:
        raise ShapeError(
            f"{name} of shape {tuple(value.shape)} and targets of shape {tuple(y.shape)} must "
            "have the same shape and at least one row"
        )


def _check_interval(lower: Tensor, upper: Tensor, y: Tensor) -> None:
    for name, value in (("lower", lower), ("upper", upper)):
        _check_same(name, value, y)
        check_finite(name, value)
    check_finite("targets", y)
    if not bool((lower <= upper).all()):
        raise DataError("an interval has its lower end above its upper end")


def check_pit(pit: Tensor) -> Tensor:
    """Return ``pit`` flat and in float64; raise unless it holds probabilities."""
    check_finite("pit", pit)
    flat = pit.double().flatten()
    if len(flat) == 0 or not bool(((flat >= 0) & (flat <= 1)).all()):
        raise DataError(
            "pit must hold at least one value, all within [0, 1]: pass predictive.cdf(y)"
        )
    return flat


def check_probs(probs: Tensor, labels: Tensor) -> None:
    """Raise unless ``probs (N, C)`` are probabilities and ``labels (N,)`` are 0, …, C − 1."""
    if probs.dim() != 2 or labels.shape != probs.shape[:1] or len(labels) == 0:
        raise ShapeError(
            f"expected probs (N, C) and labels (N,), got {tuple(probs.shape)} and "
            f"{tuple(labels.shape)}"
        )
    check_finite("probs", probs)
    check_finite("labels", labels)
    if not bool(((probs >= 0) & (probs <= 1)).all()) or bool(
        ((probs.double().sum(-1) - 1).abs() > 1e-3).any()
    ):
        raise DataError(
            "probs must lie in [0, 1] and sum to 1 in every row: pass softmax, not logits"
        )
    if not bool(((labels >= 0) & (labels < probs.shape[-1]) & (labels == labels.long())).all()):
        raise DataError(f"labels must be integers from 0 to {probs.shape[-1] - 1}")
