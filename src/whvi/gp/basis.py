r"""Functions that are linear in their coefficients: ``f(x) = ψ(x)·a``, ``a ~ N(0, I)``.

:class:`FeatureBasis` is ``ψ(x)·a = φ(x)·w``: random features ``φ`` (:mod:`whvi.gp.features`) and
weights ``w`` that are linear in ``a`` (:mod:`whvi.gp.psi`).

Inputs are standardised rows ``(N, d)`` in float64; parameters are float64, features float32.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, final, runtime_checkable

import torch
from torch import Tensor, nn

from whvi.gp.features import RandomFeatures
from whvi.gp.psi import Weights

Operands = tuple[Tensor, ...]
Jacobian = Callable[[Tensor], tuple[Tensor, Tensor]]


class Basis(nn.Module, ABC):
    """A map ``ψ`` with parameters; the function is ``ψ(x)·a`` with ``a ~ N(0, I)``."""

    @property
    @abstractmethod
    def num_coefficients(self) -> int:
        """``K``, the length of ``a``."""

    @property
    @abstractmethod
    def row_elements(self) -> int:
        """Numbers that one row takes while ``ψ`` is computed: decides the size of chunks."""

    @abstractmethod
    def operands(self) -> Operands:
        """Return what the parameters are turned into before they meet rows, float64."""

    @abstractmethod
    def evaluate(self, x: Tensor, operands: Operands) -> Tensor:
        """Map rows ``(n, d)`` to ``ψ (n, K)``, given :meth:`operands`."""

    def forward(self, x: Tensor) -> Tensor:
        """Map rows ``(n, d)`` to ``ψ (n, K)``."""
        return self.evaluate(x, self.operands())

    @abstractmethod
    def restart(self, x: Tensor, generator: torch.Generator) -> None:
        """Move to a new random start; ``x`` are training rows."""

    @abstractmethod
    def trained_parameters(self) -> list[nn.Parameter]:
        """Parameters that the bound is maximised over, in the order in which vectors list them."""

    def prior_variance(self) -> Tensor | None:
        """``k(x, x)`` if ``ψ·a`` is only a part of the process; ``None`` if it is all of it."""
        return None


@runtime_checkable
class HasJacobian(Protocol):
    """A basis that knows the derivative of its function, row by row: for Gauss-Newton steps."""

    def shape_parameters(self) -> list[nn.Parameter]:
        """``θ``, what Gauss-Newton moves."""

    def jacobian(self, coefficients: Tensor) -> Jacobian:
        """Return the map of rows to ``ψ (n, K)`` and ``∂(ψ·a)/∂θ (n, P)``, both float64."""

    def log_variance_parameter(self) -> nn.Parameter:
        """``log σ_f²``, by which ``ψ`` is scaled."""


@final
class FeatureBasis(Basis):
    """``ψ(x)·a = φ(x)·w`` for random features ``φ`` and weights ``w`` that are linear in ``a``.

    As a basis it has one output; :meth:`psi` serves several.

    Args:
        features, weights: ``φ``, and ``w`` as a function of ``a``, of the same size.
    """

    def __init__(self, features: RandomFeatures, weights: Weights) -> None:
        super().__init__()
        self.features, self.weights = features, weights

    @property
    def num_coefficients(self) -> int:
        """``M``, or ``√M`` for column weights."""
        return self.weights.num_coefficients

    @property
    def row_elements(self) -> int:
        """``M``, and one derivative per learned frequency."""
        learned = self.features.projection.learned_frequencies()
        return self.features.num_features + sum(frequencies.numel() for frequencies in learned)

    def trained_parameters(self) -> list[nn.Parameter]:
        """``s1``, ``s2``, learned frequencies, lengthscales and variance."""
        phi = self.features
        frequencies = phi.projection.learned_frequencies()
        every = (*self.weights.parameters(), *frequencies, phi.log_lengthscale, phi.log_variance)
        return [parameter for parameter in every if parameter.requires_grad]

    def restart(self, x: Tensor, generator: torch.Generator) -> None:
        """Set ``ℓ = √d``, ``σ_f = 1`` and draw the scales (and frequencies of a mixture)."""
        self.features.restart(generator)
        self.weights.reset_parameters(generator=generator)

    def operands(self) -> Operands:
        """Return what scales the inputs, and what the weights need."""
        return self.features.scaling(), *self.weights.operands(self.features.scale)

    def evaluate(self, x: Tensor, operands: Operands) -> Tensor:
        """Return ``ψ(x)``, shape ``(n, K)``."""
        scaling, *rest = operands
        psi: Tensor = self.weights(self.features.waves(x, scaling), tuple(rest))
        return psi.squeeze(-2)

    def psi(self, x: Tensor) -> Tensor:
        """Return ``ψ(x)``, shape ``(..., O or 1, K)``, of rows ``(..., d)``."""
        return self.psi_of_waves()(self.features.waves(x))

    def psi_of_waves(self) -> Callable[[Tensor], Tensor]:
        """Return the map of ``waves (..., M)`` to ``ψ (..., O or 1, K)``."""
        operands = self.weights.operands(self.features.scale)
        return lambda waves: self.weights(waves, operands)

    def shape_parameters(self) -> list[nn.Parameter]:
        """``s1`` and ``s2``; learned frequencies or else lengthscales."""
        return [*self.weights.parameters(), *self.features.shape_parameters()]

    def log_variance_parameter(self) -> nn.Parameter:
        """``log σ_f²``."""
        return self.features.log_variance

    @torch.no_grad()
    def jacobian(self, coefficients: Tensor) -> Jacobian:
        """Return the map of rows to ``ψ (n, K)`` and ``∂(ψ·a)/∂shape (n, P)``, float64."""
        scaling, *rest = self.operands()
        features, operands = self.features, tuple(rest)
        exact, by_scales = self.weights.jacobian(coefficients, features.scale)
        weights = exact.to(features.dtype)

        @torch.no_grad()
        def jacobian(x: Tensor) -> tuple[Tensor, Tensor]:
            waves, by_features = features.jacobian(x, weights, scaling)
            psi = self.weights(waves, operands).squeeze(-2)
            return psi.double(), torch.cat([by_scales(waves), by_features], -1)

        return jacobian
