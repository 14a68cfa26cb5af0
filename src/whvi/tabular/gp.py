"""Gaussian process regression on tables of any length, as a scikit-learn estimator.

``f(x) = φ(x)·w`` with random features ``φ`` (:mod:`whvi.gp.features`) and a Gaussian posterior of
``w``, in closed form for Gaussian noise (:mod:`whvi.gp.collapsed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, NoReturn, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from whvi._checks import check_positive_int, positive_int
from whvi.errors import ConfigError, ModelFileError
from whvi.gp.features import KERNELS, make_kernel
from whvi.gp.model import RandomFeatureGP
from whvi.gp.optimise import CollapsedFit
from whvi.gp.projections import PROJECTIONS, DenseProjection, Projection, draw_frequencies
from whvi.predictive import Predictive
from whvi.tabular.arrays import plain
from whvi.tabular.modelfile import ModelFile, SavedModel, check_tensors
from whvi.tabular.regressor import ArrayInterval
from whvi.tabular.scaling import real_targets
from whvi.training.process import keep_freed_memory

_NUM_FEATURES = {"full": 1024, "mean-field": 1024, "whvi": 4096}
_SEARCH_FEATURES = 512  # with which the hyper-parameters of a full posterior are found
_SUBSET = 2000  # rows that choose the hyper-parameters


@dataclass(frozen=True)
class _Structure:
    """What a fitted model is made of, as plain values from which it can be built again."""

    in_features: int
    num_features: int
    kernel: str
    projection: str
    weights: str
    covariance: str
    seed: int

    def build(self, projection: Projection | None = None) -> RandomFeatureGP:
        """Make an untrained model, with drawn frequencies or the given ones."""
        return RandomFeatureGP(
            self.in_features,
            self.num_features,
            kernel=self.kernel,
            projection=self.projection if projection is None else projection,
            weights=self.weights,
            covariance=self.covariance,
            seed=self.seed,
            dtype=torch.float32,
        )

    def restore(self, tensors: Mapping[str, Tensor]) -> RandomFeatureGP:
        """Build the model around stored tensors.

        A skeleton without memory is compared with the tensors first: a wrong description cannot
        make us allocate more than the file holds.
        """
        shape = make_kernel(self.kernel).projection_shape(self.in_features, self.num_features)
        with torch.device("meta"):
            if self.projection in PROJECTIONS[:3]:  # a matrix, however it was drawn
                empty: Projection = DenseProjection(torch.empty(shape))
            else:
                empty, _ = draw_frequencies(self.projection, *shape)
            projection = empty.to(torch.float32)
            skeleton = self.build(projection)
        check_tensors(skeleton.state_dict(), tensors)
        _check_permutations(skeleton.state_dict(), tensors)
        model = self.build(projection)
        model.load_state_dict(tensors, assign=True)
        return model.requires_grad_(False)


def _check_permutations(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    for name in expected:
        if name.endswith("permutation"):
            blocks = tensors[name].view(expected[name.replace("permutation", "signs")].shape)
            order = torch.arange(blocks.numel()).view(blocks.shape)
            if not torch.equal(blocks.sort(-1).values, order):
                raise ModelFileError(f"tensor {name} holds no permutation per block")


@final
@dataclass(eq=False, repr=False)
class WHVIGPRegressor(RegressorMixin, SavedModel, BaseEstimator):  # type: ignore[misc]  # no types there
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

    n_components: int | None = None
    _: KW_ONLY
    kernel: str = "matern32"
    weights: str = "full"
    covariance: str = "diagonal"
    projection: str = "orthogonal"
    n_restarts: int = 1
    max_iter: int = 100
    random_state: Any = None

    def fit(self, X: Any, y: Any, **refused: Any) -> WHVIGPRegressor:
        """Fit to rows ``X (N, d)`` and targets ``y (N,)``; there are no weights of rows."""
        if refused:
            raise ConfigError(
                f"fit of a WHVIGPRegressor takes X and y only, got {', '.join(refused)}; a "
                "WHVIRegressor has sample_weight"
            )
        y = None if y is None else real_targets(plain(y))
        X, y = validate_data(
            self, plain(X), y, dtype=np.float64, y_numeric=True, ensure_min_samples=2
        )
        starts = positive_int("n_restarts", self.n_restarts)
        iterations = positive_int("max_iter", self.max_iter)
        x, targets = torch.tensor(X), torch.tensor(y, dtype=torch.float64)
        keep_freed_memory()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        num_features = _NUM_FEATURES.get(self.weights, 1024)
        if self.n_components is not None:
            num_features = positive_int("n_components", self.n_components)
        structure = self._structure_of(x, num_features, seed)
        search = model = structure.build()
        if self.weights == "full" and num_features > _SEARCH_FEATURES:
            search = self._structure_of(x, _SEARCH_FEATURES, seed).build()
        result = search.fit(x, targets, starts=starts, iterations=iterations, subset=_SUBSET)
        assert isinstance(result, CollapsedFit)  # Gaussian noise and no minibatches
        if search is model:
            self.log_evidence_bound_ = model.in_units_of_targets(result.bound, len(targets))
        else:
            model.adopt(search)
            self.log_evidence_bound_ = model.condition(x, targets)
        self.n_iter_ = max(1, len(result.history))
        self._adopt(structure, model.requires_grad_(False))
        return self

    def _structure_of(self, x: Tensor, num_features: int, seed: int) -> _Structure:
        options = (self.kernel, self.projection, self.weights, self.covariance)
        return _Structure(x.shape[1], num_features, *options, seed)

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
        x = self._rows(X)
        return self.model_.predictive(x)

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
        x = self._rows(X)
        gradient: NDArray[np.float64] = self.model_.gradient(x).numpy()
        return gradient

    def _rows(self, X: Any) -> Tensor:
        check_is_fitted(self)
        return torch.tensor(validate_data(self, plain(X), dtype=np.float64, reset=False))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # Files ---------------------------------------------------------------------------------

    def to_onnx(self, path: Any, **options: Any) -> NoReturn:
        """Refuse: only ensembles of networks are exported."""
        raise ConfigError(
            "a WHVIGPRegressor cannot be exported to ONNX; fit a WHVIRegressor, or use save()"
        )

    def _content(self) -> ModelFile:
        if self._structure.kernel not in KERNELS:
            raise ModelFileError(f"only kernels with a name are stored, not {self.kernel!r}")
        names = getattr(self, "feature_names_in_", None)
        document = {
            "model": asdict(self._structure),
            "feature_names": None if names is None else names.tolist(),
            "training": {"log_evidence_bound": self.log_evidence_bound_, "n_iter": self.n_iter_},
        }
        return ModelFile(self.model_.state_dict(), document)

    def _restore(self, content: ModelFile) -> None:
        document = content.document
        structure, names = _Structure(**document["model"]), document["feature_names"]
        self._adopt(structure, structure.restore(content.tensors))
        if not np.isfinite([*self.lengthscale_, self.noise_std_]).all():
            raise ModelFileError("lengthscales or noise are not finite")
        self.log_evidence_bound_ = float(document["training"]["log_evidence_bound"])
        check_positive_int("n_iter", document["training"]["n_iter"])
        self.n_iter_ = document["training"]["n_iter"]
        self.n_features_in_ = structure.in_features
        if names is not None:
            if len(names) != structure.in_features or not all(isinstance(n, str) for n in names):
                raise ModelFileError(f"the file does not name its {structure.in_features} columns")
            self.feature_names_in_ = np.array(names, dtype=object)
