"""Random features as a scikit-learn transformer."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from whvi.errors import ConfigError
from whvi.gp.features import RandomFeatures
from whvi.gp.prediction import block_rows


@final
@dataclass(eq=False, repr=False)
class FastfoodFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]  # no types there
    """Map rows to random features ``φ(x)`` with ``φ(x)·φ(z) ≈ k(x, z)``, in O(M log d) per row.

    A linear model on these features is a kernel method: ridge regression becomes kernel ridge
    regression at a cost that is linear in the number of rows.

    Args:
        n_components: ``M``.
        kernel: ``"rbf"``, ``"matern12"``, ``"matern32"``, ``"matern52"``, ``"arccos0"`` or
            ``"arccos1"``.
        lengthscale: Of every input, in its unit, or one per input.
        projection: ``"fastfood"``, ``"structured"``, ``"orthogonal"``, ``"quasi"`` or ``"iid"``.
        random_state: Seed of the frequencies.

    Attributes:
        features_: The map, a :class:`whvi.gp.features.RandomFeatures`.
        n_features_in_, feature_names_in_: As everywhere in scikit-learn.

    Examples:
        >>> from sklearn.linear_model import Ridge
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> model = make_pipeline(StandardScaler(), FastfoodFeatures(512), Ridge())
    """

    n_components: int = 1024
    _: KW_ONLY
    kernel: str = "rbf"
    lengthscale: float | list[float] | NDArray[np.float64] = 1.0
    projection: str = "fastfood"
    random_state: Any = None

    def fit(self, X: Any, y: Any = None) -> FastfoodFeatures:
        """Draw the frequencies; the values of ``X (N, d)`` do not matter, nor does ``y``."""
        X = validate_data(self, X, dtype=[np.float64, np.float32])
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        features = RandomFeatures(
            X.shape[1],
            self.n_components,
            kernel=self.kernel,
            projection=self.projection,
            seed=seed,
            dtype=torch.float64,
        )
        features.requires_grad_(False)
        features.log_lengthscale.copy_(self._log_lengthscale(X.shape[1]))
        self.features_ = features
        self._n_features_out = self.n_components
        return self

    def transform(self, X: Any) -> NDArray[np.floating[Any]]:
        """Return ``φ(X)``, shape ``(N, M)``, of the dtype of ``X``; computed in float64."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        size = block_rows(self.n_components)
        out = np.empty((len(X), self.n_components), dtype=X.dtype)
        for start in range(0, len(X), size):
            rows = torch.tensor(X[start : start + size], dtype=torch.float64)
            out[start : start + size] = self.features_(rows).numpy()
        return out

    def _log_lengthscale(self, num_inputs: int) -> torch.Tensor:
        lengths = np.asarray(self.lengthscale, dtype=np.float64)
        if lengths.shape not in ((), (num_inputs,)) or not (lengths > 0).all():
            raise ConfigError(
                f"lengthscale must be a number above 0, or {num_inputs} of them, one per input, "
                f"got {self.lengthscale!r}"
            )
        return torch.from_numpy(np.log(np.broadcast_to(lengths, (num_inputs,))).copy())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
