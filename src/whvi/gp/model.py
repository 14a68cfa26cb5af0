r"""Gaussian processes by random features, from data in the user's units to predictions in them.

``f(x) = φ(x)·w``, ``w ~ N(0, I)``: a Gaussian process whose kernel is ``φ(x)·φ(z) ≈ k(x, z)``. With
Gaussian noise ``q`` is known in closed form given the hyper-parameters (and ``s1``, ``s2``): the
collapsed bound. Other likelihoods, and minibatches, train the same layer by its ELBO.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from whvi._checks import check_finite, check_last_dim, check_positive_int
from whvi.errors import ConfigError, DataError, ShapeError
from whvi.gp.collapsed import COVARIANCES, collapsed_bound, stream_statistics
from whvi.gp.features import Kernel, RandomFeatures
from whvi.gp.layer import FeatureLayer
from whvi.gp.optimise import CollapsedFit, fit_collapsed
from whvi.gp.prediction import (
    InputScaling,
    block_rows,
    gaussian_marginals,
    map_blocks,
)
from whvi.gp.projections import Projection
from whvi.layers.matrix import OutputMoments
from whvi.likelihoods import Gaussian, Likelihood
from whvi.predictive import Predictive
from whvi.training import FitConfig, History, fit

_MINIBATCHES = FitConfig(num_steps=3000, batch_size=256, learning_rate=2e-2)
_PREDICTIVE_DRAWS = 64  # for likelihoods without a closed form
_ROWS_PER_COEFFICIENT = 16  # from which least squares do not follow single rows
_OPTIONS = {"weights": ("whvi", "mean-field", "full"), "covariance": COVARIANCES}


@final
class RandomFeatureGP(nn.Module):
    """A Gaussian process by random features for regression, classification and counts.

    Args:
        in_features: ``d``.
        num_features: ``M``.
        kernel, projection: As in :class:`whvi.gp.features.RandomFeatures`.
        weights: Posterior of the weights. ``"whvi"``: ``w = vec(W)``, about ``4√M`` parameters;
            ``"mean-field"``: independent weights, ``2M``; ``"full"``: all covariances, ``M²/2``,
            which for Gaussian noise is the exact posterior.
        covariance: Of ``q(g)`` for ``weights="whvi"``: ``"diagonal"`` or ``"full"``.
        likelihood: ``"gaussian"`` or a likelihood such as ``Bernoulli()`` or ``Categorical(10)``.
        seed: Decides frequencies, starting points and the draws of :meth:`predictive`.
        dtype: Of the features; coefficients and scaling are float64 in any case.
    """

    def __init__(
        self,
        in_features: int,
        num_features: int = 4096,
        *,
        kernel: str | Kernel = "rbf",
        projection: str | Projection = "orthogonal",
        weights: str = "whvi",
        covariance: str = "diagonal",
        likelihood: str | Likelihood = "gaussian",
        seed: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("in_features", in_features)
        posterior = self._covariance = _posterior_name(weights, covariance)
        self.likelihood = _make_likelihood(likelihood)
        self.in_features, self.weights, self.seed = in_features, weights, seed
        self.scaling = InputScaling(in_features)
        features = RandomFeatures(
            in_features,
            num_features,
            kernel=kernel,
            projection=projection,
            lengthscale=math.sqrt(in_features),  # of standardised inputs
            seed=seed,
            dtype=dtype,
        )
        num_outputs, structured = self.likelihood.num_features, weights == "whvi"
        self.layer = FeatureLayer(features, num_outputs, structured=structured, posterior=posterior)
        self.layer.reset_parameters(generator=torch.Generator().manual_seed(seed))

    @property
    def lengthscale(self) -> Tensor:
        """Lengthscales in the units of the inputs, shape ``(d,)``, float64."""
        return self.layer.features.lengthscale.detach().double() * self.scaling.scale

    @property
    def noise_std(self) -> Tensor:
        """Standard deviation of Gaussian noise in the units of the targets, a float64 scalar."""
        return self._gaussian("a standard deviation").noise_scale.detach().double().squeeze()

    def _gaussian(self, what: str) -> Gaussian:
        if not isinstance(self.likelihood, Gaussian):
            raise ConfigError(f"only Gaussian noise has {what}, not {self.likelihood}")
        return self.likelihood

    def fit(
        self,
        x: Tensor,
        y: Tensor,
        *,
        config: FitConfig | None = None,
        starts: int = 3,
        iterations: int = 100,
        subset: int = 4000,
    ) -> CollapsedFit | History:
        """Learn hyper-parameters and posterior from rows in the user's units.

        Args:
            x: Inputs, shape ``(N, d)``, any floating dtype; standardised inside.
            y: Targets, shape ``(N,)`` or ``(N, 1)``; labels for label likelihoods.
            config: Train the ELBO on minibatches by :func:`whvi.fit`. ``None``: for Gaussian
                noise the collapsed bound, else minibatches with a default configuration.
            starts, iterations, subset: Of the collapsed bound: starting points, of which the best
                is kept; iterations of L-BFGS; rows that choose the hyper-parameters. The
                posterior and the noise come from all rows, streamed.

        Returns:
            What was done: a :class:`CollapsedFit` or the history of :func:`whvi.fit`.
        """
        x, y = self._checked(x, y)
        self.scaling.fit(x)
        self.likelihood.set_target_scaling(y)
        rows, likelihood = self.scaling(x), self.likelihood
        if config is not None or not isinstance(likelihood, Gaussian):
            return fit(self.layer, likelihood, (rows, y), config=config or _MINIBATCHES)
        basis = self.layer.basis
        enough_rows = min(len(y), subset) >= _ROWS_PER_COEFFICIENT * basis.num_coefficients
        result = fit_collapsed(
            basis,
            rows,
            _standardised(likelihood, y),
            covariance=self._covariance,
            starts=starts,
            iterations=iterations,
            subset=subset,
            seed=self.seed,
            use_jacobian=self.weights == "whvi" and enough_rows,
        )
        with torch.no_grad():
            likelihood.log_noise_variance.fill_(math.log(result.noise_variance))
        self.layer.set_posterior(result.posterior)
        return result

    def condition(self, x: Tensor, y: Tensor) -> float:
        """Set the posterior in closed form for the hyper-parameters as they are; Gaussian noise.

        Rows and targets are those of :meth:`fit`, streamed. Returns the bound on the log evidence
        in nats, in the user's units; for ``weights="full"`` it is the log evidence of the model.
        """
        likelihood = self._gaussian("a closed form")
        x, y = self._checked(x, y)
        z = _standardised(likelihood, y)
        statistics = stream_statistics(self.layer.basis, self.scaling(x), z)
        noise = (likelihood.noise_scale / likelihood.target_scale).square().detach()
        bound = collapsed_bound(statistics, noise.squeeze(), self._covariance)
        self.layer.set_posterior(bound.posterior)
        return self.in_units_of_targets(float(bound.value), len(y))

    def in_units_of_targets(self, bound: float, num_rows: int) -> float:
        """Return a bound on the log density of standardised targets as one on that of targets."""
        return bound - num_rows * float(self._gaussian("units").target_scale.log())

    @torch.no_grad()
    def adopt(self, other: RandomFeatureGP) -> None:
        """Take units, noise, lengthscales and variance of another model of the same inputs.

        The number of features may differ: find hyper-parameters with few, :meth:`condition` many.
        """
        self.scaling.load_state_dict(other.scaling.state_dict())
        self.likelihood.load_state_dict(other.likelihood.state_dict())
        mine, theirs = self.layer.features, other.layer.features
        mine.log_lengthscale.copy_(theirs.log_lengthscale)
        mine.log_variance.copy_(theirs.log_variance)

    @torch.no_grad()
    def predictive(self, x: Tensor) -> Predictive:
        """Return the predictive distribution of targets at ``x (N, d)``, in the user's units.

        With Gaussian noise it is exact; otherwise it mixes 64 draws of the function, the same ones
        for every call.
        """
        if not isinstance(self.likelihood, Gaussian):
            generator = torch.Generator().manual_seed(self.seed)
            values = self.draw_functions(_PREDICTIVE_DRAWS, generator=generator)(x)
            return self.likelihood.predictive(values)
        mean, variance = self.function_moments(x)
        return gaussian_marginals(mean, variance.sqrt(), self.noise_std)

    @torch.no_grad()
    def function_moments(self, x: Tensor) -> OutputMoments:
        """Return mean and variance of the function itself, without noise, in float64.

        Shape ``(N,)`` each, in the user's units, for Gaussian noise; for other likelihoods
        ``(N, O)`` in the units of the function (logits, log rates).
        """
        rows, compute = self._rows(x), self.layer.moments_function()
        mean, variance = map_blocks(self.layer.features, rows, compute)
        if isinstance(self.likelihood, Gaussian):
            variance = (variance * self.likelihood.target_scale.square()).squeeze(-1)
        return OutputMoments(self._in_units(mean), variance)

    @torch.no_grad()
    def predict_mean(self, x: Tensor) -> Tensor:
        """Return the mean of :meth:`function_moments` alone: the same bits for a fraction of it."""
        rows, mean = self._rows(x), self.layer.mean_function()
        (values,) = map_blocks(self.layer.features, rows, lambda waves: (mean(waves),))
        return self._in_units(values)

    def _in_units(self, values: Tensor) -> Tensor:
        if not isinstance(self.likelihood, Gaussian):
            return values
        return (values * self.likelihood.target_scale + self.likelihood.target_mean).squeeze(-1)

    def draw_functions(
        self, num_draws: int, *, generator: torch.Generator | None = None
    ) -> FunctionDraws:
        """Draw functions from the posterior: callables that can be evaluated anywhere, again.

        Args:
            num_draws: ``S`` functions ``x (N, d) → (S, N)`` in the user's units (``(S, N, O)`` in
                the units of the function for other likelihoods), differentiable in ``x``.
            generator: Source of randomness; ``None`` is torch's default generator.
        """
        check_positive_int("num_draws", num_draws)
        with torch.no_grad():
            posterior = self.layer.posterior
            coefficients = posterior.blocks(posterior.rsample((num_draws,), generator=generator))
        return FunctionDraws(self, coefficients)

    def gradient(self, x: Tensor) -> Tensor:
        """Return the gradient of the mean by ``x``, ``(N, d)``; ``(N, O, d)`` if not Gaussian."""
        posterior = self.layer.posterior
        mean = posterior.blocks(posterior.mean).detach().unsqueeze(0)
        return FunctionDraws(self, mean).gradient(x).squeeze(0)

    def _checked(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self._rows(x)  # refuses other shapes
        check_finite("x", x)
        if not isinstance(y, Tensor) or y.shape not in ((len(x),), (len(x), 1)):
            raise ShapeError(
                f"targets must have shape ({len(x)},) or ({len(x)}, 1), one per row of x, got "
                f"{tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__}"
            )
        if len(x) < 2:
            raise DataError(f"a Gaussian process needs at least 2 rows to learn from, got {len(x)}")
        self.likelihood.check_targets(y)
        return x.detach(), y.detach().reshape(-1)

    def _rows(self, x: Tensor) -> Tensor:
        """Check and standardise inputs."""
        d = self.in_features
        if not isinstance(x, Tensor) or x.dim() != 2 or not x.is_floating_point():
            found = (tuple(x.shape), x.dtype) if isinstance(x, Tensor) else type(x).__name__
            raise ShapeError(f"x must be a floating-point tensor of shape (N, {d}), got {found}")
        check_last_dim("x", x, d)
        rows: Tensor = self.scaling(x)
        return rows

    def extra_repr(self) -> str:
        """Show the posterior."""
        return f"weights={self.weights!r}, posterior={type(self.layer.posterior).__name__}"


@final
class FunctionDraws:
    """``S`` functions ``x ↦ ψ(x)·a_s``, with coefficients ``(S, O, K)`` that were drawn once.

    They read the features of the model: a refit of the model invalidates them.
    """

    def __init__(self, model: RandomFeatureGP, coefficients: Tensor) -> None:
        self._model, self._coefficients = model, coefficients

    def __len__(self) -> int:
        return len(self._coefficients)

    def __call__(self, x: Tensor) -> Tensor:
        """Evaluate all functions at ``x (N, d)``: ``(S, N)``, or ``(S, N, O)`` without units."""
        model, num_outputs = self._model, self._coefficients.shape[1]
        rows, psi = model._rows(x), model.layer.basis.psi_of_waves()

        def values(waves: Tensor) -> tuple[Tensor]:
            each = psi(waves).double().expand(-1, num_outputs, -1)
            return (torch.einsum("nok,sok->sno", each, self._coefficients).transpose(0, 1),)

        (found,) = map_blocks(model.layer.features, rows, values)
        return model._in_units(found.transpose(0, 1).contiguous())

    def gradient(self, x: Tensor) -> Tensor:
        """Return the gradients at ``x (N, d)``: ``(S, N, d)``, or ``(S, N, O, d)``, float64."""
        blocks = x.detach().double().split(block_rows(self._model.layer.features.num_features))
        return torch.cat([self._gradient(block) for block in blocks], dim=1)

    @torch.enable_grad()
    def _gradient(self, rows: Tensor) -> Tensor:
        values = self(rows.requires_grad_())
        sums = values.sum(1).flatten()  # rows do not depend on each other
        columns = [torch.autograd.grad(one, rows, retain_graph=True)[0] for one in sums]
        stacked = torch.stack(columns).view(len(self), *values.shape[2:], *rows.shape)
        return stacked if values.dim() == 2 else stacked.transpose(1, 2)


def _standardised(likelihood: Gaussian, y: Tensor) -> Tensor:
    standardised: Tensor = (y.double() - likelihood.target_mean) / likelihood.target_scale
    return standardised


def _posterior_name(weights: str, covariance: str) -> str:
    """Return the posterior of the coefficients, or refuse a contradiction."""
    for name, value in (("weights", weights), ("covariance", covariance)):
        if value not in _OPTIONS[name]:
            choices = ", ".join(map(repr, _OPTIONS[name]))
            raise ConfigError(f"{name} must be one of {choices}, got {value!r}")
    if weights == "mean-field" and covariance == "full":
        raise ConfigError("weights='mean-field' has no covariances; use weights='full'")
    return "full" if "full" in (weights, covariance) else "diagonal"


def _make_likelihood(likelihood: str | Likelihood) -> Likelihood:
    """Return the likelihood of a name, or the likelihood itself, in float64."""
    if likelihood == "gaussian":
        return Gaussian(dtype=torch.float64)
    if not isinstance(likelihood, Likelihood):
        raise ConfigError(
            f"likelihood must be 'gaussian' or a whvi.likelihoods.Likelihood, got {likelihood!r}"
        )
    if likelihood.num_outputs != 1 or likelihood.batch_shape:
        raise ConfigError(
            "a RandomFeatureGP has one target column and no replicas; fit one model per column, "
            f"got {likelihood}"
        )
    return likelihood.double()
