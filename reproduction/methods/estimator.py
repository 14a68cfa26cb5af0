"""``WHVIRegressor`` with its defaults, untouched, on the raw columns: what a user gets.

There is nothing to choose: the estimator itself holds out rows for early stopping, for the choice
of its noise model and for its calibration. ``choice`` in the records says what it found.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch

from reproduction.data import UCIDataset
from reproduction.methods.evaluation import facts, scores
from reproduction.records import Record
from whvi.tabular import WHVIRegressor

NAME = "WHVIRegressor"


def evaluate_estimator(
    dataset: UCIDataset, splits: Sequence[int], *, seed: int, max_iter: int | None = None
) -> Iterator[Record]:
    """Fit, predict and score ``splits`` one after the other; yields one record each.

    Args:
        dataset: The table and its splits.
        splits: Numbers of the splits.
        seed: ``random_state`` of the estimator.
        max_iter: Steps of training, for quick runs; by default what the estimator chooses.
    """
    for split in splits:
        train, test = dataset.splits[split]
        start = time.perf_counter()
        model = WHVIRegressor(max_iter=max_iter, random_state=seed)
        model.fit(dataset.x[train], dataset.y[train])
        predictive = model.predict_dist(dataset.x[test])
        seconds = time.perf_counter() - start
        yield {
            "method": NAME,
            "dataset": dataset.name,
            "split": split,
            "seed": seed,
            **scores(predictive, torch.as_tensor(dataset.y[test])),
            "num_parameters": sum(p.numel() for p in model.model_.parameters())
            + sum(p.numel() for p in model.network_likelihood_.parameters()),
            "seconds": seconds,
            "choice": {"likelihood": model.likelihood_, "noise_factor": model.noise_factor_},
            **facts(dataset, split),
        }
