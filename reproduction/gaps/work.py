"""One unit of an experiment: fit every split on its training part, predict its test part once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reproduction.data import UCIDataset, load_uci
from reproduction.gaps.commit import commit
from reproduction.gaps.linearized import LinearizedMethod
from reproduction.gaps.methods import BEFORE, ESTIMATORS, METHODS
from reproduction.gaps.splits import few_rows, with_gaps
from reproduction.methods import DataSize, Method
from reproduction.methods.evaluation import evaluate, facts
from reproduction.methods.selection import Choice, candidates, choose
from reproduction.records import Record, Records
from reproduction.runner import Unit
from whvi.metrics import coverage, crps, mnll, rmse
from whvi.predictive import Predictive
from whvi.tabular import WHVIGPRegressor, WHVIRegressor

FILES = {"gaps": "records.jsonl", "literature": "literature.jsonl", "few": "few.jsonl"}
"""Of the records of every part."""
LEVELS = (0.5, 0.9)
_QUICK_STEPS = 60


@dataclass(frozen=True)
class GapsWork:
    """Computes the records of a unit.

    Attributes:
        part: ``"gaps"``; ``"literature"``, the literature's splits; or ``"few"``: 20 training rows.
        data_dir: Folder that holds ``UCI_Datasets``.
        quick: Few steps and one candidate: a test of the machinery, not of the methods.
        records: Those that are there, whose choices others take over.
    """

    part: str
    data_dir: str | None = None
    quick: bool = False
    records: Records | None = None

    def __call__(self, unit: Unit) -> Iterator[Record]:
        """Yield the records of ``unit``, one per split."""
        dataset = split_dataset(load_uci(unit.dataset, self.data_dir), self.part, seed=unit.seed)
        run = self._estimator if unit.method in ESTIMATORS else self._method
        for record in run(unit, dataset):
            values = dataset.x[:, record["split"]] if self.part == "gaps" else np.empty(0)
            distinct = {"num_distinct": len(np.unique(values))} if self.part == "gaps" else {}
            yield {**record, **distinct, "quick": self.quick, "commit": commit()}

    def _method(self, unit: Unit, dataset: UCIDataset) -> Iterator[Record]:
        method = METHODS[unit.method]
        chosen = self._choose(method, unit, dataset)
        yield from evaluate(method, dataset, unit.splits, chosen, seed=unit.seed, score=scores)

    def _choose(self, method: Method, unit: Unit, dataset: UCIDataset) -> list[Choice]:
        """Let every split choose on held-out training rows; one candidate is no choice.

        A linearised network is that of its base, which the evidence gives another noise.
        """
        if isinstance(method, LinearizedMethod):
            base = self._kept(method.base, unit) or self._choose(method.base, unit, dataset)
            return [replace(choice, noise_factor=1.0) for choice in base]
        train = dataset.splits[unit.splits[0]].train
        grid = candidates(method, DataSize(len(train), dataset.x.shape[1]), quick=self.quick)
        if len(grid) == 1:
            return [Choice(grid[0], 1.0, {}, 0.0)] * len(unit.splits)
        return choose(method, dataset, unit.splits, seed=unit.seed, repeats=1)

    def _kept(self, method: Method, unit: Unit) -> list[Choice]:
        """Return what the records of a method say about its choices, if all are there."""
        records = {} if self.records is None else self.records.read()
        keys = [(method.name, unit.dataset, split, unit.seed) for split in unit.splits]
        found = [records[key]["choice"] for key in keys if key in records]
        choices = [Choice(each["settings"], each["noise_factor"], {}, 0.0) for each in found]
        return choices if len(choices) == len(keys) else []

    def _estimator(self, unit: Unit, dataset: UCIDataset) -> Iterator[Record]:
        """Fit an estimator with its defaults to the raw columns."""
        for split in unit.splits:
            train, test = dataset.splits[split]
            start = time.perf_counter()
            model = _make_estimator(unit.method, unit.seed, quick=self.quick)
            model.fit(dataset.x[train], dataset.y[train])
            predictive = model.predict_dist(dataset.x[test])
            record = {
                "dataset": dataset.name,
                "split": split,
                "seed": unit.seed,
                "num_parameters": sum(p.numel() for p in model.model_.parameters()),
                "seconds": time.perf_counter() - start,
                "choice": {name: getattr(model, name + "_", None) for name in _FOUND},
                **facts(dataset, split),
            }
            y = torch.as_tensor(dataset.y[test])
            yield {"method": unit.method, **record, **scores(predictive, y)}
            if isinstance(model, WHVIRegressor) and self.part != "gaps":
                yield {"method": BEFORE, **record, **scores(_near(model, dataset.x[test]), y)}


_FOUND = ("likelihood", "noise_factor")  # by WHVIRegressor in its own training rows


def _near(model: WHVIRegressor, x: np.ndarray) -> Predictive:
    """Predict by the weight draws of the same fit alone, as the estimator did before."""
    whole = model.predict_dist(x)
    loc, scale = (part[: model.num_draws] for part in whole.gaussian_components() or ())
    return Predictive.gaussian(loc, scale)


def split_dataset(dataset: UCIDataset, part: str, *, seed: int) -> UCIDataset:
    """Return the set with the splits of a part of the experiment."""
    if part == "gaps":
        return with_gaps(dataset, seed=seed)
    return few_rows(dataset) if part == "few" else dataset


def scores(predictive: Predictive, y: Tensor) -> dict[str, float]:
    """Score one distribution per row against ``y (N,)``, in the units of ``y``."""
    found = {
        "rmse": float(rmse(predictive.mean, y)),
        "mnll": float(mnll(predictive.log_prob(y))),
        "crps": float(crps(predictive, y)),
    }
    for level in LEVELS:
        lower, upper = predictive.interval(level)
        found[f"coverage{100 * level:.0f}"] = float(coverage(lower, upper, y))
        found[f"width{100 * level:.0f}"] = float((upper - lower).median())
    return found


def _make_estimator(name: str, seed: int, *, quick: bool) -> Any:
    kind = {"WHVIRegressor": WHVIRegressor, "WHVIGPRegressor": WHVIGPRegressor}[name]
    options: dict[str, Any] = {"max_iter": _QUICK_STEPS} if quick else {}
    return kind(random_state=seed, **options)
