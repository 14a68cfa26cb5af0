r"""Local reparameterization of a dense Gaussian weight, as one autograd node.

``y = M x + b + (V x²)^{1/2} ε`` with ``V = σ²`` and one normal ``ε`` per output (Kingma et al.,
2015). With ``ȳ`` the incoming gradient and ``r = ȳ ε / s``, ``s = (V x²)^{1/2}``:
``M̄ = Σ ȳ xᵀ``, ``x̄ = Mᵀ ȳ + x (Vᵀ r)``, ``b̄ = Σ ȳ``, and ``∂/∂ log σ = V Σ r (x²)ᵀ``, because
``V̄`` is half of that sum and ``∂V/∂ log σ = 2 V``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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

Kept = tuple[Any, ...]
"""``x, loc, log_scale, bias, noise``, variances of the weights and spreads of the outputs."""

_KERNEL_OUTPUTS = 4  # beyond, matrix products are faster


def local_linear(
    x: Tensor, loc: Tensor, log_scale: Tensor, bias: Tensor | None, noise: Tensor
) -> Tensor:
    """Draw ``W x + b`` with independent weights for every row.

    Args:
        x: Shape ``(*batch_shape, *inner, in_features)``.
        loc, log_scale: ``M`` and ``log σ``, row by row: shape ``(*batch_shape, out · in)``.
        bias: ``(*batch_shape, out_features)`` or ``None``.
        noise: ``ε``, shape ``(*batch_shape, *inner, out_features)``.
    """
    if is_tracing() or is_transformed():
        return _compose(x, loc, log_scale, bias, noise)
    # apply() is not annotated in torch.
    return cast(Tensor, _LocalLinear.apply(x, loc, log_scale, bias, noise))  # type: ignore[no-untyped-call]


def _compose(
    x: Tensor, loc: Tensor, log_scale: Tensor, bias: Tensor | None, noise: Tensor
) -> Tensor:
    """The draw in torch operations."""
    M, V = (_matrix(v, x, noise) for v in (loc, (2 * log_scale).exp()))
    rows = _rows(x, loc)
    y = rows @ M.transpose(-1, -2) + _spread(rows, V) * _rows(noise, loc)
    if bias is not None:
        y = y + bias.unsqueeze(-2)
    return y.reshape(noise.shape)


def _matrix(v: Tensor, x: Tensor, noise: Tensor) -> Tensor:
    """View ``(*batch_shape, out · in)`` as ``(*batch_shape, out, in)``."""
    return v.reshape(*v.shape[:-1], noise.shape[-1], x.shape[-1])


def _rows(x: Tensor, loc: Tensor) -> Tensor:
    """View ``(*batch_shape, *inner, features)`` as ``(*batch_shape, rows, features)``."""
    batch_shape = loc.shape[:-1]
    return x if x.dim() == len(batch_shape) + 2 else x.reshape(*batch_shape, -1, x.shape[-1])


def _spread(rows: Tensor, variance: Tensor) -> Tensor:
    """``(V x²)^{1/2}``, kept so far from zero that its gradient is finite."""
    tiny = math.sqrt(torch.finfo(rows.dtype).tiny)
    return ((rows * rows) @ variance.transpose(-1, -2)).clamp_min(tiny).sqrt()


class _LocalLinear(torch.autograd.Function):
    """The equations at the top of this file."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        y, kept = local_forward(*given)
        ctx.save_for_backward(*kept)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kept = ctx.saved_tensors
        if torch.is_grad_enabled():
            given = apart(kept[:5])
            return (*differentiable_gradients(_compose(*given), given[:4], grads[0]), None)
        return (*local_backward(kept, grads[0], ctx.needs_input_grad[0]), None)


def local_forward(
    x: Tensor,
    loc: Tensor,
    log_scale: Tensor,
    bias: Tensor | None,
    noise: Tensor,
    into: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Kept]:
    """Return y and what :func:`local_backward` needs, outside autograd.

    ``into`` are y, variance and spread of an earlier call of the same shapes; the kernel writes
    over them.
    """
    given = (x, loc, log_scale, bias, noise)
    if _kernel_takes_all(given):
        ready = _contiguous(given)
        if into is None:
            into = [torch.empty_like(ready[i]) for i in (4, 1, 4)]
        y, variance, spread = into
        _call("dense_forward", (*ready, y, variance, spread))
        return y, (*given, variance, spread)
    rows, scale = _rows(x, loc), _matrix(log_scale, x, noise).exp()
    variance = scale.mul_(scale)
    spread = _spread(rows, variance)
    M = _matrix(loc, x, noise)
    y = (rows @ M.transpose(-1, -2)).addcmul_(spread, _rows(noise, loc))
    if bias is not None:
        y += bias.unsqueeze(-2)
    return y.view(noise.shape), (*given, variance, spread)


def local_backward(
    kept: Kept, grad_y: Tensor, wants_x: bool, into: Sequence[Tensor | None] | None = None
) -> tuple[Tensor | None, ...]:
    """Return the gradients of x (if wanted), loc, log_scale and bias, outside autograd.

    ``into`` are those of an earlier call of the same kind; the kernel writes over them.
    """
    x, loc, _, bias, noise, variance, spread = kept
    if _kernel_takes_all(kept[:5]):
        ready, grad_y = _contiguous(kept[:5]), grad_y.contiguous()
        if into is None:
            into = [None if t is None else torch.empty_like(t) for t in ready[:4]]
            if not wants_x:
                into[0] = None
        _call("dense_backward", (*ready, grad_y, variance, spread, *into))
        return tuple(into)
    rows, grad, M = _rows(x, loc), _rows(grad_y, loc), _matrix(loc, x, noise)
    r = (grad * _rows(noise, loc)).div_(spread)
    return (
        (grad @ M).addcmul_(r @ variance, rows).view(x.shape) if wants_x else None,
        (grad.transpose(-1, -2) @ rows).view_as(loc),
        (r.transpose(-1, -2) @ (rows * rows)).mul_(variance).view_as(loc),
        None if bias is None else grad.sum(-2),
    )


def _kernel_takes_all(given: Kept) -> bool:
    x, noise = given[0], given[4]
    return noise.shape[-1] <= _KERNEL_OUTPUTS and all(
        t is None or (t.dtype is x.dtype and kernel_takes(t)) for t in given
    )


def _contiguous(tensors: Kept) -> list[Any]:
    return [None if t is None else t.contiguous() for t in tensors]


def _call(name: str, tensors: Kept) -> None:
    """Call the kernel with the sizes of the layer and the addresses of the tensors."""
    x, loc, noise = tensors[0], tensors[1], tensors[4]
    inputs, outputs = x.shape[-1], noise.shape[-1]
    replicas = loc.numel() // (outputs * inputs)
    sizes = (replicas, x.numel() // (inputs * replicas), inputs, outputs)
    addresses = [0 if t is None else t.data_ptr() for t in tensors]
    getattr(kernel, name)(x.element_size(), torch.get_num_threads(), *sizes, *addresses)
