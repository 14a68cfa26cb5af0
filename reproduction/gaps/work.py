"""One unit of an experiment: fit every split on its training part, predict its test part once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from reproduction.data import UCIDataset, load_uci
from reproduction.gaps.linearized import LinearizedMethod
from reproduction.gaps.methods import BEFORE, METHODS
from reproduction.gaps.splits import few_rows, with_gaps
from reproduction.methods import DataSize, Method
from reproduction.methods.estimator import ESTIMATORS, evaluate_estimator
from reproduction.methods.evaluation import evaluate
from reproduction.methods.selection import Choice, candidates, choose
from reproduction.records import Record, Records, commit
from reproduction.runner import Unit

FILES = {"gaps": "records.jsonl", "few": "few.jsonl"}
"""Of the records of every part."""


@dataclass(frozen=True)
class GapsWork:
    """Computes the records of a unit.

    Attributes:
        part: ``"gaps"``, or ``"few"``: 20 training rows.
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
        if unit.method in ESTIMATORS:
            records = evaluate_estimator(unit, dataset, quick=self.quick)
        else:
            records = self._method(unit, dataset)
        for record in records:
            values = dataset.x[:, record["split"]] if self.part == "gaps" else np.empty(0)
            distinct = {"num_distinct": len(np.unique(values))} if self.part == "gaps" else {}
            yield {**record, **distinct, "quick": self.quick, "commit": commit()}

    def _method(self, unit: Unit, dataset: UCIDataset) -> Iterator[Record]:
        method = METHODS[unit.method]
        chosen = self._choose(method, unit, dataset)
        yield from evaluate(method, dataset, unit.splits, chosen, seed=unit.seed)

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


def split_dataset(dataset: UCIDataset, part: str, *, seed: int) -> UCIDataset:
    """Return the set with the splits of a part of the experiment."""
    return with_gaps(dataset, seed=seed) if part == "gaps" else few_rows(dataset)


def with_before(records: Iterable[Record]) -> list[Record]:
    """Add what the estimator was before: the weight draws alone, unless there is a record of it."""
    found = list(records)
    recorded = {_cell(record) for record in found if record["method"] == BEFORE}
    before = [
        {**record, "method": BEFORE, **record["near"]}
        for record in found
        if "near" in record and _cell(record) not in recorded
    ]
    return found + before


def _cell(record: Record) -> tuple[object, ...]:
    return record["dataset"], record["split"], record["seed"]
