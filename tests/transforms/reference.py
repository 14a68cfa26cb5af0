"""The transform and the product in long double, and how far a result is from them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

LONG = np.longdouble  # 64-bit mantissa on x86: its own error is 2000 times below float64's


def split(size: int) -> tuple[int, int]:
    """``(m, n)`` of ``size = m n``, ``n`` a power of two, ``m`` 1 or four times an odd number."""
    odd = size // (size & -size)
    return (1, size) if odd == 1 else (4 * odd, size // (4 * odd))


def paley(order: int) -> np.ndarray:
    """The second matrix of Paley, entry by entry, from squares in the field of ``order/2 - 1``."""
    q = order // 2 - 1
    if q == 9:  # a + b i with i² = -1, modulo 3, sorted by (a + b, a - b)
        field = sorted(
            ((a, b) for a in range(3) for b in range(3)),
            key=lambda z: ((z[0] + z[1]) % 3, (z[0] - z[1]) % 3),
        )
        squares = {((a * a - b * b) % 3, 2 * a * b % 3) for a, b in field}
        is_square = [[((a - c) % 3, (b - d) % 3) in squares for c, d in field] for a, b in field]
    else:
        squares = {i * i % q for i in range(q)}
        is_square = [[(i - j) % q in squares for j in range(q)] for i in range(q)]
    C = np.ones((q + 1, q + 1), dtype=int)
    C[1:, 1:] = np.where(is_square, 1, -1)
    np.fill_diagonal(C, 0)
    unit = np.eye(q + 1, dtype=int)
    return np.block([[C + unit, C - unit], [C - unit, -C - unit]])


def signs(size: int) -> np.ndarray:
    """``(-1)**popcount(i & k)`` from the definition, integers; a Paley matrix times it."""
    order, power = split(size)
    if order > 1:
        return np.kron(paley(order), signs(power))
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
    size, (order, power) = x.shape[-1], split(x.shape[-1])
    if order > 1:
        parts = long_transform(x.reshape(*x.shape[:-1], order, power), normalize=normalize)
        y = np.einsum("ij,...jk->...ik", paley(order).astype(LONG), parts).reshape(x.shape)
        return y / np.sqrt(LONG(order)) if normalize else y
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
