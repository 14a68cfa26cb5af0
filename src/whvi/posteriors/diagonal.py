r"""The fully factorized Gaussian ``q(g) = N(μ, diag(σ²))`` and its KL as one autograd node.

    KL = ½ Σ_k [ (μ_k² + σ_k²)/λ − 1 − log(σ_k²/λ) ]
    ∂KL/∂μ = μ/λ,   ∂KL/∂log σ = σ²/λ − 1,   ∂KL/∂log λ = ½ n (1 − mean(μ² + σ²)/λ)

The first two gradients hold for a given ``λ`` and, by the envelope theorem, also for the
empirical-Bayes ``λ*``, where the third is zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast, final

import torch
from torch import Tensor

from whvi.posteriors.base import (
    Device,
    Posterior,
    check_shape,
    check_start,
    empty_parameter,
    standard_normal,
)
from whvi.priors import EmpiricalBayesPrior, FixedPrior, LearnedPrior, Prior


@final
class DiagonalGaussian(Posterior):
    """``g = μ + σ ⊙ ε``, with ``μ = loc`` and ``σ = exp(log_scale)``, each of shape ``shape``.

    Args:
        shape: ``(*batch_shape, K, D)``.
    """

    def __init__(
        self, shape: Sequence[int], *, device: Device = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        shape = check_shape(shape)
        self.loc = empty_parameter(shape, device, dtype)
        self.log_scale = empty_parameter(shape, device, dtype)
        self.reset(1.0, 0.1)

    @torch.no_grad()
    def reset(
        self, mean_std: float, scale: float, *, generator: torch.Generator | None = None
    ) -> None:
        """Draw ``μ ~ N(0, mean_std²)`` and set ``σ = scale``."""
        check_start(mean_std, scale)
        self.loc.normal_(0.0, mean_std, generator=generator)
        self.log_scale.fill_(math.log(scale))

    @property
    def mean(self) -> Tensor:
        """``μ``."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """``σ²``."""
        return torch.exp(2 * self.log_scale)

    def covariance(self) -> Tensor:
        """Return ``diag(σ²)``."""
        return torch.diag_embed(self.variance)

    def log_volume(self) -> Tensor:
        """Return ``Σ_k log σ_k``."""
        return self.log_scale.sum((-2, -1))

    def _draw(self, num_draws: int, generator: torch.Generator | None) -> Tensor:
        shape = (*self.batch_shape, num_draws, *self.shape[-2:])
        noise = standard_normal(self.loc, shape, generator)
        return torch.addcmul(self.loc.unsqueeze(-3), self.log_scale.exp().unsqueeze(-3), noise)

    def kl(self, prior: Prior, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the exact KL, as one autograd node where that is possible."""
        if not isinstance(prior, _FUSED_PRIORS) or _is_transformed():
            return super().kl(prior)
        log_variance = prior.log_variance if isinstance(prior, LearnedPrior) else None
        return fused_kl(self.loc, self.log_scale, log_variance, prior)


_FUSED_PRIORS = (EmpiricalBayesPrior, FixedPrior, LearnedPrior)


def _is_transformed() -> bool:
    """Tell whether torch.compile or torch.func looks at the code: they want plain operations."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def fused_kl(loc: Tensor, log_scale: Tensor, log_variance: Tensor | None, prior: Prior) -> Tensor:
    """Return ``KL(N(μ, σ²) ‖ N(0, λ I))``, shape ``batch_shape``, as one autograd node.

    Args:
        loc, log_scale: ``μ`` and ``log σ``, shape ``(*batch_shape, K, D)``.
        log_variance: ``log λ`` if gradients have to reach it, else ``None``.
        prior: One of the priors of this library.
    """
    # apply() is not annotated in torch.
    return cast(Tensor, _DiagonalKL.apply(loc, log_scale, log_variance, prior))  # type: ignore[no-untyped-call]


class _DiagonalKL(torch.autograd.Function):
    """The equations at the top of this file, in as few operations as they need."""

    @staticmethod
    def forward(
        ctx: Any, loc: Tensor, log_scale: Tensor, log_variance: Tensor | None, prior: Prior
    ) -> Tensor:
        n = loc.shape[-2] * loc.shape[-1]
        variance, mean_square = _moments(loc, log_scale)
        ctx.prior, ctx.n = prior, n
        ctx.save_for_backward(
            loc, log_scale, log_variance, variance, mean_square, prior.variance(mean_square)
        )
        return prior.kl(mean_square, log_scale.sum((-2, -1)), n)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        loc, log_scale, log_variance, variance, mean_square, prior_variance = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: intermediates must carry gradients too
            variance, mean_square = _moments(loc, log_scale)
            if log_variance is None:
                prior_variance = ctx.prior.variance(mean_square)
            else:
                prior_variance = log_variance.exp()
        grad_over_variance = _per_replica(grad / prior_variance)
        grad_loc = loc * grad_over_variance
        grad_log_scale = variance * grad_over_variance - _per_replica(grad)
        if log_variance is None:
            return grad_loc, grad_log_scale, None, None
        grad_log_variance = 0.5 * ctx.n * grad * (1 - mean_square / prior_variance)
        return grad_loc, grad_log_scale, grad_log_variance.sum_to_size(log_variance.shape), None


def _moments(loc: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``σ²`` and the mean of ``μ² + σ²`` over the entries of a replica."""
    scale = log_scale.exp()
    variance = scale * scale  # half the time of square() or of exp(2 * log_scale) when D is small
    return variance, torch.addcmul(variance, loc, loc).mean((-2, -1))


def _per_replica(x: Tensor) -> Tensor:
    """Let a tensor of shape ``batch_shape`` broadcast against ``(*batch_shape, K, D)``."""
    return x[..., None, None] if x.dim() else x
