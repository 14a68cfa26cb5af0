r"""Functions ``f = φ·vec(W)`` of structured weights ``W = c diag(s1) H diag(g) H diag(s2)``.

With ``Φ`` the ``D × D`` reshape of ``φ`` they are linear in ``g``:

.. math:: f = \sum_k \psi_k g_k, \qquad \psi_k = \sum_i c\, s_1[i]\, H_{ik}\, (H (s_2 * \Phi_i))_k .
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from whvi._kernel.backend import is_tracing, is_transformed
from whvi.transforms import fwht, fwht_, hadamard_matrix


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
        left = s1.unsqueeze(-1) * _kept_matrix(len(s1), s1.dtype, s1.device)
        return fwht_(square * s2).mul_(left).sum(-2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        square, s1, s2 = ctx.saved_tensors
        slopes = circulant(gradient)
        sums = (slopes * square).reshape(-1, *square.shape[-2:]).sum(0)
        return slopes * (s1.unsqueeze(-1) * s2), sums @ s2, s1 @ sums


def circulant(g: Tensor) -> Tensor:
    """Return ``H diag(g) H``, shape ``(..., D, D)``, for ``g (..., D)``."""
    return fwht(_kept_matrix(g.shape[-1], g.dtype, g.device) * g.unsqueeze(-2))


@lru_cache(maxsize=64)
def _kept_matrix(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return hadamard_matrix(size, dtype=dtype, device=device)


class ColumnTangent(NamedTuple):
    """``W = diag(s1) unit diag(s2)`` and the derivatives of ``f = φ·vec(W)``, for given ``g``."""

    unit: Tensor  # c H diag(g) H, (D, D)
    s1: Tensor  # (D,)
    s2: Tensor  # (D,)

    @property
    def weights(self) -> Tensor:
        """``W``, shape ``(D, D)``."""
        return self.s1.unsqueeze(-1) * self.unit * self.s2

    def to(self, dtype: torch.dtype) -> ColumnTangent:
        """Return the same numbers in another type."""
        return ColumnTangent(*(part.to(dtype) for part in self))

    def by_scales(self, square: Tensor) -> Tensor:
        """Return ``[∂f/∂s1, ∂f/∂s2]``, shape ``(n, 2D)``, for ``Φ (n, D, D)``."""
        product = square * self.unit
        return torch.cat([product @ self.s2, self.s1 @ product], -1)
