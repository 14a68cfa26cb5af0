r"""Split conformal prediction: intervals and sets of labels whose coverage needs no right model.

Rows that nothing in the fit has seen have scores: how far their targets are from the predictions.
The interval (the set) of a new row holds every target whose score is not above the quantile

.. math:: s_i = \frac{|y_i - \mu(x_i)|}{\sigma(x_i)} \;\text{ or }\; 1 - p(y_i \mid x_i), \qquad
          \hat q = s_{(\lceil (n + 1)(1 - \alpha) \rceil)}

of ``n`` of them. If all rows are exchangeable and scores differ, it holds the target with a
probability between ``1 - α`` and ``1 - α + 1 / (n + 1)``, on average over rows and over tables
(Vovk et al., 2005; Lei et al., 2018; for labels Sadinle et al., 2019, "LAC").

Scores in units of the predictive standard deviation make the interval of a row as wide as the
model is uncertain about it. Two other scores, by the distribution function (Chernozhukov et al.,
2021) and by quantiles (Kivaranovic et al., 2020), had intervals of the same length within 3 % on
simulated tables, constant, varying, skewed and heavy-tailed noise; the first of them cannot tell
targets beyond eight standard deviations apart, and then is unbounded.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from torch import Tensor

from whvi._files import conform_tensor
from whvi.errors import ConfigError, DataError, ModelFileError
from whvi.tabular.arrays import Rows, numbered, plain
from whvi.tabular.inputs import Column

_MOST_ROWS = 10_000  # with so many the coverage of one fit is exact to 0.3 %
_TENSOR = "conformal.scores"

Self = TypeVar("Self", bound="ConformalModel")


def set_apart(rows: Rows, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Split off a random ``fraction`` of the rows, at most 10,000.

    Returns:
        The rows to fit, in random order, and the others.

    Raises:
        DataError: There are too few rows; or some, of either part, hold what cannot be used.
    """
    if (
        isinstance(fraction, bool)
        or not isinstance(fraction, int | float | np.floating)
        or not 0 < fraction < 1
    ):
        raise ConfigError(f"conformal_fraction must lie in [0, 1), got {fraction!r}")
    table = rows.table
    num_apart = min(max(round(fraction * len(table)), 1), _MOST_ROWS)
    if num_apart >= len(table):
        raise DataError(
            f"conformal_fraction={fraction:g} leaves none of {len(table)} rows to learn from; pass "
            "more rows or a smaller fraction"
        )
    for k, name in enumerate(table.columns):
        Column.learn(table.iloc[:, k], str(name))  # to find what is wrong before the fit, not after
    places = train_test_split(np.arange(len(table)), test_size=num_apart, random_state=seed)
    kept, apart = (rows._replace(table=numbered(table)).take(place) for place in places)
    return kept, apart


def quantile(scores: NDArray[np.float64] | None, level: float) -> NDArray[np.float64]:
    """Return the ``⌈(n + 1) level⌉``-th smallest of sorted scores ``(n, O)``, shape ``(O,)``.

    Raises:
        ConfigError: There are no scores, or so few that no finite quantile has this level.
    """
    if not 0 < level < 1:
        raise ConfigError(f"level must lie strictly between 0 and 1, got {level!r}")
    if scores is None:
        raise ConfigError(
            "there are no rows that no member trained on: fit with conformal_fraction=0.2, or pass "
            "such rows to conformalize(X, y)"
        )
    place = math.ceil((len(scores) + 1) * level - 1e-9)  # 10 · 0.7 is 7, whatever the rounding
    if place > len(scores):
        raise ConfigError(
            f"level {level:g} needs at least {math.ceil(level / (1 - level) - 1e-9)} rows that no "
            f"member trained on, and there are {len(scores)}: raise conformal_fraction, or lower "
            "the level"
        )
    found: NDArray[np.float64] = scores[place - 1]
    return found


def to_tensors(scores: NDArray[np.float64]) -> dict[str, Tensor]:
    """Return what a model file holds of them."""
    return {_TENSOR: torch.as_tensor(scores)}


def from_tensors(tensors: Mapping[str, Tensor], num_outputs: int) -> NDArray[np.float64] | None:
    """Read the scores of a model file, if it has any; refuse what cannot be scores."""
    names = [name for name in tensors if name.startswith("conformal.")]
    if not names:
        return None
    if names != [_TENSOR] or tensors[_TENSOR].dim() != 2 or not len(tensors[_TENSOR]):
        raise ModelFileError(f"conformal scores must be one matrix {_TENSOR}, got {names[:3]}")
    rows = len(tensors[_TENSOR])
    scores = conform_tensor(tensors, _TENSOR, (rows, num_outputs), torch.float64).numpy()
    if (scores[0] < 0).any() or (np.diff(scores, axis=0) < 0).any():
        raise ModelFileError("conformal scores must be sorted and not below zero")
    return scores


class ConformalModel(ABC):
    """An estimator that keeps the scores of rows that training has not seen.

    Attributes:
        conformal_scores_: Sorted, ``(n, O)``; ``None`` if there are none.
    """

    conformal_scores_: NDArray[np.float64] | None

    @abstractmethod
    def _checked(self, X: Any) -> pd.DataFrame:
        """Return rows as a table."""

    @abstractmethod
    def _targets_again(self, y: Any, num_rows: int) -> Any:
        """Refuse targets that cannot be used with the networks there are."""

    @abstractmethod
    def _scores(self, table: pd.DataFrame, y: Any) -> NDArray[np.float64]:
        """Return how far targets are from predictions, ``(n, O)``."""

    def _set_conformal_scores(self, table: pd.DataFrame, y: Any) -> None:
        self.conformal_scores_ = np.sort(self._scores(table, y), axis=0)

    def conformalize(self: Self, X: Any, y: Any) -> Self:
        """Take these rows, which training must not have seen, for conformal intervals or sets.

        They replace those that ``conformal_fraction`` left out.
        """
        table = self._checked(X)
        y = y if isinstance(y, pd.Series) else plain(y)
        self._targets_again(y, len(table))
        self._set_conformal_scores(table, y)
        return self
