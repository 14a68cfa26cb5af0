"""A layer of functions and the collapsed bound: its ``ψ`` as a basis, and the posterior back."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from whvi.gp.basis import Basis, Operands, Tangent
from whvi.gp.collapsed import CoefficientPosterior
from whvi.gp.layer import ColumnMap, FeatureLayer
from whvi.posteriors import DiagonalGaussian, FullGaussian

_ROWS_PER_COEFFICIENT = 16  # from which least squares do not follow single rows


class _LayerBasis(Basis):
    """``ψ`` of a :class:`~whvi.gp.layer.FeatureLayer` with one output; parameters are shared."""

    def __init__(self, layer: FeatureLayer) -> None:
        super().__init__()
        self.features, self.map = layer.features, layer.map

    @property
    def num_coefficients(self) -> int:
        """``√M`` or ``M``."""
        return self.map.num_coefficients

    @property
    def row_elements(self) -> int:
        """``M``."""
        return self.features.num_features

    def num_shape_parameters(self, *, count_inducing: bool = True) -> int:
        """``s1`` and ``s2``, if the weights are structured."""
        return sum(parameter.numel() for parameter in self.map.parameters())

    @torch.no_grad()
    def restart(self, x: Tensor, generator: torch.Generator) -> None:
        """Set ``ℓ = √d``, ``σ_f = 1`` and draw the scales; the frequencies stay."""
        self.features.log_lengthscale.fill_(0.5 * math.log(self.features.in_features))
        self.features.log_variance.zero_()
        self.map.reset_parameters(generator=generator)

    def operands(self) -> Operands:
        """Return ``1/ℓ`` and what the map needs."""
        return self.features.inverse_lengthscale, *self.map.operands(self.features.scale)

    def evaluate(self, x: Tensor, operands: Operands) -> Tensor:
        """Return ``ψ(x)``, shape ``(n, K)``."""
        unit, *rest = operands
        psi: Tensor = self.map(self.features.waves(x, unit), tuple(rest))
        return psi.squeeze(-2)


@final
class LayerBasis(_LayerBasis):
    """Any weights: the optimiser climbs the bound from its start.

    Args:
        layer: Its features and scales are what the optimiser moves.
    """


@final
class ColumnLayerBasis(_LayerBasis):
    """Structured weights that know the derivative of their function, for Gauss-Newton steps.

    Args:
        layer: With a :class:`~whvi.gp.layer.ColumnMap`.
    """

    map: ColumnMap

    def shape_parameters(self) -> list[nn.Parameter]:
        """Both scales and the lengthscales."""
        return [self.map.s1, self.map.s2, self.features.log_lengthscale]

    def log_variance_parameter(self) -> nn.Parameter:
        """``log σ_f²``."""
        return self.features.log_variance

    @torch.no_grad()
    def tangent(self, coefficients: Tensor) -> Tangent:
        """Return the map of rows to ``ψ (n, K)`` and ``∂(ψ·a)/∂shape (n, 2K + d)``, float64."""
        unit, *rest = self.operands()
        operands, dtype = tuple(rest), self.features.dtype
        exact = self.map.tangent(coefficients, self.features.scale)
        rounded, weights = exact.to(dtype), self.map.flat(exact.weights).to(dtype)

        @torch.no_grad()
        def tangent(x: Tensor) -> tuple[Tensor, Tensor]:
            rows = x.detach().requires_grad_()
            with torch.enable_grad():
                waves = self.features.waves(rows, unit)
            (slopes,) = torch.autograd.grad(waves, rows, weights.expand_as(waves))
            waves = waves.detach()
            psi = self.map(waves, operands).squeeze(-2)
            by_scales = rounded.by_scales(self.map.square(waves))
            by_lengthscale = -x * slopes  # only x / ℓ enters
            return psi.double(), torch.cat([by_scales.double(), by_lengthscale.double()], -1)

        return tangent


def basis_of(layer: FeatureLayer, num_rows: int) -> Basis:
    """Return the basis of ``layer``, with Gauss-Newton steps where there are rows enough."""
    many = num_rows >= _ROWS_PER_COEFFICIENT * layer.map.num_coefficients
    return (
        ColumnLayerBasis(layer) if many and isinstance(layer.map, ColumnMap) else LayerBasis(layer)
    )


@torch.no_grad()
def write_posterior(layer: FeatureLayer, found: CoefficientPosterior) -> None:
    """Write a closed-form posterior into the layer."""
    posterior = layer.posterior
    posterior.loc.copy_(found.mean)
    if isinstance(posterior, DiagonalGaussian):
        posterior.log_scale.copy_(0.5 * found.variance.log())
        return
    assert isinstance(posterior, FullGaussian)  # the constructor knows only these two
    assert found.root is not None  # full covariance was asked for
    # Σ = root rootᵀ = L Lᵀ: the triangular factor of rootᵀ, transposed, with a positive diagonal
    tril = torch.linalg.qr(found.root.T).R.T
    tril = tril * tril.diagonal().sign()
    rows, columns = torch.tril_indices(len(tril), len(tril), offset=-1)
    posterior.log_diagonal.copy_(tril.diagonal().log())
    posterior.lower.copy_(tril[rows, columns])
