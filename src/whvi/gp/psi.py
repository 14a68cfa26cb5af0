r"""``ψ``, with which a function of random features is linear in few coefficients: ``φ·w = ψ·a``.

- :class:`PlainWeights`: ``w = a``, one coefficient per feature, so ``ψ = φ``.
- :class:`ColumnWeights` (section 2 of the paper): ``w = vec(W)`` of a ``D × D`` matrix
  ``W = c diag(s1) H diag(g) H diag(s2)`` with ``D² ≥ M``. Then ``a = g`` has only ``D ≈ √M``
  entries, and with ``Φ`` the ``D × D`` reshape of ``φ``

.. math:: \psi_k = c \sum_i s_1[i]\, H_{ik}\, (H (s_2 * \Phi_i))_k .
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from whvi._checks import next_power_of_two
from whvi._kernel.backend import is_tracing, is_transformed
from whvi.transforms import fwht, fwht_, hadamard_matrix

Derivative = Callable[[Tensor], Tensor]

_SCALE_SPREAD = 0.1  # s1 and s2 start at 1 + 0.1 N(0, 1): not all basis functions are alike


def combine(psi: Tensor, coefficients: Tensor) -> Tensor:
    """Return ``ψ·a (..., O)``, float64, for ``ψ (..., O or 1, K)`` and ``a (..., O, K)``."""
    return (psi.double() * coefficients).sum(-1)


class Weights(nn.Module, ABC):
    """The weights ``w`` of ``M`` features as a linear function of ``K`` coefficients ``a``.

    Features come as ``waves = φ / scale``; the scale is multiplied into smaller operands.
    """

    num_features: int
    num_coefficients: int

    @abstractmethod
    def operands(self, scale: Tensor) -> tuple[Tensor, ...]:
        """Return what the parameters are turned into before they meet rows, float64."""

    @abstractmethod
    def forward(self, waves: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        """Map ``waves (..., M)`` to ``ψ (..., O, K)``, or ``(..., 1, K)`` for all outputs."""

    @abstractmethod
    def values(self, coefficients: Tensor, scale: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the map of ``waves (..., M)`` to ``ψ·a (..., O)``, float64, for ``a (O, K)``."""

    @abstractmethod
    def jacobian(self, coefficients: Tensor, scale: Tensor) -> tuple[Tensor, Derivative]:
        """Return ``scale w (M,)`` and the map of waves to ``∂(ψ·a)/∂parameters`` of one output."""

    @abstractmethod
    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Draw a new starting point."""


@final
class PlainWeights(Weights):
    """One coefficient per feature: ``ψ = φ``."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = self.num_coefficients = num_features

    def operands(self, scale: Tensor) -> tuple[Tensor, ...]:
        """Return the scale."""
        return (scale,)

    def forward(self, waves: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        """Return ``φ`` with an axis for outputs."""
        (scale,) = operands
        return waves.unsqueeze(-2) * scale.to(waves.dtype)

    def values(self, coefficients: Tensor, scale: Tensor) -> Callable[[Tensor], Tensor]:
        """See :meth:`Weights.values`; coefficients cancel each other: sums in float64."""
        return lambda waves: combine(self(waves, (scale,)), coefficients)

    def jacobian(self, coefficients: Tensor, scale: Tensor) -> tuple[Tensor, Derivative]:
        """See :meth:`Weights.jacobian`; there are no parameters."""
        return coefficients * scale, lambda waves: waves[..., :0].double()

    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """There is nothing to set."""


@final
class ColumnWeights(Weights):
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

    def operands(self, scale: Tensor) -> tuple[Tensor, ...]:
        """Return ``c scale s1`` and ``s2``, each ``(O, D)``."""
        return self.s1 * (scale * self.gain), self.s2

    def forward(self, waves: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        """Return ``ψ`` in ``O(M log M)`` per row and output."""
        square = self._square(waves)
        s1, s2 = (operand.to(square.dtype) for operand in operands)
        outputs = [column_product(square, *each) for each in zip(s1, s2, strict=True)]
        return torch.stack(outputs, -2)

    def values(self, coefficients: Tensor, scale: Tensor) -> Callable[[Tensor], Tensor]:
        """See :meth:`Weights.values`; ``vec(W)`` is known: ``O(M)`` per row and output."""
        units = dyadic_matrix(coefficients) * (scale * self.gain)
        squares = self.s1.unsqueeze(-1) * units * self.s2.unsqueeze(-2)
        columns = squares.flatten(-2)[:, : self.num_features].T.contiguous()
        return lambda waves: (waves @ columns.to(waves.dtype)).double()

    def jacobian(self, coefficients: Tensor, scale: Tensor) -> tuple[Tensor, Derivative]:
        """See :meth:`Weights.jacobian`; the parameters are ``s1`` and ``s2``."""
        unit = dyadic_matrix(coefficients) * (scale * self.gain)
        s1, s2 = self.s1.squeeze(0), self.s2.squeeze(0)

        def by_scales(waves: Tensor) -> Tensor:
            left, right = s1.to(waves.dtype), s2.to(waves.dtype)
            product = self._square(waves) * unit.to(waves.dtype)
            return torch.cat([product @ right, left @ product], -1).double()

        weights = (s1.unsqueeze(-1) * unit * s2).flatten()[: self.num_features]
        return weights, by_scales

    def _square(self, waves: Tensor) -> Tensor:
        """Return ``Φ``: waves ``(..., M)`` as squares ``(..., D, D)``, filled up with zeros."""
        D = self.num_coefficients
        missing = D * D - self.num_features
        filled = functional.pad(waves, (0, missing)) if missing else waves
        square: Tensor = filled.unflatten(-1, (D, D))
        return square


def column_product(square: Tensor, s1: Tensor, s2: Tensor) -> Tensor:
    """Return ``ψ`` for ``c = 1``, shape ``(..., D)``, in O(D² log D) per row.

    Args:
        square: ``Φ``, shape ``(..., D, D)``.
        s1, s2: Shape ``(D,)``, of the dtype of ``Φ``.
    """
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
        left = s1.unsqueeze(-1) * _cached_hadamard(len(s1), s1.dtype, s1.device)
        return fwht_(square * s2).mul_(left).sum(-2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        square, s1, s2 = ctx.saved_tensors
        slopes = dyadic_matrix(gradient)
        sums = (slopes * square).reshape(-1, *square.shape[-2:]).sum(0)
        return slopes * (s1.unsqueeze(-1) * s2), sums @ s2, s1 @ sums


def dyadic_matrix(g: Tensor) -> Tensor:
    """Return ``H diag(g) H``, shape ``(..., D, D)``: entry ``(i, j)`` depends on ``i ^ j`` only."""
    return fwht(_cached_hadamard(g.shape[-1], g.dtype, g.device) * g.unsqueeze(-2))


@lru_cache(maxsize=64)
def _cached_hadamard(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return hadamard_matrix(size, dtype=dtype, device=device)
