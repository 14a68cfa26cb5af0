"""Classification of tables with calibrated probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, cast, final

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from whvi.errors import ConfigError, DataError
from whvi.predictive import Predictive
from whvi.tabular import conformal
from whvi.tabular.arrays import Rows, row_weights
from whvi.tabular.base import WHVIEstimator
from whvi.tabular.incremental import numbers_of
from whvi.tabular.inputs import Kind
from whvi.tabular.scaling import Targets, check_rows, target_names

_KINDS: dict[str, Kind] = {"O": "categorical", "U": "categorical", "S": "categorical"}
_KINDS |= {"b": "boolean"}


@final
@dataclass(eq=False, repr=False)
class WHVIClassifier(ClassifierMixin, WHVIEstimator):  # type: ignore[misc]  # no types there
    """Bayesian classification by an ensemble of Walsh-Hadamard networks; no tuning needed.

    Options and attributes are those of :class:`WHVIRegressor` without ``likelihood``;
    ``classes_`` holds the labels, and ``noise_factor_`` the factor on the logits that calibration
    on held-out rows found. ``predict_dist(X)`` also tells epistemic from aleatoric uncertainty:
    ``.entropy()`` and ``.mutual_information()``. One column of labels is predicted; for several fit
    one model each, ``sklearn.multioutput.MultiOutputClassifier(WHVIClassifier())``.

    Args:
        class_weight: How often the rows of a class count, ``{label: weight}``, times
            ``sample_weight``; a label that is not named counts once. ``"balanced"``: all classes
            alike. Probabilities are then those of a population with such shares.
    """

    class_weight: dict[Any, float] | str | None = field(default=None, kw_only=True)
    _promised = cast("NDArray[Any] | None", None)  # labels that the first rows need not all have

    def _candidates(self, targets: Targets) -> tuple[str, ...]:
        return ("labels",)

    def _weights(self, rows: Rows) -> NDArray[np.float64] | None:
        if self.class_weight is None:
            return rows.weights
        num_rows = len(rows.table)
        _, classes, labels = _encoded(rows.y, num_rows)
        own = np.ones(num_rows) if rows.weights is None else rows.weights
        counts = np.bincount(labels, own).astype(np.float64)
        others = self._promised if self._promised is not None else getattr(self, "classes_", [])
        factors = _class_factors(self.class_weight, classes, counts, list(others))
        return row_weights(own * factors[labels], num_rows)

    def _targets(
        self, y: Any, num_rows: int, weights: NDArray[np.float64] | None = None
    ) -> Targets:
        names, classes, labels = _encoded(y, num_rows)
        if self._promised is not None:
            classes, labels = self._promised, numbers_of(classes, self._promised)[labels]
        values = torch.as_tensor(labels, dtype=torch.float32).unsqueeze(-1)
        kind = _KINDS.get(classes.dtype.kind, "numeric")
        return Targets(values, max(len(classes), 2), names, kind, classes=classes)

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> WHVIClassifier:
        """Fit the first rows, :meth:`update` with all further ones.

        Args:
            X, y: Rows and their labels.
            classes: All labels there will ever be, at the first call; ``None``: those of ``y``.
            sample_weight: How often each row counts, as in ``fit``.
        """
        if classes is not None:
            classes = _all_classes(classes)
        if not hasattr(self, "model_"):
            self._promised = classes
            try:
                return self.fit(X, y, sample_weight)
            finally:
                del self._promised
        if classes is not None and classes.tolist() != self.classes_.tolist():
            raise ConfigError(
                f"classes={classes.tolist()!r:.80} is not what the model was fitted with, "
                f"{self.classes_.tolist()!r:.80}"
            )
        return self.update(X, y, sample_weight)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of every class, ``(N, C)``, in the order of ``classes_``."""
        table = self._checked(X)
        return self._predictor.evaluate(table, lambda p: p.probs)

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the logarithm of :meth:`predict_proba`, exact where a probability is tiny."""
        table = self._checked(X)

        def each(p: Predictive) -> Tensor:
            labels = torch.arange(len(self.classes_), dtype=torch.float64)
            return torch.stack([p.log_prob(label.expand(len(p))) for label in labels], dim=-1)

        return self._predictor.evaluate(table, each)

    def _scores(self, table: pd.DataFrame, y: Any) -> NDArray[np.float64]:
        place = {label: k for k, label in enumerate(self.classes_.tolist())}
        number = np.array([place.get(label, -1) for label in column_or_1d(y).tolist()])
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


def _encoded(y: Any, num_rows: int) -> tuple[tuple[str, ...], NDArray[Any], NDArray[np.int64]]:
    """Return the name of the target, its sorted labels, and the position of that of every row."""
    _check_one_column(y)
    names = target_names(y)
    name, values = names[0], column_or_1d(y, warn=True)
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
    return names, classes, labels


def _all_classes(classes: Any) -> NDArray[Any]:
    """Return the sorted labels that ``partial_fit`` was told of."""
    values = np.asarray(classes)
    try:
        if values.ndim != 1 or any(v is None or v != v for v in values.tolist()):
            raise TypeError
        return np.unique(values)
    except TypeError:
        raise ConfigError(
            f"classes must be a list of labels of one kind, got {classes!r:.80}"
        ) from None


def _check_one_column(y: Any) -> None:
    rows = [row for row in y if isinstance(row, Sized)] if isinstance(y, list) else []
    several = any(not isinstance(row, str) and len(row) != 1 for row in rows)
    shape = (len(y), "several") if several else np.asarray(y).shape
    if len(shape) > 1 and shape[1] != 1:
        raise DataError(
            f"y has shape ({', '.join(map(str, shape))}): several labels per row; a WHVIClassifier "
            "predicts one. Fit one model for each column: "
            "sklearn.multioutput.MultiOutputClassifier(WHVIClassifier())"
        )


def _class_factors(
    option: Any, classes: NDArray[Any], counts: NDArray[np.float64], known: list[Any]
) -> NDArray[np.float64]:
    """Return how often the rows of each class count, given their numbers (or sums of weights).

    ``known`` are labels that the rows need not have.
    """
    if isinstance(option, str) and option == "balanced":
        present = counts > 0
        mean = counts.sum() / max(np.count_nonzero(present), 1)
        return np.where(present, mean / np.where(present, counts, 1.0), 0.0)
    if not isinstance(option, Mapping):
        raise ConfigError(f"class_weight must be 'balanced' or a mapping, got {option!r:.80}")
    if unknown := [label for label in option if label not in {*known, *classes.tolist()}]:
        raise ConfigError(f"class_weight names {unknown[:3]}, which are not among the labels")
    try:
        factors = np.array([float(option.get(label, 1.0)) for label in classes.tolist()])
    except (TypeError, ValueError) as error:
        raise ConfigError(f"class_weight {option!r:.80} cannot be used: {error}") from error
    if not (np.isfinite(factors) & (factors >= 0)).all():
        raise ConfigError(f"class_weight {option!r:.80} must hold numbers of at least 0")
    return np.asarray(factors, dtype=np.float64)
