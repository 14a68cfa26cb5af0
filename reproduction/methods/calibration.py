"""The factor on the noise of R replicas at once, as Table 1 fits it for every method."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whvi.predictive import Predictive

FACTORS = torch.logspace(-3, 1, 97, dtype=torch.float64)
"""The factors tried: neighbours differ by 10 %, which costs less than 0.003 nats."""


def mnll_by_factor(predictive: Predictive, y: Tensor) -> Tensor:
    """Return the mean negative log-likelihood for each of :data:`FACTORS`, shape ``(R, K)``.

    Args:
        predictive: R mixtures.
        y: Targets, shape ``(R, N)``.
    """
    loc, scale = (part.float() for part in _components(predictive))
    square = ((y.to(loc).unsqueeze(1) - loc) / scale).square_().mul_(-0.5)
    level = -scale.log() - 0.5 * math.log(2 * math.pi) - math.log(loc.shape[1])
    columns = []
    for factor in FACTORS.tolist():
        log_prob = torch.add(level, square, alpha=factor**-2).logsumexp(1)
        columns.append(math.log(factor) - log_prob.double().mean(-1))
    return torch.stack(columns, dim=-1)


def pool_members(predictive: Predictive, num_members: int) -> Predictive:
    """Join neighbouring replicas: ``(R · M,)`` mixtures of S become ``(R,)`` mixtures of M · S."""
    loc, scale = _components(predictive)
    shape = (-1, num_members * loc.shape[1], loc.shape[2])
    return Predictive.gaussian(loc.reshape(shape), scale.reshape(shape), batch_dims=1)


def rescaled(predictive: Predictive, factor: Tensor, mean: Tensor, scale: Tensor) -> Predictive:
    """Multiply the noise by ``factor (R,)`` and return to units ``mean, scale (R,)``."""
    loc, noise = _components(predictive)
    factor, mean, scale = (v.double()[:, None, None] for v in (factor, mean, scale))
    return Predictive.gaussian(loc * scale + mean, noise * factor * scale, batch_dims=1)


def _components(predictive: Predictive) -> tuple[Tensor, Tensor]:
    """Return means and standard deviations, ``(*batch, S, N)`` each."""
    found = predictive.gaussian_components()
    if found is None:
        raise TypeError("only Gaussian mixtures can be recalibrated")
    return found
