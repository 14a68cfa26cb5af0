r"""Random-feature models that are linear in their coefficients: ``f(x) = ψ(x)·a``, ``a ~ N(0, I)``.

``φ(x) = σ_f (2/M)^{1/2} [cos(xΩ), sin(xΩ)]`` has ``M/2`` frequencies, the columns of ``Ω``.

- :class:`FourierBasis`: ``ψ = φ``, the frequencies are drawn once and kept.
- :class:`SpectrumBasis`: ``ψ = φ``, the frequencies are learned (Lázaro-Gredilla et al., 2010).
- :class:`ColumnBasis`: ``f = φ·vec(W)`` with ``W = diag(s1) H diag(g) H diag(s2)`` of side ``√M``;
  linear in ``g``: ``ψ_k = Σ_ij s1[i] s2[j] H[i,k] H[j,k] φ[i,j]``.

Inputs are standardised rows ``(N, d)`` in float64; parameters are float64, features float32.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, final

import torch
from torch import Tensor, nn

from whvi.checks import check_last_dim, check_positive_int, is_power_of_two
from whvi.errors import ConfigError
from whvi.gp.collapsed import check_covariance
from whvi.transforms import hadamard_matrix


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
    def forward(self, x: Tensor) -> Tensor:
        """Map rows ``(n, d)`` to ``ψ (n, K)``."""

    @abstractmethod
    def restart(self, x: Tensor, generator: torch.Generator) -> None:
        """Move to a new random start; ``x`` are training rows."""

    @abstractmethod
    def num_shape_parameters(self, *, count_inducing: bool = True) -> int:
        """Trained numbers besides ``q(a)`` and the hyper-parameters that every model has."""

    def prior_variance(self) -> Tensor | None:
        """``k(x, x)`` if ``ψ·a`` is only a part of the process; ``None`` if it is all of it."""
        return None

    def num_parameters(self, covariance: str, *, count_inducing: bool = True) -> int:
        """Count ``q(a)`` and what shapes ``ψ``; not lengthscales, variance and noise.

        Args:
            covariance: ``q(a)`` has ``2K`` numbers if diagonal, ``K + K(K+1)/2`` if full.
            count_inducing: Whether the locations of inducing points count.
        """
        check_covariance(covariance)
        size = self.num_coefficients
        posterior = 2 * size if covariance == "diagonal" else size + size * (size + 1) // 2
        return posterior + self.num_shape_parameters(count_inducing=count_inducing)


class _CosSin(torch.autograd.Function):
    """``[cos p, sin p]`` along the last axis; the backward pass reads the result, not ``p``."""

    @staticmethod
    def forward(ctx: Any, phases: Tensor) -> Tensor:
        half = phases.shape[-1]
        out = phases.new_empty(*phases.shape[:-1], 2 * half)
        torch.cos(phases, out=out[..., :half])
        torch.sin(phases, out=out[..., half:])
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        cos, sin = ctx.saved_tensors[0].chunk(2, -1)
        to_cos, to_sin = gradient.chunk(2, -1)
        slope: Tensor = cos * to_sin - sin * to_cos
        return slope


def draw_frequencies(num_inputs: int, num: int, generator: torch.Generator) -> Tensor:
    r"""Draw frequencies of a mixture of RBF kernels with lengthscales between ``1/e`` and ``e``.

    ``ω = e^u z``, ``u ~ U(-1, 1)``, ``z ~ N(0, I)``, shape ``(num_inputs, num)``: slow and fast
    waves side by side, with a higher bound than those of one lengthscale.
    """
    normal = torch.randn(num_inputs, num, generator=generator, dtype=torch.float64)
    uniform = torch.rand(num, generator=generator, dtype=torch.float64)
    return normal * (2 * uniform - 1).exp()


@final
class Waves(nn.Module):
    r"""``φ(x) = σ_f (2/M)^{1/2} [cos(xΩ), sin(xΩ)]``, ``Ω = diag(1/ℓ) frequencies``.

    Args:
        num_inputs: ``d``.
        num_features: ``M``, even.
        learned: Whether the frequencies are trained.
        dtype: Of the features.
    """

    def __init__(
        self, num_inputs: int, num_features: int, *, learned: bool, dtype: torch.dtype
    ) -> None:
        super().__init__()
        check_positive_int("num_inputs", num_inputs)
        check_positive_int("num_features", num_features)
        if num_features % 2:
            raise ConfigError(
                f"num_features must be even, a cosine and a sine per frequency, got {num_features}"
            )
        self.num_features, self.dtype = num_features, dtype
        zeros = torch.zeros(num_inputs, num_features // 2, dtype=torch.float64)
        self.frequencies = nn.Parameter(zeros, requires_grad=learned)
        self.log_lengthscale = nn.Parameter(torch.zeros(num_inputs, dtype=torch.float64))
        self.log_variance = nn.Parameter(torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def restart(self, generator: torch.Generator) -> None:
        """Set ``ℓ = √d``, ``σ_f = 1`` and draw frequencies."""
        shape = self.frequencies.shape
        self.frequencies.copy_(draw_frequencies(shape[0], shape[1], generator))
        self.log_lengthscale.fill_(0.5 * math.log(shape[0]))
        self.log_variance.zero_()

    def scale(self) -> Tensor:
        """Return ``σ_f (2/M)^{1/2}``."""
        scale: Tensor = (0.5 * self.log_variance).exp() * (2 / self.num_features) ** 0.5
        return scale

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[cos(xΩ), sin(xΩ)]``, shape ``(n, M)``, without the scale."""
        check_last_dim("x", x, len(self.log_lengthscale))
        scaled = (-self.log_lengthscale).exp().unsqueeze(-1) * self.frequencies
        phases = x.to(self.dtype) @ scaled.to(self.dtype)
        features: Tensor = _CosSin.apply(phases)  # type: ignore[no-untyped-call]  # torch has none
        return features

    def slopes(self, features: Tensor, weights: Tensor) -> Tensor:
        """Return ``∂(φ·w)/∂phase`` per row and frequency, for ``weights`` with the scale in."""
        cos, sin = features.chunk(2, -1)
        to_cos, to_sin = weights.to(self.dtype).chunk(2, -1)
        return cos * to_sin - sin * to_cos

    def lengthscale_tangent(self, x: Tensor, slopes: Tensor) -> Tensor:
        """Return ``∂f/∂log ℓ``, shape ``(n, d)``, from the slopes ``(n, M/2)``."""
        scaled = (-self.log_lengthscale).exp().unsqueeze(-1) * self.frequencies
        return -x * (slopes @ scaled.to(self.dtype).T).double()


@final
class FourierBasis(Basis):
    """Random Fourier features with fixed frequencies: ``K = M`` coefficients.

    Args:
        num_inputs: ``d``.
        num_features: ``M``, even.
        dtype: Of the features.
    """

    def __init__(
        self, num_inputs: int, num_features: int, *, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.waves = Waves(num_inputs, num_features, learned=False, dtype=dtype)

    @property
    def num_coefficients(self) -> int:
        """``M``."""
        return self.waves.num_features

    @property
    def row_elements(self) -> int:
        """``M``."""
        return self.waves.num_features

    def num_shape_parameters(self, *, count_inducing: bool = True) -> int:
        """Nothing but ``q`` is trained."""
        return 0

    def restart(self, x: Tensor, generator: torch.Generator) -> None:
        """Draw new frequencies."""
        self.waves.restart(generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``φ(x)``."""
        psi: Tensor = self.waves(x) * self.waves.scale().to(self.waves.dtype)
        return psi

    def log_variance_parameter(self) -> nn.Parameter:
        """``log σ_f²``."""
        return self.waves.log_variance

    def shape_parameters(self) -> list[nn.Parameter]:
        """Lengthscales."""
        return [self.waves.log_lengthscale]

    @torch.no_grad()
    def tangent(self, x: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``ψ`` and ``∂(ψ·a)/∂shape``."""
        features, scale = self.waves(x), self.waves.scale()
        slopes = self.waves.slopes(features, coefficients * scale)
        return (features * scale).double(), self.waves.lengthscale_tangent(x, slopes)


@final
class SpectrumBasis(Basis):
    """Sparse-spectrum Gaussian process: learned frequencies, ``d·M/2`` numbers that count.

    Args:
        num_inputs: ``d``.
        num_features: ``M``, even.
        dtype: Of the features.
    """

    def __init__(
        self, num_inputs: int, num_features: int, *, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.waves = Waves(num_inputs, num_features, learned=True, dtype=dtype)

    @property
    def num_coefficients(self) -> int:
        """``M``."""
        return self.waves.num_features

    @property
    def row_elements(self) -> int:
        """Those of the tangent: one column per learned number."""
        return self.waves.num_features + self.waves.frequencies.numel()

    def num_shape_parameters(self, *, count_inducing: bool = True) -> int:
        """The frequencies."""
        return self.waves.frequencies.numel()

    def restart(self, x: Tensor, generator: torch.Generator) -> None:
        """Draw new frequencies to begin with."""
        self.waves.restart(generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``φ(x)``."""
        psi: Tensor = self.waves(x) * self.waves.scale().to(self.waves.dtype)
        return psi

    def log_variance_parameter(self) -> nn.Parameter:
        """``log σ_f²``."""
        return self.waves.log_variance

    def shape_parameters(self) -> list[nn.Parameter]:
        """Frequencies; lengthscales would only repeat them."""
        return [self.waves.frequencies]

    @torch.no_grad()
    def tangent(self, x: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``ψ`` and ``∂(ψ·a)/∂shape``."""
        features, scale = self.waves(x), self.waves.scale()
        slopes = self.waves.slopes(features, coefficients * scale).double()
        unit = x * (-self.waves.log_lengthscale).exp()
        by_frequency = unit.unsqueeze(-1) * slopes.unsqueeze(-2)
        return (features * scale).double(), by_frequency.flatten(-2)


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

    def forward(self, x: Tensor) -> Tensor:
        """Return ``ψ(x) = φ(x) A``."""
        mixing = self._mixing() * self.waves.scale()
        psi: Tensor = self.waves(x) @ mixing.to(self.waves.dtype)
        return psi

    def log_variance_parameter(self) -> nn.Parameter:
        """``log σ_f²``."""
        return self.waves.log_variance

    def shape_parameters(self) -> list[nn.Parameter]:
        """Both scales and the lengthscales."""
        return [self.s1, self.s2, self.waves.log_lengthscale]

    @torch.no_grad()
    def tangent(self, x: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``ψ`` and ``∂(ψ·a)/∂shape``."""
        features, scale, dtype = self.waves(x), self.waves.scale(), self.waves.dtype
        psi = features @ (self._mixing() * scale).to(dtype)
        circulant = self._circulant(coefficients) * scale  # W without s1 and s2
        square = features.unflatten(-1, (self.side, self.side))
        by_s1 = (square * (circulant * self.s2).to(dtype)).sum(-1)
        by_s2 = (square * (circulant * self.s1.unsqueeze(-1)).to(dtype)).sum(-2)
        weights = (self.s1.unsqueeze(-1) * circulant * self.s2).flatten()
        slopes = self.waves.slopes(features, weights)
        by_lengthscale = self.waves.lengthscale_tangent(x, slopes)
        return psi.double(), torch.cat([by_s1.double(), by_s2.double(), by_lengthscale], -1)

    def _mixing(self) -> Tensor:
        """``A[(i, j), k] = s1[i] s2[j] H[i, k] H[j, k]``, shape ``(M, √M)``."""
        H = hadamard_matrix(self.side, dtype=torch.float64)
        left, right = self.s1.unsqueeze(-1) * H, self.s2.unsqueeze(-1) * H
        return (left.unsqueeze(1) * right.unsqueeze(0)).flatten(0, 1)

    def _circulant(self, g: Tensor) -> Tensor:
        """``H diag(g) H``, shape ``(√M, √M)``."""
        H = hadamard_matrix(self.side, dtype=torch.float64)
        return (H * g) @ H
