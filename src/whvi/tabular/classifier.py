"""Classification of tables with calibrated probabilities."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from whvi.errors import ConfigError, DataError
from whvi.tabular.base import Targets, WHVIEstimator, check_rows, target_names
from whvi.tabular.incremental import numbers_of
from whvi.tabular.inputs import Kind

_KINDS: dict[str, Kind] = {"O": "categorical", "U": "categorical", "S": "categorical"}
_KINDS |= {"b": "boolean"}


@final
class WHVIClassifier(ClassifierMixin, WHVIEstimator):  # type: ignore[misc]  # no types there
    """Bayesian classification by an ensemble of Walsh-Hadamard networks; no tuning needed.

    Options and attributes are those of :class:`WHVIRegressor` without ``likelihood``;
    ``classes_`` holds the labels, and ``noise_factor_`` the factor on the logits that calibration
    on held-out rows found. ``predict_dist(X)`` also tells epistemic from aleatoric uncertainty:
    ``.entropy()`` and ``.mutual_information()``.
    """

    _promised: NDArray[Any] | None = None  # labels that the first rows need not all have

    def _candidates(self, targets: Targets) -> tuple[str, ...]:
        return ("labels",)

    def _targets(self, y: Any, num_rows: int) -> Targets:
        names = target_names(y)
        classes, labels = _encoded(y, num_rows, names[0])
        if self._promised is not None:
            classes, labels = self._promised, numbers_of(classes, self._promised)[labels]
        values = torch.as_tensor(labels, dtype=torch.float32).unsqueeze(-1)
        kind = _KINDS.get(classes.dtype.kind, "numeric")
        return Targets(values, max(len(classes), 2), names, kind, classes=classes)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> WHVIClassifier:
        """Fit the first rows, :meth:`update` with all further ones.

        Args:
            X, y: Rows and their labels.
            classes: All labels there will ever be, at the first call; ``None``: those of ``y``.
        """
        if classes is not None:
            classes = np.unique(np.asarray(classes))
        if not hasattr(self, "model_"):
            self._promised = classes
            try:
                return self.fit(X, y)
            finally:
                del self._promised
        if classes is not None and classes.tolist() != self.classes_.tolist():
            raise ConfigError(
                f"classes={classes.tolist()!r:.80} is not what the model was fitted with, "
                f"{self.classes_.tolist()!r:.80}"
            )
        return self.update(X, y)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of every class, ``(N, C)``, in the order of ``classes_``."""
        table = self._checked(X)
        found = self._predictor.evaluate(table, lambda p: p.probs)
        if len(self.classes_) == 1:
            return np.ones((len(found), 1))
        return found

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable label of every row."""
        best = self.predict_proba(X).argmax(-1)
        labels: NDArray[Any] = self.classes_[best]
        return labels


def _encoded(y: Any, num_rows: int, name: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the sorted labels, and for every row the position of its own."""
    values = column_or_1d(y, warn=True)
    check_rows(values, num_rows)
    missing = np.array([v is None or v != v for v in values.tolist()])
    if missing.any():
        raise DataError(
            f"target {name!r} holds {int(missing.sum())} missing values (NaN; first in row "
            f"{int(missing.argmax())}); drop these rows"
        )
    if values.dtype.kind == "f" and np.isinf(values).any():
        raise DataError(f"target {name!r} holds infinity in row {int(np.isinf(values).argmax())}")
    check_classification_targets(values)
    try:
        classes, labels = np.unique(values, return_inverse=True)
    except TypeError as error:
        raise DataError(f"target {name!r} mixes kinds of labels: {error}") from error
    return classes, labels
