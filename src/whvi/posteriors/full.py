r"""The Gaussian with full covariance, ``q(g) = N(μ, L Lᵀ)``, ``L`` lower triangular."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from whvi.posteriors.base import Device, Posterior, standard_normal


@final
class FullGaussian(Posterior):
    """``g = μ + L ε`` with one ``D × D`` Cholesky factor per block: ``D(D+1)/2`` numbers each.

    Parameters: ``loc`` (μ) and ``log_diagonal`` (log L_kk), ``(*batch_shape, K·D)``; ``lower`` (the
    rest of each L, row by row), ``(*batch_shape, K·D(D−1)/2)``.

    Args:
        shape: ``(*batch_shape, K, D)``.
    """

    def __init__(
        self, shape: Sequence[int], *, device: Device = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(shape, device=device, dtype=dtype)
        K, D = self.block_shape
        self.log_diagonal = self._parameter(K * D, device=device, dtype=dtype)
        self.lower = self._parameter(K * (D * (D - 1) // 2), device=device, dtype=dtype)
        self.reset(1.0, 0.1)

    def _reset_spread(self, scale: float, generator: torch.Generator | None) -> None:
        """Set ``L = scale · I``."""
        self.log_diagonal.fill_(math.log(scale))
        self.lower.zero_()

    @property
    def scale_tril(self) -> Tensor:
        """``L``, shape ``(*batch_shape, K, D, D)``, with a positive diagonal."""
        K, D = self.block_shape
        flat = self.lower.new_zeros((*self.batch_shape, K, D * D))
        lower = self.lower.view(*self.batch_shape, K, D * (D - 1) // 2)
        rows, columns = torch.tril_indices(D, D, offset=-1, device=lower.device)
        strict = flat.index_copy(-1, rows * D + columns, lower)
        return strict.view(*self.shape, D) + torch.diag_embed(self.blocks(self.log_diagonal.exp()))

    @property
    def variance(self) -> Tensor:
        """``Σ_j L_kj²``."""
        return self.scale_tril.square().sum(-1).flatten(-2)

    def covariance(self) -> Tensor:
        """Return ``L Lᵀ``."""
        scale_tril = self.scale_tril
        return scale_tril @ scale_tril.mT

    def mean_square(self) -> Tensor:
        """Return ``(‖μ‖² + ‖L‖_F²) / n`` without forming ``L``."""
        on_diagonal = (self.loc.square() + torch.exp(2 * self.log_diagonal)).sum(-1)
        return (on_diagonal + self.lower.square().sum(-1)) / self.num_entries

    def log_volume(self) -> Tensor:
        """Return ``½ log det Σ = Σ_k log L_kk``."""
        return self.log_diagonal.sum(-1)

    def draw(
        self, inner_shape: tuple[int, ...] = (), generator: torch.Generator | None = None
    ) -> Tensor:
        """Return ``μ + L ε``."""
        shape = (*self.batch_shape, math.prod(inner_shape), *self.block_shape)
        noise = standard_normal(self.loc, shape, generator)
        correlated = torch.einsum("...kde,...ike->...ikd", self.scale_tril, noise).flatten(-2)
        draws = self.loc.unsqueeze(-2) + correlated
        return draws.reshape(*self.batch_shape, *inner_shape, self.num_entries)
