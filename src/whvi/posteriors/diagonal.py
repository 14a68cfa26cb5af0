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

from whvi._kernel.backend import is_tracing, is_transformed, kernel, kernel_takes
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
        return sum_of_kls([(self, prior)])


_FUSED_PRIORS = (EmpiricalBayesPrior, FixedPrior, LearnedPrior)


def sum_of_kls(pairs: Sequence[tuple[Posterior, Prior]]) -> Tensor:
    """Return ``Σ KL(q ‖ p)`` over pairs of one ``batch_shape``, shape ``batch_shape``.

    All fully factorized pairs share one autograd node: in training, nodes are what a KL costs.
    """
    plain = is_tracing() or is_transformed()
    together: list[tuple[DiagonalGaussian, Prior]] = []
    terms: list[Tensor] = []
    for q, p in pairs:
        if not isinstance(q, DiagonalGaussian):
            terms.append(q.kl(p))
        elif plain or not isinstance(p, _FUSED_PRIORS):
            terms.append(Posterior.kl(q, p))
        else:
            together.append((q, p))
    if together:
        triples = [(q.loc, q.log_scale, getattr(p, "log_variance", None)) for q, p in together]
        terms.append(fused_kls([p for _, p in together], triples))
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def fused_kls(
    priors: Sequence[Prior], triples: Sequence[tuple[Tensor, Tensor, Tensor | None]]
) -> Tensor:
    """Return ``Σ KL(N(μ, σ²) ‖ N(0, λ I))``, shape ``batch_shape``, as one autograd node.

    Args:
        priors: Of this library, one for each term.
        triples: ``(μ, log σ, log λ)`` of each term: two of shape ``(*batch_shape, K, D)``, and
            ``log λ`` if gradients have to reach it, else ``None``.
    """
    flat = [tensor for triple in triples for tensor in triple]
    # apply() is not annotated in torch.
    return cast(Tensor, _SumOfKLs.apply(priors, *flat))  # type: ignore[no-untyped-call]


class _SumOfKLs(torch.autograd.Function):
    """The equations at the top of this file, in as few operations as they need."""

    @staticmethod
    def forward(ctx: Any, priors: Sequence[Prior], *tensors: Any) -> Tensor:
        ctx.priors = priors
        locs, log_scales, log_variances = tensors[::3], tensors[1::3], tensors[2::3]
        fixed = all(t is None for t in log_variances)
        ctx.in_kernel = fixed and all(map(kernel_takes, (*locs, *log_scales)))
        if ctx.in_kernel:
            total, kept = kl_in_kernel(priors, locs, log_scales)
        else:
            total, kept = _sum_in_torch(priors, locs, log_scales), []
        ctx.save_for_backward(*tensors, *kept)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        count = 3 * len(ctx.priors)
        tensors, kept = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        gradients: list[Tensor | None] = []
        if ctx.in_kernel and not torch.is_grad_enabled():
            locs, log_scales = tensors[::3], tensors[1::3]
            into = [(torch.zeros_like(loc), torch.zeros_like(loc)) for loc in locs]
            add_kl_gradients(grads[0], locs, log_scales, kept, into)
            for to_loc, to_scale in into:
                gradients += [to_loc, to_scale, None]
            return (None, *gradients)
        for i, prior in enumerate(ctx.priors):
            loc, log_scale, log_variance = tensors[3 * i : 3 * i + 3]
            # with create_graph=True intermediates carry gradients too: compute them again
            variance, mean_square = _moments(loc, log_scale)
            gradients += _gradients(grads[0], prior, loc, log_variance, variance, mean_square)
        return (None, *gradients)


def _sum_in_torch(
    priors: Sequence[Prior], locs: Sequence[Tensor], log_scales: Sequence[Tensor]
) -> Tensor:
    terms = []
    for prior, loc, log_scale in zip(priors, locs, log_scales, strict=True):
        _, mean_square = _moments(loc, log_scale)
        terms.append(prior.kl(mean_square, log_scale.sum((-2, -1)), loc.shape[-2] * loc.shape[-1]))
    return torch.stack(terms).sum(0) if len(terms) > 1 else terms[0]


def kl_in_kernel(
    priors: Sequence[Prior], locs: Sequence[Tensor], log_scales: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Return the sum of KLs, formed in float64, and the prior variances ``λ`` of each term.

    Outside autograd; priors are fixed or empirical Bayes, tensors such that the kernel takes them.
    """
    assert kernel is not None  # the caller has asked kernel_takes
    batch_shape = locs[0].shape[:-2]
    replicas = math.prod(batch_shape)
    total, *variances = torch.zeros(len(priors) + 1, replicas, dtype=torch.float64).unbind()
    for prior, variance, loc, log_scale in zip(priors, variances, locs, log_scales, strict=True):
        if isinstance(prior, FixedPrior):
            variance.fill_(prior.fixed_variance)
        loc, log_scale = loc.contiguous(), log_scale.contiguous()
        kernel.diagonal_kl(
            loc.element_size(), replicas, loc.shape[-2] * loc.shape[-1],
            loc.data_ptr(), log_scale.data_ptr(), variance.data_ptr(), total.data_ptr(),
        )  # fmt: skip
    return total.to(locs[0].dtype).view(batch_shape), variances


def add_kl_gradients(
    grad: Tensor,
    locs: Sequence[Tensor],
    log_scales: Sequence[Tensor],
    variances: Sequence[Tensor],
    into: Sequence[tuple[Tensor, Tensor]],
) -> None:
    """Add the gradients of :func:`kl_in_kernel` times ``grad (*batch_shape)`` to ``into``.

    ``into`` has a pair for ``loc`` and ``log_scale`` of each term, contiguous.
    """
    assert kernel is not None  # forward ran in it
    grads = grad.double().contiguous()
    for loc, log_scale, variance, (to_loc, to_scale) in zip(
        locs, log_scales, variances, into, strict=True
    ):
        loc, log_scale = loc.contiguous(), log_scale.contiguous()
        kernel.diagonal_kl_backward(
            loc.element_size(), grads.numel(), loc.shape[-2] * loc.shape[-1],
            loc.data_ptr(), log_scale.data_ptr(), variance.data_ptr(), grads.data_ptr(),
            to_loc.data_ptr(), to_scale.data_ptr(),
        )  # fmt: skip


def _gradients(
    grad: Tensor,
    prior: Prior,
    loc: Tensor,
    log_variance: Tensor | None,
    variance: Tensor,
    mean_square: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of one term with respect to ``μ``, ``log σ`` and ``log λ``."""
    prior_variance = prior.variance(mean_square) if log_variance is None else log_variance.exp()
    over_variance = _per_replica(grad / prior_variance)
    grad_loc = loc * over_variance
    grad_log_scale = variance * over_variance - _per_replica(grad)
    if log_variance is None:
        return grad_loc, grad_log_scale, None
    n = loc.shape[-2] * loc.shape[-1]
    grad_log_variance = 0.5 * n * grad * (1 - mean_square / prior_variance)
    return grad_loc, grad_log_scale, grad_log_variance.sum_to_size(log_variance.shape)


def _moments(loc: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``σ²`` and the mean of ``μ² + σ²`` over the entries of a replica."""
    scale = log_scale.exp()
    variance = scale * scale  # half the time of square() or of exp(2 * log_scale) when D is small
    return variance, torch.addcmul(variance, loc, loc).mean((-2, -1))


def _per_replica(x: Tensor) -> Tensor:
    """Let a tensor of shape ``batch_shape`` broadcast against ``(*batch_shape, K, D)``."""
    return x[..., None, None] if x.dim() else x
