"""Averages of the gap experiment over columns, splits or seeds, from records alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reproduction.gaps.methods import ROWS
from reproduction.records import Record
from reproduction.report import SummaryRow, grouped, mean
from reproduction.table1.paper import DATASETS

SCORES = ("rmse", "mnll", "crps", "coverage50", "width50", "coverage90", "width90")


def summarise(records: Iterable[Record]) -> list[SummaryRow]:
    """Average the records of every (data set, method) over splits and seeds.

    The worst split is that with the largest MNLL; ``seconds`` is the sum over splits.
    """
    groups = grouped(records, "dataset", "method")
    cells = sorted(groups, key=lambda cell: (DATASETS.index(cell[0]), ROWS.index(cell[1])))
    return [_row(dataset, method, groups[dataset, method]) for dataset, method in cells]


def _row(dataset: str, method: str, records: Sequence[Record]) -> SummaryRow:
    worst = max(records, key=lambda record: float(record["mnll"]))
    return {
        "dataset": dataset,
        "method": method,
        **{f"{score}_mean": mean(records, score) for score in SCORES},
        "mnll_worst": worst["mnll"],
        "worst_split": worst["split"],
        "num_splits": len({record["split"] for record in records}),
        "num_parameters": round(mean(records, "num_parameters")),
        "seconds": round(sum(record["seconds"] for record in records), 3),
    }
