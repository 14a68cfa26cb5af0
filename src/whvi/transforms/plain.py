"""The transform in plain torch, for any device: ``H`` as a Kronecker product of small matrices.

``H_{ab} = H_a ⊗ H_b``: reshape a row of ``D`` entries to a box whose sides are at most 64 and
multiply along each side. Also the reference that the compiled kernel is compared with.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whvi.checks import is_power_of_two
from whvi.errors import ShapeError

_SIDE_BITS = 6


def hadamard_matrix(
    size: int,
    *,
    normalize: bool = True,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return the Walsh-Hadamard matrix in natural (Sylvester) order, shape ``(size, size)``.

    Entry ``(i, k)`` is ``(-1)**popcount(i & k)``, times ``size**-0.5`` with ``normalize``.
    """
    if not is_power_of_two(size):
        raise ShapeError(f"size must be a power of two, got {size}")
    matrix = torch.ones(1, 1, dtype=dtype, device=device)
    step = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=dtype, device=device)
    for _ in range(size.bit_length() - 1):
        matrix = torch.kron(step, matrix)
    return matrix * size**-0.5 if normalize else matrix


def fwht_plain(x: Tensor, normalize: bool) -> Tensor:
    """Transform the last dimension of ``x`` by matrix products: differentiable, any device."""
    size = x.shape[-1]
    result = x.reshape(-1, size)
    left, bits = 1, size.bit_length() - 1
    while bits > 0:
        side = 1 << min(bits, _SIDE_BITS)
        bits -= side.bit_length() - 1
        matrix = hadamard_matrix(side, normalize=False, dtype=x.dtype, device=x.device)
        # levels of the leading side of what is left; `left` counts the sides already done
        box = result.reshape(-1, left, side, size // (left * side))
        result = torch.matmul(matrix, box).reshape(-1, size)
        left *= side
    if normalize:
        result = result * (1.0 / math.sqrt(size))
    return result.reshape(x.shape)
