r"""One factor ``τ`` fitted on held-out rows: on the noise, or on the logits of labels.

Networks fit the rows they are trained on too closely, so the noise they learn is too small and
their logits are too large. The factor minimises

.. math:: \mathrm{MNLL}(\tau) + \frac{20}{N} \log^2 \tau

over a grid, where ``N`` counts the held-out rows and the second term says that 20 rows speak for
``τ = 1``: a few held-out rows may mislead.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from whvi.layers import MeanFieldLinear
from whvi.likelihoods import Bernoulli, Categorical, Likelihood
from whvi.tabular.predictor import Functions
from whvi.tabular.training import Trained

_PSEUDO_ROWS = 20

_FACTORS = torch.logspace(-2, 1, 73, dtype=torch.float64)
"""The factors tried: neighbours differ by 10 %, which costs less than 0.003 nats."""

_MOST_ROWS = 4096


def best_factor(mnll: Tensor, num_rows: int, factors: Tensor, *, is_mixture: bool = True) -> Tensor:
    """Return the index into ``factors`` of the best one, shape ``(...,)``.

    Args:
        mnll: For each of ``factors``, shape ``(..., K)``, averaged over ``num_rows`` rows.
        num_rows: How many held-out rows stand behind it.
        factors: ``(K,)``.
        is_mixture: Whether the method gave a noise of its own, which then counts as much as
            20 held-out rows; a lone mean (trees) has none.
    """
    weight = _PSEUDO_ROWS / num_rows if is_mixture else 0.0
    return (mnll + weight * factors.log().square()).argmin(-1)


@torch.no_grad()
def calibrate(trained: Trained, functions: Functions, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Fit the factor on the rows that ``trained`` left out and build it into its networks.

    Args:
        trained: Its noise, or its last layer, is changed in place.
        functions: Draws of its networks as they are before.
        x, y: All rows.

    Returns:
        The factor, and the mean negative log-likelihood of these rows with it, in nats per row
        and in units of ``y``; 1 and NaN if there are no such rows.
    """
    held_out = trained.folds.held_out
    if held_out is None:
        return 1.0, math.nan
    held_out = held_out[..., :_MOST_ROWS]
    likelihood = trained.likelihood
    f, targets = functions(x[held_out]), y[held_out]
    noise = likelihood.noise_parameters()
    pooled = trained.folds.sharing or trained.architecture.members
    if not noise and not isinstance(likelihood, Bernoulli | Categorical):
        return 1.0, _mnll(likelihood, f, targets, pooled)
    kept = noise[0].clone() if noise else None

    def mnll(factor: float) -> float:
        if kept is None:
            return _mnll(likelihood, f * factor, targets, pooled)
        noise[0].copy_(kept + 2 * math.log(factor))
        return _mnll(likelihood, f, targets, pooled)

    factors: list[float] = _FACTORS.tolist()
    curve = torch.tensor([mnll(factor) for factor in factors], dtype=torch.float64)
    best = factors[int(best_factor(curve, held_out.numel(), _FACTORS))]
    score = mnll(best)  # leaves the noise at its best
    if kept is None:
        _scale_last_layer(trained.model, best)
    return best, score


def _mnll(likelihood: Likelihood, f: Tensor, y: Tensor, pooled: int) -> float:
    """Score every ``pooled`` members that left out the same rows as one mixture."""
    log_prob = likelihood.log_prob(f, y).double().unflatten(0, (-1, pooled)).flatten(1, 2)
    return float(math.log(log_prob.shape[-2]) - log_prob.logsumexp(-2).mean())


def _scale_last_layer(model: nn.Sequential, factor: float) -> None:
    """Multiply the network's outputs by ``factor``: weights, their scales, and the bias."""
    last = cast(MeanFieldLinear, model[-1])
    posterior = last.matrix.posterior
    posterior.loc.mul_(factor)
    posterior.log_scale.add_(math.log(factor))
    if last.bias is not None:
        last.bias.mul_(factor)
