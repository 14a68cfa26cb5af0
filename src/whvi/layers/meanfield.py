r"""The baseline: a dense weight matrix with a fully factorized Gaussian posterior.

``q(W) = Π N(W_ij | M_ij, V_ij)`` needs ``2 · out · in`` parameters. Local reparameterization
(Kingma et al., 2015): ``y ~ N(M x, V x²)``, independent entries, so one normal per output.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from whvi._kernel.dense import local_linear
from whvi._kernel.noise import normal_from_seed
from whvi.layers.matrix import OutputMoments, RandomMatrix, WeightMoments
from whvi.posteriors import DiagonalGaussian
from whvi.priors import Prior, PriorFactory, make_prior
from whvi.sampling import LocalReparameterization, Sampler, insert_inner_axes

_RELATIVE_SCALE = 0.1  # posterior standard deviation at the start, times in_features ** -0.5
_ROWWISE_OUTPUTS = 4  # up to here rows are summed one by one, so a draw is a function to the bit


@final
class DenseGaussianMatrix(RandomMatrix):
    """``W`` with independent Gaussian entries; ``posterior`` has them row by row.

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
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.batch_shape = tuple(batch_shape)
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
            shape = (*x.shape[:-1], self.out_features)
            noise = normal_from_seed(shape, sampler.next_seed(), dtype=x.dtype, device=x.device)
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
