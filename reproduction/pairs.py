"""Compare methods split by split: most of the spread of a score comes from the splits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from reproduction.pages import std
from reproduction.records import Record

SCORES = ("rmse", "mnll")


@dataclass(frozen=True)
class Difference:
    """A score of the rival and of the reference on the splits that both have.

    Attributes:
        rival, reference: Means over the splits.
        standard_error: Of the mean difference ``rival − reference``.
    """

    rival: float
    reference: float
    standard_error: float

    @property
    def mean(self) -> float:
        """``rival − reference``: positive where the reference is better."""
        return self.rival - self.reference


@dataclass(frozen=True)
class Pair:
    """A rival beside the reference on one data set.

    Attributes:
        dataset, rival: Names.
        num_splits: How many (split, seed) both have.
        differences: By score.
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
                score: _difference([(theirs[k][score], ours[k][score]) for k in shared])
                for score in SCORES
            }
            pairs.append(Pair(dataset, rival, len(shared), found))
    return pairs


def _difference(both: list[tuple[float, float]]) -> Difference:
    rival, reference = (statistics.fmean(each) for each in zip(*both, strict=True))
    differences = [theirs - ours for theirs, ours in both]
    return Difference(rival, reference, std(differences) / math.sqrt(len(both)))
