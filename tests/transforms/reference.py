"""The transform and the product in long double, and how far a result is from them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

LONG = np.longdouble  # 64-bit mantissa on x86: its own error is 2000 times below float64's


def signs(size: int) -> np.ndarray:
    """``(-1)**popcount(i & k)`` from the definition, integers."""
    both = np.arange(size)[:, None] & np.arange(size)
    parity = np.zeros_like(both)
    while both.any():
        parity ^= both & 1
        both >>= 1
    return 1 - 2 * parity


def long_array(x: Tensor) -> np.ndarray:
    return x.detach().double().numpy().astype(LONG)


def long_transform(x: np.ndarray, *, normalize: bool = True) -> np.ndarray:
    """``H x`` along the last axis by ``H_2D = [[H, H], [H, -H]]``, from the largest block down."""
    size = x.shape[-1]
    y, half = np.array(x, dtype=LONG), size // 2
    while half:
        pairs = y.reshape(*x.shape[:-1], size // (2 * half), 2, half)
        upper, lower = pairs[..., 0, :], pairs[..., 1, :]
        y = np.stack([upper + lower, upper - lower], axis=-2).reshape(x.shape)
        half //= 2
    return y / np.sqrt(LONG(size)) if normalize else y


def norm_error(result: Tensor, exact: np.ndarray) -> float:
    """The largest norm-wise error of a row, in ``eps`` of the result's data type.

    Subnormal numbers have an absolute spacing, that of the smallest normal number: entries below
    it count as that large.
    """
    limits = torch.finfo(result.dtype)
    floor = np.sqrt(LONG(exact.shape[-1])) * LONG(limits.smallest_normal)
    error = np.sqrt(((long_array(result) - exact) ** 2).sum(-1))
    scale = np.maximum(np.sqrt((exact**2).sum(-1)), floor)
    return float((error / scale).max(initial=0)) / limits.eps


def relative_error(result: Tensor, exact: Tensor) -> float:
    """Norm of the difference over the norm of ``exact``, in ``eps`` of the result's data type."""
    assert result.shape == exact.shape
    difference = (result.double() - exact.double()).norm()
    return float(difference / exact.double().norm()) / torch.finfo(result.dtype).eps


def dense_product(x: Tensor, s1: Tensor, g: Tensor, s2: Tensor) -> Tensor:
    """``s1 * H(g * H(s2 * x))`` with a dense ``H``, in the operands' precision; differentiable."""
    size = x.shape[-1]
    H = torch.from_numpy(signs(size)).to(x.dtype) / size**0.5
    return s1 * ((g * ((s2 * x) @ H)) @ H)


def linear_map_in_g(x: Tensor, s1: Tensor, s2: Tensor) -> Tensor:
    """``A(x) = diag(s1) H diag(H(s2 * x))``, for which ``W x = A(x) g`` (equation 3)."""
    size = x.shape[-1]
    H = torch.from_numpy(signs(size)).to(x.dtype) / size**0.5
    return s1.unsqueeze(-1) * H * ((s2 * x) @ H).unsqueeze(-2)
