r"""Models that are linear in their coefficients, with the best Gaussian ``q`` in closed form.

``y = ψ(x)·a + ε``, ``a ~ N(0, I)``, ``ε ~ N(0, σ²)``. With ``Λ = ΨᵀΨ/σ² + I`` and
``m = Λ⁻¹ Ψᵀy/σ²`` the bound, maximised over all ``q(a) = N(m, Σ)`` of one family, is

.. math:: -\tfrac N2 \log 2\pi\sigma^2 - \tfrac{y^\top y}{2\sigma^2} + \tfrac12 m^\top \Lambda m
    - \tfrac12 \log\det\Lambda

for full covariance (``Σ = Λ⁻¹``; the bound is the evidence), and with ``Σ_k log Λ_kk`` instead of
the log-determinant for diagonal covariance (``Σ_kk = 1/Λ_kk``, the same mean). The data enter by
``ΨᵀΨ``, ``Ψᵀy``, ``yᵀy`` and ``N`` only, which are summed over chunks of rows in float64: memory
grows with the chunk, not with ``N``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor

from whvi.errors import ConfigError, NumericalError, ShapeError
from whvi.gp.basis import Basis

COVARIANCES = ("diagonal", "full")

_CHUNK_ELEMENTS = 1 << 20  # features per chunk: 4 MB in float32, about a cache


class Statistics(NamedTuple):
    """What a linear model needs to know of its data, in float64."""

    gram: Tensor  # ΨᵀΨ, (K, K)
    projection: Tensor  # Ψᵀy, (K,)
    sum_squares: Tensor  # yᵀy, ()
    num_rows: float

    @classmethod
    def zeros(cls, num_coefficients: int) -> Statistics:
        """Return those of no rows."""
        zeros = torch.zeros(num_coefficients + 1, num_coefficients, dtype=torch.float64)
        return cls(zeros[1:], zeros[0], torch.zeros((), dtype=torch.float64), 0)

    def add(self, psi: Tensor, y: Tensor) -> Statistics:
        """Return those of these rows too: ``psi (n, K)`` of any float type, ``y (n,)``."""
        if psi.dim() != 2 or psi.shape[1:] != self.projection.shape or y.shape != psi.shape[:1]:
            raise ShapeError(
                f"psi must be (n, {len(self.projection)}) and y (n,), got {tuple(psi.shape)} and "
                f"{tuple(y.shape)}"
            )
        psi, y = psi.double(), y.double()
        return Statistics(
            self.gram + psi.T @ psi,
            self.projection + psi.T @ y,
            self.sum_squares + y @ y,
            self.num_rows + len(y),
        )

    def scaled(self, factor: float) -> Statistics:
        """Return what ``factor`` times as many rows of this kind would give."""
        return Statistics._make(factor * each for each in self)


class CoefficientPosterior(NamedTuple):
    """``q(a) = N(mean, Σ)``: ``Σ = diag(variance)``, or ``Σ = root rootᵀ`` if full."""

    mean: Tensor  # (K,)
    variance: Tensor  # (K,), the diagonal of Σ
    root: Tensor | None = None  # (K, K), or None for diagonal covariance


class CollapsedBound(NamedTuple):
    """The bound in nats over all rows, differentiable, and the ``q`` that attains it."""

    value: Tensor
    posterior: CoefficientPosterior


def collapsed_bound(
    statistics: Statistics,
    noise_variance: Tensor | float,
    covariance: str = "diagonal",
    *,
    prior_variance: Tensor | None = None,
) -> CollapsedBound:
    r"""Return the bound of the module's docstring and its posterior.

    ``prior_variance`` is ``k(x, x)`` of a Gaussian process of which ``ψ·a`` is only a part
    (inducing points). The rest costs ``Σ_n (k(x_n, x_n) − ‖ψ_n‖²) / 2σ²`` (Titsias, 2009).
    """
    if covariance not in COVARIANCES:
        raise ConfigError(f"covariance must be 'diagonal' or 'full', got {covariance!r}")
    gram, projection, sum_squares, num_rows = statistics
    noise = torch.as_tensor(noise_variance, dtype=torch.float64)
    precision = gram / noise + torch.eye(len(gram), dtype=torch.float64)
    factor, failed = torch.linalg.cholesky_ex(precision)
    if bool(failed) or not bool(torch.isfinite(factor).all()):
        raise NumericalError(
            f"ΨᵀΨ/σ² + I has no Cholesky factor at noise variance {noise.item():.3g}; standardise "
            f"inputs and targets, or raise the noise variance"
        )
    half = torch.linalg.solve_triangular(factor, (projection / noise).unsqueeze(-1), upper=False)
    mean = torch.linalg.solve_triangular(factor.T, half, upper=True).squeeze(-1)
    root = None
    if covariance == "full":
        log_det = 2 * factor.diagonal().log().sum()
        identity = torch.eye(len(gram), dtype=torch.float64)
        root = torch.linalg.solve_triangular(factor.detach().T, identity, upper=True)
        variance = root.square().sum(-1)
    else:
        log_det = precision.diagonal().log().sum()
        variance = precision.detach().diagonal().reciprocal()
    fit = half.square().sum() - sum_squares / noise - num_rows * (2 * math.pi * noise).log()
    value = 0.5 * (fit - log_det)
    if prior_variance is not None:
        value = value - (num_rows * prior_variance - gram.trace()) / (2 * noise)
    return CollapsedBound(value, CoefficientPosterior(mean.detach(), variance, root))


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

    ``log_noise_variance`` is a leaf. With ``num_data`` the ``n`` rows stand for ``N``: the
    statistics count ``N/n`` times.
    """
    factor = 1.0 if num_data is None else num_data / len(y)
    statistics = stream_statistics(basis, x, y).scaled(factor)
    sums = (statistics.gram.requires_grad_(), statistics.projection.requires_grad_())
    noise, prior = log_noise_variance.exp(), basis.prior_variance()
    bound = collapsed_bound(statistics, noise, covariance, prior_variance=prior)
    bound.value.backward()
    to_gram, to_projection = (cast(Tensor, leaf.grad) for leaf in sums)
    both, to_projection = factor * (to_gram + to_gram.T), factor * to_projection
    operands = basis.operands()
    leaves = tuple(each.detach().requires_grad_(each.requires_grad) for each in operands)
    for part_x, part_y in chunks(basis, x, y):
        psi = basis.evaluate(part_x, leaves)
        incoming = psi.detach().double() @ both + part_y.double().unsqueeze(-1) * to_projection
        psi.backward(incoming.to(psi.dtype))
    pairs = zip(operands, leaves, strict=True)
    trained = [(each, leaf.grad) for each, leaf in pairs if each.requires_grad]
    torch.autograd.backward([each for each, _ in trained], [slope for _, slope in trained])
    return bound.value.detach()
