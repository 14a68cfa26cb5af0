r"""KL divergences of fully factorized Gaussians ``N(μ, diag(σ²))`` from ``N(0, λ I)``, summed.

    KL = ½ Σ_k [ (μ_k² + σ_k²)/λ − 1 − log(σ_k²/λ) ]
    ∂KL/∂μ = μ/λ,   ∂KL/∂log σ = σ²/λ − 1,   ∂KL/∂λ = −½ Σ_k [ μ ∂KL/∂μ + ∂KL/∂log σ ]_k / λ

The first two gradients hold for a given ``λ`` and, by the envelope theorem, also for the
empirical-Bayes ``λ* = mean(μ² + σ²)``, where the third is zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

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

_DOUBLE = 8  # bytes


class KLTerm(NamedTuple):
    """A posterior and the variance of its prior."""

    loc: Tensor  # μ, shape (*batch_shape, n)
    log_scale: Tensor  # log σ, shape (*batch_shape, n)
    variance: Tensor | float | None = None  # λ, per replica or one for all; None: the minimiser


def sum_of_kls(terms: Sequence[KLTerm]) -> Tensor:
    """Return the sum of the KLs of ``terms``, shape ``batch_shape``.

    All terms share one autograd node: in training, nodes are what a KL costs.
    """
    tensors = [t if isinstance(t, Tensor) else None for term in terms for t in term]
    in_kernel = all(t is None or kernel_takes(t) for t in tensors)
    if not in_kernel or is_tracing() or is_transformed():
        return _compose(terms)
    numbers = [None if isinstance(v, Tensor) else v for _, _, v in terms]
    # apply() is not annotated in torch.
    return cast(Tensor, _SumOfKLs.apply(numbers, *tensors))  # type: ignore[no-untyped-call]


def _compose(terms: Sequence[KLTerm]) -> Tensor:
    """The sum in torch operations."""
    values = []
    for loc, log_scale, variance in terms:
        scale, n = log_scale.exp(), loc.shape[-1]
        mean_square = torch.addcmul(scale * scale, loc, loc).mean(-1)
        if variance is None:
            variance = mean_square
        elif not isinstance(variance, Tensor):
            variance = torch.full_like(mean_square, variance)
        bracket = mean_square / variance - 1 + torch.log(variance)
        values.append(0.5 * n * bracket - log_scale.sum(-1))
    return torch.stack(values).sum(0) if len(values) > 1 else values[0]


class _SumOfKLs(torch.autograd.Function):
    """The equations at the top of this file."""

    @staticmethod
    def forward(ctx: Any, numbers: list[float | None], *tensors: Any) -> Tensor:
        ctx.numbers = numbers
        total, variances = kl_forward(_terms(numbers, tensors), tensors[0].shape[:-1])
        ctx.save_for_backward(*tensors, variances)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        count = 3 * len(ctx.numbers)
        tensors, variances = ctx.saved_tensors[:count], ctx.saved_tensors[count]
        terms = _terms(ctx.numbers, tensors)
        if torch.is_grad_enabled():
            tensors = apart(tensors)
            y = _compose(_terms(ctx.numbers, tensors))
            return (None, *differentiable_gradients(y, tensors, grads[0]))
        into = [(torch.zeros_like(loc), torch.zeros_like(loc)) for loc, _, _ in terms]
        add_kl_gradients(grads[0], terms, variances, into)
        gradients: list[Tensor | None] = []
        for (loc, _, variance), (to_loc, to_log_scale) in zip(terms, into, strict=True):
            to_variance = None
            if isinstance(variance, Tensor):
                sums = torch.addcmul(to_log_scale, loc, to_loc).sum(-1)
                to_variance = (-0.5 * sums / variance).sum_to_size(variance.shape)
            gradients += [to_loc, to_log_scale, to_variance]
        return (None, *gradients)


def _terms(numbers: Sequence[float | None], tensors: Sequence[Any]) -> list[KLTerm]:
    """Put the arguments of the node together again."""
    triples = zip(tensors[::3], tensors[1::3], tensors[2::3], numbers, strict=True)
    return [KLTerm(loc, log_scale, n if v is None else v) for loc, log_scale, v, n in triples]


def kl_forward(terms: Sequence[KLTerm], batch_shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the sum of KLs, formed in float64, and ``λ`` of each term, outside autograd.

    The entries of a replica may have any shape here.
    """
    assert kernel is not None  # the caller has asked kernel_takes
    replicas = math.prod(batch_shape)
    # addresses instead of views: at the sizes of a training step, views are what this would cost
    table = torch.zeros(len(terms) + 1, replicas, dtype=torch.float64)
    address = table.data_ptr()
    total = address + _DOUBLE * replicas * len(terms)  # the last row
    for i, (loc, log_scale, given) in enumerate(terms):
        if given is not None:
            table[i].view(batch_shape)[...] = given
        loc, log_scale = loc.contiguous(), log_scale.contiguous()
        kernel.diagonal_kl(
            loc.element_size(), replicas, loc.numel() // replicas,
            loc.data_ptr(), log_scale.data_ptr(), address, total,
        )  # fmt: skip
        address += _DOUBLE * replicas
    return table[-1].to(terms[0].loc.dtype).view(batch_shape), table


def add_kl_gradients(
    grad: Tensor,
    terms: Sequence[KLTerm],
    variances: Tensor,
    into: Sequence[tuple[Tensor, Tensor]],
) -> None:
    """Add the gradients of :func:`kl_forward` times ``grad (*batch_shape)`` to ``into``.

    ``into`` has a pair for ``loc`` and ``log_scale`` of each term, contiguous.
    """
    assert kernel is not None  # forward ran in it
    grads = grad.double().contiguous()
    replicas, address = grads.numel(), variances.data_ptr()
    for (loc, log_scale, _), (to_loc, to_log_scale) in zip(terms, into, strict=True):
        loc, log_scale = loc.contiguous(), log_scale.contiguous()
        kernel.diagonal_kl_backward(
            loc.element_size(), replicas, loc.numel() // replicas,
            loc.data_ptr(), log_scale.data_ptr(), address, grads.data_ptr(),
            to_loc.data_ptr(), to_log_scale.data_ptr(),
        )  # fmt: skip
        address += _DOUBLE * replicas
