r"""The structured matrix ``W = diag(s1) H diag(g) H diag(s2)``, ``g ~ q(g)`` (equation 2).

``s1`` and ``s2`` are optimised; ``g`` has a posterior and a prior. Other shapes than a square of a
size of the transform follow a :class:`~whvi._kernel.layout.BlockPlan` of ``K`` blocks of size
``D``, whose vectors lie one after the other; a single row or column of weights is ``vec(W)``. With
another transform ``M(g) = T diag(g) Tᵀ`` replaces ``H diag(g) H``.
"""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import Tensor, nn
from torch._C import _are_functorch_transforms_active
from torch.nn import functional

from whvi._kernel.backend import is_vmapped
from whvi._kernel.column import SMALLEST_BLOCK, column_linear
from whvi._kernel.layout import BlockPlan
from whvi._kernel.product import block_linear, noisy_block_linear
from whvi.errors import ShapeError
from whvi.functional import column_features, dense_matrix, structured_product
from whvi.layers.matrix import OutputMoments, RandomMatrix, WeightMoments
from whvi.layers.mixed import drawn_entries, mixed_linear, mixing_variance
from whvi.posteriors import DiagonalGaussian, PosteriorFactory, make_posterior
from whvi.priors import Prior, PriorFactory, make_prior
from whvi.sampling import LocalReparameterization, Sampler, insert_inner_axes
from whvi.transforms import Hadamard, Mixing, TransformLike, make_mixing

POSTERIOR_SCALE = 0.1  # of g at the start
_MOST_WEIGHTS = 8192  # for which a covariance of all pairs is formed


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
    if transform == "hadamard" or isinstance(transform, Hadamard):
        plan = BlockPlan.for_shape(in_features, out_features)
        return plan, Hadamard(plan.block_size)
    made: list[Mixing] = []

    def round_up(size: int) -> int:
        made.append(
            make_mixing(transform, size, batch_shape=batch_shape, device=device, dtype=dtype)
        )
        return made[0].size

    return BlockPlan.for_shape(in_features, out_features, round_up), made[0]


@final
class StructuredMatrix(RandomMatrix):
    """``W`` from ``O(out + in)`` parameters: vectors ``s1``, ``s2`` and the posterior of ``g``.

    ``s1`` and ``s2`` have shape ``(*batch_shape, K·D)``: one-dimensional without replicas.

    Args:
        in_features, out_features: Shape of ``W``.
        posterior: Name or factory, see :func:`whvi.posteriors.make_posterior`.
        prior: Name, prior or factory, see :func:`whvi.priors.make_prior`.
        transform: See :func:`whvi.transforms.make_mixing`.
        batch_shape: Replicas.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        posterior: str | PosteriorFactory = "diagonal",
        prior: str | Prior | PriorFactory = "empirical_bayes",
        transform: TransformLike = "hadamard",
        batch_shape: tuple[int, ...] = (),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, batch_shape, dtype)
        self.plan, self.mixing = plan_blocks(
            in_features, out_features, transform, self.batch_shape, device=device, dtype=dtype
        )
        self._is_hadamard = isinstance(self.mixing, Hadamard)
        shape = (*self.batch_shape, self.plan.vector_size)
        self.s1 = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.s2 = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        blocks = (*self.batch_shape, *self.plan.vector_shape)
        self.posterior = make_posterior(posterior, blocks, device=device, dtype=dtype)
        self.prior = make_prior(prior, self.batch_shape, device=device, dtype=dtype)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Start with ``var(W) = 2 / in_features`` (He): ``s1 = 1``, random signs ``s2``.

        ``var(W) = var(g) / D``, so the means of ``g`` are drawn with variance ``2 D / in``.
        """
        reset_structured(self, generator)

    def multiply(self, x: Tensor, bias: Tensor | None, sampler: Sampler) -> Tensor:
        """See :meth:`RandomMatrix.multiply`; a diagonal posterior draws inside the product."""
        posterior, plan = self.posterior, self.plan
        if not self._is_hadamard:
            g = drawn_entries(sampler, posterior, tuple(x.shape[:-1]))
            return self._multiply_by(g, x, bias)
        if (
            isinstance(sampler, LocalReparameterization)
            and isinstance(posterior, DiagonalGaussian)
            and not plan.is_column
            and not (_are_functorch_transforms_active() and is_vmapped())
        ):
            moments, seed = (posterior.loc, posterior.log_scale), sampler.next_seed()
            return noisy_block_linear(x, self.s1, moments, self.s2, bias, plan, seed)
        inner_shape = tuple(x.shape[len(self.batch_shape) : -1])
        return self._multiply_by(sampler.value(posterior, inner_shape), x, bias)

    def _multiply_by(self, g: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``W x + bias`` for ``g (*batch_shape, *some_inner, K·D)``."""
        if not self.plan.is_column:
            if self._is_hadamard:
                return block_linear(x, self.s1, g, self.s2, bias, self.plan)
            return mixed_linear(x, self.s1, g, self.s2, bias, self.plan, self.mixing)
        if self.out_features == 1 and not self._is_hadamard:
            y = (x * self._over(x, self.dense(g).squeeze(-2))).sum(-1, keepdim=True)
        elif self.out_features == 1 and self.plan.block_size >= SMALLEST_BLOCK:
            y = column_linear(x, self.s1, g, self.s2).unsqueeze(-1)
        elif self.out_features == 1:
            y = (self._column_features(x) * self._over(x, g)).sum(-1, keepdim=True)
        else:
            y = x * self._over(x, self.dense(g).squeeze(-1))
        return y if bias is None else y + self._over(x, bias)

    def _over(self, x: Tensor, v: Tensor, own_ndim: int = 1) -> Tensor:
        """Let ``v`` of ``own_ndim`` axes per replica broadcast over the rows of ``x``."""
        batch_ndim = len(self.batch_shape)
        return insert_inner_axes(v, batch_ndim, x.dim() - batch_ndim - 1, own_ndim)

    def dense(self, draw: Tensor) -> Tensor:
        """See :meth:`RandomMatrix.dense`; row ``i`` of a block is ``s2 * H(g * H(s1 * e_i))``."""
        g = self.posterior.blocks(draw)
        batch_ndim = len(self.batch_shape)
        axes = (batch_ndim, g.dim() - batch_ndim - 2, 2)
        s1, s2 = (insert_inner_axes(self.posterior.blocks(v), *axes) for v in (self.s1, self.s2))
        if self.plan.is_column or not self._is_hadamard:
            return trim_blocks(dense_matrix(s1, g, s2, transform=self.mixing), self.plan)
        num_rows = min(self.out_features, self.plan.block_size)
        unit = torch.eye(num_rows, self.plan.block_size, dtype=g.dtype, device=g.device)
        s1, g, s2 = (v.unsqueeze(-2) for v in (s1, g, s2))
        rows = structured_product(unit, s2, g, s1).flatten(-3, -2)  # (..., K·num_rows, D)
        return rows[..., : self.out_features, : self.in_features]

    def _column_features(self, x: Tensor) -> Tensor:
        """``ψ(x)`` with ``x · vec(W) = ψ(x) · g``, for one output."""
        padded = functional.pad(x, (0, self.plan.block_size**2 - self.in_features))
        return column_features(padded, self._over(x, self.s1), self._over(x, self.s2))

    def moments(self) -> WeightMoments:
        """Return mean and covariance ``J Σ Jᵀ`` of ``vec(W)`` (Figure 1 of the paper)."""
        check_num_weights(self.plan.num_weights)
        return moments_of(self)

    def output_moments(self, x: Tensor) -> OutputMoments:
        r"""Return exact mean and variance of ``W x`` (equation 3), without sampling.

        ``var(y)`` is ``s1²`` times that of ``M(g) (s2 x)``.
        """
        mean = self._multiply_by(self.posterior.mean, x, None)
        if self.plan.is_column:
            return OutputMoments(mean, self._column_variance(x))
        s1, s2 = (self._over(x, self.posterior.blocks(v), 2) for v in (self.s1, self.s2))
        padded = functional.pad(x, (0, self.plan.block_size - self.in_features)).unsqueeze(-2)
        axes = len(self.batch_shape)
        inner = x.dim() - axes - 1
        spread = mixing_variance(self.mixing, s2 * padded, self.posterior, axes, inner)
        variance = (s1.square() * spread).flatten(-2)[..., : self.out_features]
        return OutputMoments(mean, variance)

    def _column_variance(self, x: Tensor) -> Tensor:
        covariance = self._over(x, self.posterior.covariance().squeeze(-3), 2)
        if self.out_features == 1 and self._is_hadamard:
            features = self._column_features(x).unsqueeze(-2)
        elif self.out_features == 1:
            features = x.unsqueeze(-2) @ self._over(x, jacobian_of(self), 2)  # (..., 1, D)
        else:
            features = x.unsqueeze(-1) * self._over(x, jacobian_of(self), 2)  # (..., out, D)
        through = (features.unsqueeze(-2) @ covariance.unsqueeze(-3)).squeeze(-2)
        return (through * features).sum(-1)

    def extra_repr(self) -> str:
        """Show the blocks."""
        K, D = self.plan.vector_shape
        form = "vec of one block" if self.plan.is_column else f"{K} blocks"
        named = "" if self._is_hadamard else f", {self.mixing.name}"
        return f"{self.in_features} → {self.out_features}: {form} of {D} × {D}{named}"


def reset_structured(matrix: Any, generator: torch.Generator | None) -> None:
    """Set ``s1 = 1`` and random signs ``s2``, draw ``g``, and what the mixing learns, in place."""
    matrix.s1.fill_(1.0)
    matrix.s2.bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
    mean_std = math.sqrt(2 * matrix.plan.block_size / matrix.in_features)
    matrix.posterior.reset(mean_std, POSTERIOR_SCALE, generator=generator)
    if not isinstance(matrix.mixing, Hadamard):  # which learns nothing
        matrix.mixing.reset_parameters(generator=generator)


def trim_blocks(blocks: Tensor, plan: BlockPlan) -> Tensor:
    """Cut ``W (..., out, in)`` out of its blocks ``(..., K, D, D)``."""
    if plan.is_column:
        column = blocks.flatten(-3)[..., : plan.num_weights]
        return column.reshape(*column.shape[:-1], plan.out_features, plan.in_features)
    return blocks.flatten(-3, -2)[..., : plan.out_features, : plan.in_features]


def jacobian_of(matrix: RandomMatrix) -> Tensor:
    """``∂ vec(W) / ∂ g``, shape ``(*batch_shape, out·in, K·D)``, of a ``W`` linear in ``g``."""
    loc = matrix.posterior.loc
    unit = torch.eye(loc.shape[-1], dtype=loc.dtype, device=loc.device)
    units = unit.expand(*matrix.batch_shape, *unit.shape)
    return matrix.dense(units).flatten(-2).transpose(-1, -2)


def moments_of(matrix: RandomMatrix) -> WeightMoments:
    """Return mean and covariance ``J Σ Jᵀ`` of ``vec(W)`` for a ``W`` linear in ``g``."""
    posterior = matrix.posterior
    jacobian = posterior.blocks(jacobian_of(matrix))  # (..., out·in, K, D)
    spread = torch.einsum("...wkd,...kde->...wke", jacobian, posterior.covariance())
    total = torch.einsum("...wke,...vke->...wv", spread, jacobian)
    return WeightMoments(matrix.mean.flatten(-2), total)


def check_num_weights(num_weights: int) -> None:
    """Refuse to form the covariance of more weights than fit in memory."""
    if num_weights > _MOST_WEIGHTS:
        raise ShapeError(
            f"the covariance of {num_weights} weights does not fit in memory; "
            f"at most {_MOST_WEIGHTS} weights are taken: use sample() instead"
        )
