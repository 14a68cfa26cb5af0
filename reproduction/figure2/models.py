r"""The bases of Figure 2, ``f(x) = ψ(x)·a``: waves with frequencies of their own, inducing points.

- :func:`waves`: ``ψ`` of cosines and sines whose frequencies every start draws anew, from a mixture
  of RBF kernels: ``ω = e^u z``, ``u ~ U(-1, 1)``, ``z ~ N(0, I)``.
- :class:`InducingBasis`: ``ψ(x) = k(x, Z) L^{-T}`` with ``L Lᵀ = k(Z, Z)`` makes the inducing
  variables ``a = L⁻¹ f(Z)`` a priori standard normal. The kernel is ``σ_f² exp(−‖(x − z)/ℓ‖²/2)``,
  everything is float64. With full covariance the bound is that of Titsias (2009).
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from whvi._checks import check_last_dim, check_positive_int
from whvi.errors import NumericalError
from whvi.gp.basis import Basis, FeatureBasis, Operands, Weights
from whvi.gp.collapsed import chunks
from whvi.gp.features import RandomFeatures
from whvi.gp.optimise import CollapsedFit
from whvi.gp.projections import Projection

_JITTER = 1e-9  # relative to σ_f²; a larger one visibly limits the accuracy
_LLOYD_STEPS = 20


@final
class MixtureProjection(Projection):
    r"""``Ω`` as float64 parameters that every start draws anew: a mixture of RBF kernels.

    Lengthscales between ``1/e`` and ``e``, slow and fast waves side by side, give a higher bound
    than one lengthscale.

    Args:
        in_features, num_frequencies: ``d`` and ``J``.
        learned: Whether the frequencies are trained (Lázaro-Gredilla et al., 2010).
    """

    def __init__(self, in_features: int, num_frequencies: int, *, learned: bool = False) -> None:
        super().__init__()
        self.in_features, self.num_frequencies = in_features, num_frequencies
        zeros = torch.zeros(in_features, num_frequencies, dtype=torch.float64)
        self.frequencies = nn.Parameter(zeros, requires_grad=learned)
        self.learned = learned

    def scaling(self, inverse_lengthscale: Tensor) -> Tensor:
        """Return ``diag(1/ℓ) Ω``, shape ``(d, J)``: it is rounded after the product."""
        return inverse_lengthscale.unsqueeze(-1) * self.frequencies

    def phases(self, x: Tensor, scaling: Tensor, dtype: torch.dtype) -> Tensor:
        """See :meth:`Projection.phases`."""
        return x.to(dtype) @ scaling.to(dtype)

    def learned_frequencies(self) -> list[nn.Parameter]:
        """See :meth:`Projection.learned_frequencies`."""
        return [self.frequencies] if self.learned else []

    @torch.no_grad()
    def restart(self, generator: torch.Generator) -> None:
        """See :meth:`Projection.restart`."""
        normal = torch.randn(self.frequencies.shape, generator=generator, dtype=torch.float64)
        uniform = torch.rand(self.num_frequencies, generator=generator, dtype=torch.float64)
        self.frequencies.copy_(normal * (2 * uniform - 1).exp())

    def forward(self, x: Tensor) -> Tensor:
        """Return ``xΩ``."""
        return x @ self.frequencies


def waves(
    num_inputs: int,
    weights: Weights,
    *,
    learned: bool = False,
    dtype: torch.dtype = torch.float32,
) -> FeatureBasis:
    """Return cosines and sines whose frequencies every start draws anew, perhaps to learn them."""
    size = weights.num_features
    projection = MixtureProjection(num_inputs, size // 2, learned=learned)
    features = RandomFeatures(num_inputs, size, projection=projection, dtype=dtype)
    return FeatureBasis(features, weights)


@final
class InducingBasis(Basis):
    """``K`` inducing points with learned locations ``Z``.

    Args:
        num_inputs: ``d``.
        num_inducing: ``K``.
    """

    def __init__(self, num_inputs: int, num_inducing: int) -> None:
        super().__init__()
        check_positive_int("num_inputs", num_inputs)
        check_positive_int("num_inducing", num_inducing)
        self.num_coefficients = num_inducing
        self.row_elements = 4 * num_inducing  # distances and kernel values
        zeros = torch.zeros(num_inducing, num_inputs, dtype=torch.float64)
        self.locations = nn.Parameter(zeros)
        self.log_lengthscale = nn.Parameter(torch.zeros(num_inputs, dtype=torch.float64))
        self.log_variance = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def trained_parameters(self) -> list[nn.Parameter]:
        """Locations, lengthscales and variance."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def prior_variance(self) -> Tensor:
        """``k(x, x) = σ_f²``."""
        return self.log_variance.exp()

    @torch.no_grad()
    def restart(self, x: Tensor, generator: torch.Generator) -> None:
        """Put the locations at the centres of clusters of ``x``; ``ℓ = √d``, ``σ_f = 1``."""
        self.locations.copy_(cluster_centres(x, len(self.locations), generator))
        self.log_lengthscale.fill_(0.5 * math.log(x.shape[-1]))
        self.log_variance.zero_()

    def operands(self) -> Operands:
        """Return ``1/ℓ``, ``Z/ℓ``, the Cholesky factor of ``k(Z, Z)/σ_f²`` and ``σ_f``."""
        unit = (-self.log_lengthscale).exp()
        centres = self.locations * unit
        identity = torch.eye(len(centres), dtype=torch.float64)
        inner = _rbf(centres, centres) + _JITTER * identity
        factor, failed = torch.linalg.cholesky_ex(inner)
        if bool(failed):
            raise NumericalError(
                "the kernel matrix of the inducing points has no Cholesky factor: some coincide"
            )
        return unit, centres, factor, (0.5 * self.log_variance).exp()

    def evaluate(self, x: Tensor, operands: Operands) -> Tensor:
        """Return ``k(x, Z) L^{-T}``."""
        check_last_dim("x", x, self.locations.shape[-1])
        unit, centres, factor, scale = operands
        cross = _rbf(centres, x.double() * unit)
        psi: Tensor = scale * torch.linalg.solve_triangular(factor, cross, upper=False).T
        return psi


def _rbf(a: Tensor, b: Tensor) -> Tensor:
    """``exp(−‖a − b‖²/2)`` of all pairs."""
    squares = a.square().sum(-1, keepdim=True) + b.square().sum(-1) - 2 * a @ b.T
    return (-0.5 * squares.clamp_min(0)).exp()


def cluster_centres(x: Tensor, num_centres: int, generator: torch.Generator) -> Tensor:
    """Return centres by Lloyd's algorithm from random rows, shape ``(num_centres, d)``.

    With fewer rows than centres, rows repeat with a little noise.
    """
    rows = torch.randperm(len(x), generator=generator)[:num_centres]
    if len(rows) < num_centres:
        rows = torch.randint(len(x), (num_centres,), generator=generator)
    noise = torch.randn(num_centres, x.shape[-1], generator=generator, dtype=torch.float64)
    centres = x[rows].double() + 1e-3 * noise
    for _ in range(_LLOYD_STEPS):
        nearest = torch.cdist(x.double(), centres).argmin(-1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, x.double())
        counts = torch.bincount(nearest, minlength=num_centres).unsqueeze(-1)
        centres = torch.where(counts > 0, sums / counts.clamp_min(1), centres)
    return centres


@torch.no_grad()
def function_moments(fit: CollapsedFit, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the function (no noise) at ``x (N, d)``, float64."""
    basis, (mean, diagonal, root) = fit.basis, fit.posterior
    prior, operands = basis.prior_variance(), basis.operands()
    means, variances = [], []
    for (part,) in chunks(basis, x):
        psi = basis.evaluate(part, operands).double()
        variance = psi.square() @ diagonal if root is None else (psi @ root).square().sum(-1)
        if prior is not None:
            variance = variance + (prior - psi.square().sum(-1)).clamp_min(0)
        means.append(psi @ mean)
        variances.append(variance)
    return torch.cat(means), torch.cat(variances)
