r"""Counts: a Poisson whose log rate is the function value, relative to a base rate :math:`r_0`.

.. math:: \log p(y \mid f) = y \log r - r - \log y!, \qquad \log r = f + \log r_0 .
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from whvi._checks import check_finite
from whvi.likelihoods.base import Likelihood, check_support, rows_of_targets
from whvi.predictive import Predictive


@final
class Poisson(Likelihood):
    """Counts 0, 1, 2, …; the function values are log rates in units of a base rate.

    The base rate is 1 until :meth:`set_target_scaling` makes it the mean of the training counts,
    so that a network near zero predicts the mean. There are no parameters.

    Args:
        num_outputs: Number of target columns.
        batch_shape: ``(R,)`` for R replicas.
        device, dtype: Of the buffer ``target_log_mean``.
    """

    target_log_mean: Tensor

    def __init__(
        self,
        num_outputs: int = 1,
        *,
        batch_shape: tuple[int, ...] = (),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_outputs, batch_shape)
        shape = (*self.batch_shape, num_outputs)
        self.register_buffer("target_log_mean", torch.zeros(shape, device=device, dtype=dtype))

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """See :meth:`Likelihood.log_prob`."""
        counts = self._aligned(f, y).to(f.dtype)
        log_rate = f + self._per_row(self.target_log_mean)
        return self._over_outputs(counts * log_rate - log_rate.exp() - torch.lgamma(counts + 1))

    def predictive(self, f: Tensor) -> Predictive:
        """See :meth:`Likelihood.predictive`."""
        self._check_values(f)
        rate = (f.double() + self._per_row(self.target_log_mean.double())).exp()
        return Predictive.poisson(self._dropped_output(rate), batch_dims=len(self.batch_shape))

    def set_target_scaling(self, y: Tensor) -> None:
        """Make the mean of the training counts the base rate (1 if they are all zero)."""
        mean = rows_of_targets(self, y).mean(-2)
        self.target_log_mean.copy_(torch.where(mean > 0, mean, 1.0).log())

    def check_targets(self, y: Tensor) -> None:
        """Refuse negative numbers and fractions."""
        check_finite("targets", y)
        check_support(y, (y >= 0) & (y == y.floor()), "counts 0, 1, 2, …")
