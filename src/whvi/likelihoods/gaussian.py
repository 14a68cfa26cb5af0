r"""Gaussian noise, constant or a function of the input.

With standardized targets :math:`z = (y - \mu_y) / \sigma_y`,

.. math:: \log p(y \mid f) = -\tfrac12 (z - f)^2 / \sigma^2 - \tfrac12 \log(2 \pi \sigma^2)
          - \log \sigma_y .
"""

from __future__ import annotations

import math
from typing import Any, cast, final

import torch
from torch import Tensor

from whvi._checks import check_positive
from whvi._kernel.backend import is_tracing, is_transformed
from whvi.likelihoods.base import Gradient, LikelihoodWrapper, RealLikelihood, Vjp
from whvi.predictive import Predictive

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
MIN_NOISE_VARIANCE = 1e-8
"""Added to every noise variance (standardized units): a perfect fit has a finite likelihood."""


def gaussian_log_prob(residual: Tensor, variance: Tensor, target_scale: Tensor) -> Tensor:
    """Return the log density of ``y`` per output, broadcast over all arguments.

    Args:
        residual: Function values minus standardized targets.
        variance: Noise variance in standardized units.
        target_scale: ``σ_y``, whose log is the Jacobian of the standardization.
    """
    # Few fused operations: at batch 64 their number matters, not their size.
    log_normalizer = torch.add(target_scale.log(), variance.log(), alpha=0.5)
    peak = torch.rsub(log_normalizer, -_HALF_LOG_2PI)
    return torch.addcdiv(peak, residual.square(), variance, value=-0.5)


class _LogProb(torch.autograd.Function):
    """:func:`gaussian_log_prob` of ``log σ²`` as one autograd node, which saves overhead."""

    @staticmethod
    def forward(
        ctx: Any, f: Tensor, log_noise_variance: Tensor, z: Tensor, target_scale: Tensor
    ) -> Tensor:
        ctx.save_for_backward(f, log_noise_variance, z)
        return gaussian_log_prob(*_residual(f, log_noise_variance, z)[:2], target_scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        kept = _residual(*ctx.saved_tensors)  # again: gradients of gradients pass through it
        return *_backward(kept, grads[0], ctx.needs_input_grad[1]), None, None


def _residual(f: Tensor, log_noise_variance: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``f − z``, the variance of the noise and the part of it that is trained."""
    noise = log_noise_variance.exp()
    return f - z, noise + MIN_NOISE_VARIANCE, noise


def _backward(
    kept: tuple[Tensor, Tensor, Tensor], grad: Tensor, wants_noise: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of ``f`` and, if wanted, of ``log σ²``."""
    residual, variance, noise = kept
    over_variance = residual / variance
    grad_noise = None
    if wants_noise:
        excess = grad * (over_variance * residual - 1)
        grad_noise = excess.sum_to_size(noise.shape) * (0.5 * noise / variance)
    return torch.mul(grad, over_variance).neg(), grad_noise


@final
class Gaussian(RealLikelihood):
    r"""Gaussian noise with one learned variance per output.

    :math:`y \sim N(\mu_y + \sigma_y f, \, \sigma_y^2 \sigma^2)`.

    Args:
        num_outputs: Number of target columns.
        batch_shape: ``(R,)`` for R replicas.
        log_noise_variance: Initial :math:`\log \sigma^2`, in units of the standardized targets.
        device, dtype: Of parameters and buffers.
    """

    def __init__(
        self,
        num_outputs: int = 1,
        *,
        batch_shape: tuple[int, ...] = (),
        log_noise_variance: float = -2.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_outputs, batch_shape, device, dtype)
        self.log_noise_variance = self._parameter(log_noise_variance)

    @property
    def noise_scale(self) -> Tensor:
        """Standard deviation of the noise in the units of ``y``, ``(*batch_shape, O)``."""
        return (self.log_noise_variance.exp() + MIN_NOISE_VARIANCE).sqrt() * self.target_scale

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        z, target_scale = self._standardized(f, y)
        log_noise_variance = self._per_row(self.log_noise_variance)
        if is_tracing() or is_transformed() or z.requires_grad:
            variance = log_noise_variance.exp() + MIN_NOISE_VARIANCE
            return self._over_outputs(gaussian_log_prob(f - z, variance, target_scale))
        # apply() is not annotated in torch.
        values = cast(Tensor, _LogProb.apply(f, log_noise_variance, z, target_scale))  # type: ignore[no-untyped-call]
        return self._over_outputs(values)

    def vjp(self, f: Tensor, y: Tensor) -> tuple[Tensor, Vjp]:
        """See :meth:`Likelihood.vjp`; by hand."""
        z, target_scale = self._standardized(f, y)
        parameter = self.log_noise_variance
        kept = _residual(f, self._per_row(parameter), z)
        values = gaussian_log_prob(*kept[:2], target_scale)

        def vjp(grad: Tensor) -> list[Gradient]:
            to_f, to_noise = _backward(kept, grad.unsqueeze(-1), parameter.requires_grad)
            return [to_f, None if to_noise is None else to_noise.view_as(parameter)]

        return self._over_outputs(values), vjp

    def predictive(self, f: Tensor) -> Predictive:
        loc, target_scale = self._in_units(f)
        variance = self.log_noise_variance.double().exp() + MIN_NOISE_VARIANCE
        scale = self._per_row(variance.sqrt()) * target_scale
        return self._mixture(Predictive.gaussian, loc, scale)


@final
class HeteroscedasticGaussian(RealLikelihood):
    r"""Gaussian noise whose log variance is a second output of the network.

    Features are ``num_outputs`` means, then ``num_outputs`` raw log variances :math:`r`:
    :math:`\log \sigma^2 = b \tanh((\lambda + r) / b)` with a learned level :math:`\lambda` per
    output. It stays within :math:`\pm b` and is close to :math:`\lambda + r` near zero.

    Args:
        num_outputs: Number of target columns; the network has twice as many features.
        batch_shape: ``(R,)`` for R replicas.
        log_noise_variance: Initial level, in units of the standardized targets.
        bound: ``b``; 15 allows noise from 6e-4 to 1800 standard deviations of the target.
        device, dtype: Of parameters and buffers.
    """

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
        super().__init__(num_outputs, batch_shape, device, dtype)
        check_positive("bound", bound)
        self.bound = bound
        self.log_noise_variance = self._parameter(log_noise_variance)

    @property
    def num_features(self) -> int:
        """Means and raw log variances."""
        return 2 * self.num_outputs

    def noise_variance(self, f: Tensor) -> Tensor:
        """Return ``σ²`` of every row, standardized units, shape ``(*batch_shape, S, N, O)``."""
        return (self.bound * self._bent(f)).exp()

    def _bent(self, f: Tensor) -> Tensor:
        """Return ``tanh((λ + r) / b)``."""
        raw = f[..., self.num_outputs :] + self._per_row(self.log_noise_variance)
        return torch.tanh(raw / self.bound)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        z, target_scale = self._standardized(f, y)
        mean, variance = f[..., : self.num_outputs], self.noise_variance(f)
        return self._over_outputs(gaussian_log_prob(mean - z, variance, target_scale))

    def vjp(self, f: Tensor, y: Tensor) -> tuple[Tensor, Vjp]:
        """See :meth:`Likelihood.vjp`; by hand."""
        values, _, vjp = self.vjp_and_variance(f, y)
        return values, vjp

    def vjp_and_variance(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Vjp]:
        """Return the same with :meth:`noise_variance` in between, which both are made of."""
        z, target_scale = self._standardized(f, y)
        bent = self._bent(f)
        variance = (self.bound * bent).exp()
        residual = f[..., : self.num_outputs] - z
        values = gaussian_log_prob(residual, variance, target_scale)
        parameter = self.log_noise_variance

        def vjp(grad: Tensor) -> list[Gradient]:
            grad = grad.unsqueeze(-1)
            over_variance = residual / variance
            half_excess = (over_variance * residual - 1).mul_(0.5)
            to_raw = (1 - bent.square()).mul_(half_excess).mul_(grad)
            to_f = torch.cat([torch.mul(grad, over_variance).neg_(), to_raw], -1)
            if not parameter.requires_grad:
                return [to_f, None]
            return [to_f, to_raw.sum((-3, -2)).view_as(parameter)]

        return self._over_outputs(values), variance, vjp

    def predictive(self, f: Tensor) -> Predictive:
        loc, target_scale = self._in_units(f)
        scale = self.noise_variance(f.double()).sqrt() * target_scale
        return self._mixture(Predictive.gaussian, loc, scale)

    def extra_repr(self) -> str:
        """Show the sizes and the bound."""
        return f"{super().extra_repr()}, bound={self.bound}"


@final
class BalancedGradients(LikelihoodWrapper):
    r"""A heteroscedastic likelihood whose gradients are weighted by ``w ∝ σ^{2γ}`` of mean 1.

    The gradient of the likelihood with respect to a mean is ``(y − m) / σ²``: rows that the
    network has declared noisy get small gradients, so their mean is never learned and they stay
    noisy. ``γ = 1`` gives the mean the gradient of least squares, ``γ = 0`` is the likelihood
    itself (Seitzer et al., 2022). Only gradients are weighted; values are those of ``inner``.

    Args:
        inner: The likelihood; its parameters are trained, and predictions are its own.
        balance: ``γ``.
    """

    inner: HeteroscedasticGaussian

    def __init__(self, inner: HeteroscedasticGaussian, *, balance: float = 0.5) -> None:
        super().__init__(inner)
        self.balance = balance

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Return ``log p(y | f)``, with weighted gradients."""
        value = self.inner.log_prob(f, y)
        weight = self._weight(self.inner.noise_variance(f.detach()))
        fixed = value.detach()
        return fixed + weight.detach() * (value - fixed)

    def vjp(self, f: Tensor, y: Tensor) -> tuple[Tensor, Vjp]:
        """See :meth:`Likelihood.vjp`; by hand."""
        value, variance, vjp = self.inner.vjp_and_variance(f, y)
        weight = self._weight(variance)
        return value, lambda grad: vjp(grad * weight)

    def _weight(self, variance: Tensor) -> Tensor:
        weight = self._over_outputs(variance) ** self.balance  # a mean would only scale it
        return weight / weight.mean((-2, -1), keepdim=True)
