r"""What a likelihood says about the outputs of a network: slope and curvature at given values.

The curvature is the Fisher information of the outputs, ``R = −E[∂² log p(y | f) / ∂f²]``, which is
never negative; ``Jᵀ R J`` is the generalised Gauss-Newton matrix. With ``R = L Lᵀ``:

| likelihood       | ``R``                                                                    |
|------------------|--------------------------------------------------------------------------|
| Gaussian         | ``1 / σ²``                                                               |
| heteroscedastic  | ``1 / σ²`` of the mean, ``½ (d log σ² / dr)²`` of the raw log variance   |
| Student-t        | ``(ν + 1) / (ν + 3) / s²``                                               |
| Poisson          | the rate                                                                 |
| Bernoulli        | ``p (1 − p)``                                                            |
| categorical      | ``diag(p) − p pᵀ``,  ``L = diag(√p) − p √pᵀ``                            |

All in the units of the network's outputs (standardized targets).
"""

from __future__ import annotations

from functools import singledispatch

import torch
from torch import Tensor

from whvi.errors import ConfigError
from whvi.likelihoods import (
    BalancedGradients,
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
    StudentT,
    TemperedLikelihood,
)
from whvi.likelihoods.gaussian import MIN_NOISE_VARIANCE


def slope(likelihood: Likelihood, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``log p(y | f)``, shape ``(*batch_shape, N)``, and its gradient in ``f``."""
    with torch.enable_grad():
        values = f.detach().requires_grad_()
        log_prob = likelihood.log_prob(values.unsqueeze(-3), y).squeeze(-2)
        (gradient,) = torch.autograd.grad(log_prob.sum(), values)
    return log_prob.detach(), gradient


@singledispatch
def curvature_root(likelihood: Likelihood, f: Tensor) -> Tensor:
    """Return ``L (*batch_shape, N, F, F)`` with ``R = L Lᵀ`` for ``f (*batch_shape, N, F)``."""
    raise ConfigError(f"no curvature is known for the likelihood {type(likelihood).__name__}")


def _per_row(value: Tensor) -> Tensor:
    """Let ``(*batch_shape, O)`` broadcast with ``(*batch_shape, N, O)``."""
    return value.detach().unsqueeze(-2)


@curvature_root.register
def _(likelihood: Gaussian, f: Tensor) -> Tensor:
    variance = likelihood.log_noise_variance.to(f.dtype).exp() + MIN_NOISE_VARIANCE
    return torch.diag_embed(_per_row(variance.rsqrt()).expand_as(f))


@curvature_root.register
def _(likelihood: HeteroscedasticGaussian, f: Tensor) -> Tensor:
    variance = likelihood.noise_variance(f.unsqueeze(-3)).squeeze(-3).detach()
    bent = variance.log() / likelihood.bound  # tanh(raw / bound)
    return torch.diag_embed(torch.cat([variance.rsqrt(), 0.5**0.5 * (1 - bent.square())], -1))


@curvature_root.register
def _(likelihood: StudentT, f: Tensor) -> Tensor:
    df = likelihood.df.to(f.dtype)
    squared_scale = likelihood.log_squared_scale.to(f.dtype).exp() + MIN_NOISE_VARIANCE
    information = (df + 1) / (df + 3) / squared_scale
    return torch.diag_embed(_per_row(information.sqrt()).expand_as(f))


@curvature_root.register
def _(likelihood: Poisson, f: Tensor) -> Tensor:
    return torch.diag_embed((0.5 * (f + _per_row(likelihood.target_log_mean.to(f.dtype)))).exp())


@curvature_root.register
def _(likelihood: Bernoulli, f: Tensor) -> Tensor:
    return torch.diag_embed((f.sigmoid() * (-f).sigmoid()).sqrt())


@curvature_root.register
def _(likelihood: Categorical, f: Tensor) -> Tensor:
    p = f.softmax(-1)
    root = p.sqrt()
    return torch.diag_embed(root) - p.unsqueeze(-1) * root.unsqueeze(-2)


@curvature_root.register
def _(likelihood: TemperedLikelihood, f: Tensor) -> Tensor:
    return (
        curvature_root(likelihood.inner, f)
        * likelihood.beta.to(f.dtype).rsqrt()[..., None, None, None]
    )


@curvature_root.register
def _(likelihood: BalancedGradients, f: Tensor) -> Tensor:
    return curvature_root(likelihood.inner, f)
