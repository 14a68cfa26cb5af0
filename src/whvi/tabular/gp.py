"""Gaussian process regression on tables of any length, as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from whvi._checks import check_positive_int
from whvi.gp.model import RandomFeatureGP
from whvi.gp.optimise import CollapsedFit
from whvi.predictive import Predictive
from whvi.tabular.regressor import ArrayInterval
from whvi.training.process import keep_freed_memory

_NUM_FEATURES = {"full": 1024, "mean-field": 1024, "whvi": 4096}
_SEARCH_FEATURES = 512  # with which the hyper-parameters of a full posterior are found
_SUBSET = 2000  # rows that choose the hyper-parameters


@final
class WHVIGPRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # no types there
    """Gaussian process regression by random features; time and memory are linear in the rows.

    Inputs and targets are standardised inside; predictions are in the units of the targets.
    Hyper-parameters (a lengthscale per input, variance, noise) maximise the collapsed bound on at
    most 2,000 rows; the posterior is then computed in closed form from all rows, streamed.

    Args:
        n_components: Number of random features ``M``; ``None``: 1024, or 4096 for ``"whvi"``.
        kernel: ``"rbf"``, ``"matern12"``, ``"matern32"``, ``"matern52"``, ``"arccos0"``,
            ``"arccos1"``.
        weights: ``"full"``: the exact posterior of the weights; ``"mean-field"``; or ``"whvi"``:
            weights ``vec(W)`` with ``4√M`` parameters, the cheapest for millions of rows, but
            over-confident on few rows, because its scales are optimised.
        covariance: Of ``q(g)`` for ``weights="whvi"``: ``"diagonal"`` or ``"full"``.
        projection: ``"orthogonal"``, ``"quasi"``, ``"iid"``, ``"fastfood"``, ``"structured"``.
        n_restarts: Starting points of the search; the best is kept.
        max_iter: Iterations per start.
        random_state: Seed; the same seed gives the same fit and predictions.

    Attributes:
        model_: The fitted :class:`whvi.gp.model.RandomFeatureGP`.
        lengthscale_: One per input, in its unit.
        noise_std_: Standard deviation of the noise, in the unit of the targets.
        log_evidence_bound_: Of the training targets, in nats.
        n_iter_, n_features_in_, feature_names_in_: As everywhere in scikit-learn.

    Examples:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = WHVIGPRegressor(random_state=0).fit(X[:400], y[:400])
        >>> mean, std = model.predict(X[400:], return_std=True)
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        kernel: str = "matern32",
        weights: str = "full",
        covariance: str = "diagonal",
        projection: str = "orthogonal",
        n_restarts: int = 1,
        max_iter: int = 100,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.kernel = kernel
        self.weights = weights
        self.covariance = covariance
        self.projection = projection
        self.n_restarts = n_restarts
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> WHVIGPRegressor:
        """Fit to rows ``X (N, d)`` and targets ``y (N,)``."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        check_positive_int("n_restarts", self.n_restarts)
        check_positive_int("max_iter", self.max_iter)
        x, targets = torch.tensor(X), torch.tensor(y, dtype=torch.float64)
        keep_freed_memory()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        num_features = self.n_components or _NUM_FEATURES.get(self.weights, 1024)
        model = self._model(x, num_features, seed)
        search = model
        if self.weights == "full" and num_features > _SEARCH_FEATURES:
            search = self._model(x, _SEARCH_FEATURES, seed)
        result = search.fit(
            x, targets, starts=self.n_restarts, iterations=self.max_iter, subset=_SUBSET
        )
        assert isinstance(result, CollapsedFit)  # Gaussian noise and no minibatches
        if search is model:
            self.log_evidence_bound_ = model.in_units_of_targets(result.bound, len(targets))
        else:
            model.adopt(search)
            self.log_evidence_bound_ = model.condition(x, targets)
        self.model_ = model.requires_grad_(False)
        self.lengthscale_ = model.lengthscale.numpy()
        self.noise_std_ = float(model.noise_std)
        self.n_iter_ = max(1, len(result.history))
        return self

    def predict(
        self, X: Any, return_std: bool = False
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the mean ``(N,)``, and with ``return_std`` the standard deviation of targets."""
        x = self._rows(X)
        if return_std:
            moments = self.model_.predict_function(x)
            return moments.mean.numpy(), (moments.variance + self.noise_std_**2).sqrt().numpy()
        mean: NDArray[np.float64] = self.model_.predict_mean(x).numpy()
        return mean

    def predict_dist(self, X: Any) -> Predictive:
        """Return the predictive distribution: mean, std, epistemic, aleatoric, quantiles, …."""
        x = self._rows(X)
        return self.model_.predict(x)

    def predict_interval(self, X: Any, level: float = 0.9) -> ArrayInterval:
        """Return arrays (lower, upper), ``(N,)`` each, that hold a target with this probability."""
        lower, upper = self.predict_dist(X).interval(level)
        return ArrayInterval(lower.numpy(), upper.numpy())

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> NDArray[np.float64]:
        """Draw targets, shape ``(N, n_samples)``: draws of the function, and noise per row."""
        x = self._rows(X)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        generator = torch.Generator().manual_seed(seed)
        values = self.model_.draw_functions(n_samples, generator=generator)(x)
        noise = torch.randn(values.shape, generator=generator, dtype=values.dtype)
        samples: NDArray[np.float64] = (values + self.noise_std_ * noise).T.contiguous().numpy()
        return samples

    def gradient(self, X: Any) -> NDArray[np.float64]:
        """Return the gradient of the mean with respect to the inputs, shape ``(N, d)``."""
        x = self._rows(X)
        gradient: NDArray[np.float64] = self.model_.gradient(x).numpy()
        return gradient

    def _model(self, x: Tensor, num_features: int, seed: int) -> RandomFeatureGP:
        return RandomFeatureGP(
            x.shape[1],
            num_features,
            kernel=self.kernel,
            projection=self.projection,
            weights=self.weights,
            covariance=self.covariance,
            seed=seed,
            dtype=torch.float32,
        )

    def _rows(self, X: Any) -> Tensor:
        check_is_fitted(self)
        return torch.tensor(validate_data(self, X, dtype=np.float64, reset=False))
