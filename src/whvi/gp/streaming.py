"""Statistics, bound and gradients over chunks of rows: memory grows with the chunk, not with N."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from whvi.gp.bases import Basis
from whvi.gp.collapsed import CoefficientPosterior, Statistics, collapsed_bound

_CHUNK_ELEMENTS = 1 << 20  # features per chunk: 4 MB in float32, about a cache


def chunks(basis: Basis, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut tensors of one length into pieces whose features fit in the cache."""
    rows = max(_CHUNK_ELEMENTS // basis.row_elements, 1)
    yield from zip(*(tensor.split(rows) for tensor in tensors), strict=True)


@torch.no_grad()
def stream_statistics(basis: Basis, x: Tensor, y: Tensor) -> Statistics:
    """Sum ``ΨᵀΨ``, ``Ψᵀy`` and ``yᵀy`` over the rows ``x (N, d)``, ``y (N,)``."""
    statistics = Statistics.zeros(basis.num_coefficients)
    for part_x, part_y in chunks(basis, x, y):
        statistics = statistics.add(basis(part_x), part_y)
    return statistics


def bound_with_gradients(
    basis: Basis,
    log_noise_variance: Tensor,
    x: Tensor,
    y: Tensor,
    covariance: str = "diagonal",
    *,
    num_data: int | None = None,
) -> Tensor:
    r"""Return the bound and add its gradients to ``.grad`` of the parameters.

    The bound depends on the rows through the statistics alone, so one pass sums them, the bound is
    differentiated with respect to them, and a second pass sends
    ``∂bound/∂ψ_n = 2 ψ_n ∂bound/∂(ΨᵀΨ) + y_n ∂bound/∂(Ψᵀy)`` through each chunk.

    Args:
        basis: Its parameters that require gradients receive them.
        log_noise_variance: ``log σ²``, a leaf.
        x, y: Rows ``(n, d)`` and targets ``(n,)``.
        covariance: ``"diagonal"`` or ``"full"``.
        num_data: N, if the rows stand for more than themselves: the statistics count N/n times.
    """
    factor = 1.0 if num_data is None else num_data / len(y)
    gram, projection, sum_squares, num_rows = stream_statistics(basis, x, y).scaled(factor)
    gram.requires_grad_()
    projection.requires_grad_()
    bound = collapsed_bound(
        Statistics(gram, projection, sum_squares, num_rows),
        log_noise_variance.exp(),
        covariance,
        prior_variance=basis.prior_variance(),
    )
    bound.value.backward()
    assert gram.grad is not None  # both are leaves of the bound
    assert projection.grad is not None
    both = factor * (gram.grad + gram.grad.T)
    for part_x, part_y in chunks(basis, x, y):
        psi = basis(part_x)
        incoming = psi.detach().double() @ both
        incoming += factor * part_y.double().unsqueeze(-1) * projection.grad
        psi.backward(incoming.to(psi.dtype))
    return bound.value.detach()


@torch.no_grad()
def stream_moments(
    basis: Basis, posterior: CoefficientPosterior, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the function (no noise) at ``x (N, d)``, float64."""
    means, variances = [], []
    prior = basis.prior_variance()
    for (part,) in chunks(basis, x):
        psi = basis(part)
        mean, variance = posterior.function_moments(psi)
        if prior is not None:
            variance = variance + (prior - psi.square().sum(-1)).clamp_min(0)
        means.append(mean)
        variances.append(variance)
    return torch.cat(means), torch.cat(variances)
