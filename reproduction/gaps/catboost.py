"""Gradient-boosted trees with virtual ensembles (Malinin et al., 2021) by CatBoost.

Every virtual member is a truncated model with a mean and a variance (``RMSEWithUncertainty``);
their mixture is the prediction. Install it by ``pip install catboost`` (100 MB).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reproduction.methods import DataSize, Settings
from reproduction.methods.singles import SingleFits

_MEMBERS = 10


def _grid(size: DataSize) -> tuple[Settings, ...]:
    """Six candidates: depth and learning rate; the first is CatBoost's default depth."""
    return tuple(
        {"iterations": 1000, "depth": depth, "learning_rate": rate}
        for rate in (0.03, 0.1)
        for depth in (6, 4, 3)
    )


def _components(model: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return those of the virtual members."""
    found = model.virtual_ensembles_predict(
        rows.numpy(), "VirtEnsembles", virtual_ensembles_count=_MEMBERS, thread_count=1
    )
    loc, variance = torch.as_tensor(found).double().unbind(-1)  # (N, S)
    return loc.T, variance.clamp_min(1e-12).sqrt().T


def _leaves(model: Any) -> int:
    return int(model.get_tree_leaf_counts().sum())


def _fitted(settings: Settings, x: Tensor, y: Tensor, seed: int, replica: int) -> Any:
    from catboost import CatBoostRegressor

    model = CatBoostRegressor(
        **settings,
        loss_function="RMSEWithUncertainty",
        posterior_sampling=True,
        random_seed=seed,
        thread_count=1,
        allow_writing_files=False,
        verbose=False,
    )
    return model.fit(x.numpy(), y.numpy())


CATBOOST = SingleFits(
    "catboost", _grid, _fitted, _components, _leaves, frozenset({"depth", "learning_rate"})
)
