"""Gaussian process regression on tables of any length, as a scikit-learn estimator.

``f(x) = φ(x)·w`` with random features ``φ`` (:mod:`whvi.gp.features`) and a Gaussian posterior of
``w``, in closed form for Gaussian noise (:mod:`whvi.gp.collapsed`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from whvi._checks import check_positive_int
from whvi.errors import ModelFileError
from whvi.gp.features import KERNELS, make_kernel
from whvi.gp.model import RandomFeatureGP
from whvi.gp.optimise import CollapsedFit
from whvi.gp.projections import PROJECTIONS, FastfoodProjection, draw_frequencies
from whvi.predictive import Predictive
from whvi.tabular.modelfile import (
    ModelFile,
    load_tensors,
    read_model_file,
    refusing_false_descriptions,
    write_model_file,
)
from whvi.tabular.regressor import ArrayInterval
from whvi.training.process import keep_freed_memory

_NUM_FEATURES = {"full": 1024, "mean-field": 1024, "whvi": 4096}
_SEARCH_FEATURES = 512  # with which the hyper-parameters of a full posterior are found
_SUBSET = 2000  # rows that choose the hyper-parameters


class _Structure(NamedTuple):
    """What a fitted model is made of, as plain values from which it can be built again."""

    in_features: int
    num_features: int
    kernel: str
    projection: str
    weights: str
    covariance: str
    seed: int

    def build(self, **changes: Any) -> RandomFeatureGP:
        """Make an untrained model."""
        return RandomFeatureGP(**(self._asdict() | changes), dtype=torch.float32)

    def restore(self, tensors: Mapping[str, Tensor]) -> RandomFeatureGP:
        """Build the model around stored tensors.

        A skeleton without memory is compared with the tensors first: a wrong description cannot
        make us allocate more than the file holds.
        """
        shape = make_kernel(self.kernel).projection_shape(self.in_features, self.num_features)
        # iid, orthogonal and quasi differ in nothing but how a matrix was drawn
        name = "iid" if self.projection in PROJECTIONS[:3] else self.projection
        with torch.device("meta"):
            projection, _ = draw_frequencies(name, *shape)
            skeleton = self.build(projection=projection.to(torch.float32))
        if odd := sorted(skeleton.state_dict().keys() ^ tensors.keys()):
            raise ModelFileError(f"tensors do not match the description of the model: {odd[:3]}")
        for part, module in skeleton.named_children():
            load_tensors(part, module, tensors)
        if not bool((skeleton.scaling.scale > 0).all()):
            raise ModelFileError("tensor scaling.scale holds values that are not above zero")
        if isinstance(projection, FastfoodProjection):
            order = projection.permutation.view(projection.vector_shape).sort(-1).values.flatten()
            if not torch.equal(order, torch.arange(len(order))):
                raise ModelFileError("a tensor of the file holds no permutation per block")
        model = self.build(projection=projection)
        model.load_state_dict(tensors, assign=True)
        return model.requires_grad_(False)


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
        options = (self.kernel, self.projection, self.weights, self.covariance)
        structure = _Structure(x.shape[1], num_features, *options, seed)
        search = model = structure.build()
        if self.weights == "full" and num_features > _SEARCH_FEATURES:
            search = structure.build(num_features=_SEARCH_FEATURES)
        result = search.fit(
            x, targets, starts=self.n_restarts, iterations=self.max_iter, subset=_SUBSET
        )
        assert isinstance(result, CollapsedFit)  # Gaussian noise and no minibatches
        if search is model:
            self.log_evidence_bound_ = model.in_units_of_targets(result.bound, len(targets))
        else:
            model.adopt(search)
            self.log_evidence_bound_ = model.condition(x, targets)
        self.n_iter_ = max(1, len(result.history))
        self._adopt(structure, model.requires_grad_(False))
        return self

    def _adopt(self, structure: _Structure, model: RandomFeatureGP) -> None:
        self._structure, self.model_ = structure, model
        self.lengthscale_ = model.lengthscale.numpy()
        self.noise_std_ = float(model.noise_std)

    def predict(
        self, X: Any, return_std: bool = False
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the mean ``(N,)``, and with ``return_std`` the standard deviation of targets."""
        x = self._rows(X)
        if return_std:
            moments = self.model_.function_moments(x)
            return moments.mean.numpy(), (moments.variance + self.noise_std_**2).sqrt().numpy()
        mean: NDArray[np.float64] = self.model_.predict_mean(x).numpy()
        return mean

    def predict_dist(self, X: Any) -> Predictive:
        """Return the predictive distribution: mean, std, epistemic, aleatoric, quantiles, …."""
        return self.model_.predictive(self._rows(X))

    def predict_interval(self, X: Any, level: float = 0.9) -> ArrayInterval:
        """Return arrays (lower, upper), ``(N,)`` each, that hold a target with this probability."""
        lower, upper = self.predict_dist(X).interval(level)
        return ArrayInterval(lower.numpy(), upper.numpy())

    def sample_y(self, X: Any, num_draws: int = 1, random_state: Any = 0) -> NDArray[np.float64]:
        """Draw targets, shape ``(N, num_draws)``: draws of the function, and noise per row."""
        x = self._rows(X)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        generator = torch.Generator().manual_seed(seed)
        values = self.model_.draw_functions(num_draws, generator=generator)(x)
        noise = torch.randn(values.shape, generator=generator, dtype=values.dtype)
        samples: NDArray[np.float64] = (values + self.noise_std_ * noise).T.contiguous().numpy()
        return samples

    def gradient(self, X: Any) -> NDArray[np.float64]:
        """Return the gradient of the mean with respect to the inputs, shape ``(N, d)``."""
        gradient: NDArray[np.float64] = self.model_.gradient(self._rows(X)).numpy()
        return gradient

    def _rows(self, X: Any) -> Tensor:
        check_is_fitted(self)
        return torch.tensor(validate_data(self, X, dtype=np.float64, reset=False))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to one file that holds no code; see ``docs/file_format.md``.

        Raises:
            ModelFileError: The file cannot be written; what was there before is untouched.
        """
        check_is_fitted(self)
        if self._structure.kernel not in KERNELS:
            raise ModelFileError(f"only kernels with a name are stored, not {self.kernel!r}")
        names = getattr(self, "feature_names_in_", None)
        document = {
            "estimator": type(self).__name__,
            "parameters": {k: _plain(v) for k, v in self.get_params(deep=False).items()},
            "model": self._structure._asdict(),
            "feature_names": None if names is None else names.tolist(),
            "training": {"log_evidence_bound": self.log_evidence_bound_, "n_iter": self.n_iter_},
        }
        write_model_file(path, self.model_.state_dict(), document)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> WHVIGPRegressor:
        """Read an estimator that :meth:`save` wrote; it predicts the same, bit for bit.

        Raises:
            ModelFileError: The file is damaged, inconsistent, of another version or of another
                estimator.
        """
        return cls.from_content(read_model_file(path))

    @classmethod
    @refusing_false_descriptions()
    def from_content(cls, content: ModelFile) -> WHVIGPRegressor:
        """Rebuild the estimator from the content of a model file, verifying it."""
        tensors, document = content
        name = document.get("estimator")
        if name != cls.__name__:
            raise ModelFileError(f"the file holds a {name!r:.80}, not a {cls.__name__}")
        known = set(cls._get_param_names())
        parameters = document["parameters"].items()
        estimator = cls(**{name: value for name, value in parameters if name in known})
        structure, names = _Structure(**document["model"]), document["feature_names"]
        estimator._adopt(structure, structure.restore(tensors))
        if not np.isfinite([*estimator.lengthscale_, estimator.noise_std_]).all():
            raise ModelFileError("lengthscales or noise are not finite")
        estimator.log_evidence_bound_ = float(document["training"]["log_evidence_bound"])
        check_positive_int("n_iter", document["training"]["n_iter"])
        estimator.n_iter_ = document["training"]["n_iter"]
        estimator.n_features_in_ = structure.in_features
        if names is not None:
            if len(names) != structure.in_features or not all(isinstance(n, str) for n in names):
                raise ModelFileError(f"the file does not name its {structure.in_features} columns")
            estimator.feature_names_in_ = np.array(names, dtype=object)
        return estimator


def _plain(value: Any) -> Any:
    """Return a parameter as a JSON value; random generators are not kept."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, bool | int | float | str) else None
