r"""Layers of functions: one Gaussian process by random features, or several of them stacked.

- :class:`FeatureLayer`: ``f(x) = ψ(x)·a`` with random coefficients ``a``, prior ``N(0, I)``, and
  ``ψ`` of :mod:`whvi.gp.basis`.
- :class:`DeepGP` (Cutajar et al., 2017): the output of a layer, together with the inputs, is the
  input of the next one. Passing the inputs along keeps deep priors from collapsing to constants
  (Duvenaud et al., 2014):

.. math:: h_l = W_l\, \varphi_l([h_{l-1}, x]), \qquad f = w^\top \varphi_L([h_{L-1}, x]) .
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor, nn

from whvi._checks import check_positive_int
from whvi._kernel.noise import normal_from_seed
from whvi.errors import ConfigError
from whvi.gp.basis import ColumnWeights, FeatureBasis, PlainWeights, combine
from whvi.gp.collapsed import CoefficientPosterior
from whvi.gp.features import Kernel, RandomFeatures
from whvi.layers import MeanFieldLinear, WHVILinear
from whvi.layers.matrix import OutputMoments
from whvi.layers.protocol import BayesianLayer
from whvi.layers.structured import StructuredMatrix
from whvi.posteriors import (
    DiagonalGaussian,
    FullGaussian,
    Posterior,
    PosteriorFactory,
    make_posterior,
)
from whvi.priors import FixedPrior, Prior
from whvi.sampling import (
    LocalReparameterization,
    MeanWeights,
    check_draws_axis,
    current_sampler,
    insert_inner_axes,
)

_MEAN_STD, _POSTERIOR_SCALE = 0.01, 0.1  # of the coefficients at the start


@final
class FeatureLayer(BayesianLayer):
    """``f(x) = ψ(x)·a``: a Gaussian process by random features, or a layer of a deep one.

    Args:
        features: ``φ``; its lengthscales and variance are learned with the rest.
        num_outputs: ``O``: functions with their own coefficients, of the same features.
        structured: Whether the weights are ``vec(W)`` or plain.
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
        self.num_outputs = num_outputs
        size = features.num_features
        weights = ColumnWeights(size, num_outputs) if structured else PlainWeights(size)
        self.basis = FeatureBasis(features, weights)
        shape = (num_outputs, weights.num_coefficients)
        # coefficients cancel each other: float64, whatever the features are
        self.posterior: Posterior = make_posterior(posterior, shape, dtype=torch.float64)
        self.prior: Prior = FixedPrior(1.0)
        self.reset_parameters()

    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Draw a new starting point of the scales and of the posterior; features stay."""
        self.basis.weights.reset_parameters(generator=generator)
        self.posterior.reset(_MEAN_STD, _POSTERIOR_SCALE, generator=generator)

    @property
    def features(self) -> RandomFeatures:
        """``φ``."""
        return self.basis.features

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(*inner, d)`` to ``(*inner, O)``, float64; coefficients as the sampler says."""
        sampler = current_sampler()
        if isinstance(sampler, MeanWeights):
            return combine(self.basis.psi(x), self.posterior.blocks(self.posterior.mean))
        if isinstance(sampler, LocalReparameterization):
            mean, variance = self.output_moments(x)
            seed = sampler.next_seed()
            noise = normal_from_seed(mean.shape, seed, dtype=mean.dtype, device=mean.device)
            return mean + variance.sqrt() * noise
        check_draws_axis(x, sampler, 0)
        draw = self.posterior.blocks(sampler.value(self.posterior))
        # rows that are the same for all draws have one basis
        shared = sampler.num_draws is not None and x.stride(0) == 0
        psi = self.basis.psi(x[0]) if shared else self.basis.psi(x)
        return combine(psi, insert_inner_axes(draw, 0, x.dim() - 1, 2))

    def mean_function(self) -> Callable[[Tensor], Tensor]:
        """Return the map of waves to the mean ``ψ·E[a] (..., O)``, float64."""
        return self.basis.weights.values(
            self.posterior.blocks(self.posterior.mean), self.features.scale
        )

    def moments_function(self) -> Callable[[Tensor], OutputMoments]:
        """Return the map of waves to mean ``ψ·E[a]`` and variance ``ψᵀ Σ ψ``, each ``(..., O)``."""
        psi, mean = self.basis.psi_of_waves(), self.mean_function()
        if isinstance(self.posterior, DiagonalGaussian):
            diagonal = self.posterior.blocks(self.posterior.variance)
            return lambda w: OutputMoments(mean(w), combine(psi(w).double().square(), diagonal))
        # a sum of squares: nothing cancels, so it may have the precision of the features
        root = torch.linalg.cholesky(self.posterior.covariance()).to(self.features.dtype)

        def moments(waves: Tensor) -> OutputMoments:
            half = torch.einsum("...ok,okl->...ol", psi(waves), root)
            return OutputMoments(mean(waves), half.double().square().sum(-1))

        return moments

    def output_moments(self, x: Tensor) -> OutputMoments:
        """Return the exact mean and variance of ``f(x)``, each ``(*inner, O)``, in float64."""
        return self.moments_function()(self.features.waves(x))

    def kl(self) -> Tensor:
        """Return ``KL(q(a) ‖ N(0, I))`` in nats."""
        return self.posterior.kl(self.prior)

    def kl_terms(self) -> list[tuple[Posterior, Prior]]:
        """Return posterior and prior of the coefficients."""
        return [(self.posterior, self.prior)]

    @torch.no_grad()
    def set_posterior(self, found: CoefficientPosterior) -> None:
        """Take over a closed-form posterior of the one output: diagonal or full, as the layer's."""
        posterior = self.posterior
        posterior.loc.copy_(found.mean)
        if isinstance(posterior, DiagonalGaussian):
            posterior.log_scale.copy_(0.5 * found.variance.log())
            return
        assert isinstance(posterior, FullGaussian)  # the model knows only these two
        assert found.root is not None  # full covariance was asked for
        # Σ = root rootᵀ = L Lᵀ: the triangular factor of rootᵀ, transposed, positive diagonal
        tril = torch.linalg.qr(found.root.T).R.T
        tril = tril * tril.diagonal().sign()
        rows, columns = torch.tril_indices(len(tril), len(tril), offset=-1)
        posterior.log_diagonal.copy_(tril.diagonal().log())
        posterior.lower.copy_(tril[rows, columns])


@final
class DeepGP(nn.Module):
    """Stacked Gaussian processes, trained by :func:`whvi.fit` like any other network.

    Args:
        in_features, out_features: Numbers of inputs and outputs.
        hidden: Number of functions in each hidden layer; ``()`` is an ordinary Gaussian process.
        num_features: ``M``, random features per layer.
        kernel, projection: Of all layers, as in :class:`whvi.gp.features.RandomFeatures`.
        weights: ``"whvi"`` (structured) or ``"mean-field"``.
        seed: Decides the frequencies of all layers and the starting point.
    """

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int] = (4,),
        out_features: int = 1,
        *,
        num_features: int = 256,
        kernel: str | Kernel = "rbf",
        projection: str = "orthogonal",
        weights: str = "whvi",
        seed: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if isinstance(hidden, int):
            raise ConfigError(f"hidden must be a sequence such as ({hidden},), got {hidden}")
        for size in (in_features, *hidden, out_features, num_features):
            check_positive_int("every size", size)
        if weights not in ("whvi", "mean-field"):
            raise ConfigError(f"weights must be 'whvi' or 'mean-field', got {weights!r}")
        make = WHVILinear if weights == "whvi" else MeanFieldLinear
        generator = torch.Generator().manual_seed(seed)
        self.features, self.functions = nn.ModuleList(), nn.ModuleList()
        width = in_features
        for size in (*hidden, out_features):
            function = make(num_features, size, prior="standard_normal", dtype=dtype)
            matrix = function.matrix
            matrix.posterior.reset(1.0, 0.1, generator=generator)
            # g ~ N(0, I) gives the entries of W the variance 1/D
            block_size = matrix.plan.block_size if isinstance(matrix, StructuredMatrix) else 1
            features = RandomFeatures(
                width,
                num_features,
                kernel=kernel,
                projection=projection,
                lengthscale=math.sqrt(width),
                variance=block_size,
                seed=int(torch.randint(2**31, (), generator=generator)),
                dtype=dtype,
            )
            self.features.append(features)
            self.functions.append(function)
            width = size + in_features

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., in_features)`` to ``(..., out_features)``; weights as the sampler says."""
        inputs = x
        for features, function in zip(self.features, self.functions, strict=True):
            h: Tensor = function(features(inputs))
            inputs = torch.cat([h, x], -1)
        return h
