r"""The fully factorized Gaussian ``q(g) = N(μ, diag(σ²))``, and sums of KLs.

KL(q ‖ N(0, λ I)) = ½ Σ_k [ (μ_k² + σ_k²)/λ − 1 − log(σ_k²/λ) ]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from whvi._kernel import kl as kernel_kl
from whvi.posteriors.base import (
    Device,
    Posterior,
    check_shape,
    check_start,
    empty_parameter,
    standard_normal,
)
from whvi.priors import EmpiricalBayesPrior, FixedPrior, LearnedPrior, Prior


@final
class DiagonalGaussian(Posterior):
    """``g = μ + σ ⊙ ε``, with ``μ = loc`` and ``σ = exp(log_scale)``, each of shape ``shape``.

    Args:
        shape: ``(*batch_shape, K, D)``.
    """

    def __init__(
        self, shape: Sequence[int], *, device: Device = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        shape = check_shape(shape)
        self.loc = empty_parameter(shape, device, dtype)
        self.log_scale = empty_parameter(shape, device, dtype)
        self.reset(1.0, 0.1)

    @torch.no_grad()
    def reset(
        self, mean_std: float, scale: float, *, generator: torch.Generator | None = None
    ) -> None:
        """Draw ``μ ~ N(0, mean_std²)`` and set ``σ = scale``."""
        check_start(mean_std, scale)
        self.loc.normal_(0.0, mean_std, generator=generator)
        self.log_scale.fill_(math.log(scale))

    @property
    def mean(self) -> Tensor:
        """``μ``."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """``σ²``."""
        return torch.exp(2 * self.log_scale)

    def covariance(self) -> Tensor:
        """Return ``diag(σ²)``."""
        return torch.diag_embed(self.variance)

    def log_volume(self) -> Tensor:
        """Return ``Σ_k log σ_k``."""
        return self.log_scale.sum((-2, -1))

    def _draw(self, num_draws: int, generator: torch.Generator | None) -> Tensor:
        shape = (*self.batch_shape, num_draws, *self.shape[-2:])
        noise = standard_normal(self.loc, shape, generator)
        return torch.addcmul(self.loc.unsqueeze(-3), self.log_scale.exp().unsqueeze(-3), noise)

    def kl(self, prior: Prior, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the exact KL, as one autograd node where that is possible."""
        return sum_of_kls([(self, prior)])


def kl_term(q: DiagonalGaussian, p: Prior) -> kernel_kl.KLTerm | None:
    """Return what the fused KL of this pair needs; ``None`` for a prior it does not know."""
    loc, log_scale = q.loc.flatten(-2), q.log_scale.flatten(-2)
    if isinstance(p, EmpiricalBayesPrior):
        return kernel_kl.KLTerm(loc, log_scale)
    if isinstance(p, FixedPrior):
        return kernel_kl.KLTerm(loc, log_scale, p.fixed_variance)
    if isinstance(p, LearnedPrior):
        return kernel_kl.KLTerm(loc, log_scale, p.variance(loc[..., 0]))
    return None


def sum_of_kls(pairs: Sequence[tuple[Posterior, Prior]]) -> Tensor:
    """Return ``Σ KL(q ‖ p)`` over pairs of one ``batch_shape``, shape ``batch_shape``.

    All fully factorized pairs share one autograd node: in training, nodes are what a KL costs.
    """
    together: list[kernel_kl.KLTerm] = []
    values: list[Tensor] = []
    for q, p in pairs:
        term = kl_term(q, p) if isinstance(q, DiagonalGaussian) else None
        if term is not None:
            together.append(term)
        else:
            values.append(Posterior.kl(q, p) if isinstance(q, DiagonalGaussian) else q.kl(p))
    if together:
        values.append(kernel_kl.sum_of_kls(together))
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total
