"""The transform in plain torch, for any device: ``H`` as a Kronecker product of small matrices.

``H_{ab} = H_a ⊗ H_b``: reshape a row of ``D`` entries to a box whose sides are at most 64 and
multiply along each side.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling, is_exporting

from whvi._checks import is_power_of_two
from whvi._kernel.backend import PLAIN_TYPES, is_tracing, is_transformed
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
    size = int(x.shape[-1])  # torch.jit.trace hands out sizes as tensors
    sides = _sides(size)
    result = x.reshape(-1, sides[-1]) @ _side_matrix(sides[-1], x)
    right = sides[-1]
    for side in reversed(sides[:-1]):
        result = _side_matrix(side, x) @ result.reshape(-1, side, right)
        right *= side
    if normalize:
        result = result * (1.0 / math.sqrt(size))
    return result.reshape(x.shape)


def _sides(size: int) -> list[int]:
    """Split a power of two into nearly equal factors of at most 64."""
    bits = size.bit_length() - 1
    count = max(1, -(-bits // _SIDE_BITS))
    return [1 << (bits // count + (i < bits % count)) for i in range(count)]


def _side_matrix(size: int, like: Tensor) -> Tensor:
    if is_exporting() and not is_dynamo_compiling():
        return torch.tensor(_signs(size), dtype=like.dtype, device=like.device)
    if is_tracing() or is_transformed() or type(like) not in PLAIN_TYPES:
        return hadamard_matrix(size, normalize=False, dtype=like.dtype, device=like.device)
    return _kept_matrix(size, like.dtype, like.device)


@lru_cache(maxsize=8)
def _signs(size: int) -> list[list[float]]:
    """Return the matrix as numbers: one constant of a graph instead of all that makes it."""
    return [[1.0 - 2 * (bin(i & k).count("1") % 2) for k in range(size)] for i in range(size)]


@lru_cache(maxsize=64)
def _kept_matrix(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return hadamard_matrix(size, normalize=False, dtype=dtype, device=device)
