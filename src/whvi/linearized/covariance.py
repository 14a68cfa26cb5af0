r"""The covariance ``Σ = (G / τ + Λ)⁻¹`` of the parameters, in one of two representations.

    Root:  C with Σ = CᵀC, lower triangular: the inverse of the Cholesky factor of Σ⁻¹
    Rows:  Z (M, P) and a diagonal Δ;  Σ = Δ⁻¹ − Δ⁻¹ Zᵀ S⁻¹ Z Δ⁻¹,  S = τ I + Z Δ⁻¹ Zᵀ

A root serves predictions by matrix products alone and stands rounding to float32; rows take
``M · P`` numbers instead of ``P²``, and a draw is Matheron's rule. Both have leading
``batch_shape`` axes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor

from whvi.linearized.statistics import Statistics
from whvi.linearized.triangular import cholesky

_SLICE = 256  # rows of a root that are multiplied at a time


class Covariance(ABC):
    """``Σ`` of the parameters of every replica."""

    @abstractmethod
    def of_outputs(self, J: Tensor) -> Tensor:
        """Return ``J Σ Jᵀ``, ``(*batch_shape, N, O, O)``, for ``J (*batch_shape, N, O, P)``."""

    @abstractmethod
    def times(self, v: Tensor) -> Tensor:
        """Return ``Σ v`` for ``v (*batch_shape, P)``, in float64."""

    @abstractmethod
    def draw(self, num_draws: int, generator: torch.Generator | None) -> Tensor:
        """Draw from ``N(0, Σ)``: ``(*batch_shape, S, P)``, in float64."""

    @abstractmethod
    def conditioned(self, statistics: Statistics, noise: Tensor) -> tuple[Covariance, Tensor]:
        """Return ``Σ' = (Σ⁻¹ + G' / τ)⁻¹`` after further rows, and ``log det(I + Σ G' / τ)``."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Memory that it takes."""


@final
class RootCovariance(Covariance):
    """``Σ = CᵀC`` for a lower triangular ``C (*batch_shape, P, P)``."""

    def __init__(self, root: Tensor) -> None:
        self.root = root

    def of_outputs(self, J: Tensor) -> Tensor:
        # C is triangular: its rows are taken in slices, each with the columns that are not zero
        size, num_outputs = J.shape[-1], J.shape[-2]
        found = torch.zeros((), dtype=torch.float64, device=J.device)
        J = J.to(self.root.dtype).flatten(-3, -2)
        for end in range(_SLICE, size + _SLICE, _SLICE):
            C = self.root[..., end - _SLICE : end, :end]
            halves = (J[..., :end] @ C.mT).unflatten(-2, (-1, num_outputs))
            part = halves.square().sum(-1, keepdim=True) if num_outputs == 1 else halves @ halves.mT
            found = found + part.double()
        return found

    def times(self, v: Tensor) -> Tensor:
        root = self.root.double()
        return (root.mT @ (root @ v.unsqueeze(-1))).squeeze(-1)

    def draw(self, num_draws: int, generator: torch.Generator | None) -> Tensor:
        shape = (*self.root.shape[:-2], num_draws, self.root.shape[-1])
        noise = torch.randn(shape, dtype=torch.float64, generator=generator)
        return (noise.to(self.root) @ self.root).double()

    def conditioned(self, statistics: Statistics, noise: Tensor) -> tuple[Covariance, Tensor]:
        root, gram = self.root.double(), statistics.full_gram()
        # Σ'⁻¹ = C⁻¹ (I + C G' Cᵀ / τ) C⁻ᵀ, so that C' = L⁻¹ C is triangular again
        inner = root @ (gram / noise[..., None, None]) @ root.mT
        inner.diagonal(dim1=-2, dim2=-1).add_(1)
        factor = cholesky(inner)
        updated = torch.linalg.solve_triangular(factor, root, upper=False)
        log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return RootCovariance(updated.to(self.root.dtype)), log_det

    @property
    def num_bytes(self) -> int:
        return self.root.nbytes


@final
class RowCovariance(Covariance):
    """``Σ = (Δ + ZᵀZ / τ)⁻¹`` by ``Z (*batch_shape, M, P)``.

    Args:
        rows: ``Z``.
        precision: ``Δ``, ``(*batch_shape, P)``.
        noise: ``τ``, ``batch_shape``.
    """

    def __init__(self, rows: Tensor, precision: Tensor, noise: Tensor) -> None:
        self.rows, self.precision, self.noise = rows, precision, noise
        Z = rows.double()
        matrix = (Z / precision.unsqueeze(-2)) @ Z.mT
        matrix.diagonal(dim1=-2, dim2=-1).add_(noise.unsqueeze(-1))
        self.factor = cholesky(matrix)  # of S

    def _project(self, v: Tensor) -> Tensor:
        """Return ``L⁻¹ Z v`` for ``v (*batch_shape, P, n)`` with ``S = L Lᵀ``."""
        projected: Tensor = torch.linalg.solve_triangular(
            self.factor, self.rows.double() @ v, upper=False
        )
        return projected

    def of_outputs(self, J: Tensor) -> Tensor:
        J = J.double()
        scaled = J / self.precision[..., None, None, :]
        known = self._project(scaled.flatten(-3, -2).mT).mT.unflatten(-2, J.shape[-3:-1])
        covariance: Tensor = scaled @ J.mT - known @ known.mT
        return covariance

    def times(self, v: Tensor) -> Tensor:
        scaled = (v / self.precision).unsqueeze(-1)
        known = torch.linalg.solve_triangular(self.factor.mT, self._project(scaled), upper=True)
        return (scaled - self._back(known)).squeeze(-1)

    def _back(self, known: Tensor) -> Tensor:
        return (self.rows.double().mT @ known) / self.precision.unsqueeze(-1)

    def draw(self, num_draws: int, generator: torch.Generator | None) -> Tensor:
        """Draw by Matheron's rule: ``δ₀ + Δ⁻¹ Zᵀ S⁻¹ (√τ ε − Z δ₀)``, ``δ₀ ~ N(0, Δ⁻¹)."""
        *batch, num_outputs, size = self.rows.shape
        standard = torch.randn(
            *batch, size + num_outputs, num_draws, dtype=torch.float64, generator=generator
        ).to(self.rows.device)
        prior = standard[..., :size, :] / self.precision.sqrt().unsqueeze(-1)
        noise = standard[..., size:, :] * self.noise.sqrt()[..., None, None]
        misfit = noise - self.rows.double() @ prior
        return (prior + self._back(torch.cholesky_solve(misfit, self.factor))).mT

    def conditioned(self, statistics: Statistics, noise: Tensor) -> tuple[Covariance, Tensor]:
        assert statistics.rows is not None
        rows = torch.cat([self.rows, statistics.rows.to(self.rows.dtype)], -2)
        updated = RowCovariance(rows, self.precision, self.noise)
        grown = statistics.rows.shape[-2] * self.noise.log()
        return updated, updated._log_det() - self._log_det() - grown

    def _log_det(self) -> Tensor:
        return 2 * self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @property
    def num_bytes(self) -> int:
        return self.rows.nbytes + self.factor.nbytes
