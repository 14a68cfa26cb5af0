"""One factor fitted on rows that were left out: on the noise, or on the logits of labels.

Networks fit the rows they are trained on too closely, so the noise they learn is too small and
their logits are too large. The factor maximises the likelihood of held-out rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from whvi.layers import MeanFieldLinear
from whvi.likelihoods import Bernoulli, Categorical, Likelihood
from whvi.tabular.ensemble import Trained

_PSEUDO_ROWS = 20
"""Held-out rows as which the claim counts that a factor of 1 is right: few rows may mislead."""

_FACTORS = torch.logspace(-2, 1, 73, dtype=torch.float64).tolist()
"""The factors tried; neighbours differ by 10 %, which costs less than 0.003 nats."""

_MOST_ROWS = 4096


@torch.no_grad()
def calibrate(trained: Trained, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Fit the factor on the rows that ``trained`` left out and build it into the ensemble.

    Returns:
        The factor, and the mean negative log-likelihood of these rows with it, in nats per row
        and in units of ``y``; 1 and NaN if there are no such rows.
    """
    held_out = trained.folds.held_out
    if held_out is None:
        return 1.0, math.nan
    held_out = held_out[..., :_MOST_ROWS]
    ensemble, likelihood = trained.ensemble, trained.ensemble.likelihood
    f, targets = ensemble.function_values(x[held_out]), y[held_out]
    noise = likelihood.noise_parameters()
    pooled = trained.folds.sharing or ensemble.num_members

    def mnll(factor: float) -> float:
        if not noise:
            return _mnll(likelihood, f * factor, targets, pooled)
        with _shifted(noise[0], 2 * math.log(factor)):
            return _mnll(likelihood, f, targets, pooled)

    if not noise and not isinstance(likelihood, Bernoulli | Categorical):
        return 1.0, _mnll(likelihood, f, targets, pooled)
    best = _best_factor(mnll, held_out.numel())
    if noise:
        noise[0].add_(2 * math.log(best))
    else:
        _scale_last_layer(ensemble.model, best)
    return best, mnll(1.0) if noise else mnll(best)


def _mnll(likelihood: Likelihood, f: Tensor, y: Tensor, pooled: int) -> float:
    """Score every ``pooled`` members that left out the same rows as one mixture."""
    log_prob = likelihood.log_prob(f, y).double().unflatten(0, (-1, pooled)).flatten(1, 2)
    return float(math.log(log_prob.shape[-2]) - log_prob.logsumexp(-2).mean())


class _shifted:  # noqa: N801 - reads as a verb in a with statement
    """Add a number to a parameter inside a block."""

    def __init__(self, parameter: nn.Parameter, shift: float) -> None:
        self._parameter, self._shift = parameter, shift

    def __enter__(self) -> None:
        self._kept = self._parameter.detach().clone()
        self._parameter.add_(self._shift)

    def __exit__(self, *_: object) -> None:
        self._parameter.copy_(self._kept)


def _best_factor(mnll: Callable[[float], float], num_rows: int) -> float:
    weight = _PSEUDO_ROWS / num_rows
    factors: list[float] = _FACTORS
    return min(factors, key=lambda factor: mnll(factor) + weight * math.log(factor) ** 2)


def _scale_last_layer(model: nn.Sequential, factor: float) -> None:
    """Multiply the network's outputs by ``factor``: weights, their scales, and the bias."""
    last = cast(MeanFieldLinear, model[-1])
    posterior = last.matrix.posterior
    posterior.loc.mul_(factor)
    posterior.log_scale.add_(math.log(factor))
    if last.bias is not None:
        last.bias.mul_(factor)
