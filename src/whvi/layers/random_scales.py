r"""The structured matrix with Gaussian posteriors over its scales: ``s1``, ``g`` and ``s2`` random.

``W[i, j] = s1[i] c[i ^ j] s2[j]`` with independent ``s1``, ``s2`` and ``c = D**-0.5 H g`` (where
``D`` is no power of two, ``c[i, j]`` of ``H diag(g) H`` instead), so that

    E[W] = E[s1] E[c] E[s2]      E[W W'] = E[s1 s1'] E[c c'] E[s2 s2']

and mean and variance of ``W x`` have closed forms. With another transform ``M(g)[i, j]`` stands in
the place of ``c[i ^ j]``.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from whvi._checks import is_power_of_two
from whvi._kernel.product import block_linear
from whvi.functional import dense_matrix, structured_product
from whvi.layers.matrix import OutputMoments, RandomMatrix, WeightMoments
from whvi.layers.mixed import mixing_variance, product_variance
from whvi.layers.structured import (
    POSTERIOR_SCALE,
    check_num_weights,
    plan_blocks,
    reset_structured,
    trim_blocks,
)
from whvi.posteriors import DiagonalGaussian, Posterior, PosteriorFactory, make_posterior
from whvi.posteriors.base import samples_first
from whvi.priors import FixedPrior, Prior, PriorFactory, make_prior
from whvi.sampling import MeanWeights, Sampler, insert_inner_axes
from whvi.transforms import Hadamard, TransformLike, fwht


@final
class RandomScalesMatrix(RandomMatrix):
    """``W`` with ``q(s1) q(g) q(s2)``; the scales are fully factorized, their prior is ``N(0, I)``.

    ``s1_posterior`` and ``s2_posterior`` have shape ``(*batch_shape, K, D)``; ``s1`` and ``s2`` are
    their means.

    Args:
        in_features, out_features, posterior, prior, transform, batch_shape: As in
            :class:`~whvi.layers.structured.StructuredMatrix`.
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
        shape = (*self.batch_shape, *self.plan.vector_shape)
        self.s1_posterior = DiagonalGaussian(shape, device=device, dtype=dtype)
        self.s2_posterior = DiagonalGaussian(shape, device=device, dtype=dtype)
        self.posterior = make_posterior(posterior, shape, device=device, dtype=dtype)
        self.prior = make_prior(prior, self.batch_shape, device=device, dtype=dtype)
        self.scale_prior = FixedPrior(1.0)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Start as a :class:`StructuredMatrix` whose scales have standard deviations of 0.1."""
        self.s1_posterior.reset(0.0, POSTERIOR_SCALE, generator=generator)
        self.s2_posterior.reset(0.0, POSTERIOR_SCALE, generator=generator)
        reset_structured(self, generator)

    @property
    def s1(self) -> torch.nn.Parameter:
        """``E[s1]``, shape ``(*batch_shape, K·D)``."""
        return self.s1_posterior.loc

    @property
    def s2(self) -> torch.nn.Parameter:
        """``E[s2]``, shape ``(*batch_shape, K·D)``."""
        return self.s2_posterior.loc

    @property
    def _vectors(self) -> tuple[Posterior, Posterior, Posterior]:
        return self.s1_posterior, self.posterior, self.s2_posterior

    def kl_pairs(self) -> list[tuple[Posterior, Prior]]:
        """Return the three posteriors with their priors."""
        scales: list[tuple[Posterior, Prior]] = [
            (self.s1_posterior, self.scale_prior),
            (self.s2_posterior, self.scale_prior),
        ]
        return [*super().kl_pairs(), *scales]

    # Values --------------------------------------------------------------------------------

    def multiply(self, x: Tensor, bias: Tensor | None, sampler: Sampler) -> Tensor:
        """See :meth:`RandomMatrix.multiply`: every vector is drawn as the sampler says."""
        axes, inner = len(self.batch_shape), tuple(x.shape[len(self.batch_shape) : -1])
        s1, g, s2 = (sampler.value(q, inner) for q in self._vectors)
        if self.plan.is_column:
            w = insert_inner_axes(self._dense(s1, g, s2), axes, len(inner), 2)
            y = (x.unsqueeze(-2) * w).sum(-1)
        elif isinstance(sampler, MeanWeights) and isinstance(self.mixing, Hadamard):
            return block_linear(x, s1, g, s2, bias, self.plan)
        else:
            s1, g, s2 = (
                insert_inner_axes(self.posterior.blocks(v), axes, len(inner), 2)
                for v in (s1, g, s2)
            )
            y = structured_product(self._padded(x), s1, g, s2, transform=self.mixing)
            y = y.flatten(-2)[..., : self.out_features]
        return y if bias is None else y + insert_inner_axes(bias, axes, len(inner))

    def _padded(self, x: Tensor) -> Tensor:
        return functional.pad(x, (0, self.plan.block_size - self.in_features)).unsqueeze(-2)

    def _dense(self, s1: Tensor, g: Tensor, s2: Tensor) -> Tensor:
        vectors = (self.posterior.blocks(v) for v in (s1, g, s2))
        blocks = dense_matrix(*vectors, transform=self.mixing)
        return trim_blocks(blocks, self.plan)

    def dense(self, draw: Tensor) -> Tensor:
        """Return ``W`` for draws of ``g`` and the mean scales."""
        some = draw.dim() - len(self.batch_shape) - 1
        s1, s2 = (insert_inner_axes(v, len(self.batch_shape), some) for v in (self.s1, self.s2))
        return self._dense(s1, draw, s2)

    def drawn(self, sampler: Sampler) -> Tensor:
        """See :meth:`RandomMatrix.drawn`."""
        return self._dense(*(sampler.value(q) for q in self._vectors))

    def sample(
        self, sample_shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw dense matrices, ``(*sample_shape, *batch_shape, out, in)``, with gradients."""
        draws = self._dense(*(q.draw(sample_shape, generator) for q in self._vectors))
        return samples_first(draws, len(self.batch_shape), 2)

    # Moments -------------------------------------------------------------------------------

    def moments(self) -> WeightMoments:
        """Return mean and covariance of ``vec(W)`` by the products of second moments."""
        check_num_weights(self.plan.num_weights)
        mean, first, second = self.mean.flatten(-2), *self._indices()
        products = [
            _second_moment(q, index)
            for q, index in ((self.s1_posterior, first), (self.s2_posterior, second))
        ]
        c_mean, c_covariance = self._unit_moments()
        of_c = c_covariance + c_mean.unsqueeze(-1) * c_mean.unsqueeze(-2)
        covariance = products[0] * of_c * products[1] - mean.unsqueeze(-1) * mean.unsqueeze(-2)
        return WeightMoments(mean, covariance)

    def _indices(self) -> tuple[Tensor, Tensor]:
        """Return which entries of ``s1`` and ``s2`` every weight has."""
        size = self.plan.vector_size
        index = torch.arange(size, device=self.s1.device).view(self.plan.vector_shape)
        shape = (*self.plan.vector_shape, self.plan.block_size)
        of_s1, of_s2 = index.unsqueeze(-1).expand(shape), index.unsqueeze(-2).expand(shape)
        return trim_blocks(of_s1, self.plan).flatten(), trim_blocks(of_s2, self.plan).flatten()

    def _unit_moments(self) -> WeightMoments:
        """Return mean and covariance of ``vec(W)`` for scales of one: of the entries of ``c``."""
        unit = torch.eye(self.plan.vector_size, dtype=self.s1.dtype, device=self.s1.device)
        unit = unit.expand(*self.batch_shape, *unit.shape)
        jacobian = self._dense(torch.ones_like(unit), unit, torch.ones_like(unit)).flatten(-2).mT
        blocks = self.posterior.blocks(jacobian)  # (..., out·in, K, D)
        spread = torch.einsum("...wkd,...kde->...wke", blocks, self.posterior.covariance())
        mean = (jacobian @ self.posterior.mean.unsqueeze(-1)).squeeze(-1)
        return WeightMoments(mean, torch.einsum("...wke,...vke->...wv", spread, blocks))

    def output_moments(self, x: Tensor) -> OutputMoments:
        r"""Return exact mean and variance of ``W x``, without sampling.

        With ``t = Σ_j M(g)[i, j] s2[j] x[j]``, ``y = s1 t`` has
        ``var(y) = E[s1]² var(t) + var(s1) E[t²]``, and ``var(t)`` is that of a fixed ``s2 = E[s2]``
        plus ``Σ_j var(s2[j]) x[j]² E[M(g)[i, j]²]``.
        """
        if self.plan.is_column:
            return self._column_moments(x)
        over = (len(self.batch_shape), x.dim() - len(self.batch_shape) - 1, 2)
        s1, g, s2 = (insert_inner_axes(self.posterior.blocks(q.mean), *over) for q in self._vectors)
        v1, v2 = (
            insert_inner_axes(self.posterior.blocks(q.variance), *over)
            for q in (self.s1_posterior, self.s2_posterior)
        )
        x = self._padded(x)
        t = self.mixing.mix(s2 * x, g)
        spread = mixing_variance(self.mixing, s2 * x, self.posterior, *over[:2])
        spread = spread + self._through_squares(v2 * x.square(), g)
        variance = s1.square() * spread + v1 * (t.square() + spread)
        mean, variance = (v.flatten(-2)[..., : self.out_features] for v in (s1 * t, variance))
        return OutputMoments(mean, variance)

    def _through_squares(self, a: Tensor, g: Tensor) -> Tensor:
        """Return ``Σ_j a[j] E[M(g)[i, j]²]`` for ``a (*batch_shape, *inner, K, D)``, ``g = E[g]``.

        For Hadamard of size ``2**d``, ``Σ_j a[j] E[c[i ^ j]²]``, it is a dyadic convolution.
        """
        axes, size = len(self.batch_shape), self.plan.block_size
        over = (axes, a.dim() - axes - 2, 2)
        if isinstance(self.mixing, Hadamard) and is_power_of_two(size):
            ones = torch.ones_like(self.posterior.blocks(self.s1))
            var_c = insert_inner_axes(product_variance(ones, self.posterior, axes, 0), *over)
            return _dyadic_convolution(a, (fwht(g).square() + var_c) / size)
        unit = torch.eye(size, dtype=a.dtype, device=a.device).unsqueeze(-2)
        units = unit.expand(*self.batch_shape, size, *self.plan.vector_shape)  # columns j
        mean = self.mixing.mix(units, self.posterior.blocks(self.posterior.mean).unsqueeze(axes))
        squares = mean.square() + mixing_variance(self.mixing, units, self.posterior, axes, 1)
        rows = a.flatten(axes, -3).transpose(-3, -2) if over[1] else a.unsqueeze(-2)
        return (rows @ squares.transpose(-3, -2)).transpose(-3, -2).reshape(a.shape)

    def _column_moments(self, x: Tensor) -> OutputMoments:
        mean, covariance = self.moments()
        over = (len(self.batch_shape), x.dim() - len(self.batch_shape) - 1)
        if self.out_features > 1:  # one input
            mean, variance = (
                insert_inner_axes(v, *over) for v in (mean, covariance.diagonal(dim1=-2, dim2=-1))
            )
            return OutputMoments(x * mean, x.square() * variance)
        mean, covariance = insert_inner_axes(mean, *over), insert_inner_axes(covariance, *over, 2)
        through = (covariance @ x.unsqueeze(-1)).squeeze(-1)
        return OutputMoments((x * mean).sum(-1, keepdim=True), (x * through).sum(-1, keepdim=True))

    def extra_repr(self) -> str:
        """Show the blocks."""
        K, D = self.plan.vector_shape
        form = "vec of one block" if self.plan.is_column else f"{K} blocks"
        return f"{self.in_features} → {self.out_features}: {form} of {D} × {D}, random scales"


def _second_moment(q: Posterior, index: Tensor) -> Tensor:
    """Return ``E[s s']`` of the entries ``index`` of independent ``s``."""
    mean, variance = q.mean[..., index], q.variance[..., index].unsqueeze(-1)
    same = index.unsqueeze(-1) == index
    moment: Tensor = mean.unsqueeze(-1) * mean.unsqueeze(-2) + same * variance
    return moment


def _dyadic_convolution(a: Tensor, q: Tensor) -> Tensor:
    """Return ``Σ_j a[j] q[i ^ j]``, which is ``√D H(H a · H q)``."""
    return fwht(fwht(a) * fwht(q)) * math.sqrt(a.shape[-1])
