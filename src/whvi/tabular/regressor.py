"""Regression on tables with honest error bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d
from torch import Tensor

from whvi._checks import check_positive_int
from whvi.errors import ConfigError, DataError
from whvi.predictive import Predictive
from whvi.tabular import conformal
from whvi.tabular.base import WHVIEstimator
from whvi.tabular.modelfile import LARGEST_TARGET
from whvi.tabular.predictor import REGRESSION_LIKELIHOODS
from whvi.tabular.scaling import Standardizer, Targets, check_rows, real_targets, target_names
from whvi.tabular.training import FEW_ROWS

_LEAST_COUNT, _LARGEST_COUNT = 3, 10_000  # targets from at most the one to at most the other
_TYPO, _MOST_TYPOS = 1000.0, 0.005  # times the usual distance from the median; share of rows
_HEAVY = 8.0  # times the usual distance: normal targets stay within 4.5


class ArrayInterval(NamedTuple):
    """Ends of central predictive intervals, each ``(N[, O])``."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


@final
@dataclass(eq=False, repr=False)
class WHVIRegressor(RegressorMixin, WHVIEstimator):  # type: ignore[misc]  # no types there
    """Bayesian regression by an ensemble of Walsh-Hadamard networks; no tuning needed.

    Columns of numbers, truth values, categories and dates, with missing values; one target or
    several. Everything left at ``None`` is chosen by the number of rows.

    Args:
        hidden_layer_sizes: Widths of the hidden layers.
        posterior: Of the structured weights: ``"diagonal"``, ``"low_rank"``, ``"full"``,
            ``"flow"``, or ``"point"`` (certain weights with a standard normal prior).
        likelihood: Noise of the targets: ``"gaussian"`` (constant), ``"heteroscedastic"`` (a
            function of the inputs), ``"student_t"`` (outliers), ``"poisson"`` (counts), or
            ``"auto"``: the second from 3,000 rows on, below that the first, unless held-out
            rows clearly speak for another; the last two are tried on targets that have heavy
            tails or are counts.
        n_members: Networks of the ensemble.
        max_iter: Most steps of Adam; training stops earlier when held-out rows say so.
        beta: Weight of the KL in the objective; 1 is the evidence lower bound, smaller values
            trust the data more. ``None``: 0.3 below 3,000 rows, else 0.2.
        validation_fraction: Share of the rows that each member leaves out for that, and for the
            calibration of the noise. 0: none, which makes the noise too small.
        conformal_fraction: Share of the rows that no member sees, for
            ``predict_interval(X, level, interval="conformal")``. 0: none.
        num_draws: Weight draws of a prediction, over all members. They are fixed by the fit.
        linearize: Whether members are also linearised, with a full covariance over all their
            parameters, for rows that are far from the training rows (``far_share(X)`` tells which).
        warm_start: Whether a further ``fit`` starts from the networks that are there, with their
            inputs and kind of noise, instead of afresh.
        random_state: Seed; the same seed gives the same fit and predictions, bit for bit. ``None``:
            one from numpy's global generator. Others are left alone.
        device: Where to compute.
        verbose: 1 or more shows a progress bar on stderr.

    Attributes:
        schema_, target_name_: Columns and target.
        history_, training_summary_, candidates_: What happened in training.
        notes_: What was odd about columns and targets.
        validation_: Scores of ``whvi fit --cv`` or ``--holdout``, else empty.
        likelihood_, noise_factor_: Noise that was chosen, and the factor of its calibration.
        conformal_scores_: Sorted, of the rows that no member saw; ``None`` if there are none.
        model_, network_likelihood_: The networks as R replicas, and their likelihood.
        n_iter_, n_features_in_, feature_names_in_, n_outputs_: As everywhere in scikit-learn.

    Examples:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
        >>> model = WHVIRegressor(max_iter=50, random_state=0).fit(X[:400], y[:400])
        >>> mean, std = model.predict(X[400:], return_std=True)
        >>> lower, upper = model.predict_interval(X[400:], level=0.9)
    """

    likelihood: str = field(default="auto", kw_only=True)

    def _candidates(self, targets: Targets) -> tuple[str, ...]:
        if self.likelihood == "auto":
            few = len(targets.values) < FEW_ROWS
            asked = ["student_t"] * targets.heavy + ["poisson"] * (targets.counts is not None)
            return (*("gaussian",) * few, "heteroscedastic", *asked)
        if self.likelihood not in REGRESSION_LIKELIHOODS:
            raise ConfigError(
                f"likelihood must be 'auto' or one of {', '.join(REGRESSION_LIKELIHOODS)}, got "
                f"{self.likelihood!r}"
            )
        return (self.likelihood,)

    def _targets(
        self, y: Any, num_rows: int, weights: NDArray[np.float64] | None = None
    ) -> Targets:
        names = target_names(y)
        array = real_targets(y)
        array = check_array(array, ensure_2d=False, ensure_all_finite=False, dtype="numeric")
        if array.ndim == 2 and array.shape[1] == 1:
            array = column_or_1d(array, warn=True)
        check_rows(array, num_rows)
        rows = array.astype(np.float64).reshape(num_rows, -1)
        _check_finite(rows, names)
        if self.likelihood == "poisson":
            _check_counts(rows)
        rows, heavy, notes = _without_typos(rows, names)
        scaling = Standardizer.fit(rows, weights=weights)
        seen = torch.as_tensor(scaling.transform(rows), dtype=torch.float32)
        counts = None
        if self.likelihood == "poisson" or (self.likelihood == "auto" and _are_counts(rows)):
            counts = torch.as_tensor(rows, dtype=torch.float32)
        return Targets(
            seen, rows.shape[1], names,
            scaling=scaling, counts=counts, heavy=heavy, notes=notes,
        )  # fmt: skip

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> WHVIRegressor:
        """Fit the first rows, :meth:`update` with all further ones."""
        learn = self.update if hasattr(self, "model_") else self.fit
        return learn(X, y, sample_weight)

    def _evaluate(self, X: Any, of: Callable[[Predictive], Tensor]) -> NDArray[np.float64]:
        table = self._checked(X)
        return self._predictor.evaluate(table, of)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the mean ``(N[, O])``, and if asked the standard deviation, noise included."""
        if not return_std:
            return self._evaluate(X, lambda p: p.mean)
        both = self._evaluate(X, lambda p: torch.stack([p.mean, p.std], dim=-1))
        return both[..., 0], both[..., 1]

    def _scores(self, table: pd.DataFrame, y: Any) -> NDArray[np.float64]:
        moments = self._predictor.evaluate(table, lambda p: torch.stack([p.mean, p.std], dim=-1))
        mean, std = moments[..., 0], moments[..., 1]
        distance = np.abs(np.asarray(y, dtype=np.float64).reshape(mean.shape) - mean)
        return (distance / std).reshape(len(table), -1)

    def predict_interval(
        self, X: Any, level: float = 0.9, *, interval: str = "predictive"
    ) -> ArrayInterval:
        """Return the ends of intervals that hold probability ``level``, for every output.

        Args:
            X: Rows.
            level: Between 0 and 1.
            interval: ``"predictive"``: central intervals of the predictive distribution.
                ``"conformal"``: ``mean ± q std``, with ``q`` from rows that no member trained on
                (``conformal_fraction``, ``conformalize``), so that new rows are inside with
                probability ``level`` even if the model is wrong: :mod:`whvi.tabular.conformal`.
        """
        if interval == "conformal":
            check_is_fitted(self, "model_")
            factor = conformal.quantile(self.conformal_scores_, level)
            mean, std = self.predict(X, return_std=True)
            reach = (factor if mean.ndim == 2 else factor[0]) * std
            least = 0.0 if self.likelihood_ == "poisson" else -np.inf
            return ArrayInterval(np.maximum(mean - reach, least), mean + reach)
        if interval != "predictive":
            raise ConfigError(f"interval must be 'predictive' or 'conformal', got {interval!r}")
        ends = self._evaluate(X, lambda p: torch.stack(tuple(p.interval(level)), dim=-1))
        return ArrayInterval(ends[..., 0], ends[..., 1])

    def predict_quantiles(
        self, X: Any, quantiles: Sequence[float] = (0.05, 0.5, 0.95)
    ) -> NDArray[np.float64]:
        """Return the quantiles ``(N[, O], K)`` at K levels."""
        return self._evaluate(X, lambda p: p.quantile(list(quantiles)).movedim(0, -1))

    def sample_y(self, X: Any, num_draws: int = 1, random_state: Any = None) -> NDArray[np.float64]:
        """Draw ``(N[, O], num_draws)`` outcomes, noise included.

        One draw follows one function through all rows, with fresh noise per row.
        """
        check_positive_int("num_draws", num_draws)
        predictive = self.predict_dist(X)
        generator = torch.Generator(predictive.mean.device)
        generator.manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))
        draws = predictive.sample(num_draws, generator=generator)
        samples: NDArray[np.float64] = draws.movedim(0, -1).cpu().numpy()
        return samples

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _check_finite(y: NDArray[np.float64], names: tuple[str, ...]) -> None:
    bad = np.argwhere(~np.isfinite(y))
    if len(bad):
        row, column = bad[0]
        raise DataError(
            f"target {names[column]!r} holds {len(bad)} values that are missing or infinite "
            f"(first: {'NaN' if np.isnan(y[row, column]) else 'infinity'} in row {row}); drop "
            "these rows"
        )
    row, column = np.unravel_index(np.abs(y).argmax(), y.shape)
    if np.abs(y[row, column]) > LARGEST_TARGET:
        raise DataError(
            f"target {names[column]!r} holds {y[row, column]:g} in row {row}, and beyond "
            f"{LARGEST_TARGET:g} no variance is finite; correct the cell or change the unit"
        )
    spread = np.ptp(y, axis=0)
    narrow = (spread > 0) & (spread < 1 / LARGEST_TARGET)
    if narrow.any():
        column = narrow.argmax()
        raise DataError(
            f"target {names[column]!r} varies by {spread[column]:g}, and below "
            f"{1 / LARGEST_TARGET:g} a variance is rounded to zero; change the unit"
        )


def _check_counts(y: NDArray[np.float64]) -> None:
    bad = np.argwhere((y < 0) | (y != np.floor(y)))
    if len(bad):
        raise DataError(
            f"targets of a Poisson must be counts 0, 1, 2, …; row {bad[0][0]} holds "
            f"{y[tuple(bad[0])]}"
        )


def _are_counts(y: NDArray[np.float64]) -> bool:
    """Whether one column of targets are whole numbers from about zero on."""
    whole = bool((y == np.floor(y)).all())
    return y.shape[1] == 1 and whole and 0 <= y.min() <= _LEAST_COUNT < y.max() <= _LARGEST_COUNT


def _without_typos(
    y: NDArray[np.float64], names: tuple[str, ...]
) -> tuple[NDArray[np.float64], bool, tuple[str, ...]]:
    """Move values that cannot be meant to the farthest of the others, and say so.

    These are at most one in 200 rows, a thousand times as far from the median as half of the
    rows are, and ten times as far as any other.

    Returns:
        The targets, whether their tails are heavy, and notes.
    """
    notes, heavy, kept = [], False, y.copy()
    for k, name in enumerate(names):
        distance = np.abs(y[:, k] - np.median(y[:, k]))
        half = float(np.quantile(distance, 0.75)) or float(distance.mean())
        odd = distance > _TYPO * half
        if odd.any() and odd.mean() <= _MOST_TYPOS:
            others = y[~odd, k]
            if distance[odd].min() > 10 * distance[~odd].max():
                kept[odd, k] = np.clip(y[odd, k], others.min(), others.max())
                notes.append(
                    f"target {name!r} holds {int(odd.sum())} values that are far from all others "
                    f"(first: {y[odd, k][0]:g} in row {int(odd.argmax())}): taken for "
                    f"{kept[odd, k][0]:g}; correct the cells"
                )
                distance = distance[~odd]
        heavy |= bool(distance.max() > _HEAVY * half)
    return kept, heavy, tuple(notes)
