r"""Gradients of the structured product that are not summed over rows.

With ``u = H(s2 x)``, ``t = H(g u)``, ``y = s1 t``, a derivative ``ȳ`` for every row,
``v̄ = H(s1 ȳ)`` and ``w̄ = H(g v̄)``:

    ∂/∂s1 = ȳ t      ∂/∂g = v̄ u      ∂/∂s2 = w̄ x      x̄ = s2 w̄ (summed over blocks)

The kernel's backward pass sums over the rows of a problem; here every row is its own problem, so
nothing is summed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from whvi._kernel.backend import kernel
from whvi._kernel.layout import BlockPlan, Layout, Shape, Views, views_of
from whvi._kernel.product import PreparedProduct, can_fuse
from whvi.transforms import fwht


class RowGradients(NamedTuple):
    """Derivatives of each row: ``(*batch_shape, N, in)``, then ``(*batch_shape, N, K, D)`` each."""

    x: Tensor
    s1: Tensor
    g: Tensor
    s2: Tensor


def row_gradients(
    x: Tensor, s1: Tensor, g: Tensor, s2: Tensor, grad: Tensor, plan: BlockPlan
) -> RowGradients:
    """Differentiate the outputs of a structured layer, row by row; not differentiable itself.

    Args:
        x: Rows, ``(*batch_shape, N, in_features)``.
        s1, g, s2: ``(*batch_shape, K·D)``.
        grad: ``ȳ``, ``(*batch_shape, N, out_features)``.
        plan: The blocks.
    """
    operands = (x, s1, g, s2)
    if kernel is None or not can_fuse((*operands, grad)):
        return _compose(x, s1, g, s2, grad, plan)
    prepared = _prepare(x.shape, s1.shape, plan)
    vectors = (*x.shape[:-1], plan.num_blocks, plan.block_size)
    made = [torch.empty_like(x, memory_format=torch.contiguous_format)]
    made += [x.new_empty(vectors) for _ in range(3)]
    element_bytes, threads = 4 if x.dtype is torch.float32 else 8, torch.get_num_threads()
    kernel.product_backward(
        element_bytes, threads, prepared.address, 0, grad, None, [*made, None, None],
        *operands, None, None,
    )  # fmt: skip
    return RowGradients(*made)


@lru_cache(maxsize=256)
def _prepare(x: Shape, s: Shape, plan: BlockPlan) -> PreparedProduct:
    """Prepare the kernel's call with the loop over rows in the place of the one over draws."""
    views: Views = views_of(x, s, s, s, plan)
    layout = Layout.of(views, noisy=False)
    assert layout is not None  # one loop of replicas, one of rows, one of blocks
    replicas, one, rows, blocks = layout.loops
    return PreparedProduct(Layout(views, (replicas, rows, one, blocks)), log_scale=False)


def _compose(
    x: Tensor, s1: Tensor, g: Tensor, s2: Tensor, grad: Tensor, plan: BlockPlan
) -> RowGradients:
    """The same in torch operations."""
    s1, g, s2 = (v.unflatten(-1, plan.vector_shape).unsqueeze(-3) for v in (s1, g, s2))
    x = functional.pad(x, (0, plan.block_size - plan.in_features)).unsqueeze(-2)
    grad = functional.pad(grad, (0, plan.vector_size - plan.out_features))
    grad = grad.unflatten(-1, plan.vector_shape)
    u = fwht(s2 * x)
    t = fwht(g * u)
    v = fwht(s1 * grad)
    w = fwht(g * v)
    return RowGradients((w * s2).sum(-2)[..., : plan.in_features], grad * t, v * u, w * x)
