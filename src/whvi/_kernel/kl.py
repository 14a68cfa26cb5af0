r"""KL divergences of fully factorized Gaussians ``N(μ, diag(σ²))`` from ``N(0, λ I)``, summed.

    KL = ½ Σ_k [ (μ_k² + σ_k²)/λ − 1 − log(σ_k²/λ) ]
    ∂KL/∂μ = μ/λ,   ∂KL/∂log σ = σ²/λ − 1,   ∂KL/∂log λ = ½ n (1 − mean(μ² + σ²)/λ)

The first two gradients hold for a given ``λ`` and, by the envelope theorem, also for the
empirical-Bayes ``λ* = mean(μ² + σ²)``, where the third is zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from whvi._kernel.backend import is_tracing, is_transformed, kernel, kernel_takes


class KLTerm(NamedTuple):
    """One posterior and its prior; without a prior variance, ``λ`` minimises the KL."""

    loc: Tensor  # μ, shape (*batch_shape, n)
    log_scale: Tensor  # log σ, shape (*batch_shape, n)
    variance: float | None = None  # a fixed λ
    log_variance: Tensor | None = None  # log λ, where gradients have to reach it


def sum_of_kls(terms: Sequence[KLTerm]) -> Tensor:
    """Return the sum of the KLs of ``terms``, shape ``batch_shape``.

    All terms share one autograd node: in training, nodes are what a KL costs.
    """
    if is_tracing() or is_transformed():
        return _compose(terms)
    tensors = [t for term in terms for t in (term.loc, term.log_scale, term.log_variance)]
    fixed = [term.variance for term in terms]
    # apply() is not annotated in torch.
    return cast(Tensor, _SumOfKLs.apply(fixed, *tensors))  # type: ignore[no-untyped-call]


def _compose(terms: Sequence[KLTerm]) -> Tensor:
    """The same sum in differentiable torch operations."""
    values = []
    for term in terms:
        _, mean_square = _moments(term.loc, term.log_scale)
        variance = _prior_variance(term, mean_square)
        bracket = mean_square / variance - 1 + torch.log(variance)
        values.append(0.5 * term.loc.shape[-1] * bracket - term.log_scale.sum(-1))
    return torch.stack(values).sum(0) if len(values) > 1 else values[0]


def _prior_variance(term: KLTerm, mean_square: Tensor) -> Tensor:
    if term.log_variance is not None:
        return term.log_variance.exp().expand_as(mean_square)
    return mean_square if term.variance is None else torch.full_like(mean_square, term.variance)


def _moments(loc: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``σ²`` and the mean of ``μ² + σ²`` over the entries of a replica."""
    scale = log_scale.exp()
    variance = scale * scale  # half the time of square() or of exp(2 * log_scale) when n is small
    return variance, torch.addcmul(variance, loc, loc).mean(-1)


class _SumOfKLs(torch.autograd.Function):
    """The equations at the top of this file; in the kernel unless ``log λ`` is learned."""

    @staticmethod
    def forward(ctx: Any, fixed: list[float | None], *tensors: Any) -> Tensor:
        ctx.fixed = fixed
        locs, log_scales, log_variances = tensors[::3], tensors[1::3], tensors[2::3]
        given = all(t is None for t in log_variances)
        ctx.in_kernel = given and all(map(kernel_takes, (*locs, *log_scales)))
        kept: list[Tensor] = []
        if ctx.in_kernel:
            total, kept = kl_forward(locs[0].shape[:-1], fixed, locs, log_scales)
        else:
            total = _compose(_terms(fixed, tensors))
        ctx.save_for_backward(*tensors, *kept)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        count = 3 * len(ctx.fixed)
        tensors, variances = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        gradients: list[Tensor | None] = []
        if ctx.in_kernel and not torch.is_grad_enabled():
            locs, log_scales = tensors[::3], tensors[1::3]
            into = [(torch.zeros_like(loc), torch.zeros_like(loc)) for loc in locs]
            add_kl_gradients(grads[0], locs, log_scales, variances, into)
            for to_loc, to_log_scale in into:
                gradients += [to_loc, to_log_scale, None]
        else:
            for term in _terms(ctx.fixed, tensors):
                gradients += _gradients(grads[0], term)
        return (None, *gradients)


def _terms(fixed: list[float | None], tensors: Sequence[Any]) -> list[KLTerm]:
    triples = zip(tensors[::3], tensors[1::3], tensors[2::3], strict=True)
    return [KLTerm(*pair, v, last) for v, (*pair, last) in zip(fixed, triples, strict=True)]


def _gradients(grad: Tensor, term: KLTerm) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of one term with respect to ``μ``, ``log σ`` and ``log λ``, differentiable."""
    # moments are computed again: with create_graph=True they carry gradients too
    variance, mean_square = _moments(term.loc, term.log_scale)
    prior_variance = _prior_variance(term, mean_square)
    over_variance = (grad / prior_variance).unsqueeze(-1)
    grad_loc = term.loc * over_variance
    grad_log_scale = variance * over_variance - grad.unsqueeze(-1)
    if term.log_variance is None:
        return grad_loc, grad_log_scale, None
    grad_log_variance = 0.5 * term.loc.shape[-1] * grad * (1 - mean_square / prior_variance)
    return grad_loc, grad_log_scale, grad_log_variance.sum_to_size(term.log_variance.shape)


def kl_forward(
    batch_shape: tuple[int, ...],
    fixed: Sequence[float | None],
    locs: Sequence[Tensor],
    log_scales: Sequence[Tensor],
) -> tuple[Tensor, list[Tensor]]:
    """Return the sum of KLs and the prior variances ``λ`` of each term: the kernel's forward pass.

    Outside autograd; ``fixed`` has ``λ`` of each term or ``None`` for empirical Bayes. Sums are
    formed in float64. Entries of a replica may have any shape.
    """
    assert kernel is not None  # the caller has asked kernel_takes
    replicas = math.prod(batch_shape)
    total, *variances = torch.zeros(len(fixed) + 1, replicas, dtype=torch.float64).unbind()
    for given, variance, loc, log_scale in zip(fixed, variances, locs, log_scales, strict=True):
        if given is not None:
            variance.fill_(given)
        loc, log_scale = loc.contiguous(), log_scale.contiguous()
        kernel.diagonal_kl(
            loc.element_size(), replicas, loc.numel() // replicas,
            loc.data_ptr(), log_scale.data_ptr(), variance.data_ptr(), total.data_ptr(),
        )  # fmt: skip
    return total.to(locs[0].dtype).view(batch_shape), variances


def add_kl_gradients(
    grad: Tensor,
    locs: Sequence[Tensor],
    log_scales: Sequence[Tensor],
    variances: Sequence[Tensor],
    into: Sequence[tuple[Tensor, Tensor]],
) -> None:
    """Add the gradients of :func:`kl_forward` times ``grad (*batch_shape)`` to ``into``.

    ``into`` has a pair for ``loc`` and ``log_scale`` of each term, contiguous.
    """
    assert kernel is not None  # forward ran in it
    grads = grad.double().contiguous()
    replicas = grads.numel()
    for loc, log_scale, variance, (to_loc, to_log_scale) in zip(
        locs, log_scales, variances, into, strict=True
    ):
        loc, log_scale = loc.contiguous(), log_scale.contiguous()
        kernel.diagonal_kl_backward(
            loc.element_size(), replicas, loc.numel() // replicas,
            loc.data_ptr(), log_scale.data_ptr(), variance.data_ptr(), grads.data_ptr(),
            to_loc.data_ptr(), to_log_scale.data_ptr(),
        )  # fmt: skip
