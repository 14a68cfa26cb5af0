r"""A learned butterfly as one autograd node: ``log2 D`` levels of 2 × 2 reflections.

Level ``l`` maps the pairs ``(a, b) = (x[i], x[i + 2^l])``, bit ``l`` of ``i`` being zero, by

    [a']   [cos θ   sin θ] [a]
    [b'] = [sin θ  −cos θ] [b],

and ``T`` applies level 0 first; with all angles ``π/4`` it is the orthonormal Hadamard matrix. A
level is symmetric and its own inverse: ``Tᵀ`` is the levels in reverse order, and the backward pass
starts from the output, so no intermediate values are stored. The gradient of an angle is
``θ̄ = b̄' a' − ā' b'``.
"""

from __future__ import annotations

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

_SMALLEST_ROW = 16  # of the kernel: the entries of a vector register
_LEAST_CHUNK = 64  # rows whose gradients of the angles are one sum
_MOST_CHUNKS = 16

Coefficients = tuple[Tensor, Tensor]  # cosines and sines of the angles, contiguous


def butterfly(x: Tensor, angles: Tensor, transpose: bool = False) -> Tensor:
    """Return ``T x``, or ``Tᵀ x``, along the last axis.

    Args:
        x: Shape ``(*batch_shape, ..., D)``, ``D`` a power of two.
        angles: Shape ``(*batch_shape, log2 D, D/2)``; pairs of a level in the order of ``i``.
        transpose: Apply the levels in reverse order.
    """
    rows = rows_of(x, angles)
    if x.numel() == 0 or not levels_take(x, angles):
        return compose(rows, angles, transpose).reshape(x.shape)
    if not (torch.is_grad_enabled() and (x.requires_grad or angles.requires_grad)):
        return run_levels(rows.contiguous(), coefficients(angles), transpose).reshape(x.shape)
    # apply() is not annotated in torch.
    y = cast(Tensor, _Butterfly.apply(rows, angles, transpose))  # type: ignore[no-untyped-call]
    return y.reshape(x.shape)


def levels_take(x: Tensor, angles: Tensor) -> bool:
    """Tell whether the kernel may run on rows like ``x`` with these angles, now."""
    usable = kernel_takes(x) and kernel_takes(angles) and x.dtype is angles.dtype
    is_long = 2 * angles.shape[-1] >= _SMALLEST_ROW
    return usable and is_long and not (is_tracing() or is_transformed())


def rows_of(x: Tensor, angles: Tensor) -> Tensor:
    """View ``x`` as ``(*batch_shape, N, D)``."""
    own = angles.shape[:-2]
    return x.reshape(*own, x.shape[len(own) : -1].numel(), x.shape[-1])


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
        kept = coefficients(angles)
        y = run_levels(rows.contiguous(), kept, transpose)
        ctx.save_for_backward(rows, angles, y, *kept)
        ctx.transpose = transpose
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, angles, y, cosines, sines = ctx.saved_tensors
        if torch.is_grad_enabled():
            rows, angles = apart((rows, angles))
            again = compose(rows, angles, ctx.transpose)
            return *differentiable_gradients(again, (rows, angles), grads[0]), None
        kept = cosines, sines
        return *run_levels_backward(grads[0].contiguous(), y, kept, ctx.transpose), None


def coefficients(angles: Tensor) -> Coefficients:
    """Return cosines and sines."""
    return angles.cos().contiguous(), angles.sin().contiguous()


def run_levels(
    rows: Tensor, coefficients: Coefficients, transpose: bool, *, owned: bool = False
) -> Tensor:
    """Run the kernel outside autograd on contiguous rows, which are overwritten if ``owned``."""
    y = rows if owned else torch.empty_like(rows)
    _call("butterfly_forward", coefficients, transpose, rows, y)
    return y


def run_levels_backward(
    grad: Tensor, y: Tensor, coefficients: Coefficients, transpose: bool, *, owned: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the gradients of rows and angles, given the contiguous outputs ``y``.

    The contiguous ``grad`` is overwritten if ``owned``.
    """
    into = grad if owned else torch.empty_like(grad)
    shape = coefficients[0].shape
    chunks = -(-y.shape[-2] // _chunk_rows(y.shape[-2]))
    sums = y.new_empty(*shape[:-2], chunks, *shape[-2:])
    _call("butterfly_backward", coefficients, transpose, grad, y, into, sums)
    return into, sums.sum(-3) if chunks > 1 else sums.squeeze(-3)


def _chunk_rows(rows: int) -> int:
    return max(_LEAST_CHUNK, -(-rows // _MOST_CHUNKS))


def _call(
    name: str, coefficients: Coefficients, transpose: bool, rows: Tensor, *others: Tensor
) -> None:
    N, levels = rows.shape[-2], coefficients[0].shape[-2]
    sizes = (torch.get_num_threads(), rows.shape[:-2].numel(), N, levels, transpose, _chunk_rows(N))
    pointers = [t.data_ptr() for t in (*coefficients, rows, *others)]
    getattr(kernel, name)(rows.element_size(), *sizes, *pointers)
