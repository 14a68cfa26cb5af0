r"""Student-t noise: the cost of an outlier grows with its logarithm, not its square.

With :math:`t = (z - f) / s` for standardized targets :math:`z = (y - \mu_y)/\sigma_y`,

.. math:: \log p(y \mid f) = \log \Gamma(\tfrac{\nu+1}{2}) - \log \Gamma(\tfrac{\nu}{2})
          - \tfrac12 \log(\nu \pi) - \tfrac{\nu+1}{2} \log(1 + t^2/\nu) - \log s - \log \sigma_y .
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whvi.errors import ConfigError
from whvi.likelihoods.base import RealLikelihood
from whvi.likelihoods.gaussian import MIN_NOISE_VARIANCE
from whvi.predictive import Predictive
from whvi.predictive.numerics import student_t_log_prob

MIN_DF = 2.01
"""Lower bound of the degrees of freedom: the variance stays finite in float32."""


@final
class StudentT(RealLikelihood):
    r"""Student-t noise with a learned scale per output and learned or fixed degrees of freedom.

    The scale :math:`s` is not the standard deviation, which is :math:`s \sqrt{\nu / (\nu - 2)}`.

    Args:
        num_outputs: Number of target columns.
        batch_shape: ``(R,)`` for R replicas.
        df: Initial degrees of freedom, above 2.01.
        learn_df: Whether ``df`` is a parameter (per output) or stays fixed.
        log_squared_scale: Initial ``log s²``, in units of the standardized targets.
        device, dtype: Of parameters and buffers.
    """

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
        super().__init__(num_outputs, batch_shape, device, dtype)
        if not (isinstance(df, int | float) and MIN_DF < df < math.inf):
            raise ConfigError(f"df must be a finite number above {MIN_DF}, got {df!r}")
        self.log_squared_scale = self._parameter(log_squared_scale)
        excess = df - MIN_DF
        raw_df = self._parameter(excess + math.log(-math.expm1(-excess)))
        if learn_df:
            self.raw_df = raw_df
        else:
            self.register_buffer("raw_df", raw_df.detach())

    @property
    def df(self) -> Tensor:
        """Degrees of freedom, ``(*batch_shape, O)``."""
        return MIN_DF + F.softplus(self.raw_df)

    @property
    def noise_scale(self) -> Tensor:
        """Standard deviation of the noise in the units of ``y``, ``(*batch_shape, O)``."""
        squared = self.log_squared_scale.exp() + MIN_NOISE_VARIANCE
        return (squared * self.df / (self.df - 2)).sqrt() * self.target_scale

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        z, target_scale = self._standardized(f, y)
        scale = (self._per_row(self.log_squared_scale).exp() + MIN_NOISE_VARIANCE).sqrt()
        log_jacobian = scale.log() + target_scale.log()
        t = (z - f) / scale
        return self._over_outputs(student_t_log_prob(t, self._per_row(self.df)) - log_jacobian)

    def predictive(self, f: Tensor) -> Predictive:
        loc, target_scale = self._in_units(f)
        squared = self.log_squared_scale.double().exp() + MIN_NOISE_VARIANCE
        scale = self._per_row(squared.sqrt()) * target_scale
        return self._mixture(Predictive.student_t, loc, scale, self._per_row(self.df.double()))

    def extra_repr(self) -> str:
        """Show the sizes and whether ``df`` is learned."""
        return f"{super().extra_repr()}, learn_df={isinstance(self.raw_df, nn.Parameter)}"
