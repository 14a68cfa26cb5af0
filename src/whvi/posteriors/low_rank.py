r"""The low-rank plus diagonal Gaussian ``q(g) = N(μ, V Vᵀ + diag(σ²))``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from whvi._checks import check_positive_int
from whvi.posteriors.base import Device, Posterior, standard_normal

_SHARED_VARIANCE = 0.1  # part of the initial variance that V carries; V = 0 would be a saddle


@final
class LowRankGaussian(Posterior):
    """``g = μ + V ε₁ + σ ⊙ ε₂``: ``rank`` directions of dependence, and independent noise.

    Parameters: ``loc`` (μ) and ``log_scale`` (log σ, *not* the log of the marginal standard
    deviation), ``(*batch_shape, K·D)``; ``factor`` (V, block by block), ``(…, K·D, rank)``.

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
        super().__init__(shape, device=device, dtype=dtype)
        check_positive_int("rank", rank)
        self.rank = rank
        self.log_scale = self._parameter(self.num_entries, device=device, dtype=dtype)
        self.factor = self._parameter(self.num_entries, rank, device=device, dtype=dtype)
        self.reset(1.0, 0.1)

    def _reset_spread(self, scale: float, generator: torch.Generator | None) -> None:
        """Draw ``V`` at random; every marginal has std ``scale``."""
        directions = standard_normal(self.factor, self.factor.shape, generator)
        unit_rows = torch.nn.functional.normalize(directions, dim=-1)
        self.factor.copy_(scale * math.sqrt(_SHARED_VARIANCE) * unit_rows)
        self.log_scale.fill_(math.log(scale * math.sqrt(1 - _SHARED_VARIANCE)))

    @property
    def block_factor(self) -> Tensor:
        """``V`` of every block, shape ``(*batch_shape, K, D, rank)``."""
        return self.factor.view(*self.shape, self.rank)

    @property
    def variance(self) -> Tensor:
        """``σ_k² + Σ_r V_kr²``."""
        return torch.exp(2 * self.log_scale) + self.factor.square().sum(-1)

    def covariance(self) -> Tensor:
        """Return ``V Vᵀ + diag(σ²)``."""
        independent = torch.diag_embed(self.blocks(torch.exp(2 * self.log_scale)))
        return self.block_factor @ self.block_factor.mT + independent

    def log_volume(self) -> Tensor:
        """Return ``½ log det Σ = Σ_k log σ_k + ½ log det(I + Vᵀ diag(σ⁻²) V)``."""
        whitened = self.block_factor * self.blocks(torch.exp(-self.log_scale)).unsqueeze(-1)
        identity = torch.eye(self.rank, dtype=self.loc.dtype, device=self.loc.device)
        cholesky = torch.linalg.cholesky(identity + whitened.mT @ whitened)
        log_diagonal: Tensor = cholesky.diagonal(dim1=-2, dim2=-1).log()
        return self.log_scale.sum(-1) + log_diagonal.sum((-2, -1))

    def draw(
        self, inner_shape: tuple[int, ...] = (), generator: torch.Generator | None = None
    ) -> Tensor:
        """Return ``μ + V ε₁ + σ ⊙ ε₂``."""
        leading = (*self.batch_shape, math.prod(inner_shape))
        shared = standard_normal(self.loc, (*leading, self.block_shape[0], self.rank), generator)
        own = standard_normal(self.loc, (*leading, self.num_entries), generator)
        correlated = torch.einsum("...kdr,...ikr->...ikd", self.block_factor, shared).flatten(-2)
        independent = self.log_scale.exp().unsqueeze(-2) * own
        draws = self.loc.unsqueeze(-2) + correlated + independent
        return draws.reshape(*self.batch_shape, *inner_shape, self.num_entries)

    def extra_repr(self) -> str:
        """Show shape and rank."""
        return f"{super().extra_repr()}, rank={self.rank}"
