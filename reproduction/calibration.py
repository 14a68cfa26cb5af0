"""One factor on the noise, fitted on held-out rows: the cheapest recalibration there is.

Networks trained with little regularisation fit the training rows too closely, so the noise they
learn is too small. The factor ``τ`` multiplies the standard deviation of every component of the
mixture and maximises the likelihood of validation rows. Every method gets it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whvi.predictive import Predictive

_PSEUDO_ROWS = 20
"""Rows at which a factor of 1 is assumed to be right: few validation rows may mislead."""

FACTORS = torch.logspace(-3, 1, 97, dtype=torch.float64)
"""The factors tried: neighbours differ by 10 %, which costs less than 0.003 nats."""


def components(predictive: Predictive) -> tuple[Tensor, Tensor]:
    """Return means and standard deviations of a Gaussian mixture, ``(*batch, S, N)`` each."""
    found = predictive.gaussian_components()
    if found is None:
        raise TypeError("only Gaussian mixtures can be recalibrated")
    return found


def pool_members(predictive: Predictive, num_members: int) -> Predictive:
    """Join neighbouring replicas: ``(R · M,)`` mixtures of S become ``(R,)`` mixtures of M · S."""
    loc, scale = components(predictive)
    shape = (-1, num_members * loc.shape[1], loc.shape[2])
    return Predictive.gaussian(loc.reshape(shape), scale.reshape(shape), batch_dims=1)


def rescaled(predictive: Predictive, factor: Tensor, mean: Tensor, scale: Tensor) -> Predictive:
    """Multiply the noise by ``factor (R,)`` and return to units ``mean, scale (R,)``."""
    loc, noise = components(predictive)
    factor, mean, scale = (v.double()[:, None, None] for v in (factor, mean, scale))
    return Predictive.gaussian(loc * scale + mean, noise * factor * scale, batch_dims=1)


def mnll_by_factor(predictive: Predictive, y: Tensor) -> Tensor:
    """Return the mean negative log-likelihood for each of :data:`FACTORS`, shape ``(R, K)``.

    Args:
        predictive: R mixtures.
        y: Targets, shape ``(R, N)``.
    """
    loc, scale = (part.float() for part in components(predictive))
    square = ((y.to(loc).unsqueeze(1) - loc) / scale).square_().mul_(-0.5)
    level = -scale.log() - 0.5 * math.log(2 * math.pi) - math.log(loc.shape[1])
    columns = []
    for factor in FACTORS.tolist():
        log_prob = torch.add(level, square, alpha=factor**-2).logsumexp(1)
        columns.append(math.log(factor) - log_prob.double().mean(-1))
    return torch.stack(columns, dim=-1)


def best_factor(mnll: Tensor, num_rows: int, *, is_mixture: bool) -> Tensor:
    """Return the index into :data:`FACTORS` of the best factor, shape ``(...,)``.

    Args:
        mnll: From :func:`mnll_by_factor`, shape ``(..., K)``, averaged over ``num_rows`` rows.
        num_rows: How many validation rows stand behind it.
        is_mixture: Whether the method gave a noise of its own, which then counts as much as
            ``_PSEUDO_ROWS`` validation rows; a lone mean (trees) has none.
    """
    weight = _PSEUDO_ROWS / num_rows if is_mixture else 0.0
    return (mnll + weight * FACTORS.log().square()).argmin(-1)
