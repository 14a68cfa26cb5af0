r"""A layer of functions: ``f(x) = ψ(x)·a`` with random coefficients ``a``, prior ``N(0, I)``.

``ψ`` comes from random features ``φ(x) ∈ R^M`` in one of two ways:

- **plain**: ``a = w``, one coefficient per feature, ``ψ = φ``;
- **column** (section 2 of the paper): ``w = vec(W)``, ``W = √D diag(s1) H diag(g) H diag(s2)`` with
  ``D² ≥ M``; then ``a = g`` has only ``D ≈ √M`` entries and
  ``ψ_k(x) = √D Σ_i s1[i] H[i,k] (H (s2 * Φ_i))_k`` with ``Φ`` the ``D × D`` reshape of ``φ``
  (:mod:`whvi.gp.column`).

The factor ``√D`` gives every weight the prior variance ``s1[i]² s2[j]²``, as in the plain case.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from whvi._checks import check_positive_int, next_power_of_two
from whvi._kernel.noise import normal_from_seed
from whvi.gp.column import ColumnTangent, circulant, column_product
from whvi.gp.features import RandomFeatures
from whvi.layers.matrix import OutputMoments
from whvi.layers.protocol import BayesianLayer
from whvi.posteriors import DiagonalGaussian, Posterior, PosteriorFactory, make_posterior
from whvi.priors import FixedPrior, Prior
from whvi.sampling import (
    LocalReparameterization,
    MeanWeights,
    check_draws_axis,
    current_sampler,
    insert_inner_axes,
)

_SCALE_SPREAD = 0.1  # s1 and s2 start at 1 + 0.1 N(0, 1): not all basis functions are alike
_MEAN_STD, _POSTERIOR_SCALE = 0.01, 0.1  # of the coefficients at the start


def combine(psi: Tensor, coefficients: Tensor) -> Tensor:
    """Return ``ψ·a (..., O)``, float64, for ``ψ (..., O or 1, K)`` and ``a (..., O, K)``."""
    return (psi.double() * coefficients).sum(-1)


class CoefficientMap(nn.Module, ABC):
    """From waves ``φ / scale`` to what multiplies the coefficients."""

    num_coefficients: int

    @abstractmethod
    def operands(self, scale: Tensor) -> tuple[Tensor, ...]:
        """Return what the parameters are turned into before they meet rows, float64."""

    @abstractmethod
    def forward(self, waves: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        """Map ``φ / scale (..., M)`` to ``ψ (..., O, K)``, or ``(..., 1, K)`` for all outputs."""

    @abstractmethod
    def values(self, coefficients: Tensor, scale: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the map of ``φ / scale (..., M)`` to ``ψ·a (..., O)``, float64; ``a (O, K)``."""

    @abstractmethod
    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Draw a new starting point."""


@final
class PlainMap(CoefficientMap):
    """One coefficient per feature: ``ψ = φ``.

    Args:
        num_features: ``M``.
    """

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_coefficients = num_features

    def operands(self, scale: Tensor) -> tuple[Tensor, ...]:
        """Return the scale."""
        return (scale,)

    def forward(self, waves: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        """Return ``φ`` with an axis for outputs."""
        (scale,) = operands
        return waves.unsqueeze(-2) * scale.to(waves.dtype)

    def values(self, coefficients: Tensor, scale: Tensor) -> Callable[[Tensor], Tensor]:
        """See :meth:`CoefficientMap.values`; coefficients cancel each other: sums in float64."""
        return lambda waves: combine(self(waves, (scale,)), coefficients)

    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """There is nothing to set."""


@final
class ColumnMap(CoefficientMap):
    """The weights of each output are ``vec(W)`` of a ``D × D`` block: ``D`` coefficients.

    Args:
        num_features: ``M``; ``D`` is the smallest power of two with ``D² ≥ M``.
        num_outputs: ``O``; each output has its own ``s1`` and ``s2``, shape ``(O, D)``.
    """

    def __init__(self, num_features: int, num_outputs: int = 1) -> None:
        super().__init__()
        self.num_features = num_features
        self.num_coefficients = next_power_of_two(math.isqrt(num_features - 1) + 1)
        shape = (num_outputs, self.num_coefficients)
        self.s1 = nn.Parameter(torch.empty(shape, dtype=torch.float64))
        self.s2 = nn.Parameter(torch.empty(shape, dtype=torch.float64))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Draw ``s1`` and ``s2`` close to 1."""
        for scales in (self.s1, self.s2):
            scales.normal_(1.0, _SCALE_SPREAD, generator=generator)

    def operands(self, scale: Tensor) -> tuple[Tensor, ...]:
        """Return ``√D scale s1`` and ``s2``, each ``(O, D)``."""
        return self.s1 * (scale * self.num_coefficients**0.5), self.s2

    def forward(self, waves: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        """See the module's docstring; ``O(M log M)`` per row and output."""
        square = self.square(waves)
        s1, s2 = (operand.to(square.dtype) for operand in operands)
        outputs = [column_product(square, *each) for each in zip(s1, s2, strict=True)]
        return torch.stack(outputs, -2)

    def values(self, coefficients: Tensor, scale: Tensor) -> Callable[[Tensor], Tensor]:
        """See :meth:`CoefficientMap.values`; ``vec(W)`` is known: ``O(M)`` per row and output."""
        shapes = [self.tangent(g, scale, output) for output, g in enumerate(coefficients)]
        columns = torch.stack([self.flat(shape.weights) for shape in shapes], -1)
        return lambda waves: (waves @ columns.to(waves.dtype)).double()

    def tangent(self, g: Tensor, scale: Tensor, output: int = 0) -> ColumnTangent:
        """Return the weights of an output for ``g (D,)``, in factors."""
        unit = circulant(g) * (scale * self.num_coefficients**0.5)
        return ColumnTangent(unit, self.s1[output], self.s2[output])

    def square(self, waves: Tensor) -> Tensor:
        """Return ``Φ``: waves ``(..., M)`` as squares ``(..., D, D)``, filled up with zeros."""
        D = self.num_coefficients
        missing = D * D - self.num_features
        filled = functional.pad(waves, (0, missing)) if missing else waves
        square: Tensor = filled.unflatten(-1, (D, D))
        return square

    def flat(self, square: Tensor) -> Tensor:
        """Return the ``M`` entries of a square ``(D, D)`` that belong to features."""
        return square.flatten()[: self.num_features]


@final
class FeatureLayer(BayesianLayer):
    """``f(x) = ψ(x)·a``: a Gaussian process by random features, or a layer of a deep one.

    Args:
        features: ``φ``; its lengthscales and variance are learned with the rest.
        num_outputs: ``O``: functions with their own coefficients, of the same features.
        structured: Whether the weights are ``vec(W)`` (:class:`ColumnMap`) or plain.
        posterior: Of the coefficients, per output: ``"diagonal"``, ``"full"``, ….
    """

    def __init__(
        self,
        features: RandomFeatures,
        num_outputs: int = 1,
        *,
        structured: bool = True,
        posterior: str | PosteriorFactory = "diagonal",
    ) -> None:
        super().__init__()
        check_positive_int("num_outputs", num_outputs)
        self.batch_shape = ()
        self.features = features
        self.num_outputs = num_outputs
        self.map: CoefficientMap
        if structured:
            self.map = ColumnMap(features.num_features, num_outputs)
        else:
            self.map = PlainMap(features.num_features)
        shape = (num_outputs, self.map.num_coefficients)
        # coefficients cancel each other: float64, whatever the features are
        self.posterior: Posterior = make_posterior(posterior, shape, dtype=torch.float64)
        self.prior: Prior = FixedPrior(1.0)
        self.reset_parameters()

    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Draw a new starting point of the scales and of the posterior; features stay."""
        self.map.reset_parameters(generator=generator)
        self.posterior.reset(_MEAN_STD, _POSTERIOR_SCALE, generator=generator)

    def basis(self, x: Tensor) -> Tensor:
        """Return ``ψ(x)``, shape ``(..., O or 1, K)``, of rows ``(..., d)``."""
        psi: Tensor = self.map(self.features.waves(x), self.map.operands(self.features.scale))
        return psi

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(*inner, d)`` to ``(*inner, O)``, float64; coefficients as the sampler says."""
        sampler = current_sampler()
        if isinstance(sampler, MeanWeights):
            return combine(self.basis(x), self.posterior.blocks(self.posterior.mean))
        if isinstance(sampler, LocalReparameterization):
            mean, variance = self.output_moments(x)
            seed = sampler.next_seed()
            noise = normal_from_seed(mean.shape, seed, dtype=mean.dtype, device=mean.device)
            return mean + variance.sqrt() * noise
        check_draws_axis(x, sampler, 0)
        draw = self.posterior.blocks(sampler.value(self.posterior))
        # rows that are the same for all draws have one basis
        shared = sampler.num_draws is not None and x.stride(0) == 0
        psi = self.basis(x[0]) if shared else self.basis(x)
        return combine(psi, insert_inner_axes(draw, 0, x.dim() - 1, 2))

    def basis_function(self) -> Callable[[Tensor], Tensor]:
        """Return the map of waves to ``ψ``, with what does not depend on rows computed once."""
        operands = self.map.operands(self.features.scale)
        return lambda waves: self.map(waves, operands)

    def mean_function(self) -> Callable[[Tensor], Tensor]:
        """Return the map of waves to the mean ``ψ·E[a] (..., O)``, float64."""
        return self.map.values(self.posterior.blocks(self.posterior.mean), self.features.scale)

    def moments_function(self) -> Callable[[Tensor], OutputMoments]:
        """Return the map of waves to mean ``ψ·E[a]`` and variance ``ψᵀ Σ ψ``, each ``(..., O)``."""
        basis, mean, variance = self.basis_function(), self.mean_function(), self._variance()
        return lambda waves: OutputMoments(mean(waves), variance(basis(waves)))

    def _variance(self) -> Callable[[Tensor], Tensor]:
        """Return the map of ``ψ`` to ``ψᵀ Σ ψ``."""
        if isinstance(self.posterior, DiagonalGaussian):
            variance = self.posterior.blocks(self.posterior.variance)
            return lambda psi: combine(psi.double().square(), variance)
        # a sum of squares: nothing cancels, so it may have the precision of the features
        root = torch.linalg.cholesky(self.posterior.covariance()).to(self.features.dtype)
        return lambda psi: torch.einsum("...ok,okl->...ol", psi, root).double().square().sum(-1)

    def output_moments(self, x: Tensor) -> OutputMoments:
        """Return the exact mean and variance of ``f(x)``, each ``(*inner, O)``, in float64."""
        return self.moments_function()(self.features.waves(x))

    def kl(self) -> Tensor:
        """Return ``KL(q(a) ‖ N(0, I))`` in nats."""
        return self.posterior.kl(self.prior)

    def kl_terms(self) -> list[tuple[Posterior, Prior]]:
        """Return posterior and prior of the coefficients."""
        return [(self.posterior, self.prior)]

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"num_outputs={self.num_outputs}, num_coefficients={self.map.num_coefficients}"
