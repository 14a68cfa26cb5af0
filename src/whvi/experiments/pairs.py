"""Compare methods split by split: most of the spread of a score comes from the splits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from whvi.experiments.records import Record

SCORES = ("rmse", "mnll")


@dataclass(frozen=True)
class Difference:
    """Mean and standard error of ``rival − reference`` over the splits that both have."""

    mean: float
    standard_error: float


@dataclass(frozen=True)
class Pair:
    """A rival beside the reference on one data set.

    Attributes:
        dataset, rival: Names.
        num_splits: How many (split, seed) both have.
        differences: By score; positive where the reference is better.
    """

    dataset: str
    rival: str
    num_splits: int
    differences: dict[str, Difference]


def paired_differences(records: Iterable[Record], reference: str) -> list[Pair]:
    """Compare every other method with ``reference`` wherever they share splits."""
    by_cell: dict[tuple[str, str], dict[tuple[int, int], Record]] = {}
    for record in records:
        cell = by_cell.setdefault((record["dataset"], record["method"]), {})
        cell[record["split"], record["seed"]] = record
    pairs = []
    for (dataset, rival), theirs in by_cell.items():
        ours = by_cell.get((dataset, reference), {})
        shared = sorted(ours.keys() & theirs.keys())
        if rival != reference and shared:
            found = {
                score: _difference([theirs[k][score] - ours[k][score] for k in shared])
                for score in SCORES
            }
            pairs.append(Pair(dataset, rival, len(shared), found))
    return pairs


def _difference(values: list[float]) -> Difference:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return Difference(statistics.fmean(values), spread / math.sqrt(len(values)))
