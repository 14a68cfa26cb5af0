r"""A grid of structured blocks: as many parameters as a task needs, between one block and dense.

The input is cut into ``J`` slices, each with its own structured blocks:

    W x = Σ_j W_j x_j,   W_j = [W_j1; …; W_jK],   W_jk = diag(s1_jk) H diag(g_jk) H diag(s2_jk).

Blocks are smaller by a factor ``J`` and there are up to ``J²`` times as many, so that parameters
grow as ``J`` and time hardly at all. Widths that are not a size of a transform need less padding or
none: ``192 = 3 · 64``. The vectors of all blocks lie one after the other, slices first.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from whvi._checks import check_positive_int
from whvi._kernel.backend import is_vmapped
from whvi._kernel.layout import BlockPlan
from whvi._kernel.product import block_linear, noisy_block_linear
from whvi.errors import ConfigError
from whvi.functional import dense_matrix
from whvi.layers.matrix import OutputMoments, RandomMatrix, WeightMoments
from whvi.layers.mixed import drawn_entries, mixing_variance
from whvi.layers.structured import check_num_weights, moments_of, reset_structured
from whvi.posteriors import DiagonalGaussian, PosteriorFactory, make_posterior
from whvi.priors import Prior, PriorFactory, make_prior
from whvi.sampling import LocalReparameterization, Sampler, insert_inner_axes
from whvi.transforms import Hadamard, TransformLike, make_mixing


@final
class GridMatrix(RandomMatrix):
    """``W`` of ``J × K`` structured blocks, whose vectors have shape ``(*batch_shape, J·K·D)``.

    Args:
        in_features, out_features: Shape of ``W``.
        num_blocks: ``J``, slices of the input; fewer if the last ones would be empty.
        posterior, prior, transform, batch_shape: As in
            :class:`~whvi.layers.structured.StructuredMatrix`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_blocks: int,
        *,
        posterior: str | PosteriorFactory = "diagonal",
        prior: str | Prior | PriorFactory = "empirical_bayes",
        transform: TransformLike = "hadamard",
        batch_shape: tuple[int, ...] = (),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, batch_shape, dtype)
        check_positive_int("num_blocks", num_blocks)
        if num_blocks > in_features:
            raise ConfigError(
                f"num_blocks cuts the input into slices: at most in_features = {in_features}, "
                f"got {num_blocks}"
            )
        width = -(-in_features // num_blocks)
        self.mixing = make_mixing(
            transform, width, batch_shape=self.batch_shape, device=device, dtype=dtype
        )
        size = self.mixing.size
        self.plan = BlockPlan(width, out_features, size, -(-out_features // size), False)
        self.num_slices = -(-in_features // width)
        shape = (*self.batch_shape, self.num_slices * self.plan.vector_size)
        self.s1 = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.s2 = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        blocks = (*self.batch_shape, self.num_slices * self.plan.num_blocks, size)
        self.posterior = make_posterior(posterior, blocks, device=device, dtype=dtype)
        self.prior = make_prior(prior, self.batch_shape, device=device, dtype=dtype)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Start with ``var(W) = 2 / in_features``, as a :class:`StructuredMatrix` does."""
        reset_structured(self, generator)

    def multiply(self, x: Tensor, bias: Tensor | None, sampler: Sampler) -> Tensor:
        """See :meth:`RandomMatrix.multiply`: slices are replicas of one product, and add up."""
        axis, posterior = len(self.batch_shape), self.posterior
        if not isinstance(self.mixing, Hadamard):
            g = drawn_entries(sampler, posterior, tuple(x.shape[:-1]))
            y = self._mix(x, g)
            return y if bias is None else y + insert_inner_axes(bias, axis, x.dim() - axis - 1)
        slices = self._slices(x).movedim(-2, axis)
        s1, s2 = self._by_slice(self.s1), self._by_slice(self.s2)
        if (
            isinstance(sampler, LocalReparameterization)
            and isinstance(posterior, DiagonalGaussian)
            and not is_vmapped()
        ):
            moments = self._by_slice(posterior.loc), self._by_slice(posterior.log_scale)
            seed = sampler.next_seed()
            y = noisy_block_linear(slices, s1, moments, s2, None, self.plan, seed)
        else:
            g = self._by_slice(sampler.value(posterior, tuple(x.shape[axis:-1])))
            y = block_linear(slices, s1, g, s2, None, self.plan)
        y = y.sum(axis)
        return y if bias is None else y + insert_inner_axes(bias, axis, x.dim() - axis - 1)

    def _mix(self, x: Tensor, g: Tensor) -> Tensor:
        """Return ``Σ_j [s1_j1 M(g_j1) s2_j1 x_j; …]``."""
        inner = x.dim() - len(self.batch_shape) - 1
        s1, g, s2 = (self._over(v, inner) for v in (self.s1, g, self.s2))
        y = s1 * self.mixing.mix(s2 * self._padded(x), g)
        return y.sum(-3).flatten(-2)[..., : self.out_features]

    def _padded(self, x: Tensor) -> Tensor:
        """Return ``(..., J, 1, D)``: slices for all blocks, with zeros at the end."""
        padding = self.plan.block_size - self.plan.in_features
        return functional.pad(self._slices(x), (0, padding)).unsqueeze(-2)

    def _slices(self, x: Tensor) -> Tensor:
        """Cut ``(..., in)`` into ``(..., J, width)``, with zeros at the end."""
        J, width = self.num_slices, self.plan.in_features
        padded = functional.pad(x, (0, J * width - self.in_features))
        slices: Tensor = padded.unflatten(-1, (J, width))
        return slices

    def _by_slice(self, v: Tensor) -> Tensor:
        """View ``(*batch_shape, *some, J·K·D)`` as ``(*batch_shape, J, *some, K·D)``."""
        apart: Tensor = v.unflatten(-1, (self.num_slices, -1))
        return apart.movedim(-2, len(self.batch_shape))

    def _over(self, v: Tensor, inner_ndim: int) -> Tensor:
        """Let ``(*batch_shape, *some, J·K·D)`` broadcast as ``(*batch_shape, *inner, J, K, D)``."""
        blocks = v.unflatten(-1, (self.num_slices, *self.plan.vector_shape))
        return insert_inner_axes(blocks, len(self.batch_shape), inner_ndim, 3)

    def dense(self, draw: Tensor) -> Tensor:
        """See :meth:`RandomMatrix.dense`."""
        some = draw.dim() - len(self.batch_shape) - 1
        vectors = (self._over(v, some) for v in (self.s1, draw, self.s2))
        blocks = dense_matrix(*vectors, transform=self.mixing)
        rows = blocks[..., : self.plan.in_features].movedim(-4, -2)  # (..., K, D, J, width)
        matrix: Tensor = rows.flatten(-2).flatten(-3, -2)
        return matrix[..., : self.out_features, : self.in_features]

    def moments(self) -> WeightMoments:
        """Return mean and covariance ``J Σ Jᵀ`` of ``vec(W)``."""
        check_num_weights(self.in_features * self.out_features)
        return moments_of(self)

    def output_moments(self, x: Tensor) -> OutputMoments:
        """Return exact mean and variance of ``W x``; blocks are independent, so variances add."""
        axes, inner = len(self.batch_shape), x.dim() - len(self.batch_shape) - 1
        s1, g, s2 = (self._over(v, inner) for v in (self.s1, self.posterior.mean, self.s2))
        v = s2 * self._padded(x)
        spread = mixing_variance(self.mixing, v.flatten(-3, -2), self.posterior, axes, inner)
        spread = spread.unflatten(-2, (self.num_slices, self.plan.num_blocks))
        parts = (s1 * self.mixing.mix(v, g), s1.square() * spread)
        mean, variance = (v.sum(-3).flatten(-2)[..., : self.out_features] for v in parts)
        return OutputMoments(mean, variance)

    def extra_repr(self) -> str:
        """Show the blocks."""
        K, D = self.plan.vector_shape
        named = "" if isinstance(self.mixing, Hadamard) else f", {self.mixing.name}"
        grid = f"{self.num_slices} × {K} blocks of {D} × {D}{named}"
        return f"{self.in_features} → {self.out_features}: {grid}"
