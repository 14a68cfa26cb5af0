r"""Gaussian noise, constant or a function of the input.

With standardised targets :math:`z = (y - \mu_y) / \sigma_y`,

.. math:: \log p(y \mid f) = -\tfrac12 (z - f)^2 / \sigma^2 - \tfrac12 \log(2 \pi \sigma^2)
          - \log \sigma_y .
"""

from __future__ import annotations

import math
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from whvi._checks import check_positive
from whvi._kernel.backend import is_tracing, is_transformed
from whvi.likelihoods.base import Likelihood, add_target_scaling, target_moments
from whvi.predictive import Predictive

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
MIN_NOISE_VARIANCE = 1e-8
"""Added to every noise variance (standardised units): a perfect fit has a finite likelihood."""


def gaussian_log_prob(f: Tensor, z: Tensor, variance: Tensor, target_scale: Tensor) -> Tensor:
    """Return the log density per output of ``y = target_scale·z + …``, broadcast over all.

    Args:
        f, z: Function values and standardised targets.
        variance: Noise variance in standardised units.
        target_scale: The unit of ``y``; its log is the Jacobian.
    """
    # Few, fused operations: at batch 64 their number is the cost, not their size.
    log_normaliser = torch.add(target_scale.log(), variance.log(), alpha=0.5)
    peak = torch.rsub(log_normaliser, -_HALF_LOG_2PI)
    return torch.addcdiv(peak, (f - z).square(), variance, value=-0.5)


class _LogProb(torch.autograd.Function):
    """:func:`gaussian_log_prob` of ``log σ²`` as one node: in training, nodes are what it costs."""

    @staticmethod
    def forward(
        ctx: Any, f: Tensor, log_noise_variance: Tensor, z: Tensor, target_scale: Tensor
    ) -> Tensor:
        ctx.save_for_backward(f, log_noise_variance, z, target_scale)
        return gaussian_log_prob(f, z, log_noise_variance.exp() + MIN_NOISE_VARIANCE, target_scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        f, log_noise_variance, z, _ = ctx.saved_tensors
        noise = log_noise_variance.exp()
        variance = noise + MIN_NOISE_VARIANCE
        residual = f - z
        over_variance = residual / variance
        grad_f = torch.mul(grads[0], over_variance).neg()
        grad_noise = None
        if ctx.needs_input_grad[1]:
            excess = grads[0] * (over_variance * residual - 1)
            grad_noise = excess.sum_to_size(noise.shape) * (0.5 * noise / variance)
        return grad_f, grad_noise, None, None


@final
class Gaussian(Likelihood):
    """Gaussian noise with one learned variance per output.

    Args:
        num_outputs: Number of target columns.
        batch_shape: ``(R,)`` for R replicas.
        log_noise_variance: Initial log variance, in units of the standardised targets.
        device, dtype: Of parameters and buffers.
    """

    target_mean: Tensor
    target_scale: Tensor

    def __init__(
        self,
        num_outputs: int = 1,
        *,
        batch_shape: tuple[int, ...] = (),
        log_noise_variance: float = -2.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_outputs, batch_shape)
        self.log_noise_variance = self._parameter(log_noise_variance, device, dtype)
        add_target_scaling(self, device, dtype)

    @property
    def noise_scale(self) -> Tensor:
        """Standard deviation of the noise in the user's units, ``(*batch_shape, O)``."""
        return (self.log_noise_variance.exp() + MIN_NOISE_VARIANCE).sqrt() * self.target_scale

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """See :meth:`Likelihood.log_prob`."""
        target_scale = self._per_row(self.target_scale)
        z = (self._aligned(f, y) - self._per_row(self.target_mean)) / target_scale
        z = z.to(f.dtype)
        if is_tracing() or is_transformed() or z.requires_grad:
            variance = self._per_row(self.log_noise_variance).exp() + MIN_NOISE_VARIANCE
            return self._over_outputs(gaussian_log_prob(f, z, variance, target_scale))
        log_noise_variance = self._per_row(self.log_noise_variance)
        # apply() is not annotated in torch.
        values = cast(Tensor, _LogProb.apply(f, log_noise_variance, z, target_scale))  # type: ignore[no-untyped-call]
        return self._over_outputs(values)

    def predictive(self, f: Tensor) -> Predictive:
        """See :meth:`Likelihood.predictive`."""
        self._check_values(f)
        unit = self._per_row(self.target_scale.double())
        loc = f.double() * unit + self._per_row(self.target_mean.double())
        variance = self.log_noise_variance.double().exp() + MIN_NOISE_VARIANCE
        scale = (self._per_row(variance.sqrt()) * unit).expand_as(loc)
        return Predictive.gaussian(
            self._dropped_output(loc),
            self._dropped_output(scale),
            batch_dims=len(self.batch_shape),
        )

    def noise_parameters(self) -> list[nn.Parameter]:
        """Return ``[log_noise_variance]``."""
        return [self.log_noise_variance]

    def set_target_scaling(self, y: Tensor) -> None:
        """Set ``target_mean`` and ``target_scale`` (population std; 1 for a constant target)."""
        mean, scale = target_moments(self, y, self.target_mean.dtype)
        self.target_mean.copy_(mean)
        self.target_scale.copy_(scale)


@final
class HeteroscedasticGaussian(Likelihood):
    r"""Gaussian noise whose log variance is a second head of the network.

    Features are ``num_outputs`` means, then ``num_outputs`` raw log variances :math:`r`:
    :math:`\log \sigma^2 = b \tanh((\lambda + r) / b)` with a learned level :math:`\lambda` per
    output, so that it stays within :math:`\pm b` and is the identity near zero.

    Args:
        num_outputs: Number of target columns; the network has twice as many features.
        batch_shape: ``(R,)`` for R replicas.
        log_noise_variance: Initial level, in units of the standardised targets.
        bound: ``b``; 15 allows noise from 6e-4 to 1800 standard deviations of the target.
        device, dtype: Of parameters and buffers.
    """

    target_mean: Tensor
    target_scale: Tensor

    def __init__(
        self,
        num_outputs: int = 1,
        *,
        batch_shape: tuple[int, ...] = (),
        log_noise_variance: float = -2.0,
        bound: float = 15.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_outputs, batch_shape)
        check_positive("bound", bound)
        self.bound = bound
        self.log_noise_variance = self._parameter(log_noise_variance, device, dtype)
        add_target_scaling(self, device, dtype)

    @property
    def num_features(self) -> int:
        """Means and raw log variances."""
        return 2 * self.num_outputs

    def _heads(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Split features into means and bounded noise variances, standardised units."""
        mean, raw = f[..., : self.num_outputs], f[..., self.num_outputs :]
        level = self._per_row(self.log_noise_variance)
        return mean, (self.bound * torch.tanh((raw + level) / self.bound)).exp()

    def noise_variance(self, f: Tensor) -> Tensor:
        """Return ``σ²`` of every row, standardised units, shape ``(*batch_shape, S, N, O)``."""
        return self._heads(f)[1]

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """See :meth:`Likelihood.log_prob`."""
        target_scale = self._per_row(self.target_scale)
        z = (self._aligned(f, y) - self._per_row(self.target_mean)) / target_scale
        mean, variance = self._heads(f)
        return self._over_outputs(gaussian_log_prob(mean, z.to(f.dtype), variance, target_scale))

    def predictive(self, f: Tensor) -> Predictive:
        """See :meth:`Likelihood.predictive`."""
        self._check_values(f)
        mean, variance = self._heads(f.double())
        unit = self._per_row(self.target_scale.double())
        loc = mean * unit + self._per_row(self.target_mean.double())
        return Predictive.gaussian(
            self._dropped_output(loc),
            self._dropped_output(variance.sqrt() * unit),
            batch_dims=len(self.batch_shape),
        )

    def noise_parameters(self) -> list[nn.Parameter]:
        """Return ``[log_noise_variance]``, the level; the head belongs to the network."""
        return [self.log_noise_variance]

    def set_target_scaling(self, y: Tensor) -> None:
        """Set ``target_mean`` and ``target_scale`` (population std; 1 for a constant target)."""
        mean, scale = target_moments(self, y, self.target_mean.dtype)
        self.target_mean.copy_(mean)
        self.target_scale.copy_(scale)

    def extra_repr(self) -> str:
        """Show the sizes and the bound."""
        return f"{super().extra_repr()}, bound={self.bound}"
