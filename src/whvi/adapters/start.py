r"""Where converted layers start: at a residual of zero, or as near to given weights as they can be.

Entry ``(i, j)`` of a block is ``W[i, j] = s1[i] c[i ^ j] s2[j]`` with ``c = D**-0.5 H g``. For two
of the three vectors given, least squares has a closed form in the third, such as

    c[d] = Σ_{i ^ j = d} s1[i] W[i, j] s2[j]  /  Σ_{i ^ j = d} s1[i]² s2[j]²,

and taking turns never increases the error. With another transform, or blocks of another size than
``2**d``, ``M(g)[i, j]`` stands in the place of ``c[i ^ j]``, and ``g`` is found by conjugate
gradients. ``3 D`` numbers cannot hold ``D²`` weights that have no structure: of independent ones,
blocks of ``D`` explain a share of about ``3 / D``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whvi._checks import is_power_of_two
from whvi._kernel.column import xor_table
from whvi.errors import ConfigError
from whvi.functional import dense_matrix
from whvi.layers.grid import GridMatrix
from whvi.layers.linear import RandomAffine
from whvi.layers.random_scales import RandomScalesMatrix
from whvi.layers.structured import POSTERIOR_SCALE, StructuredMatrix
from whvi.posteriors import PlanarFlow
from whvi.transforms import Hadamard, Mixing, fwht

_SWEEPS = 8
_CONJUGATE_STEPS = 4
_TINY = 1e-30

Structured = StructuredMatrix | RandomScalesMatrix | GridMatrix


@torch.no_grad()
def start_at_zero(residual: RandomAffine, weight: Tensor, relative_scale: float) -> None:
    """Let a residual have mean zero and a standard deviation in proportion to ``weight``.

    ``E[g] = 0`` makes the mean residual exactly zero, and it is the one vector that can be zero
    with all gradients of a draw still alive. ``s1`` has the size at which ``g = 1`` means a
    residual as large as ``weight``, so that a learning rate means the same in every layer.
    """
    matrix = residual.matrix
    assert isinstance(matrix, Structured)
    if isinstance(matrix.posterior, PlanarFlow):
        raise ConfigError("the mean of a flow is not a parameter and cannot start at zero")
    matrix.reset_parameters()
    matrix.posterior.reset(0.0, relative_scale)
    size = float(weight.float().square().mean().sqrt()) or matrix.in_features**-0.5
    matrix.s1.mul_(size * math.sqrt(matrix.plan.block_size))


@torch.no_grad()
def start_at(layer: RandomAffine, weight: Tensor, bias: Tensor | None) -> float:
    """Bring a layer to ``weight (out, in, ...)`` and ``bias``; return the share explained.

    The share is ``1 - ‖W - E[W]‖² / ‖W‖²``; the standard deviation is a tenth of the typical ``g``.
    """
    matrix = layer.matrix
    assert isinstance(matrix, Structured)
    rows = weight.to(matrix.s1.dtype).reshape(
        *matrix.batch_shape, matrix.out_features, matrix.in_features
    )
    if isinstance(matrix.mixing, Hadamard) and is_power_of_two(matrix.plan.block_size):
        s1, c, s2 = least_squares(*_blocks(matrix, rows))
        g = fwht(c) * math.sqrt(c.shape[-1])
    else:
        s1, g, s2 = mixed_least_squares(matrix.mixing, *_blocks(matrix, rows))
    size = float(g.square().mean().sqrt()) or 1.0
    matrix.posterior.reset(0.0, POSTERIOR_SCALE)
    for target, values in ((matrix.s1, s1 * size), (matrix.posterior.loc, g / size)):
        target.copy_(values.reshape(target.shape))
    matrix.s2.copy_(s2.reshape(matrix.s2.shape))
    if bias is not None:
        random = layer.bias_posterior
        place = layer._parameters["bias"] if random is None else random.loc
        assert place is not None  # the layer was made with a bias
        place.copy_(bias)
    error = (rows - matrix.mean).square().sum()
    return 1 - float(error / rows.square().sum().clamp_min(_TINY))


def _blocks(matrix: Structured, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Lay weights ``(*batch, out, in)`` out as blocks ``(..., D, D)``; and where there are any."""
    (K, D), plan = matrix.plan.vector_shape, matrix.plan
    pair = torch.stack([rows, torch.ones_like(rows)])
    if plan.is_column:
        flat = torch.nn.functional.pad(pair.flatten(-2), (0, D * D - plan.num_weights))
        blocks = flat.unflatten(-1, (1, D, D))
    else:
        width = plan.in_features
        J = -(-matrix.in_features // width)
        missing = (0, J * width - matrix.in_features, 0, K * D - matrix.out_features)
        padded = torch.nn.functional.pad(pair, missing)
        split = padded.unflatten(-1, (J, width)).unflatten(-3, (K, D)).movedim(-2, -4)
        blocks = torch.nn.functional.pad(split, (0, D - width))
    return blocks[0], blocks[1]


def least_squares(weights: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``s1, c, s2`` with ``W[i, j] ≈ s1[i] c[i ^ j] s2[j]`` where ``mask`` is one.

    Args:
        weights: Blocks, shape ``(..., D, D)``, zero where ``mask`` is.
        mask: One where there is a weight, else zero.

    Returns:
        Shape ``(..., D)`` each; ``s1`` and ``s2`` have a mean square of one.
    """
    xor = xor_table(weights.shape[-1], weights.device)
    s1 = torch.ones_like(weights[..., 0])
    s2 = torch.ones_like(s1)
    by_row = _along_diagonals(weights, mask, xor)  # [i, d] is [i, i ^ d]
    by_column = _along_diagonals(weights.mT, mask.mT, xor)  # [j, d] is [j ^ d, j]
    c = _solve(by_row, s2[..., xor], s1, -2)
    for _ in range(_SWEEPS):
        s1 = _unit(_solve(by_row, s2[..., xor], c, -1))
        at_columns = s1[..., xor]
        s2 = _unit(_solve(by_column, at_columns, c, -1))
        c = _solve(by_column, at_columns, s2, -2)
    return s1, c, s2


def mixed_least_squares(
    mixing: Mixing, weights: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``s1, g, s2`` with ``W ≈ diag(s1) M(g) diag(s2)`` where ``mask`` is one.

    Takes and returns what :func:`least_squares` does, with ``g`` in the place of ``c``.
    """
    s1 = torch.ones_like(weights[..., 0])
    s2, one, g = torch.ones_like(s1), torch.ones_like(s1), torch.zeros_like(s1)
    for sweep in range(_SWEEPS + 1):
        g = _descend(mixing, weights, mask, (s1, g, s2))
        if sweep < _SWEEPS:
            inner = dense_matrix(one, g, one, transform=mixing)
            s1 = _unit(_solve((weights, mask), inner, s2, -1))
            s2 = _unit(_solve((weights.mT, mask.mT), inner.mT, s1, -1))
    return s1, g, s2


def _descend(
    mixing: Mixing, weights: Tensor, mask: Tensor, vectors: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """Minimise ``‖mask ∘ (W − diag(s1) M(g) diag(s2))‖²`` over ``g`` by conjugate gradients.

    ``M(g)`` keeps the norm of ``g``: for full blocks and unit scales one step is exact.
    """
    s1, g, s2 = vectors

    def matrix(g: Tensor) -> Tensor:
        return mask * dense_matrix(s1, g, s2, transform=mixing)

    def adjoint(residual: Tensor) -> Tensor:
        with torch.enable_grad():
            at = torch.zeros_like(g).requires_grad_()
            (found,) = torch.autograd.grad(matrix(at), at, residual)
        return found

    residual = weights - matrix(g)
    direction = downhill = adjoint(residual)
    square = downhill.square().sum(-1, keepdim=True)
    for _ in range(_CONJUGATE_STEPS):
        change = matrix(direction)
        length = square / change.square().sum((-2, -1), keepdim=True)[..., 0].clamp_min(_TINY)
        g = g + length * direction
        residual = residual - length.unsqueeze(-1) * change
        downhill = adjoint(residual)
        before, square = square, downhill.square().sum(-1, keepdim=True)
        direction = downhill + square / before.clamp_min(_TINY) * direction
    return g


def _along_diagonals(weights: Tensor, mask: Tensor, xor: Tensor) -> tuple[Tensor, Tensor]:
    index = xor.expand_as(weights)
    return weights.gather(-1, index), mask.gather(-1, index)


def _solve(diagonals: tuple[Tensor, Tensor], factor: Tensor, known: Tensor, axis: int) -> Tensor:
    """Return ``v`` of ``weights ≈ factor · known · v``; ``axis`` is that of ``known``."""
    weights, mask = diagonals
    known = known.unsqueeze(-1 if axis == -2 else -2)
    product = factor * known
    above, below = (weights * product).sum(axis), (mask * product.square()).sum(axis)
    return torch.where(below > 0, above / below.clamp_min(_TINY), torch.ones_like(above))


def _unit(v: Tensor) -> Tensor:
    return v / v.square().mean(-1, keepdim=True).sqrt().clamp_min(_TINY)
