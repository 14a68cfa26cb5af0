r"""The low-rank plus diagonal Gaussian ``q(g) = N(μ, V Vᵀ + diag(σ²))``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from whvi._checks import check_positive_int
from whvi.posteriors.base import (
    Device,
    Posterior,
    check_shape,
    check_start,
    empty_parameter,
    standard_normal,
)

_SHARED_VARIANCE = 0.1  # part of the initial variance that V carries; V = 0 would be a saddle


@final
class LowRankGaussian(Posterior):
    """``g = μ + V ε₁ + σ ⊙ ε₂``: ``rank`` directions of dependence, and independent noise.

    Parameters: ``loc`` (μ) and ``log_scale`` (log σ, *not* the log of the marginal standard
    deviation) of shape ``shape``; ``factor`` (V) of shape ``(*shape, rank)``.

    Args:
        shape: ``(*batch_shape, K, D)``.
        rank: Columns of ``V``. Sampling and KL cost ``O(D rank)`` and ``O(D rank²)``.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        rank: int = 4,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        shape = check_shape(shape)
        check_positive_int("rank", rank)
        self.loc = empty_parameter(shape, device, dtype)
        self.log_scale = empty_parameter(shape, device, dtype)
        self.factor = empty_parameter((*shape, rank), device, dtype)
        self.reset(1.0, 0.1)

    @torch.no_grad()
    def reset(
        self, mean_std: float, scale: float, *, generator: torch.Generator | None = None
    ) -> None:
        """Draw ``μ ~ N(0, mean_std²)`` and ``V`` at random; every marginal has std ``scale``."""
        check_start(mean_std, scale)
        self.loc.normal_(0.0, mean_std, generator=generator)
        directions = standard_normal(self.factor, self.factor.shape, generator)
        unit_rows = torch.nn.functional.normalize(directions, dim=-1)
        self.factor.copy_(scale * math.sqrt(_SHARED_VARIANCE) * unit_rows)
        self.log_scale.fill_(math.log(scale * math.sqrt(1 - _SHARED_VARIANCE)))

    @property
    def mean(self) -> Tensor:
        """``μ``."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """``σ_k² + Σ_r V_kr²``."""
        return torch.exp(2 * self.log_scale) + self.factor.square().sum(-1)

    def covariance(self) -> Tensor:
        """Return ``V Vᵀ + diag(σ²)``."""
        return self.factor @ self.factor.mT + torch.diag_embed(torch.exp(2 * self.log_scale))

    def log_volume(self) -> Tensor:
        """Return ``½ log det Σ = Σ_k log σ_k + ½ log det(I + Vᵀ diag(σ⁻²) V)``."""
        whitened = self.factor * torch.exp(-self.log_scale).unsqueeze(-1)
        identity = torch.eye(self.factor.shape[-1], dtype=self.loc.dtype, device=self.loc.device)
        cholesky = torch.linalg.cholesky(identity + whitened.mT @ whitened)
        log_diagonal: Tensor = cholesky.diagonal(dim1=-2, dim2=-1).log()
        return self.log_scale.sum((-2, -1)) + log_diagonal.sum((-2, -1))

    def _draw(self, num_draws: int, generator: torch.Generator | None) -> Tensor:
        *batch_shape, num_blocks, size = self.shape
        rank = self.factor.shape[-1]
        shared = standard_normal(self.loc, (*batch_shape, num_draws, num_blocks, rank), generator)
        own = standard_normal(self.loc, (*batch_shape, num_draws, num_blocks, size), generator)
        correlated = torch.einsum("...kdr,...ikr->...ikd", self.factor, shared)
        independent = self.log_scale.exp().unsqueeze(-3) * own
        return self.loc.unsqueeze(-3) + correlated + independent

    def extra_repr(self) -> str:
        """Show shape and rank."""
        return f"shape={self.shape}, rank={self.factor.shape[-1]}"
