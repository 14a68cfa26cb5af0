r"""Gaussian processes and networks as models of BoTorch: joint posteriors at ``X``, with gradients.

.. math:: f(X) \sim N(m(X),\; A(X)\, \Sigma\, A(X)^\top)

``A`` holds random features of a Gaussian process (:mod:`whvi.gp`), or derivatives of a linearised
network with respect to its parameters (:func:`whvi.linearize`): ``f`` is linear in what is random,
so that its values at ``q`` points are jointly Gaussian. Other networks are a fixed set of draws of
functions. ``X`` is ``(*batch, q, d)``; everything is in the units of the targets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from whvi._checks import check_last_dim, check_positive_int
from whvi.errors import ConfigError, MissingDependencyError, ShapeError
from whvi.functions import batch_shape_of, in_mode
from whvi.gp import RandomFeatureGP
from whvi.likelihoods import Gaussian, Likelihood
from whvi.likelihoods.base import RealLikelihood
from whvi.linearized import LinearizedPosterior
from whvi.linearized.jacobians import jacobian_by_transforms
from whvi.sampling import WeightDraws, sampling

try:
    from botorch.models.deterministic import GenericDeterministicModel
    from botorch.models.model import Model
    from botorch.posteriors import GPyTorchPosterior, Posterior
    from botorch.posteriors.ensemble import EnsemblePosterior
    from gpytorch.distributions import MultivariateNormal
    from linear_operator import to_linear_operator
except ImportError as error:
    raise MissingDependencyError(
        f"whvi.botorch needs botorch ({error}): pip install botorch"
    ) from error

Source = RandomFeatureGP | LinearizedPosterior | nn.Module


@final
class FunctionModel(Model):  # type: ignore[misc]  # botorch has no types
    """What BoTorch's acquisition functions and Thompson sampling need of a fitted model.

    Args:
        source: A fitted :class:`whvi.gp.RandomFeatureGP` or :class:`whvi.WHVIGPRegressor`; the
            posterior that :func:`whvi.linearize` gives; or a network with Bayesian layers.
        likelihood: Of a network, for its units.
        num_draws: Functions that stand for the posterior of a network.
        seed: Decides these draws.

    Examples:
        >>> gp = whvi.gp.RandomFeatureGP(2, 512, weights="full")  # doctest: +SKIP
        >>> gp.fit(x, y)  # doctest: +SKIP
        >>> acquisition = qLogExpectedImprovement(FunctionModel(gp), y.max())  # doctest: +SKIP
    """

    def __init__(
        self,
        source: Source,
        likelihood: Likelihood | None = None,
        *,
        num_draws: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__()
        source = getattr(source, "model_", source)  # of an estimator
        self._functions: _Gaussian | _Draws
        if isinstance(source, RandomFeatureGP):
            self._functions = _Process(source)
        elif isinstance(source, LinearizedPosterior):
            self._functions = _Tangent(source)
        elif isinstance(source, nn.Module) and likelihood is not None:
            self._functions = _Draws(source, likelihood, num_draws, seed)
        else:
            raise ConfigError(
                "FunctionModel takes a RandomFeatureGP, a WHVIGPRegressor, a linearised posterior, "
                f"or a network and its likelihood; got {type(source).__name__}"
            )

    @property
    def num_outputs(self) -> int:
        """Number of functions."""
        return self._functions.num_outputs

    @property
    def batch_shape(self) -> torch.Size:
        """Always ``()``: one model."""
        return torch.Size()

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool = False,
        posterior_transform: Any = None,
    ) -> Posterior:
        """Return the joint distribution of the functions at ``X (*batch, q, d)``.

        Args:
            X: Points; gradients flow to them.
            output_indices: Which functions; ``None``: all.
            observation_noise: Whether to return the distribution of targets instead.
            posterior_transform: Applied to the result.
        """
        if X.dim() < 2:
            raise ShapeError(f"X must have shape (*batch, q, d), got {tuple(X.shape)}")
        posterior = self._functions.posterior(X, observation_noise, output_indices)
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def draw_function(self, generator: torch.Generator | None = None) -> GenericDeterministicModel:
        """Draw one function, to be maximised itself: Thompson sampling."""
        return GenericDeterministicModel(self._functions.draw(generator), self.num_outputs)


class _Units(NamedTuple):
    """Of the one target of a Gaussian likelihood."""

    mean: Tensor
    scale: Tensor
    noise_variance: Tensor

    @classmethod
    def of(cls, likelihood: Likelihood) -> _Units:
        if not isinstance(likelihood, Gaussian) or likelihood.num_outputs != 1:
            raise ConfigError(
                "an exact joint posterior needs Gaussian noise and one target, got "
                f"{likelihood}; wrap a network and its likelihood for draws of functions"
            )
        parts = (likelihood.target_mean, likelihood.target_scale, likelihood.noise_scale.square())
        return cls(*(part.detach().double().squeeze() for part in parts))


class _Gaussian(ABC):
    """Functions that are linear in a Gaussian vector."""

    num_outputs = 1

    def __init__(self, units: _Units) -> None:
        self.units = units

    @abstractmethod
    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean ``(B, q)`` and covariance ``(B, q, q)`` at ``x (B, q, d)``, standardised."""

    @abstractmethod
    def draw(self, generator: torch.Generator | None) -> Any:
        """Draw a function ``(*batch, q, d) → (*batch, q, 1)``."""

    def posterior(self, X: Tensor, observation_noise: bool, _: Any) -> Posterior:
        """Return the joint Gaussian."""
        mean, covariance = self.moments(X.reshape(-1, *X.shape[-2:]))
        mean = self.units.mean + self.units.scale * mean
        covariance = self.units.scale**2 * covariance
        if observation_noise:
            one = torch.eye(X.shape[-2], dtype=covariance.dtype)
            covariance = covariance + self.units.noise_variance * one
        shape = X.shape[:-1]
        # as an operator: its Cholesky factor may add a little to the diagonal
        operator = to_linear_operator(covariance.view(*shape, shape[-1]))
        return GPyTorchPosterior(MultivariateNormal(mean.view(shape), operator))


@final
class _Process(_Gaussian):
    """``f(x) = ψ(x)·a``."""

    def __init__(self, model: RandomFeatureGP) -> None:
        super().__init__(_Units.of(model.likelihood))
        self.model, posterior = model, model.layer.posterior
        with torch.no_grad():
            self.mean = posterior.blocks(posterior.mean).squeeze(-2)
            covariance = posterior.covariance().reshape(len(self.mean), len(self.mean))
            self.root = torch.linalg.cholesky(covariance)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        check_last_dim("X", x, self.model.in_features)
        psi = self.model.layer.basis.psi(self.model.scaling(x)).squeeze(-2).double()
        half = psi @ self.root
        return psi @ self.mean, half @ half.mT

    def draw(self, generator: torch.Generator | None) -> Any:
        function = self.model.draw_functions(1, generator=generator)
        return lambda X: function(X.reshape(-1, X.shape[-1])).view(*X.shape[:-1], 1)


@final
class _Tangent(_Gaussian):
    """``f(x) = f(x; θ*) + J(x) δ``."""

    def __init__(self, posterior: LinearizedPosterior) -> None:
        if posterior.space.batch_shape:
            raise ConfigError("replicas are several models; linearise one network")
        super().__init__(_Units.of(posterior.fitted_likelihood))
        self.tangent = posterior
        self.dtype = next(posterior.model.parameters()).dtype

    def _jacobian(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``f (n,)`` and ``J (n, P)`` of rows ``(n, d)``, with gradients in ``x``."""
        model, space = self.tangent.model, self.tangent.space
        with in_mode(model, training=False):
            f, J = jacobian_by_transforms(model, x.to(self.dtype), space)
        return f.squeeze(-1).double(), J.squeeze(-2).double()

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        f, J = self._jacobian(x.flatten(0, 1))
        mean = (f + J @ self.tangent.shift).view(x.shape[:-1])
        return mean, self.tangent.covariance.of_outputs(J.view(*x.shape[:-1], -1))

    def draw(self, generator: torch.Generator | None) -> Any:
        change = self.tangent.draw_displacements(1, generator=generator)[0]

        def function(X: Tensor) -> Tensor:
            f, J = self._jacobian(X.reshape(-1, X.shape[-1]))
            return (self.units.mean + self.units.scale * (f + J @ change)).view(*X.shape[:-1], 1)

        return function


@final
class _Draws:
    """S draws of a network, the same at every call."""

    def __init__(self, model: nn.Module, likelihood: Likelihood, num_draws: int, seed: int) -> None:
        check_positive_int("num_draws", num_draws)
        if batch_shape_of(model):
            raise ConfigError("replicas are several models; wrap one network")
        self.model, self.likelihood = model, likelihood
        self.num_outputs, self.num_draws = likelihood.num_outputs, num_draws
        if not isinstance(likelihood, RealLikelihood):
            self.num_outputs = likelihood.num_features
        self.sampler = WeightDraws(num_draws, torch.Generator().manual_seed(seed))
        self.is_drawn = False

    def values(self, X: Tensor) -> Tensor:
        """Return ``(*batch, S, q, m)`` at ``X (*batch, q, d)``."""
        first = next(self.model.parameters())
        rows = X.reshape(-1, X.shape[-1]).to(first)
        with in_mode(self.model, training=False), sampling(self.sampler):
            if not self.is_drawn:  # outside any graph, so that later calls can share them
                with torch.no_grad():
                    self.model(rows[:1].expand(self.num_draws, 1, -1))
                self.is_drawn = True
            f: Tensor = self.model(rows.expand(self.num_draws, *rows.shape))
        f = f[..., : self.num_outputs].double().unflatten(1, X.shape[:-1]).movedim(0, -3)
        if isinstance(self.likelihood, RealLikelihood):
            f = self.likelihood.target_mean.double() + self.likelihood.target_scale.double() * f
        return f

    def posterior(self, X: Tensor, observation_noise: bool, outputs: Any) -> Posterior:
        """Return the draws as an ensemble."""
        if observation_noise:
            raise ConfigError("draws of functions have no noise; pass observation_noise=False")
        values = self.values(X)
        return EnsemblePosterior(values if outputs is None else values[..., outputs])

    def draw(self, generator: torch.Generator | None) -> Any:
        """Choose one of the draws."""
        index = int(torch.randint(self.num_draws, (), generator=generator))
        return lambda X: self.values(X)[..., index, :, :]
