r"""One output whose weights are ``vec(W)`` of one block, as one autograd node.

``H diag(g) H`` depends on ``i ^ j`` alone: ``W[i, j] = s1[i] c[i ^ j] s2[j]``, ``c = D**-0.5 H g``,
and ``y = Σ_ij X[i, j] W[i, j]`` with ``X`` the ``D × D`` reshape of an input. The kernel makes the
weights piece by piece and never stores them. With ``w̄ = Σ_n ȳ_n X_n`` the gradients are
``s̄1[i] = Σ_j w̄ c s2``, ``s̄2[j] = Σ_i w̄ s1 c`` and ``c̄[d] = Σ_{i ^ j = d} w̄ s1 s2``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor

from whvi._kernel.backend import (
    apart,
    differentiable_gradients,
    is_tracing,
    is_transformed,
    kernel,
    kernel_takes,
)
from whvi.transforms import fwht

SMALLEST_BLOCK = 16  # of the kernel: the entries of a vector register


def column_linear(x: Tensor, s1: Tensor, g: Tensor, s2: Tensor) -> Tensor:
    """Return ``x · vec(W)`` for every row of ``x``.

    Args:
        x: Shape ``(*batch_shape, *inner, in_features)`` with ``in_features <= D²``.
        s1, s2: Shape ``(*batch_shape, D)``, ``D`` a power of two, at least ``SMALLEST_BLOCK``.
        g: Shape ``(*batch_shape, *some, D)``, where ``some`` are the first of ``inner``.

    Returns:
        Shape ``(*batch_shape, *inner)``.
    """
    own_weights, size = g.shape[:-1], g.shape[-1]
    axes = (*s1.shape[:-1], *(1,) * (g.dim() - s1.dim()), size)
    s1, s2 = (v.reshape(axes).expand(g.shape) for v in (s1, s2))
    c = fwht(g) * size**-0.5
    rows = x.reshape(*own_weights, x.shape[len(own_weights) : -1].numel(), x.shape[-1])
    operands = (rows, s1, c, s2)
    if is_tracing() or is_transformed() or not _kernel_takes_all(operands):
        return _compose(*operands).reshape(x.shape[:-1])
    # apply() is not annotated in torch.
    y = cast(Tensor, _ColumnLinear.apply(*operands))  # type: ignore[no-untyped-call]
    return y.reshape(x.shape[:-1])


def _compose(rows: Tensor, s1: Tensor, c: Tensor, s2: Tensor) -> Tensor:
    """The products in torch operations."""
    entries = c[..., xor_table(c.shape[-1], c.device)]
    weights = (s1.unsqueeze(-1) * entries * s2.unsqueeze(-2)).flatten(-2)
    return (rows @ weights[..., : rows.shape[-1], None]).squeeze(-1)


def xor_table(size: int, device: torch.device) -> Tensor:
    """Return the ``(D, D)`` table of ``i ^ j``."""
    return _make_xor_table(size, device) if is_tracing() else _kept_xor_table(size, device)


def _make_xor_table(size: int, device: torch.device) -> Tensor:
    index = torch.arange(size, device=device)
    return index.unsqueeze(1) ^ index


_kept_xor_table = lru_cache(maxsize=64)(_make_xor_table)


def _kernel_takes_all(operands: tuple[Tensor, ...]) -> bool:
    dtype = operands[0].dtype
    return all(kernel_takes(t) and t.dtype is dtype and t.numel() for t in operands)


class _ColumnLinear(torch.autograd.Function):
    """The equations at the top, of ``rows (..., N, in_features)`` and ``s1, c, s2 (..., D)``."""

    @staticmethod
    def forward(ctx: Any, *operands: Tensor) -> Tensor:
        ctx.save_for_backward(*operands)
        y = operands[0].new_empty(operands[0].shape[:-1])
        _call("column_forward", operands, y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        operands = ctx.saved_tensors
        if torch.is_grad_enabled():
            operands = apart(operands)
            return tuple(differentiable_gradients(_compose(*operands), operands, grads[0]))
        rows, *vectors = operands
        grad_rows = rows.new_empty(rows.shape) if ctx.needs_input_grad[0] else None
        # zeros, because the kernel leaves out rows of W without an input
        into = (grad_rows, *(v.new_zeros(v.shape) for v in vectors))
        _call("column_backward", operands, grads[0].contiguous(), *into)
        return into


def _call(name: str, operands: tuple[Tensor, ...], *results: Tensor | None) -> None:
    rows, *vectors = (t.contiguous() for t in operands)
    N, inputs = rows.shape[-2:]
    block = vectors[0].shape[-1]
    sizes = (rows.element_size(), torch.get_num_threads(), vectors[0].numel() // block, N)
    tensors = (rows, *vectors, *results)
    pointers = [0 if t is None else t.data_ptr() for t in tensors]
    getattr(kernel, name)(*sizes, block, inputs, *pointers)
