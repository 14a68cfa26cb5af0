"""Tree ensembles of scikit-learn: what a practitioner would take instead.

They give a mean only. Their predictive is one Gaussian of unit variance (standardised), which the
factor fitted on held-out rows turns into a Gaussian of the held-out residual variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
from torch import Tensor

from reproduction.methods import Grid, Settings
from whvi.predictive import Predictive


@final
@dataclass(frozen=True)
class TreeMethod:
    """One of scikit-learn's ensembles of trees, one fit per replica.

    Attributes:
        name: ``"extra-trees"`` or ``"hist-gradient-boosting"``.
        grid: The candidates: keyword arguments of the estimator.
    """

    name: str
    grid: Grid
    num_members: int = 1
    per_replica: frozenset[str] = frozenset(
        {"min_samples_leaf", "max_features", "learning_rate", "max_leaf_nodes"}
    )

    @property
    def family(self) -> str:
        """Shares scores with no other method."""
        return self.name

    def fit(self, settings: Sequence[Settings], x: Tensor, y: Tensor, *, seed: int) -> FittedTrees:
        """Fit R ensembles, one after the other."""
        estimators = [
            _KINDS[self.name](**options, random_state=seed + r)
            for r, options in enumerate(settings)
        ]
        for estimator, rows, target in zip(estimators, x.numpy(), y.numpy(), strict=True):
            estimator.fit(rows, target)
        return FittedTrees(estimators)


@final
class FittedTrees:
    """R fitted estimators."""

    def __init__(self, estimators: list[Any]) -> None:
        self._estimators = estimators

    @property
    def num_parameters(self) -> int:
        """Leaves of the first estimator: the numbers it predicts from."""
        first = self._estimators[0]
        if hasattr(first, "estimators_"):
            return sum(int(tree.get_n_leaves()) for tree in first.estimators_)
        return sum(int(tree.get_n_leaf_nodes()) for (tree,) in first._predictors)

    def predict(self, x: Tensor, *, num_draws: int) -> Predictive:
        """Return Gaussians of unit variance around the prediction; ``num_draws`` has no effect."""
        rows = zip(self._estimators, x.numpy(), strict=True)
        mean = torch.stack([torch.as_tensor(each.predict(part)).double() for each, part in rows])
        loc = mean.unsqueeze(1)
        return Predictive.gaussian(loc, torch.ones_like(loc), batch_dims=1)


_KINDS = {
    "extra-trees": ExtraTreesRegressor,
    "hist-gradient-boosting": HistGradientBoostingRegressor,
}
