r"""The structured weight ``W = diag(s1) H diag(g) H diag(s2)``, ``g ~ q(g)`` (equation 2).

``s1`` and ``s2`` are optimised; ``g`` has a posterior and a prior. Other shapes than a square power
of two follow a :class:`~whvi._kernel.layout.BlockPlan`; a single row or column is ``vec(W)``.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from whvi._kernel.layout import BlockPlan
from whvi._kernel.product import block_linear, noisy_block_linear
from whvi.errors import ShapeError
from whvi.functional import column_features, dense_matrix
from whvi.layers.weights import OutputMoments, Weight, WeightMoments, lift
from whvi.posteriors import DiagonalGaussian, PosteriorFactory, make_posterior
from whvi.priors import Prior, PriorFactory, make_prior
from whvi.sampling import LocalReparameterization
from whvi.transforms import fwht

_POSTERIOR_SCALE = 0.1  # of g at the start
_MOST_WEIGHTS = 8192  # for which a covariance of all pairs is formed


@final
class StructuredWeight(Weight):
    """``W`` from ``O(out + in)`` parameters: vectors ``s1``, ``s2`` and the posterior of ``g``.

    Args:
        in_features, out_features: Shape of ``W``.
        posterior: Name or factory, see :func:`whvi.posteriors.make_posterior`.
        prior: Name, prior or factory, see :func:`whvi.priors.make_prior`.
        batch_shape: Replicas.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        posterior: str | PosteriorFactory = "diagonal",
        prior: str | Prior | PriorFactory = "empirical_bayes",
        batch_shape: tuple[int, ...] = (),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.plan = BlockPlan.for_shape(in_features, out_features)
        self.in_features, self.out_features = in_features, out_features
        self.batch_shape = tuple(batch_shape)
        shape = (*self.batch_shape, *self.plan.vector_shape)
        self.s1 = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.s2 = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.posterior = make_posterior(posterior, shape, device=device, dtype=dtype)
        self.prior = make_prior(prior, self.batch_shape, device=device, dtype=dtype)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Start with ``var(W) = 2 / in_features`` (He): ``s1 = 1``, random signs ``s2``.

        ``var(W) = var(g) / D``, so the means of ``g`` are drawn with variance ``2 D / in``.
        """
        self.s1.fill_(1.0)
        self.s2.bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
        mean_std = math.sqrt(2 * self.plan.block_size / self.in_features)
        self.posterior.reset(mean_std, _POSTERIOR_SCALE, generator=generator)

    def _mean(self) -> Tensor:
        return self.posterior.mean

    def _draw(self, sample_shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        return self.posterior.rsample(sample_shape, generator=generator)

    def _dense(self, draw: Tensor) -> Tensor:
        batch_ndim = len(self.batch_shape)
        inner_ndim = draw.dim() - batch_ndim - 2
        s1, s2 = (lift(v, batch_ndim, inner_ndim, 2) for v in (self.s1, self.s2))
        blocks = dense_matrix(s1, draw, s2)  # (..., K, D, D)
        if self.plan.is_column:
            column = blocks.flatten(-3)[..., : self.plan.num_weights]
            return column.reshape(*column.shape[:-1], self.out_features, self.in_features)
        return blocks.flatten(-3, -2)[..., : self.out_features, : self.in_features]

    def _multiply_given(self, x: Tensor, bias: Tensor | None, draw: Tensor) -> Tensor:
        if self.plan.is_column:
            return self._column_given(x, bias, draw)
        s1, g, s2 = (v.flatten(-2) for v in (self.s1, draw, self.s2))
        return block_linear(x, s1, g, s2, bias, self.plan)

    def _multiply_local(
        self, x: Tensor, bias: Tensor | None, sampler: LocalReparameterization
    ) -> Tensor:
        posterior = self.posterior
        if self.plan.is_column or not isinstance(posterior, DiagonalGaussian):
            inner = tuple(x.shape[len(self.batch_shape) : -1])
            return self._multiply_given(x, bias, self._draw(inner, sampler.generator))
        moments = (posterior.loc.flatten(-2), posterior.log_scale.flatten(-2))
        s1, s2 = self.s1.flatten(-2), self.s2.flatten(-2)
        return noisy_block_linear(x, s1, moments, s2, bias, self.plan, sampler.next_seed())

    def _column_given(self, x: Tensor, bias: Tensor | None, draw: Tensor) -> Tensor:
        batch_ndim = len(self.batch_shape)
        inner_ndim = x.dim() - batch_ndim - 1
        if self.out_features == 1:
            features = self._column_features(x)
            y = (features * lift(draw, batch_ndim, inner_ndim, 2).squeeze(-2)).sum(-1, keepdim=True)
        else:
            weights = self._dense(draw).squeeze(-1)
            y = x * lift(weights, batch_ndim, inner_ndim)
        return y if bias is None else y + lift(bias, batch_ndim, inner_ndim)

    def _column_features(self, x: Tensor) -> Tensor:
        """``ψ(x)`` with ``x · vec(W) = ψ(x) · g``, for one output."""
        batch_ndim = len(self.batch_shape)
        inner_ndim = x.dim() - batch_ndim - 1
        s1, s2 = (lift(v.squeeze(-2), batch_ndim, inner_ndim) for v in (self.s1, self.s2))
        return column_features(
            functional.pad(x, (0, self.plan.block_size**2 - self.in_features)), s1, s2
        )

    def _jacobian(self) -> Tensor:
        """``∂ vec(W) / ∂ vec(g)``, shape ``(*batch_shape, out·in, K·D)``: ``W`` is linear in g."""
        K, D = self.plan.vector_shape
        unit = torch.eye(K * D, dtype=self.s1.dtype, device=self.s1.device).unflatten(-1, (K, D))
        units = unit.expand(*self.batch_shape, K * D, K, D)
        return self._dense(units).flatten(-2).transpose(-1, -2)

    def moments(self) -> WeightMoments:
        """Return mean and covariance ``J Σ Jᵀ`` of ``vec(W)`` (Figure 1 of the paper)."""
        if self.plan.num_weights > _MOST_WEIGHTS:
            raise ShapeError(
                f"the covariance of {self.plan.num_weights} weights does not fit in memory; "
                f"at most {_MOST_WEIGHTS} weights are taken: use sample() instead"
            )
        jacobian = self._jacobian().unflatten(-1, self.plan.vector_shape)  # (..., out·in, K, D)
        covariance = self.posterior.covariance()
        spread = torch.einsum("...wkd,...kde->...wke", jacobian, covariance)
        total = torch.einsum("...wke,...vke->...wv", spread, jacobian)
        return WeightMoments(self.mean().flatten(-2), total)

    def output_moments(self, x: Tensor) -> OutputMoments:
        r"""Return exact mean and variance of ``W x`` (equation 3), without sampling.

        With ``u = H(s2 x)`` and ``b[d] = Σ_k u_k u_{k^d} Σ[k, k^d]``, ``var(y_i)`` is
        ``s1[i]² D**-0.5 (H b)_i``; for a diagonal ``Σ`` only ``b[0] = Σ_k u_k² σ_k²`` remains.
        """
        mean = self._multiply_given(x, None, self._mean())
        if self.plan.is_column:
            return OutputMoments(mean, self._column_variance(x))
        batch_ndim, inner_ndim = len(self.batch_shape), x.dim() - len(self.batch_shape) - 1
        s1, s2 = (lift(v, batch_ndim, inner_ndim, 2) for v in (self.s1, self.s2))
        padded = functional.pad(x, (0, self.plan.block_size - self.in_features)).unsqueeze(-2)
        u = fwht(s2 * padded)
        if isinstance(self.posterior, DiagonalGaussian):
            variances = lift(self.posterior.variance, batch_ndim, inner_ndim, 2)
            spread = (u.square() * variances).mean(-1, keepdim=True)
        else:
            covariance = lift(self.posterior.covariance(), batch_ndim, inner_ndim, 3)
            products = u.unsqueeze(-1) * covariance * u.unsqueeze(-2)
            D = self.plan.block_size
            ones = torch.ones(D, dtype=u.dtype, device=u.device)
            # column_features of a square with s1 = s2 = 1 is D**-0.5 H b
            spread = column_features(products.flatten(-2), ones, ones)
        variance = (s1.square() * spread).flatten(-2)[..., : self.out_features]
        return OutputMoments(mean, variance)

    def _column_variance(self, x: Tensor) -> Tensor:
        batch_ndim, inner_ndim = len(self.batch_shape), x.dim() - len(self.batch_shape) - 1
        covariance = lift(self.posterior.covariance().squeeze(-3), batch_ndim, inner_ndim, 2)
        if self.out_features == 1:
            features = self._column_features(x)
        else:
            jacobian = self._jacobian()  # (*batch, out, D): one input feature
            features = x.unsqueeze(-1) * lift(jacobian, batch_ndim, inner_ndim, 2)
            covariance = covariance.unsqueeze(-3)
        through = (features.unsqueeze(-2) @ covariance).squeeze(-2)
        variance = (through * features).sum(-1)
        return variance.unsqueeze(-1) if self.out_features == 1 else variance

    def extra_repr(self) -> str:
        """Show the blocks."""
        K, D = self.plan.vector_shape
        form = "vec of one block" if self.plan.is_column else f"{K} blocks"
        return f"{self.in_features} → {self.out_features}: {form} of {D} × {D}"
