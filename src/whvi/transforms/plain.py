"""The transform in plain torch, for any device: ``H`` as a Kronecker product of small matrices.

``H_{ab} = H_a ⊗ H_b``: reshape a row of ``D`` entries to a box whose sides are at most 64 and
multiply along each side. ``D = 2**k`` is a product of Sylvester's ``[[1, 1], [1, -1]]``; other
sizes ``m · 2**k`` begin with a Paley matrix of order ``m = 12, 20, 28``, symmetric like the others.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling, is_exporting

from whvi._checks import hadamard_factor, refused_order
from whvi._kernel.backend import PLAIN_TYPES, is_tracing, is_transformed, kept
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

    Entry ``(i, k)`` is ``(-1)**popcount(i & k)``, times ``size**-0.5`` with ``normalize``. For
    ``size = m · 2**k`` with ``m`` 12, 20 or 28 it is ``H_m ⊗ H_{2**k}``, also symmetric.
    """
    factor = hadamard_factor(size)
    if not factor:
        raise ShapeError(f"the size of a Hadamard matrix must be {refused_order(size)}")
    matrix = torch.ones(1, 1, dtype=dtype, device=device)
    step = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=dtype, device=device)
    for _ in range((size // factor).bit_length() - 1):
        matrix = torch.kron(step, matrix)
    if factor > 1:
        matrix = torch.kron(_paley_matrix(factor).to(matrix), matrix)
    return matrix * size**-0.5 if normalize else matrix


kept_hadamard_matrix = kept(hadamard_matrix)


def _paley_matrix(order: int) -> Tensor:
    """``[[C + I, C - I], [C - I, -C - I]]`` with ``C = [[0, 1], [1, J - I - 2 N]]``.

    ``N`` says which pairs of the ``q = order/2 - 1`` elements of GF(q) differ by a nonresidue. For
    ``q = 9`` this graph is, up to names, that of a rook's moves on a 3 × 3 board.
    """
    q = order // 2 - 1
    index = torch.arange(q)
    difference = (index.unsqueeze(1) - index) % q
    nonresidue = ~torch.isin(difference, index**2 % q)
    if q == 9:
        row, column = index // 3, index % 3
        nonresidue = (row.unsqueeze(1) == row) ^ (column.unsqueeze(1) == column)
    C = torch.ones(q + 1, q + 1)
    C[1:, 1:] -= 2.0 * nonresidue
    C.fill_diagonal_(0.0)
    unit = torch.eye(q + 1)
    return torch.cat([torch.cat([C + unit, C - unit], 1), torch.cat([C - unit, -C - unit], 1)])


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
    """Split ``m · 2**k`` into ``m`` and nearly equal factors of at most 64."""
    factor = hadamard_factor(size)
    bits = (size // factor).bit_length() - 1
    count = max(1, -(-bits // _SIDE_BITS))
    sides = [1 << (bits // count + (i < bits % count)) for i in range(count)]
    return sides if factor == 1 else [factor, *sides]


def _side_matrix(size: int, like: Tensor) -> Tensor:
    if is_exporting() and not is_dynamo_compiling():
        return torch.tensor(_signs(size), dtype=like.dtype, device=like.device)
    watched = is_tracing() or is_transformed() or type(like) not in PLAIN_TYPES
    make = hadamard_matrix if watched else kept_hadamard_matrix
    return make(size, normalize=False, dtype=like.dtype, device=like.device)


@lru_cache(maxsize=8)
def _signs(size: int) -> list[list[float]]:
    """Return the matrix as numbers: one constant of a graph instead of all that makes it."""
    return [[1.0 - 2 * (bin(i & k).count("1") % 2) for k in range(size)] for i in range(size)]
