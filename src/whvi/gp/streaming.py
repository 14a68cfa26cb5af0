"""Statistics, bound and gradients over chunks of rows: memory grows with the chunk, not with N."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from whvi.gp.basis import Basis
from whvi.gp.collapsed import CoefficientPosterior, Statistics, collapsed_bound

_CHUNK_ELEMENTS = 1 << 20  # features per chunk: 4 MB in float32, about a cache


def chunks(basis: Basis, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut tensors of one length into pieces whose features fit in the cache.

    A piece has at least as many rows as there are coefficients: it pays for its Gram matrix.
    """
    rows = max(_CHUNK_ELEMENTS // basis.row_elements, basis.num_coefficients)
    yield from zip(*(tensor.split(rows) for tensor in tensors), strict=True)


@torch.no_grad()
def stream_statistics(basis: Basis, x: Tensor, y: Tensor) -> Statistics:
    """Sum ``ΨᵀΨ``, ``Ψᵀy`` and ``yᵀy`` over the rows ``x (N, d)``, ``y (N,)``."""
    statistics, operands = Statistics.zeros(basis.num_coefficients), basis.operands()
    for part_x, part_y in chunks(basis, x, y):
        statistics = statistics.add(basis.evaluate(part_x, operands), part_y)
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
    ``∂bound/∂ψ_n = 2 ψ_n ∂bound/∂(ΨᵀΨ) + y_n ∂bound/∂(Ψᵀy)`` through each chunk, down to the
    operands of the basis; these pass the sum over all chunks on to the parameters.

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
    both, to_projection = factor * (gram.grad + gram.grad.T), factor * projection.grad
    operands = basis.operands()
    leaves = tuple(each.detach().requires_grad_(each.requires_grad) for each in operands)
    for part_x, part_y in chunks(basis, x, y):
        psi = basis.evaluate(part_x, leaves)
        incoming = psi.detach().double() @ both + part_y.double().unsqueeze(-1) * to_projection
        psi.backward(incoming.to(psi.dtype))
    trained = [(each, leaf.grad) for each, leaf in zip(operands, leaves, strict=True)]
    torch.autograd.backward(
        [each for each, _ in trained if each.requires_grad],
        [gradient for each, gradient in trained if each.requires_grad],
    )
    return bound.value.detach()


@torch.no_grad()
def stream_moments(
    basis: Basis, posterior: CoefficientPosterior, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the function (no noise) at ``x (N, d)``, float64."""
    means, variances = [], []
    prior, operands = basis.prior_variance(), basis.operands()
    for (part,) in chunks(basis, x):
        psi = basis.evaluate(part, operands)
        mean, variance = posterior.function_moments(psi)
        if prior is not None:
            variance = variance + (prior - psi.square().sum(-1)).clamp_min(0)
        means.append(mean)
        variances.append(variance)
    return torch.cat(means), torch.cat(variances)
