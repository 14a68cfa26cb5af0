r"""A linear map made of structured blocks: padded, stacked, trimmed, with bias, as one node.

For a plan of ``K`` blocks of size ``D``: ``y = [W_1 x; …; W_K x][:out] + b`` with
``W_k = diag(s1_k) H diag(g_k) H diag(s2_k)`` and ``x`` padded with zeros. Padding, noise, stacking,
trimming and the bias all happen inside the kernel call.
"""

from __future__ import annotations

from functools import lru_cache, partial
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from whvi._kernel.noise import normal_from_seed
from whvi._kernel.plan import BlockPlan
from whvi._kernel.product import Call, Gradient, Layout, Operands, can_fuse, fused_product
from whvi.transforms import fwht

Shape = tuple[int, ...]


class _Axes(NamedTuple):
    """Leading axes of one call: ``x`` is ``(*batch, *draws, *rows, in_features)``."""

    batch: Shape
    draws: Shape  # axes over which g differs
    rows: Shape

    @property
    def inner(self) -> Shape:
        return (*self.draws, *self.rows)


def block_linear(
    x: Tensor, s1: Tensor, g: Tensor, s2: Tensor, bias: Tensor | None, plan: BlockPlan
) -> Tensor:
    """Apply the blocks of ``plan`` with given ``g``.

    Args:
        x: Shape ``(*batch_shape, *inner, in_features)``.
        s1, s2: Shape ``(*batch_shape, K, D)``.
        g: Shape ``(*batch_shape, *some, K, D)``, where ``some`` are the first of ``inner``: none
            (one ``g`` for all rows), the draws, or all (a ``g`` for every row).
        bias: Shape ``(*batch_shape, out_features)`` or ``None``.

    Returns:
        Shape ``(*batch_shape, *inner, out_features)``.
    """
    return _run(Operands(x, s1, g, s2, None, bias), plan, 0)


def noisy_block_linear(
    x: Tensor,
    s1: Tensor,
    moments: tuple[Tensor, Tensor],
    s2: Tensor,
    bias: Tensor | None,
    plan: BlockPlan,
    seed: int,
) -> Tensor:
    """Apply the blocks with a fresh ``g ~ N(mean, exp(log_scale)²)`` for every row.

    ``moments`` is ``(mean, log_scale)``, each ``(*batch_shape, K, D)``; ``seed`` names the stream
    of the noise; others as above.
    """
    mean, log_scale = moments
    return _run(Operands(x, s1, mean, s2, log_scale, bias), plan, seed)


def _run(operands: Operands, plan: BlockPlan, seed: int) -> Tensor:
    batch_ndim = operands.s1.dim() - 2
    if can_fuse(operands):
        call = prepared_call(
            operands.x.shape, operands.g.shape, batch_ndim, plan, operands.scale is not None
        )
        return fused_product(operands, call, seed)
    axes = _axes(operands.x.shape, operands.g.shape, batch_ndim)
    noise = None
    if operands.scale is not None:
        shape = (*axes.batch, *axes.inner, *plan.vector_shape)
        noise = normal_from_seed(shape, seed, dtype=operands.x.dtype, device=operands.x.device)
    return _compose(axes, plan, operands, noise)


def _axes(x: Shape, g: Shape, batch_ndim: int) -> _Axes:
    inner = x[batch_ndim:-1]
    num_draw_axes = len(g) - 2 - batch_ndim
    return _Axes(tuple(x[:batch_ndim]), tuple(inner[:num_draw_axes]), tuple(inner[num_draw_axes:]))


def _compose(axes: _Axes, plan: BlockPlan, operands: Operands, noise: Tensor | None) -> Tensor:
    """The same map in differentiable torch operations."""
    x, s1, g, s2, scale, bias = operands
    every = (1,) * len(axes.inner)
    s1, s2 = (v.reshape(*axes.batch, *every, *plan.vector_shape) for v in (s1, s2))
    g = g.reshape(*axes.batch, *axes.draws, *(1,) * len(axes.rows), *plan.vector_shape)
    if scale is not None and noise is not None:
        scale = scale.exp().reshape(*axes.batch, *every, *plan.vector_shape)
        g = g + scale * noise.reshape(*axes.batch, *axes.inner, *plan.vector_shape)
    padded = torch.nn.functional.pad(x, (0, plan.block_size - plan.in_features)).unsqueeze(-2)
    y = (s1 * fwht(g * fwht(s2 * padded))).flatten(-2)[..., : plan.out_features]
    return y if bias is None else y + bias.reshape(*axes.batch, *every, plan.out_features)


@lru_cache(maxsize=4096)
def prepared_call(x: Shape, g: Shape, batch_ndim: int, plan: BlockPlan, noisy: bool) -> Call:
    """Prepare the kernel call for inputs of these shapes; ``noisy``: with a log-scale."""
    axes = _axes(x, g, batch_ndim)
    per_row = not axes.rows and bool(axes.draws)
    R = prod(axes.batch)
    S, N = (1, prod(axes.draws)) if per_row else (prod(axes.draws), prod(axes.rows))
    K, D = plan.vector_shape
    g_strides = (N * K * D, 0, K * D, D) if per_row else (S * K * D, K * D * (S > 1), 0, D)
    vectors = (*axes.batch, K, D) if S == 1 else (*axes.batch, S, K, D)
    bias = axes.batch if S == 1 else (*axes.batch, S)
    layout = Layout(
        sizes=(R, S, N, K, D, plan.in_features, plan.out_features),
        x=(S * N * plan.in_features, N * plan.in_features, plan.in_features),
        s1=(K * D, 0, D),
        g=g_strides,
        s2=(K * D, 0, D),
        y=(S * N * plan.out_features, N * plan.out_features, plan.out_features, D),
        bias=plan.out_features,
        out_shape=(*axes.batch, *axes.inner, plan.out_features),
        grad_shapes=(x, vectors, g, vectors, vectors, (*bias, plan.out_features)),
    )
    fold = partial(_sum_draws, len(axes.batch)) if S > 1 else None
    return Call(layout, partial(_compose, axes, plan), fold, log_scale=noisy)


def _sum_draws(axis: int, gradients: list[Gradient]) -> list[Gradient]:
    """Sum over draws what all draws share: everything but ``x`` and ``g``."""
    x, s1, g, s2, scale, bias = gradients
    s1, s2, scale, bias = (None if t is None else t.sum(axis) for t in (s1, s2, scale, bias))
    return [x, s1, g, s2, scale, bias]
