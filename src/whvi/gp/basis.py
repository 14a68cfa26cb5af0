r"""Functions that are linear in their coefficients: ``f(x) = ψ(x)·a``, ``a ~ N(0, I)``.

:class:`FeatureBasis` is ``ψ(x)·a = φ(x)·w``: random features ``φ`` (:mod:`whvi.gp.features`) and
weights ``w`` that are linear in ``a``:

- :class:`PlainWeights`: ``w = a``, one coefficient per feature, so ``ψ = φ``.
- :class:`ColumnWeights` (section 2 of the paper): ``w = vec(W)`` of a ``D × D`` matrix
  ``W = c diag(s1) H diag(g) H diag(s2)`` with ``D² ≥ M``. Then ``a = g`` has only ``D ≈ √M``
  entries, and with ``Φ`` the ``D × D`` reshape of ``φ``

.. math:: \psi_k = c \sum_i s_1[i]\, H_{ik}\, (H (s_2 * \Phi_i))_k .

Inputs are standardised rows ``(N, d)`` in float64; parameters are float64, features float32.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from whvi._checks import next_power_of_two
from whvi._kernel.backend import is_tracing, is_transformed
from whvi.gp.features import RandomFeatures
from whvi.transforms import fwht, fwht_, hadamard_matrix
from whvi.transforms.plain import kept_hadamard_matrix

Operands = tuple[Tensor, ...]
Derivative = Callable[[Tensor], Tensor]
Jacobian = Callable[[Tensor], tuple[Tensor, Tensor]]

_SCALE_SPREAD = 0.1  # s1 and s2 start at 1 + 0.1 N(0, 1): not all basis functions are alike


class Basis(nn.Module, ABC):
    """A map ``ψ`` with parameters; the function is ``ψ(x)·a`` with ``a ~ N(0, I)``."""

    num_coefficients: int  # K, the length of a
    row_elements: int  # numbers that one row takes while ψ is computed: decides the size of chunks

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


def combine(psi: Tensor, coefficients: Tensor) -> Tensor:
    """Return ``ψ·a (..., O)``, float64, for ``ψ (..., O or 1, K)`` and ``a (..., O, K)``."""
    return (psi.double() * coefficients).sum(-1)


@final
class PlainWeights(nn.Module):
    """One coefficient per feature: ``ψ = φ``.

    Features come as ``waves = φ / scale``; the scale is multiplied into smaller operands.
    """

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = self.num_coefficients = num_features

    def operands(self, scale: Tensor) -> Operands:
        """Return what the parameters are turned into before they meet rows, float64."""
        return (scale,)

    def forward(self, waves: Tensor, operands: Operands) -> Tensor:
        """Map ``waves (..., M)`` to ``ψ (..., 1, K)``, for all outputs."""
        (scale,) = operands
        return waves.unsqueeze(-2) * scale.to(waves.dtype)

    def values(self, coefficients: Tensor, scale: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the map of ``waves (..., M)`` to ``ψ·a (..., O)``, float64, for ``a (O, K)``."""
        # coefficients cancel each other: sums in float64
        return lambda waves: combine(self(waves, (scale,)), coefficients)

    def jacobian(self, coefficients: Tensor, scale: Tensor) -> tuple[Tensor, Derivative]:
        """Return ``scale w (M,)`` and the map of waves to ``∂(ψ·a)/∂parameters``: no columns."""
        return coefficients * scale, lambda waves: waves[..., :0].double()

    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """There is nothing to set."""


@final
class ColumnWeights(nn.Module):
    """The weights of each output are ``vec(W)`` of a ``D × D`` matrix: ``D`` coefficients.

    Args:
        num_features: ``M``; ``D`` is the smallest power of two with ``D² ≥ M``.
        num_outputs: ``O``; each output has its own ``s1`` and ``s2``, shape ``(O, D)``.
        gain: ``c``. ``None`` is ``√D``, which gives every weight the prior variance
            ``s1[i]² s2[j]²``, as plain weights have it; the paper has 1.
    """

    def __init__(
        self, num_features: int, num_outputs: int = 1, *, gain: float | None = None
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.num_coefficients = next_power_of_two(math.isqrt(num_features - 1) + 1)
        self.gain = self.num_coefficients**0.5 if gain is None else gain
        shape = (num_outputs, self.num_coefficients)
        self.s1 = nn.Parameter(torch.empty(shape, dtype=torch.float64))
        self.s2 = nn.Parameter(torch.empty(shape, dtype=torch.float64))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Draw ``s1`` and ``s2`` close to 1."""
        for scales in (self.s1, self.s2):
            noise = torch.randn(scales.shape, generator=generator, dtype=torch.float64)
            scales.copy_(1 + _SCALE_SPREAD * noise)

    def operands(self, scale: Tensor) -> Operands:
        """Return ``c scale s1`` and ``s2``, each ``(O, D)``, float64."""
        return self.s1 * (scale * self.gain), self.s2

    def forward(self, waves: Tensor, operands: Operands) -> Tensor:
        """Map ``waves (..., M)`` to ``ψ (..., O, K)`` in ``O(M log M)`` per row and output."""
        square = self._square(waves)
        s1, s2 = (operand.to(square.dtype) for operand in operands)
        outputs = [column_product(square, *each) for each in zip(s1, s2, strict=True)]
        return torch.stack(outputs, -2)

    def values(self, coefficients: Tensor, scale: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the map of waves to ``ψ·a``; ``vec(W)`` is known: ``O(M)`` per row and output."""
        columns = self._weights(self._unit(coefficients, scale)).T.contiguous()
        return lambda waves: (waves @ columns.to(waves.dtype)).double()

    def jacobian(self, coefficients: Tensor, scale: Tensor) -> tuple[Tensor, Derivative]:
        """Return ``scale w (M,)`` and the map of waves to ``∂(ψ·a)/∂(s1, s2)`` of one output."""
        unit = self._unit(coefficients, scale)

        def by_scales(waves: Tensor) -> Tensor:
            left, right = (s.squeeze(0).to(waves.dtype) for s in (self.s1, self.s2))
            product = self._square(waves) * unit.to(waves.dtype)
            return torch.cat([product @ right, left @ product], -1).double()

        return self._weights(unit).squeeze(0), by_scales

    def _unit(self, coefficients: Tensor, scale: Tensor) -> Tensor:
        return dyadic_matrix(coefficients) * (scale * self.gain)

    def _weights(self, unit: Tensor) -> Tensor:
        """Return ``vec(diag(s1) unit diag(s2))`` of every output, shape ``(O, M)``."""
        squares = self.s1.unsqueeze(-1) * unit * self.s2.unsqueeze(-2)
        return squares.flatten(-2)[:, : self.num_features]

    def _square(self, waves: Tensor) -> Tensor:
        """Return ``Φ``: waves ``(..., M)`` as squares ``(..., D, D)``, filled up with zeros."""
        D = self.num_coefficients
        square: Tensor = functional.pad(waves, (0, D * D - self.num_features)).unflatten(-1, (D, D))
        return square


Weights = PlainWeights | ColumnWeights


@final
class FeatureBasis(Basis):
    """``ψ(x)·a = φ(x)·w`` for random features ``φ`` and weights ``w`` that are linear in ``a``.

    As a basis it has one output; :meth:`psi` serves several.
    """

    def __init__(self, features: RandomFeatures, weights: Weights) -> None:
        super().__init__()
        self.features, self.weights = features, weights
        self.num_coefficients = weights.num_coefficients
        learned = features.projection.learned_frequencies()
        self.row_elements = features.num_features + sum(each.numel() for each in learned)

    def trained_parameters(self) -> list[nn.Parameter]:
        """``s1``, ``s2``, learned frequencies, lengthscales and variance."""
        phi = self.features
        frequencies = phi.projection.learned_frequencies()
        every = (*self.weights.parameters(), *frequencies, phi.log_lengthscale, phi.log_variance)
        return [parameter for parameter in every if parameter.requires_grad]

    @torch.no_grad()
    def restart(self, x: Tensor, generator: torch.Generator) -> None:
        """Set ``ℓ = √d``, ``σ_f = 1`` and draw the scales (and frequencies of a mixture)."""
        self.features.projection.restart(generator)
        self.features.log_lengthscale.fill_(0.5 * math.log(self.features.in_features))
        self.features.log_variance.zero_()
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
        """``s1`` and ``s2``; learned frequencies or else lengthscales (which would repeat them)."""
        learned = self.features.projection.learned_frequencies()
        return [*self.weights.parameters(), *(learned or [self.features.log_lengthscale])]

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


def column_product(square: Tensor, s1: Tensor, s2: Tensor) -> Tensor:
    """Return ``ψ (..., D)`` for ``c = 1``, ``Φ (..., D, D)`` and ``s1``, ``s2 (D,)``, one dtype."""
    if is_tracing() or is_transformed():
        left = s1.unsqueeze(-1) * hadamard_matrix(len(s1), dtype=s1.dtype, device=s1.device)
        return (fwht(square * s2) * left).sum(-2)
    # apply() is not annotated in torch.
    return cast(Tensor, _ColumnProduct.apply(square, s1, s2))  # type: ignore[no-untyped-call]


class _ColumnProduct(torch.autograd.Function):
    """One square of working memory forward; the backward pass needs only ``H diag(∂ψ) H``."""

    @staticmethod
    def forward(ctx: Any, square: Tensor, s1: Tensor, s2: Tensor) -> Tensor:
        ctx.save_for_backward(square, s1, s2)
        left = s1.unsqueeze(-1) * kept_hadamard_matrix(len(s1), dtype=s1.dtype, device=s1.device)
        return fwht_(square * s2).mul_(left).sum(-2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        square, s1, s2 = ctx.saved_tensors
        slopes = dyadic_matrix(gradient)
        sums = (slopes * square).reshape(-1, *square.shape[-2:]).sum(0)
        return slopes * (s1.unsqueeze(-1) * s2), sums @ s2, s1 @ sums


def dyadic_matrix(g: Tensor) -> Tensor:
    """Return ``H diag(g) H``, shape ``(..., D, D)``: entry ``(i, j)`` depends on ``i ^ j`` only."""
    H = kept_hadamard_matrix(g.shape[-1], dtype=g.dtype, device=g.device)
    return fwht(H * g.unsqueeze(-2))
