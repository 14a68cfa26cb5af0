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
from whvi.layers.weights import OutputMoments, Weight, WeightMoments, lift
from whvi.posteriors import DiagonalGaussian
from whvi.priors import Prior, PriorFactory, make_prior
from whvi.sampling import LocalReparameterization

_RELATIVE_SCALE = 0.1  # posterior standard deviation at the start, times in_features ** -0.5
_ROWWISE_OUTPUTS = 4  # up to here rows are summed one by one, so a draw is a function to the bit


@final
class DenseGaussianWeight(Weight):
    """``W`` with independent Gaussian entries.

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

    def _mean(self) -> Tensor:
        return self.posterior.loc

    def _draw(self, sample_shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        return self.posterior.rsample(sample_shape, generator=generator)

    def _dense(self, draw: Tensor) -> Tensor:
        return draw

    def _multiply_given(self, x: Tensor, bias: Tensor | None, draw: Tensor) -> Tensor:
        batch_ndim = len(self.batch_shape)
        inner_ndim = x.dim() - batch_ndim - 1
        if self.out_features <= _ROWWISE_OUTPUTS:
            matrix = lift(draw, batch_ndim, inner_ndim, 2)
            y = (x.unsqueeze(-2) * matrix).sum(-1)
        else:
            own = draw.dim() - batch_ndim - 2  # leading inner axes that have their own W
            rows = x.flatten(batch_ndim + own, -2) if inner_ndim > own else x.unsqueeze(-2)
            y = (rows @ draw.transpose(-1, -2)).reshape(*x.shape[:-1], self.out_features)
        return y if bias is None else y + lift(bias, batch_ndim, inner_ndim)

    def _multiply_local(
        self, x: Tensor, bias: Tensor | None, sampler: LocalReparameterization
    ) -> Tensor:
        posterior = self.posterior
        shape = (*x.shape[:-1], self.out_features)
        noise = normal_from_seed(shape, sampler.next_seed(), dtype=x.dtype, device=x.device)
        return local_linear(x, posterior.loc, posterior.log_scale, bias, noise)

    def _multiply_rows(self, x: Tensor, matrix: Tensor) -> Tensor:
        batch_ndim = len(self.batch_shape)
        rows = x.flatten(batch_ndim, -2) if x.dim() > batch_ndim + 1 else x.unsqueeze(-2)
        return (rows @ matrix.transpose(-1, -2)).reshape(*x.shape[:-1], self.out_features)

    def moments(self) -> WeightMoments:
        """Return mean and (diagonal) covariance of ``vec(W)``."""
        return WeightMoments(
            self.posterior.loc.flatten(-2), torch.diag_embed(self.posterior.variance.flatten(-2))
        )

    def output_moments(self, x: Tensor) -> OutputMoments:
        """Return ``M x`` and ``V x²``."""
        return OutputMoments(
            self._multiply_rows(x, self.posterior.loc),
            self._multiply_rows(x * x, self.posterior.variance),
        )

    def extra_repr(self) -> str:
        """Show the shape."""
        return f"{self.in_features} → {self.out_features}: dense"
