r"""A layer of functions: ``f(x) = ψ(x)·a`` with random coefficients ``a``, prior ``N(0, I)``.

``ψ`` comes from random features ``φ(x) ∈ R^M`` in one of two ways:

- **plain**: ``a = w``, one coefficient per feature, ``ψ = φ``;
- **column** (section 2 of the paper): ``w = vec(W)``, ``W = √D diag(s1) H diag(g) H diag(s2)`` with
  ``D² ≥ M``; then ``a = g`` has only ``D ≈ √M`` entries and
  ``ψ_k(x) = √D Σ_i s1[i] H[i,k] (H (s2 * Φ_i))_k`` with ``Φ`` the ``D × D`` reshape of ``φ``.

The factor ``√D`` gives every weight the prior variance ``s1[i]² s2[j]²``, as in the plain case.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from whvi.checks import check_positive_int, next_power_of_two
from whvi.gp.features import RandomFeatures
from whvi.layers.protocol import BayesianLayer
from whvi.layers.weights import OutputMoments, check_draws_axis, lift
from whvi.noise import normal_from_seed
from whvi.posteriors import DiagonalGaussian, Posterior, PosteriorFactory, make_posterior
from whvi.priors import FixedPrior, Prior
from whvi.sampling import LocalReparameterization, MeanWeights, current_sampler
from whvi.transforms import fwht, hadamard_matrix

_SCALE_SPREAD = 0.1  # s1 and s2 start at 1 + 0.1 N(0, 1): not all basis functions are alike
_MEAN_STD, _POSTERIOR_SCALE = 0.01, 0.1  # of the coefficients at the start


class CoefficientMap(nn.Module, ABC):
    """From features to what multiplies the coefficients."""

    num_coefficients: int

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """Map ``φ (..., M)`` to ``ψ (..., O, K)``, or ``(..., 1, K)`` shared by the outputs."""

    @abstractmethod
    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Draw a new starting point."""


@final
class PlainMap(CoefficientMap):
    """One coefficient per feature: ``ψ = φ``.

    Args:
        num_features: ``M``.
    """

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_coefficients = num_features

    def forward(self, features: Tensor) -> Tensor:
        """Add the axis of outputs."""
        return features.unsqueeze(-2)

    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """There is nothing to set."""


@final
class ColumnMap(CoefficientMap):
    """The weights of each output are ``vec(W)`` of a ``D × D`` block: ``D`` coefficients.

    Args:
        num_features: ``M``; ``D`` is the smallest power of two with ``D² ≥ M``.
        num_outputs: ``O``; each output has its own ``s1`` and ``s2``, shape ``(O, D)``.
    """

    _hadamard: Tensor

    def __init__(self, num_features: int, num_outputs: int = 1) -> None:
        super().__init__()
        self.num_features = num_features
        self.num_coefficients = next_power_of_two(math.isqrt(num_features - 1) + 1)
        shape = (num_outputs, self.num_coefficients)
        hadamard = hadamard_matrix(self.num_coefficients, dtype=torch.float64)
        self.register_buffer("_hadamard", hadamard, persistent=False)
        self.s1 = nn.Parameter(torch.empty(shape, dtype=torch.float64))
        self.s2 = nn.Parameter(torch.empty(shape, dtype=torch.float64))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Draw ``s1`` and ``s2`` close to 1."""
        for scales in (self.s1, self.s2):
            scales.normal_(1.0, _SCALE_SPREAD, generator=generator)

    def forward(self, features: Tensor) -> Tensor:
        """See the module's docstring; ``O(M log M)`` per row and output."""
        D, square = self.num_coefficients, self.square(features)
        left = (self.s1.unsqueeze(-1) * self._hadamard * D**0.5).to(square.dtype)
        right = self.s2.to(square.dtype)
        outputs = [(fwht(square * s2) * s1_h).sum(-2) for s1_h, s2 in zip(left, right, strict=True)]
        return torch.stack(outputs, -2)

    def square(self, features: Tensor) -> Tensor:
        """Return ``Φ``: features ``(..., M)`` as squares ``(..., D, D)``, filled up with zeros."""
        D = self.num_coefficients
        missing = D * D - self.num_features
        filled = functional.pad(features, (0, missing)) if missing else features
        square: Tensor = filled.unflatten(-1, (D, D))
        return square

    def flat(self, square: Tensor) -> Tensor:
        """Return the ``M`` entries of a square ``(D, D)`` that belong to features."""
        return square.flatten()[: self.num_features]

    def unit_weights(self, g: Tensor) -> Tensor:
        """Return ``√D H diag(g) H``, shape ``(D, D)``: the weights for ``s1 = s2 = 1``."""
        weights: Tensor = self.num_coefficients**0.5 * (self._hadamard * g) @ self._hadamard
        return weights


@final
class FeatureLayer(BayesianLayer):
    """``f(x) = ψ(x)·a``: a Gaussian process by random features, or a layer of a deep one.

    Args:
        features: ``φ``; its lengthscales and variance are learned with the rest.
        num_outputs: ``O``: functions with their own coefficients, of the same features.
        structured: Whether the weights are ``vec(W)`` (:class:`ColumnMap`) or plain.
        posterior: Of the coefficients, per output: ``"diagonal"``, ``"full"``, ….
    """

    def __init__(
        self,
        features: RandomFeatures,
        num_outputs: int = 1,
        *,
        structured: bool = True,
        posterior: str | PosteriorFactory = "diagonal",
    ) -> None:
        super().__init__()
        check_positive_int("num_outputs", num_outputs)
        self.batch_shape = ()
        self.features = features
        self.num_outputs = num_outputs
        self.map: CoefficientMap
        if structured:
            self.map = ColumnMap(features.num_features, num_outputs)
        else:
            self.map = PlainMap(features.num_features)
        shape = (num_outputs, self.map.num_coefficients)
        # coefficients cancel each other: float64, whatever the features are
        self.posterior: Posterior = make_posterior(posterior, shape, dtype=torch.float64)
        self.prior: Prior = FixedPrior(1.0)
        self.reset_parameters()

    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Draw a new starting point of the scales and of the posterior; features stay."""
        self.map.reset_parameters(generator=generator)
        self.posterior.reset(_MEAN_STD, _POSTERIOR_SCALE, generator=generator)

    def basis(self, x: Tensor) -> Tensor:
        """Return ``ψ(x)``, shape ``(..., O or 1, K)``, of rows ``(..., d)``."""
        psi: Tensor = self.map(self.features.waves(x))
        return psi * self.features.scale.to(psi.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(*inner, d)`` to ``(*inner, O)``, float64; coefficients as the sampler says."""
        sampler = current_sampler()
        if isinstance(sampler, MeanWeights):
            return self.combine(self.basis(x), self.posterior.mean)
        if isinstance(sampler, LocalReparameterization):
            mean, variance = self.moments(self.basis(x))
            seed = sampler.next_seed()
            noise = normal_from_seed(mean.shape, seed, dtype=mean.dtype, device=mean.device)
            return mean + variance.sqrt() * noise
        check_draws_axis(x, sampler, ())
        draw = sampler.draw_once(
            self, lambda: self.posterior.rsample(sampler.sample_shape, generator=sampler.generator)
        )
        # rows that are the same for all draws have one basis
        shared = sampler.num_samples is not None and x.stride(0) == 0
        psi = self.basis(x[0]) if shared else self.basis(x)
        return self.combine(psi, lift(draw, 0, x.dim() - 1, 2))

    def combine(self, psi: Tensor, coefficients: Tensor) -> Tensor:
        """Return ``ψ·a``, shape ``(..., O)``, for ``ψ (..., O or 1, K)`` and ``a (..., O, K)``."""
        return (psi.double() * coefficients).sum(-1)

    def moments(self, psi: Tensor) -> OutputMoments:
        """Return mean ``ψ·E[a]`` and variance ``ψᵀ Σ ψ``, each ``(..., O)``."""
        return self.moments_function()(psi)

    def moments_function(self) -> Callable[[Tensor], OutputMoments]:
        """Return :meth:`moments` with what does not depend on ``ψ`` computed once."""
        mean = self.posterior.mean
        if isinstance(self.posterior, DiagonalGaussian):
            variance = self.posterior.variance
            return lambda psi: OutputMoments(
                self.combine(psi, mean), self.combine(psi.double().square(), variance)
            )
        # a sum of squares: nothing cancels, so it may have the precision of the features
        root = torch.linalg.cholesky(self.posterior.covariance()).to(self.features.dtype)

        def moments(psi: Tensor) -> OutputMoments:
            through = torch.einsum("...ok,okl->...ol", psi, root)
            return OutputMoments(self.combine(psi, mean), through.double().square().sum(-1))

        return moments

    def output_moments(self, x: Tensor) -> OutputMoments:
        """Return the exact mean and variance of ``f(x)``, each ``(*inner, O)``, in float64."""
        return self.moments(self.basis(x))

    def kl(self) -> Tensor:
        """Return ``KL(q(a) ‖ N(0, I))`` in nats."""
        return self.posterior.kl(self.prior)

    def kl_terms(self) -> list[tuple[Posterior, Prior]]:
        """Return posterior and prior of the coefficients."""
        return [(self.posterior, self.prior)]

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"num_outputs={self.num_outputs}, num_coefficients={self.map.num_coefficients}"
