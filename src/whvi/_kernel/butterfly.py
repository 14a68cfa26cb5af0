r"""A learned butterfly as one autograd node: ``log2 D`` levels of 2 × 2 reflections.

Level ``l`` maps the pairs ``(a, b) = (x[i], x[i + 2^l])``, bit ``l`` of ``i`` being zero, by

    [a']   [cos θ   sin θ] [a]
    [b'] = [sin θ  −cos θ] [b],

and ``T`` applies level 0 first; with all angles ``π/4`` it is the orthonormal Hadamard matrix. A
level is symmetric and its own inverse: ``Tᵀ`` is the levels in reverse order, and the backward pass
goes back from the output, so that nothing between is kept. The gradient of an angle is
``θ̄ = b̄' a' − ā' b'``.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from whvi._kernel.backend import (
    differentiable_gradients,
    is_tracing,
    is_transformed,
    kernel,
    kernel_takes,
)

_SMALLEST_ROW = 16  # of the kernel: the entries of a vector register
_LEAST_CHUNK = 64  # rows whose gradients of the angles are one sum
_MOST_CHUNKS = 16


def butterfly(x: Tensor, angles: Tensor, transpose: bool = False) -> Tensor:
    """Return ``T x``, or ``Tᵀ x``, along the last axis.

    Args:
        x: Shape ``(*batch_shape, ..., D)``, ``D`` a power of two.
        angles: Shape ``(*batch_shape, log2 D, D/2)``; pairs of a level in the order of ``i``.
        transpose: Apply the levels in reverse order.
    """
    own = angles.shape[:-2]
    rows = x.reshape(*own, x.shape[len(own) : -1].numel(), x.shape[-1])
    usable = kernel_takes(x) and kernel_takes(angles) and x.dtype is angles.dtype and x.numel() > 0
    if not usable or x.shape[-1] < _SMALLEST_ROW or is_tracing() or is_transformed():
        return compose(rows, angles, transpose).reshape(x.shape)
    if not (torch.is_grad_enabled() and (x.requires_grad or angles.requires_grad)):
        return _forward(rows, angles, transpose)[0].reshape(x.shape)
    # apply() is not annotated in torch.
    y = cast(Tensor, _Butterfly.apply(rows, angles, transpose))  # type: ignore[no-untyped-call]
    return y.reshape(x.shape)


def compose(rows: Tensor, angles: Tensor, transpose: bool) -> Tensor:
    """The levels in torch operations, of ``rows (*batch_shape, N, D)``."""
    levels = range(angles.shape[-2])
    for level in reversed(levels) if transpose else levels:
        a, b = rows.unflatten(-1, (-1, 2, 1 << level)).unbind(-2)
        theta = angles[..., level, :].unflatten(-1, (-1, 1 << level)).unsqueeze(-3)
        c, s = theta.cos(), theta.sin()
        rows = torch.stack([c * a + s * b, s * a - c * b], -2).flatten(-3)
    return rows


class _Butterfly(torch.autograd.Function):
    """The equations at the top, of ``rows (*batch_shape, N, D)``."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, angles: Tensor, transpose: bool) -> Tensor:
        y, coefficients = _forward(rows, angles, transpose)
        ctx.save_for_backward(rows, angles, y, *coefficients)
        ctx.transpose = transpose
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, angles, y, *coefficients = ctx.saved_tensors
        if torch.is_grad_enabled():
            again = compose(rows, angles, ctx.transpose)
            return *differentiable_gradients(again, (rows, angles), grads[0]), None
        into = torch.empty_like(y)
        chunks = -(-y.shape[-2] // _chunk_rows(y.shape[-2]))
        sums = y.new_empty(*angles.shape[:-2], chunks, *angles.shape[-2:])
        grad = grads[0].contiguous()
        _call("butterfly_backward", coefficients, ctx.transpose, grad, y, into, sums)
        return into, sums.sum(-3), None


def _forward(rows: Tensor, angles: Tensor, transpose: bool) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run the kernel outside autograd; return the output, and cosines and sines."""
    y = torch.empty_like(rows, memory_format=torch.contiguous_format)
    coefficients = (angles.cos().contiguous(), angles.sin().contiguous())
    _call("butterfly_forward", coefficients, transpose, rows.contiguous(), y)
    return y, coefficients


def _chunk_rows(rows: int) -> int:
    return max(_LEAST_CHUNK, -(-rows // _MOST_CHUNKS))


def _call(
    name: str, coefficients: tuple[Tensor, ...], transpose: bool, rows: Tensor, *others: Tensor
) -> None:
    N, levels = rows.shape[-2], coefficients[0].shape[-2]
    sizes = (torch.get_num_threads(), rows.shape[:-2].numel(), N, levels, transpose, _chunk_rows(N))
    pointers = [t.data_ptr() for t in (*coefficients, rows, *others)]
    getattr(kernel, name)(rows.element_size(), *sizes, *pointers)
