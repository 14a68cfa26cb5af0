"""The estimators with their defaults, untouched, on the raw columns: what a user gets.

There is nothing to choose: an estimator itself holds out rows for early stopping, for the choice
of its noise model and for its calibration. ``choice`` in the records says what it found.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from reproduction.data import UCIDataset
from reproduction.methods.evaluation import facts, scores, scores_per_draw
from reproduction.records import Record
from whvi.predictive import Predictive
from whvi.tabular import WHVIGPRegressor, WHVIRegressor

NAME = "WHVIRegressor"
ESTIMATORS = {NAME: WHVIRegressor, "WHVIGPRegressor": WHVIGPRegressor}


def evaluate_estimator(
    name: str,
    dataset: UCIDataset,
    splits: Sequence[int],
    *,
    seed: int,
    max_iter: int | None = None,
) -> Iterator[Record]:
    """Fit, predict and score ``splits`` one after the other; yields one record each.

    ``near`` in a record of ``WHVIRegressor`` has the scores of its weight draws alone, without the
    linearised posterior that takes over far from the data.

    Args:
        name: Of :data:`ESTIMATORS`.
        dataset: The table and its splits.
        splits: Numbers of the splits.
        seed: ``random_state`` of the estimator.
        max_iter: Steps of training, for quick runs; by default what the estimator chooses.
    """
    options: dict[str, Any] = {} if max_iter is None else {"max_iter": max_iter}
    for split in splits:
        train, test = dataset.splits[split]
        start = time.perf_counter()
        model = ESTIMATORS[name](random_state=seed, **options)
        model.fit(dataset.x[train], dataset.y[train])
        predictive = model.predict_dist(dataset.x[test])
        seconds = time.perf_counter() - start
        y = torch.as_tensor(dataset.y[test])
        record = {
            "method": name,
            "dataset": dataset.name,
            "split": split,
            "seed": seed,
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
    """Predict by the weight draws alone."""
    whole = model.predict_dist(x)
    loc, scale = (part[: model.num_draws] for part in whole.gaussian_components() or ())
    return Predictive.gaussian(loc, scale)
