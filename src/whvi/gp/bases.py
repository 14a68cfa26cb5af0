r"""Random-feature models that are linear in their coefficients: ``f(x) = ψ(x)·a``, ``a ~ N(0, I)``.

``φ(x) = σ_f (2/M)^{1/2} [cos(xΩ), sin(xΩ)]`` has ``M/2`` frequencies, the columns of ``Ω``.

- :class:`FourierBasis`: ``ψ = φ``, the frequencies are drawn once and kept.
- :class:`SpectrumBasis`: ``ψ = φ``, the frequencies are learned (Lázaro-Gredilla et al., 2010).
- :class:`ColumnBasis`: ``f = φ·vec(W)`` with ``W = diag(s1) H diag(g) H diag(s2)`` of side ``√M``;
  linear in ``g``: ``ψ_k = Σ_ij s1[i] s2[j] H[i,k] H[j,k] φ[i,j]``.

Inputs are standardised rows ``(N, d)`` in float64; parameters are float64, features float32.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import final

import torch
from torch import Tensor, nn

from whvi._checks import is_power_of_two
from whvi.errors import ConfigError
from whvi.gp.basis import Basis, Operands, Tangent
from whvi.gp.column import ColumnTangent, circulant, column_product
from whvi.gp.waves import Waves, wave_slopes

__all__ = ["Basis", "ColumnBasis", "FourierBasis", "SpectrumBasis"]


class _WaveBasis(Basis):
    """One coefficient per feature, ``ψ = φ``; a member says what is learned besides ``σ_f``.

    Args:
        num_inputs: ``d``.
        num_features: ``M``, even.
        learned: Whether the frequencies are.
        dtype: Of the features.
    """

    def __init__(
        self, num_inputs: int, num_features: int, *, learned: bool, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.waves = Waves(num_inputs, num_features, learned=learned, dtype=dtype)

    @property
    def num_coefficients(self) -> int:
        """``M``."""
        return self.waves.num_features

    def restart(self, x: Tensor, generator: torch.Generator) -> None:
        """Draw new frequencies; those that are learned begin there."""
        self.waves.restart(generator)

    def operands(self) -> Operands:
        """Return ``Ω`` and the scale."""
        return self.waves.omega, self.waves.scale

    def evaluate(self, x: Tensor, operands: Operands) -> Tensor:
        """Return ``φ(x)``."""
        omega, scale = operands
        psi: Tensor = self.waves(x, omega) * scale.to(self.waves.dtype)
        return psi

    def log_variance_parameter(self) -> nn.Parameter:
        """``log σ_f²``."""
        return self.waves.log_variance

    @torch.no_grad()
    def tangent(self, coefficients: Tensor) -> Tangent:
        """Return the map of rows to ``ψ`` and ``∂(ψ·a)/∂shape``."""
        omega, scale = self.operands()
        weights = (coefficients * scale).to(self.waves.dtype)

        @torch.no_grad()
        def tangent(x: Tensor) -> tuple[Tensor, Tensor]:
            features = self.waves(x, omega)
            by_shape = self._by_shape(x, wave_slopes(features, weights), omega)
            return (features * scale).double(), by_shape

        return tangent

    @abstractmethod
    def _by_shape(self, x: Tensor, slopes: Tensor, omega: Tensor) -> Tensor:
        """Return ``∂f/∂shape``, float64, from ``∂f/∂phase (n, M/2)``."""


@final
class FourierBasis(_WaveBasis):
    """Random Fourier features with fixed frequencies: ``K = M`` coefficients.

    Args:
        num_inputs: ``d``.
        num_features: ``M``, even.
        dtype: Of the features.
    """

    def __init__(
        self, num_inputs: int, num_features: int, *, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(num_inputs, num_features, learned=False, dtype=dtype)

    @property
    def row_elements(self) -> int:
        """``M``."""
        return self.waves.num_features

    def num_shape_parameters(self, *, count_inducing: bool = True) -> int:
        """Nothing but ``q`` is trained."""
        return 0

    def shape_parameters(self) -> list[nn.Parameter]:
        """Lengthscales."""
        return [self.waves.log_lengthscale]

    def _by_shape(self, x: Tensor, slopes: Tensor, omega: Tensor) -> Tensor:
        return _by_lengthscale(x, slopes, omega)


@final
class SpectrumBasis(_WaveBasis):
    """Sparse-spectrum Gaussian process: learned frequencies, ``d·M/2`` numbers that count.

    Args:
        num_inputs: ``d``.
        num_features: ``M``, even.
        dtype: Of the features.
    """

    def __init__(
        self, num_inputs: int, num_features: int, *, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(num_inputs, num_features, learned=True, dtype=dtype)

    @property
    def row_elements(self) -> int:
        """Those of the tangent: one column per learned number."""
        return self.waves.num_features + self.waves.frequencies.numel()

    def num_shape_parameters(self, *, count_inducing: bool = True) -> int:
        """The frequencies."""
        return self.waves.frequencies.numel()

    def shape_parameters(self) -> list[nn.Parameter]:
        """Frequencies; lengthscales would only repeat them."""
        return [self.waves.frequencies]

    def _by_shape(self, x: Tensor, slopes: Tensor, omega: Tensor) -> Tensor:
        unit = x * (-self.waves.log_lengthscale).exp()
        return (unit.unsqueeze(-1) * slopes.double().unsqueeze(-2)).flatten(-2)


@final
class ColumnBasis(Basis):
    r"""Weights ``w = vec(W)`` of ``M`` features: ``K = √M`` coefficients ``g``, and ``s1``, ``s2``.

    Args:
        num_inputs: ``d``.
        side: ``√M``, a power of two, at least 2.
        dtype: Of the features.
    """

    def __init__(self, num_inputs: int, side: int, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        if not is_power_of_two(side) or side < 2:
            raise ConfigError(f"side must be a power of two of at least 2, got {side!r}")
        self.side = side
        self.waves = Waves(num_inputs, side * side, learned=False, dtype=dtype)
        self.s1 = nn.Parameter(torch.ones(side, dtype=torch.float64))
        self.s2 = nn.Parameter(torch.ones(side, dtype=torch.float64))

    @property
    def num_coefficients(self) -> int:
        """``√M``."""
        return self.side

    @property
    def row_elements(self) -> int:
        """``M``."""
        return self.waves.num_features

    def num_shape_parameters(self, *, count_inducing: bool = True) -> int:
        """``s1`` and ``s2``."""
        return 2 * self.side

    @torch.no_grad()
    def restart(self, x: Tensor, generator: torch.Generator) -> None:
        """Draw new frequencies, and scales near one."""
        self.waves.restart(generator)
        for scale in (self.s1, self.s2):
            noise = torch.randn(self.side, generator=generator, dtype=torch.float64)
            scale.copy_(1 + 0.1 * noise)

    def operands(self) -> Operands:
        """Return ``Ω``, ``scale s1`` and ``s2``."""
        return self.waves.omega, self.s1 * self.waves.scale, self.s2

    def evaluate(self, x: Tensor, operands: Operands) -> Tensor:
        """Return ``ψ(x)``."""
        omega, s1, s2 = operands
        square = self._square(self.waves(x, omega))
        return column_product(square, s1.to(square.dtype), s2.to(square.dtype))

    def log_variance_parameter(self) -> nn.Parameter:
        """``log σ_f²``."""
        return self.waves.log_variance

    def shape_parameters(self) -> list[nn.Parameter]:
        """Both scales and the lengthscales."""
        return [self.s1, self.s2, self.waves.log_lengthscale]

    @torch.no_grad()
    def tangent(self, coefficients: Tensor) -> Tangent:
        """Return the map of rows to ``ψ`` and ``∂(ψ·a)/∂shape``."""
        (omega, *scales), dtype = self.operands(), self.waves.dtype
        s1, s2 = (each.to(dtype) for each in scales)
        exact = ColumnTangent(circulant(coefficients) * self.waves.scale, self.s1, self.s2)
        rounded, weights = exact.to(dtype), exact.weights.flatten().to(dtype)

        @torch.no_grad()
        def tangent(x: Tensor) -> tuple[Tensor, Tensor]:
            features = self.waves(x, omega)
            square = self._square(features)
            psi = column_product(square, s1, s2)
            by_lengthscale = _by_lengthscale(x, wave_slopes(features, weights), omega)
            return psi.double(), torch.cat([rounded.by_scales(square).double(), by_lengthscale], -1)

        return tangent

    def _square(self, features: Tensor) -> Tensor:
        square: Tensor = features.unflatten(-1, (self.side, self.side))
        return square


def _by_lengthscale(x: Tensor, slopes: Tensor, omega: Tensor) -> Tensor:
    """Return ``∂f/∂log ℓ``, shape ``(n, d)``, float64, from ``∂f/∂phase (n, M/2)``."""
    return -x * (slopes @ omega.to(slopes.dtype).T).double()
