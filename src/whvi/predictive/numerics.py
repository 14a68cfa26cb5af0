"""Special functions that torch lacks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

EPS = torch.finfo(torch.float64).eps


def regularized_incomplete_beta(a: Tensor, b: Tensor, x: Tensor, complement: Tensor) -> Tensor:
    r"""Compute :math:`I_x(a, b)` by its continued fraction (DLMF 8.17.22, modified Lentz).

    Args:
        a, b: Positive parameters.
        x: Argument in [0, 1].
        complement: ``1 - x``, passed separately because it cannot be recovered from ``x`` near 1.
    """
    swap = x > (a + 1) / (a + b + 2)  # I_x(a, b) = 1 - I_{1-x}(b, a) converges faster there
    a, b = torch.where(swap, b, a), torch.where(swap, a, b)
    x, complement = torch.where(swap, complement, x), torch.where(swap, x, complement)
    log_beta = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
    front = (torch.xlogy(a, x) + torch.xlogy(b, complement) - log_beta).exp() / a
    result = front * _beta_fraction(a, b, x)
    return torch.where(swap, 1 - result, result)


def _beta_fraction(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """Sum the continued fraction of ``I_x(a, b)``; it takes O(sqrt(max(a, b))) terms."""
    tiny = 1e-300
    c = torch.ones_like(x)
    d = 1 / (1 - (a + b) * x / (a + 1))
    value = d.clone()
    for m in range(1, 200 + int(5 * math.sqrt(float(torch.maximum(a, b).max())))):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = value
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d, tiny)
            c = _away_from_zero(1 + term / c, tiny)
            value = value * c * d
        if not bool(((value - before).abs() > 8 * EPS * value.abs()).any()):
            break
    return value


def _away_from_zero(x: Tensor, tiny: float) -> Tensor:
    return torch.where(x.abs() < tiny, tiny, x)


def student_t_log_prob(t: Tensor, df: Tensor) -> Tensor:
    """Return the log density of the standard Student-t with ``df`` degrees of freedom at ``t``.

    The constant is computed in float64: in float32 the difference of two ``lgamma`` has no correct
    digits left for large ``df``.
    """
    wide = df.double()
    constant = torch.lgamma((wide + 1) / 2) - torch.lgamma(wide / 2) - 0.5 * (wide * math.pi).log()
    return constant.to(t.dtype) - 0.5 * (df + 1) * torch.log1p(t.square() / df)
