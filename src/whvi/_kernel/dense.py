r"""Local reparameterization of a dense Gaussian weight, as one autograd node.

``y = M x + b + (V x²)^{1/2} ε`` with ``V = σ²`` and one normal ``ε`` per output (Kingma et al.,
2015). With ``ȳ`` the incoming gradient and ``r = ȳ ε / s``, ``s = (V x²)^{1/2}``:
``M̄ = Σ ȳ xᵀ``, ``x̄ = Mᵀ ȳ + x (Vᵀ r)``, ``b̄ = Σ ȳ``, and ``∂/∂ log σ = V Σ r (x²)ᵀ``, because
``V̄`` is half of that sum and ``∂V/∂ log σ = 2 V``.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from whvi._kernel.backend import is_tracing, is_transformed, kernel, kernel_takes

Kept = tuple[Any, ...]
"""``x, loc, log_scale, bias, noise``, variances of the weights and spreads of the outputs."""

KERNEL_OUTPUTS = 4  # up to here the number of operations is what costs, and the kernel is one


def local_linear(
    x: Tensor, loc: Tensor, log_scale: Tensor, bias: Tensor | None, noise: Tensor
) -> Tensor:
    """Draw ``W x + b`` with independent weights for every row.

    Args:
        x: Shape ``(*batch_shape, *inner, in_features)``.
        loc, log_scale: ``M`` and ``log σ``, row by row: ``(*batch_shape, out · in)``.
        bias: ``(*batch_shape, out_features)`` or ``None``.
        noise: ``ε``, shape ``(*batch_shape, *inner, out_features)``.
    """
    if is_tracing() or is_transformed():
        return _compose(x, loc, log_scale, bias, noise)
    # apply() is not annotated in torch.
    return cast(Tensor, _LocalLinear.apply(x, loc, log_scale, bias, noise))  # type: ignore[no-untyped-call]


def _matrix(v: Tensor, x: Tensor, noise: Tensor) -> Tensor:
    """View ``(*batch_shape, out · in)`` as ``(*batch_shape, out, in)``."""
    return v.view(*v.shape[:-1], noise.shape[-1], x.shape[-1])


def _rows(x: Tensor, matrix: Tensor) -> Tensor:
    """View ``(*batch_shape, *inner, features)`` as ``(*batch_shape, rows, features)``."""
    batch_shape = matrix.shape[:-2]
    return x if x.dim() == len(batch_shape) + 2 else x.reshape(*batch_shape, -1, x.shape[-1])


def _spread(rows: Tensor, variance: Tensor) -> Tensor:
    """``(V x²)^{1/2}``, kept so far from zero that its gradient is finite."""
    tiny = math.sqrt(torch.finfo(rows.dtype).tiny)
    return ((rows * rows) @ variance.transpose(-1, -2)).clamp_min(tiny).sqrt()


def _compose(
    x: Tensor, loc: Tensor, log_scale: Tensor, bias: Tensor | None, noise: Tensor
) -> Tensor:
    loc, log_scale = _matrix(loc, x, noise), _matrix(log_scale, x, noise)
    rows = _rows(x, loc)
    y = rows @ loc.transpose(-1, -2)
    y = y + _spread(rows, (2 * log_scale).exp()) * _rows(noise, loc)
    if bias is not None:
        y = y + bias.unsqueeze(-2)
    return y.reshape(noise.shape)


class _LocalLinear(torch.autograd.Function):
    """The equations at the top of this file."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, loc: Tensor, log_scale: Tensor, bias: Tensor | None, noise: Tensor
    ) -> Tensor:
        tensors = [t for t in (x, loc, log_scale, bias, noise) if t is not None]
        same = all(t.dtype is x.dtype and kernel_takes(t) for t in tensors)
        ctx.in_kernel = same and noise.shape[-1] <= KERNEL_OUTPUTS
        y, kept = local_forward(x, loc, log_scale, bias, noise, in_kernel=ctx.in_kernel)
        ctx.save_for_backward(*kept)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kept = ctx.saved_tensors
        if torch.is_grad_enabled():
            x, loc, log_scale, bias, noise, *_ = kept
            inputs = [t for t in (x, loc, log_scale, bias) if t is not None and t.requires_grad]
            y = _compose(x, loc, log_scale, bias, noise)
            found = iter(torch.autograd.grad(y, inputs, grads[0], create_graph=True))
            wanted = [t is not None and t.requires_grad for t in (x, loc, log_scale, bias)]
            return (*[next(found) if w else None for w in wanted], None)
        wants_x, in_kernel = ctx.needs_input_grad[0], ctx.in_kernel
        return (*local_backward(kept, grads[0], wants_x, in_kernel=in_kernel), None)


def local_forward(
    x: Tensor,
    loc: Tensor,
    log_scale: Tensor,
    bias: Tensor | None,
    noise: Tensor,
    *,
    in_kernel: bool,
) -> tuple[Tensor, Kept]:
    """Return y and what :func:`local_backward` needs, outside autograd."""
    run = _forward_in_kernel if in_kernel else _forward_in_torch
    y, variance, spread = run(x, loc, log_scale, bias, noise)
    return y, (x, loc, log_scale, bias, noise, variance, spread)


def local_backward(
    kept: Kept, grad_y: Tensor, wants_x: bool, *, in_kernel: bool
) -> tuple[Tensor | None, ...]:
    """Return the gradients of x (if wanted), loc, log_scale and bias."""
    run = _backward_in_kernel if in_kernel else _backward_in_torch
    return run(kept, grad_y, wants_x)


def _forward_in_torch(
    x: Tensor, loc: Tensor, log_scale: Tensor, bias: Tensor | None, noise: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    loc = _matrix(loc, x, noise)
    rows = _rows(x, loc)
    scale = _matrix(log_scale, x, noise).exp()
    variance = scale.mul_(scale)
    spread = _spread(rows, variance)
    y = (rows @ loc.transpose(-1, -2)).addcmul_(spread, _rows(noise, loc))
    if bias is not None:
        y += bias.unsqueeze(-2)
    return y.view(noise.shape), variance, spread


def _backward_in_torch(kept: Kept, grad_y: Tensor, wants_x: bool) -> tuple[Tensor | None, ...]:
    x, flat, _, bias, noise, variance, spread = kept
    loc = _matrix(flat, x, noise)
    rows, grad = _rows(x, loc), _rows(grad_y, loc)
    r = (grad * _rows(noise, loc)).div_(spread)
    grad_x = None
    if wants_x:
        grad_x = (grad @ loc).addcmul_(r @ variance, rows).view(x.shape)
    return (
        grad_x,
        (grad.transpose(-1, -2) @ rows).view_as(flat),
        (r.transpose(-1, -2) @ (rows * rows)).mul_(variance).view_as(flat),
        None if bias is None else grad.sum(-2),
    )


def _sizes(x: Tensor, loc: Tensor, noise: Tensor) -> tuple[int, ...]:
    """Element bytes, threads, replicas, rows, in and out, as the kernel wants them."""
    outputs, inputs = noise.shape[-1], x.shape[-1]
    replicas = loc.numel() // (outputs * inputs)
    rows = x.numel() // (inputs * replicas)
    return x.element_size(), torch.get_num_threads(), replicas, rows, inputs, outputs


def _pointers(*tensors: Tensor | None) -> list[int]:
    return [0 if t is None else t.data_ptr() for t in tensors]


def _forward_in_kernel(
    x: Tensor, loc: Tensor, log_scale: Tensor, bias: Tensor | None, noise: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, the variances of the weights and the spreads of the outputs, in one call."""
    assert kernel is not None  # the caller has asked kernel_takes
    x, loc, log_scale, noise = (t.contiguous() for t in (x, loc, log_scale, noise))
    bias = None if bias is None else bias.contiguous()
    y, spread, variance = torch.empty_like(noise), torch.empty_like(noise), torch.empty_like(loc)
    pointers = _pointers(x, loc, log_scale, bias, noise, y, variance, spread)
    kernel.dense_forward(*_sizes(x, loc, noise), *pointers)
    return y, variance, spread


def _backward_in_kernel(kept: Kept, grad_y: Tensor, wants_x: bool) -> tuple[Tensor | None, ...]:
    assert kernel is not None  # forward ran in it
    ready: list[Any] = [None if t is None else t.contiguous() for t in kept]
    x, loc, log_scale, bias, noise, variance, spread = ready
    grads = [
        torch.empty_like(x) if wants_x else None,
        torch.empty_like(loc),
        torch.empty_like(loc),
        None if bias is None else torch.empty_like(bias),
    ]
    grad_y = grad_y.contiguous()
    pointers = _pointers(x, loc, log_scale, bias, noise, grad_y, variance, spread, *grads)
    kernel.dense_backward(*_sizes(x, loc, noise), *pointers)
    return tuple(grads)
