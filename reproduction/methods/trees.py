"""Tree ensembles of scikit-learn: what a practitioner would take instead.

They give a mean only. Their predictive is one Gaussian of unit variance (standardised), which the
factor fitted on held-out rows turns into a Gaussian of the held-out residual variance.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reproduction.methods import Grid, Settings
from reproduction.methods.singles import SingleFits


def trees(name: str, kind: type[Any], grid: Grid, *per_replica: str) -> SingleFits:
    """Return one of scikit-learn's ensembles of trees; candidates are its keyword arguments."""

    def fit(settings: Settings, x: Tensor, y: Tensor, seed: int, replica: int) -> Any:
        return kind(**settings, random_state=seed + replica).fit(x.numpy(), y.numpy())

    return SingleFits(name, grid, fit, _components, _num_leaves, frozenset(per_replica))


def _components(estimator: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
    mean = torch.as_tensor(estimator.predict(rows.numpy())).double()
    return mean, torch.ones_like(mean)


def _num_leaves(estimator: Any) -> int:
    """Return how many numbers it predicts from."""
    if hasattr(estimator, "estimators_"):
        return sum(int(tree.get_n_leaves()) for tree in estimator.estimators_)
    return sum(int(tree.get_n_leaf_nodes()) for (tree,) in estimator._predictors)
