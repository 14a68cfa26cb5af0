"""Classification of tables with calibrated probabilities."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from whvi.errors import DataError
from whvi.tabular import conformal
from whvi.tabular.base import Targets, WHVIEstimator, check_rows, target_names
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

    def _candidates(self, targets: Targets) -> tuple[str, ...]:
        return ("labels",)

    def _targets(self, y: Any, num_rows: int) -> Targets:
        names = target_names(y)
        classes, labels = _encoded(y, num_rows, names[0])
        values = torch.as_tensor(labels, dtype=torch.float32).unsqueeze(-1)
        kind = _KINDS.get(classes.dtype.kind, "numeric")
        return Targets(values, max(len(classes), 2), names, kind, classes=classes)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of every class, ``(N, C)``, in the order of ``classes_``."""
        table = self._checked(X)
        found = self._predictor.evaluate(table, lambda p: p.probs)
        if len(self.classes_) == 1:
            return np.ones((len(found), 1))
        return found

    def _scores(self, table: pd.DataFrame, y: Any) -> NDArray[np.float64]:
        number = pd.Index(self.classes_).get_indexer(column_or_1d(y))
        probs = self._predictor.evaluate(table, lambda p: p.probs)
        chosen = probs[np.arange(len(number)), number]
        known = np.where(number < 0, 0.0, chosen)  # 0 for labels that training did not have
        return np.asarray(1 - known, dtype=np.float64)[:, None]

    def predict_set(self, X: Any, level: float = 0.9) -> NDArray[np.bool_]:
        """Return which classes are in the conformal set of every row, ``(N, C)``.

        A set holds the true label with probability ``level``, on average over rows: all classes
        whose probability is not below a threshold from rows that no member trained on
        (``conformal_fraction``, ``conformalize``). These sets are the smallest on average; one may
        be empty, if no class is probable enough. See :mod:`whvi.tabular.conformal`.
        """
        check_is_fitted(self, "model_")
        most = conformal.quantile(self.conformal_scores_, level)
        inside: NDArray[np.bool_] = 1 - self.predict_proba(X) <= most
        return inside

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
