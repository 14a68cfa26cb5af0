r"""The fully factorized Gaussian ``q(g) = N(μ, diag(σ²))``.

KL(q ‖ N(0, λ I)) = ½ Σ_k [ (μ_k² + σ_k²)/λ − 1 − log(σ_k²/λ) ]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor
from torch.compiler import is_compiling

from whvi._kernel.kl import KLTerm
from whvi.posteriors.base import Device, Posterior, standard_normal, sum_of_kls
from whvi.priors import EmpiricalBayesPrior, FixedPrior, LearnedPrior, Prior


@final
class DiagonalGaussian(Posterior):
    """``g = μ + σ ⊙ ε``, with ``μ = loc`` and ``σ = exp(log_scale)``, ``(*batch_shape, K·D)`` each.

    Args:
        shape: ``(*batch_shape, K, D)``.
    """

    def __init__(
        self, shape: Sequence[int], *, device: Device = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(shape, device=device, dtype=dtype)
        self.log_scale = self._parameter(self.num_entries, device=device, dtype=dtype)
        self.reset(1.0, 0.1)

    def _reset_spread(self, scale: float, generator: torch.Generator | None) -> None:
        """Set ``σ = scale``."""
        self.log_scale.fill_(math.log(scale))

    @property
    def variance(self) -> Tensor:
        """``σ²``."""
        return torch.exp(2 * self.log_scale)

    def covariance(self) -> Tensor:
        """Return ``diag(σ²)``."""
        return torch.diag_embed(self.blocks(self.variance))

    def log_volume(self) -> Tensor:
        """Return ``Σ_k log σ_k``."""
        return self.log_scale.sum(-1)

    def draw(
        self, inner_shape: tuple[int, ...] = (), generator: torch.Generator | None = None
    ) -> Tensor:
        """Return ``μ + σ ⊙ ε``."""
        inner = (..., *(None,) * len(inner_shape), slice(None))
        loc, scale = self.loc[inner], self.log_scale.exp()[inner]
        shape = (*self.batch_shape, *inner_shape, self.num_entries)
        if is_compiling():
            noise = standard_normal(loc, shape, generator)
        else:  # the same, without the call
            noise = torch.randn(shape, generator=generator, dtype=loc.dtype, device=loc.device)
        return torch.addcmul(loc, scale, noise)

    def kl_term(self, prior: Prior) -> KLTerm | None:
        """Return what the kernel's KL needs; ``None`` for a prior that it does not know."""
        if isinstance(prior, EmpiricalBayesPrior):
            return KLTerm(self.loc, self.log_scale)
        if isinstance(prior, FixedPrior):
            return KLTerm(self.loc, self.log_scale, prior.fixed_variance)
        if isinstance(prior, LearnedPrior):
            return KLTerm(self.loc, self.log_scale, prior.variance(self.loc[..., 0]))
        return None

    def kl(self, prior: Prior, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the exact KL, as one autograd node where that is possible."""
        if self.kl_term(prior) is None:
            return super().kl(prior)
        return sum_of_kls([(self, prior)])
