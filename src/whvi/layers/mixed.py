r"""What structured matrices share whatever their transform: blocks, and variances of ``M(g) v``.

``M(g) v = Σ T (u * g)`` (:meth:`whvi.transforms.Mixing.factors`), one ``T`` unless ``M`` is
circulant, so that for independent ``g`` of variance ``σ²``

    var(M(g) v)[i] = Σ_k T[i, k]² u[k]² σ²[k].

For Hadamard ``T[i, k]² = 1/D``, and for any covariance of ``g`` there is a transform that does it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whvi._kernel.layout import BlockPlan
from whvi.functional import column_features
from whvi.posteriors import DiagonalGaussian, Posterior
from whvi.sampling import LocalReparameterization, Sampler, insert_inner_axes
from whvi.transforms import Hadamard, Mixing, TransformLike, fwht, make_mixing


def plan_blocks(
    in_features: int,
    out_features: int,
    transform: TransformLike,
    batch_shape: tuple[int, ...],
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[BlockPlan, Mixing]:
    """Plan a map of blocks of the smallest size that the transform takes, and make the mixing."""
    made: list[Mixing] = []

    def round_up(size: int) -> int:
        made.append(
            make_mixing(transform, size, batch_shape=batch_shape, device=device, dtype=dtype)
        )
        return made[0].size

    return BlockPlan.for_shape(in_features, out_features, round_up), made[0]


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

    With ``b[d] = Σ_k u_k u_{k^d} Σ[k, k^d]`` they are ``D**-0.5 H b``; for a diagonal ``Σ`` only
    ``b[0] = Σ_k u_k² σ_k²`` remains.
    """
    if isinstance(posterior, DiagonalGaussian):
        variances = insert_inner_axes(
            posterior.blocks(posterior.variance), batch_ndim, inner_ndim, 2
        )
        return (u.square() * variances).mean(-1, keepdim=True)
    covariance = insert_inner_axes(posterior.covariance(), batch_ndim, inner_ndim, 3)
    products = u.unsqueeze(-1) * covariance * u.unsqueeze(-2)
    ones = torch.ones(u.shape[-1], dtype=u.dtype, device=u.device)
    # column_features of a square with s1 = s2 = 1 is D**-0.5 H b
    return column_features(products.flatten(-2), ones, ones)
