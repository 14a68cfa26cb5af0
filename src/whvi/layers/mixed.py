r"""What structured matrices of all transforms share: products and variances of ``M(g) v``.

``M(g) v = Σ T (u * g)`` (:meth:`whvi.transforms.Mixing.factors`), one ``T`` unless ``M`` is
circulant, so that for independent ``g`` of variance ``σ²``

    var(M(g) v)[i] = Σ_k T[i, k]² u[k]² σ²[k].

For Hadamard ``T[i, k]² = 1/D``, and for any covariance of ``g`` there is a transform that does it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from whvi._kernel.backend import (
    KERNEL_DTYPES,
    PLAIN_TYPES,
    apart,
    differentiable_gradients,
    is_tracing,
    is_transformed,
)
from whvi._kernel.layout import BlockPlan, Shape, Views, views_of
from whvi.functional import column_features
from whvi.posteriors import DiagonalGaussian, Posterior
from whvi.sampling import LocalReparameterization, Sampler, insert_inner_axes
from whvi.transforms import Hadamard, Mixing, fwht
from whvi.transforms.mixing import MixingByHand


def drawn_entries(sampler: Sampler, posterior: Posterior, leading: tuple[int, ...]) -> Tensor:
    """Return ``g`` as the sampler says, ``(*batch_shape, *some_inner, n)``.

    ``leading`` is ``(*batch_shape, *inner)``. A draw for every row of a fully factorized posterior
    takes its noise from a seed, as the kernel does.
    """
    axes = len(posterior.batch_shape)
    if not isinstance(sampler, LocalReparameterization) or not isinstance(
        posterior, DiagonalGaussian
    ):
        return sampler.value(posterior, leading[axes:])
    loc, scale = (
        insert_inner_axes(v, axes, len(leading) - axes)
        for v in (posterior.loc, posterior.log_scale.exp())
    )
    return torch.addcmul(loc, scale, sampler.noise((*leading, loc.shape[-1]), loc))


def mixed_linear(
    x: Tensor,
    s1: Tensor,
    g: Tensor,
    s2: Tensor,
    bias: Tensor | None,
    plan: BlockPlan,
    mixing: Mixing,
) -> Tensor:
    """Apply ``y = [W_1 x; …; W_K x][:out] + b``, ``W_k = diag(s1_k) M(g_k) diag(s2_k)``.

    Operands are those of :func:`whvi._kernel.product.block_linear`. Where the mixing has gradients
    by hand it is one node of the autograd graph.
    """
    operands = (x, s1, g, s2, bias)
    if (
        isinstance(mixing, MixingByHand)
        and torch.is_grad_enabled()
        and x.dtype in KERNEL_DTYPES
        and x.numel()
        and not (is_tracing() or is_transformed())
        and mixing.has_gradients_for(x)
        and all(t is None or type(t) in PLAIN_TYPES for t in operands)
    ):
        y: Tensor = _apply(mixing, plan, *operands, *mixing.learned)
        return y
    return _compose(mixing, plan, *operands)


def _compose(mixing: Any, plan: BlockPlan, *operands: Any) -> Tensor:
    """The map in torch operations; behind the bias may stand what the mixing has learned."""
    x, s1, g, s2, bias, *learned = operands
    views = views_of(x.shape, s1.shape, g.shape, s1.shape, plan)  # torch.compile warns of caches
    rows = _padded(x, plan).view(*views.x[:-1], plan.block_size)
    t = mixing.mix(s2.reshape(views.s2) * rows, g.reshape(views.g), *learned)
    y: Tensor = (s1.reshape(views.s1) * t).flatten(-2)[..., : plan.out_features]
    return y if bias is None else y + bias.reshape(views.bias).squeeze(-2)


@lru_cache(maxsize=1024)
def _views(x: Shape, s1: Shape, g: Shape, plan: BlockPlan) -> Views:
    return views_of(x, s1, g, s1, plan)


def _padded(x: Tensor, plan: BlockPlan) -> Tensor:
    missing = plan.block_size - x.shape[-1]
    return functional.pad(x, (0, missing)) if missing else x.contiguous()


class _MixedLinear(torch.autograd.Function):
    """:func:`_compose` for a mixing with gradients by hand."""

    @staticmethod
    def forward(ctx: Any, mixing: MixingByHand, plan: BlockPlan, *operands: Any) -> Tensor:
        x, s1, g, s2, bias, *_ = operands
        views = _views(x.shape, s1.shape, g.shape, plan)
        v = _padded(x, plan).view(*views.x[:-1], plan.block_size) * s2.view(views.s2)
        t, kept = mixing.run(v, g.reshape(views.g), owned=True)
        ctx.mixing, ctx.plan, ctx.views, ctx.num_operands = mixing, plan, views, len(operands)
        ctx.save_for_backward(*operands, t, *kept)
        if bias is not None and plan.vector_shape == (1, plan.out_features):
            y: Tensor = torch.addcmul(bias.view(views.bias), t, s1.view(views.s1)).squeeze(-2)
            return y
        y = (t * s1.view(views.s1)).view(*views.out[:-1], plan.vector_size)
        y = y if plan.out_features == plan.vector_size else y[..., : plan.out_features].contiguous()
        return y if bias is None else y.add_(bias.view(views.bias).squeeze(-2))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        operands = ctx.saved_tensors[: ctx.num_operands]
        t, *kept = ctx.saved_tensors[ctx.num_operands :]
        mixing, plan, views, grad = ctx.mixing, ctx.plan, ctx.views, grads[0]
        if torch.is_grad_enabled():
            operands = apart(operands)
            y = _compose(mixing, plan, *operands)
            return None, None, *differentiable_gradients(y, operands, grad)
        x, s1, g, s2, bias, *_ = operands
        missing = plan.vector_size - plan.out_features
        to_y = functional.pad(grad, (0, missing)) if missing else grad
        to_y = to_y.reshape(*views.out[:-1], *plan.vector_shape)
        to_s1 = (to_y * t).sum_to_size(views.s1).view(s1.shape)
        to_t = to_y * s1.view(views.s1)
        shape = torch.Size(views.g)
        to_v, to_g, *to_learned = mixing.gradients(tuple(kept), to_t, shape, owned=True)
        rows = _padded(x, plan).view(*views.x[:-1], plan.block_size)
        to_s2 = (to_v * rows).sum_to_size(views.s2).view(s2.shape)
        to_x = None
        if ctx.needs_input_grad[2]:
            to_x = to_v.mul_(s2.view(views.s2))
            to_x = to_x.sum(-2) if plan.num_blocks > 1 else to_x.squeeze(-2)
            to_x = to_x[..., : plan.in_features]
        to_bias = None
        if bias is not None:
            to_bias = grad.unsqueeze(-2).sum_to_size(views.bias).view(bias.shape)
        return None, None, to_x, to_s1, to_g.view(g.shape), to_s2, to_bias, *to_learned


# Function.apply without its search for torch.func wrappers: they have been excluded
_apply: Any = super(torch.autograd.Function, _MixedLinear).apply


def mixing_variance(
    mixing: Mixing, v: Tensor, posterior: Posterior, batch_ndim: int, inner_ndim: int
) -> Tensor:
    """Return the variances of ``M(g) v`` for ``v (*batch, *inner, K, D)``; 1 wide if all equal."""
    if isinstance(mixing, Hadamard):
        return product_variance(fwht(v), posterior, batch_ndim, inner_ndim)
    factors = mixing.factors(v)
    if not isinstance(posterior, DiagonalGaussian):
        jacobian = sum(
            insert_inner_axes(T, T.dim() - 2, inner_ndim + 1, 2) * u.unsqueeze(-2)
            for T, u in factors
        )
        assert isinstance(jacobian, Tensor)  # there is at least one factor
        covariance = insert_inner_axes(posterior.covariance(), batch_ndim, inner_ndim, 3)
        return ((jacobian @ covariance) * jacobian).sum(-1)
    variances = insert_inner_axes(posterior.blocks(posterior.variance), batch_ndim, inner_ndim, 2)
    total = torch.zeros_like(v)
    for T1, u1 in factors:
        for T2, u2 in factors:
            total = total + _multiply(T1 * T2, u1 * u2 * variances)
    return total


def _multiply(matrix: Tensor, v: Tensor) -> Tensor:
    """Multiply rows ``(*batch_shape, ..., D)`` by ``(*batch_shape, D, D)`` or one ``(D, D)``."""
    rows = v.reshape(*matrix.shape[:-2], -1, v.shape[-1]) @ matrix.mT
    return rows.reshape(v.shape)


def product_variance(u: Tensor, posterior: Posterior, batch_ndim: int, inner_ndim: int) -> Tensor:
    """Return the variances of ``H(g u)`` for ``u (*batch, *inner, K, D)``; 1 wide if all are equal.

    They are the diagonal of ``H diag(u) Σ diag(u) H``; for a diagonal ``Σ`` all are the mean of
    ``u_k² σ_k²``.
    """
    if isinstance(posterior, DiagonalGaussian):
        variances = insert_inner_axes(
            posterior.blocks(posterior.variance), batch_ndim, inner_ndim, 2
        )
        return (u.square() * variances).mean(-1, keepdim=True)
    covariance = insert_inner_axes(posterior.covariance(), batch_ndim, inner_ndim, 3)
    products = u.unsqueeze(-1) * covariance * u.unsqueeze(-2)
    ones = torch.ones(u.shape[-1], dtype=u.dtype, device=u.device)
    return column_features(products.flatten(-2), ones, ones)
