r"""Random matrices: what a Bayesian layer multiplies by; and the baseline, a dense one.

A :class:`RandomMatrix` stands for a matrix ``W`` of shape
``(*batch_shape, out_features, in_features)`` with a posterior. A layer asks it for ``W x + b``
under a sampler and for its moments; it does not ask how ``W`` is represented. The baseline is
mean field, ``q(W) = Π N(W_ij | M_ij, V_ij)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from whvi._checks import check_float_dtype, check_positive_int
from whvi._kernel.dense import local_linear
from whvi.posteriors import DiagonalGaussian, Posterior
from whvi.posteriors.base import samples_first
from whvi.priors import Prior, PriorFactory, make_prior
from whvi.sampling import LocalReparameterization, Sampler, insert_inner_axes

_RELATIVE_SCALE = 0.1  # posterior standard deviation at the start, times in_features ** -0.5
_ROWWISE_OUTPUTS = 4  # up to here rows are summed one by one, so a draw is a function to the bit


class WeightMoments(NamedTuple):
    """Mean ``(…, n)`` and covariance ``(…, n, n)`` of ``vec(W)``, ``n = out · in``."""

    mean: Tensor
    covariance: Tensor


class OutputMoments(NamedTuple):
    """Mean and (marginal) variance of an output, of one shape."""

    mean: Tensor
    variance: Tensor


class RandomMatrix(nn.Module, ABC):
    """A random matrix ``W``, shape ``(*batch_shape, out_features, in_features)``."""

    in_features: int
    out_features: int
    batch_shape: tuple[int, ...]
    posterior: Posterior
    prior: Prior

    def __init__(
        self,
        in_features: int,
        out_features: int,
        batch_shape: tuple[int, ...],
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        check_positive_int("in_features", in_features)
        check_positive_int("out_features", out_features)
        check_float_dtype(dtype)
        self.in_features, self.out_features = in_features, out_features
        self.batch_shape = tuple(batch_shape)

    @abstractmethod
    def multiply(self, x: Tensor, bias: Tensor | None, sampler: Sampler) -> Tensor:
        """Return ``W x + bias`` with ``W`` as ``sampler`` says.

        Args:
            x: Shape ``(*batch_shape, *inner, in_features)``; checked by the layer.
            bias: ``(*batch_shape, out_features)`` or ``None``.
            sampler: Mean weights, one draw for all rows, or a draw for every row.
        """

    @abstractmethod
    def dense(self, draw: Tensor) -> Tensor:
        """Return ``(*batch_shape, *some, out, in)`` for draws ``(*batch_shape, *some, n)``."""

    def drawn(self, sampler: Sampler) -> Tensor:
        """Return ``(*batch_shape, *sample_shape, out, in)`` as ``sampler`` says."""
        return self.dense(sampler.value(self.posterior))

    def kl_pairs(self) -> list[tuple[Posterior, Prior]]:
        """Return what is random with its priors: their KLs add up to that of the matrix."""
        return [(self.posterior, self.prior)]

    @abstractmethod
    def moments(self) -> WeightMoments:
        """Return mean ``(…, out·in)`` and covariance ``(…, out·in, out·in)`` of ``vec(W)``."""

    @abstractmethod
    def output_moments(self, x: Tensor) -> OutputMoments:
        """Return exact mean and variance of ``W x``, each ``(*batch_shape, *inner, out)``."""

    @abstractmethod
    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Set a starting point that trains."""

    def sample(
        self, sample_shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw dense matrices, ``(*sample_shape, *batch_shape, out, in)``, with gradients."""
        draws = self.dense(self.posterior.draw(sample_shape, generator))
        return samples_first(draws, len(self.batch_shape), 2)

    @property
    def mean(self) -> Tensor:
        """``E[W]``, shape ``(*batch_shape, out, in)``."""
        return self.dense(self.posterior.mean)

    @property
    def variance(self) -> Tensor:
        """``var(W)``, entry by entry, shape ``(*batch_shape, out, in)``: that of ``W e_j``."""
        loc = self.posterior.loc
        unit = torch.eye(self.in_features, dtype=loc.dtype, device=loc.device)
        return self.output_moments(unit.expand(*self.batch_shape, *unit.shape)).variance.mT


@final
class DenseGaussianMatrix(RandomMatrix):
    """A dense ``W`` with independent Gaussian entries: ``2 · out · in`` parameters.

    ``posterior`` has the entries row by row. Local reparameterization (Kingma et al., 2015):
    ``y ~ N(M x, V x²)``, independent entries, so one normal per output.

    Args:
        in_features, out_features: Shape of ``W``.
        prior: Name, prior or factory, see :func:`whvi.priors.make_prior`.
        batch_shape: Replicas.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        prior: str | Prior | PriorFactory = "empirical_bayes",
        batch_shape: tuple[int, ...] = (),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, batch_shape, dtype)
        shape = (*self.batch_shape, out_features, in_features)
        self.posterior: DiagonalGaussian = DiagonalGaussian(shape, device=device, dtype=dtype)
        self.prior = make_prior(prior, self.batch_shape, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Draw means from ``N(0, 1 / in_features)``, scales a tenth of that."""
        mean_std = self.in_features**-0.5
        self.posterior.reset(mean_std, _RELATIVE_SCALE * mean_std, generator=generator)

    def multiply(self, x: Tensor, bias: Tensor | None, sampler: Sampler) -> Tensor:
        """See :meth:`RandomMatrix.multiply`."""
        posterior = self.posterior
        if isinstance(sampler, LocalReparameterization):
            noise = sampler.noise((*x.shape[:-1], self.out_features), x)
            return local_linear(x, posterior.loc, posterior.log_scale, bias, noise)
        y = self._multiply_by(self.dense(sampler.value(posterior)), x)
        batch_ndim = len(self.batch_shape)
        inner_ndim = x.dim() - batch_ndim - 1
        return y if bias is None else y + insert_inner_axes(bias, batch_ndim, inner_ndim)

    def _multiply_by(self, matrix: Tensor, x: Tensor) -> Tensor:
        """Return ``W x`` for ``W (*batch_shape, *some_inner, out, in)``."""
        batch_ndim = len(self.batch_shape)
        inner_ndim = x.dim() - batch_ndim - 1
        if self.out_features <= _ROWWISE_OUTPUTS:
            return (x.unsqueeze(-2) * insert_inner_axes(matrix, batch_ndim, inner_ndim, 2)).sum(-1)
        own = matrix.dim() - batch_ndim - 2  # leading inner axes that have their own W
        rows = x.flatten(batch_ndim + own, -2) if inner_ndim > own else x.unsqueeze(-2)
        return (rows @ matrix.transpose(-1, -2)).reshape(*x.shape[:-1], self.out_features)

    def dense(self, draw: Tensor) -> Tensor:
        """See :meth:`RandomMatrix.dense`."""
        matrix: Tensor = draw.unflatten(-1, (self.out_features, self.in_features))
        return matrix

    @property
    def variance(self) -> Tensor:
        """``V``."""
        return self.dense(self.posterior.variance)

    def moments(self) -> WeightMoments:
        """Return mean and (diagonal) covariance of ``vec(W)``."""
        return WeightMoments(self.posterior.loc, torch.diag_embed(self.posterior.variance))

    def output_moments(self, x: Tensor) -> OutputMoments:
        """Return ``M x`` and ``V x²``."""
        return OutputMoments(
            self._multiply_by(self.mean, x), self._multiply_by(self.variance, x * x)
        )

    def extra_repr(self) -> str:
        """Show the shape."""
        return f"{self.in_features} → {self.out_features}: dense"
