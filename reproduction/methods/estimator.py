"""The estimators with their defaults, untouched, on the raw columns: what a user gets.

There is nothing to choose: an estimator itself holds out rows for early stopping, for the choice
of its noise model and for its calibration. ``choice`` in the records says what it found.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.distributions import StudentT

from reproduction.data import UCIDataset
from reproduction.methods.evaluation import facts, scores, scores_per_draw
from reproduction.records import Record
from reproduction.runner import Unit
from whvi.predictive import Predictive
from whvi.tabular import WHVIGPRegressor, WHVIRegressor

NAME = "WHVIRegressor"
_QUICK_STEPS = 60
ESTIMATORS = {NAME: WHVIRegressor, "WHVIGPRegressor": WHVIGPRegressor}


def evaluate_estimator(unit: Unit, dataset: UCIDataset, *, quick: bool) -> Iterator[Record]:
    """Fit, predict and score splits one after the other; yields one record each.

    ``near`` in a record of ``WHVIRegressor`` has the scores of its weight draws alone, without the
    linearised posterior that takes over far from the data.

    Args:
        unit: An estimator of :data:`ESTIMATORS`, numbers of splits, and its ``random_state``.
        dataset: The table and its splits.
        quick: Train for few steps, instead of as many as the estimator chooses.
    """
    options: dict[str, Any] = {"max_iter": _QUICK_STEPS} if quick else {}
    for split in unit.splits:
        train, test = dataset.splits[split]
        start = time.perf_counter()
        model = ESTIMATORS[unit.method](random_state=unit.seed, **options)
        model.fit(dataset.x[train], dataset.y[train])
        predictive = model.predict_dist(dataset.x[test])
        seconds = time.perf_counter() - start
        y = torch.as_tensor(dataset.y[test])
        record = {
            **unit.key(split),
            **scores(predictive, y),
            "num_parameters": sum(p.numel() for p in model.model_.parameters()),
            "seconds": seconds,
            **facts(dataset, split),
        }
        if isinstance(model, WHVIRegressor):
            near = _near(model, dataset.x[test])
            record |= scores_per_draw(near, y) | {"near": scores(near, y)}
            record["choice"] = {
                "likelihood": model.likelihood_,
                "noise_factor": model.noise_factor_,
            }
        yield record


def _near(model: WHVIRegressor, x: np.ndarray) -> Predictive:
    """Predict by the weight draws alone: the first components, with equal weights."""
    draws = model.predict_dist(x).map(lambda part: part[: model.num_draws])
    component: Any = draws.as_distribution().component_distribution  # its last axis has the draws
    if isinstance(component, StudentT):
        parts = (component.loc, component.scale, component.df)
        return Predictive.student_t(*(part.movedim(-1, 0) for part in parts))
    return Predictive.gaussian(*(part.movedim(-1, 0) for part in (component.loc, component.scale)))
