"""Gradient-boosted trees with virtual ensembles (Malinin et al., 2021) by CatBoost.

Every virtual member is a truncated model with a mean and a variance (``RMSEWithUncertainty``);
their mixture is the prediction. Install it by ``pip install catboost`` (100 MB).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from reproduction.methods import DataSize, Settings
from whvi.predictive import Predictive

_MEMBERS = 10


@final
class CatBoostMethod:
    """One model per replica."""

    name = family = "catboost"
    num_members = 1
    per_replica = frozenset({"depth", "learning_rate"})

    def grid(self, size: DataSize) -> tuple[Settings, ...]:
        """Six candidates: depth and learning rate; the first is CatBoost's default depth."""
        return tuple(
            {"iterations": 1000, "depth": depth, "learning_rate": rate}
            for rate in (0.03, 0.1)
            for depth in (6, 4, 3)
        )

    def fit(
        self, settings: Sequence[Settings], x: Tensor, y: Tensor, *, seed: int
    ) -> FittedCatBoost:
        """Fit R models, one after the other."""
        rows = zip(settings, x.numpy(), y.numpy(), strict=True)
        return FittedCatBoost([_model(each, seed).fit(*data) for each, *data in rows])


@final
class FittedCatBoost:
    """R fitted models."""

    def __init__(self, models: list[Any]) -> None:
        self._models = models

    @property
    def num_parameters(self) -> int:
        """Leaves of the first model."""
        return int(self._models[0].get_tree_leaf_counts().sum())

    def predict(self, x: Tensor, *, num_draws: int) -> Predictive:
        """Return the mixture of the virtual members; ``num_draws`` has no effect."""
        found = [
            model.virtual_ensembles_predict(
                rows, "VirtEnsembles", virtual_ensembles_count=_MEMBERS, thread_count=1
            )
            for model, rows in zip(self._models, x.numpy(), strict=True)
        ]
        members = torch.as_tensor(np.stack(found)).double().transpose(1, 2)  # (R, S, N, 2)
        loc, variance = members.unbind(-1)
        return Predictive.gaussian(loc, variance.clamp_min(1e-12).sqrt(), batch_dims=1)


def _model(settings: Settings, seed: int) -> Any:
    from catboost import CatBoostRegressor

    return CatBoostRegressor(
        **settings,
        loss_function="RMSEWithUncertainty",
        posterior_sampling=True,
        random_seed=seed,
        thread_count=1,
        allow_writing_files=False,
        verbose=False,
    )
