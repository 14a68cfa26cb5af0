r"""Student-t noise: outliers cost a logarithm, not a square.

With :math:`t = (z - f) / s` for standardised targets :math:`z = (y - \mu_y)/\sigma_y`,

.. math:: \log p(y \mid f) = \log \Gamma(\tfrac{\nu+1}{2}) - \log \Gamma(\tfrac{\nu}{2})
          - \tfrac12 \log(\nu \pi) - \tfrac{\nu+1}{2} \log(1 + t^2/\nu) - \log s - \log \sigma_y .
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whvi.likelihoods.base import Likelihood, add_target_scaling, check_df, target_moments
from whvi.likelihoods.gaussian import MIN_NOISE_VARIANCE
from whvi.predictive import Predictive
from whvi.predictive.numerics import student_t_log_prob

MIN_DF = 2.01
"""Degrees of freedom stay above this, so that the variance is finite in float32."""


@final
class StudentT(Likelihood):
    r"""Student-t noise with a learned scale per output and learned or fixed degrees of freedom.

    The scale :math:`s` is not the standard deviation, which is :math:`s \sqrt{\nu / (\nu - 2)}`.

    Args:
        num_outputs: Number of target columns.
        batch_shape: ``(R,)`` for R replicas.
        df: Initial degrees of freedom, above 2.01.
        learn_df: Whether ``df`` is a parameter (per output) or stays fixed.
        log_squared_scale: Initial ``log s²``, in units of the standardised targets.
        device, dtype: Of parameters and buffers.
    """

    target_mean: Tensor
    target_scale: Tensor
    raw_df: Tensor

    def __init__(
        self,
        num_outputs: int = 1,
        *,
        batch_shape: tuple[int, ...] = (),
        df: float = 4.0,
        learn_df: bool = True,
        log_squared_scale: float = -2.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_outputs, batch_shape)
        check_df(df, MIN_DF)
        self.log_squared_scale = self._parameter(log_squared_scale, device, dtype)
        excess = df - MIN_DF
        raw_df = self._parameter(excess + math.log(-math.expm1(-excess)), device, dtype)
        if learn_df:
            self.raw_df = raw_df
        else:
            self.register_buffer("raw_df", raw_df.detach())
        add_target_scaling(self, device, dtype)

    @property
    def df(self) -> Tensor:
        """Degrees of freedom, ``(*batch_shape, O)``."""
        return MIN_DF + F.softplus(self.raw_df)

    @property
    def noise_scale(self) -> Tensor:
        """Standard deviation of the noise in the user's units, ``(*batch_shape, O)``."""
        squared = self.log_squared_scale.exp() + MIN_NOISE_VARIANCE
        return (squared * self.df / (self.df - 2)).sqrt() * self.target_scale

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """See :meth:`Likelihood.log_prob`."""
        target_scale = self._per_row(self.target_scale)
        z = (self._aligned(f, y) - self._per_row(self.target_mean)) / target_scale
        scale = (self._per_row(self.log_squared_scale).exp() + MIN_NOISE_VARIANCE).sqrt()
        log_jacobian = scale.log() + target_scale.log()
        t = (z.to(f.dtype) - f) / scale
        return self._over_outputs(student_t_log_prob(t, self._per_row(self.df)) - log_jacobian)

    def predictive(self, f: Tensor) -> Predictive:
        """See :meth:`Likelihood.predictive`."""
        self._check_values(f)
        unit = self._per_row(self.target_scale.double())
        loc = f.double() * unit + self._per_row(self.target_mean.double())
        squared = self.log_squared_scale.double().exp() + MIN_NOISE_VARIANCE
        scale = (self._per_row(squared.sqrt()) * unit).expand_as(loc)
        df = self._per_row(self.df.double()).expand_as(loc)
        return Predictive.student_t(
            self._dropped_output(loc),
            self._dropped_output(scale),
            self._dropped_output(df),
            batch_dims=len(self.batch_shape),
        )

    def noise_parameters(self) -> list[nn.Parameter]:
        """Return the scale and, where it is learned, the degrees of freedom."""
        return list(self.parameters())

    def set_target_scaling(self, y: Tensor) -> None:
        """Set ``target_mean`` and ``target_scale`` (population std; 1 for a constant target)."""
        mean, scale = target_moments(self, y, self.target_mean.dtype)
        self.target_mean.copy_(mean)
        self.target_scale.copy_(scale)

    def extra_repr(self) -> str:
        """Show the sizes and whether ``df`` is learned."""
        return f"{super().extra_repr()}, learn_df={isinstance(self.raw_df, nn.Parameter)}"
