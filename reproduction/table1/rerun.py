r"""Run split 0 of the WHVI rows again and compare it with the committed records.

A cell agrees if ``|log(RMSE / recorded RMSE)|`` and ``|MNLL − recorded MNLL|`` are within
:data:`TOLERANCE`; a row agrees if all its cells do and the means over its data sets are within
:data:`MEAN_TOLERANCE`. Where the limits come from: ``reproduction/table1.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from reproduction.records import Record, RecordStore
from reproduction.report import markdown_table, number
from reproduction.runner import Options, plan_units, run_units
from reproduction.table1.paper import DATASETS
from reproduction.table1.work import Table1Work
from whvi.errors import DataError

RERUN_FILE = "rerun.jsonl"
METHODS = ("whvi", "whvi-ensemble", "whvi-best")
_SPLIT, _SEED = 0, 0


class Change(NamedTuple):
    """How far two runs of a cell are apart, or how far they may be."""

    log_rmse: float  # log of the ratio of RMSE
    mnll: float  # difference of MNLL, nats

    def within(self, limit: Change) -> bool:
        """Tell whether both scores changed by at most ``limit``."""
        return abs(self.log_rmse) <= limit.log_rmse and abs(self.mnll) <= limit.mnll


_SMALL = Change(0.35, 0.50)
TOLERANCE = {
    "boston": _SMALL,
    "concrete": _SMALL,
    "energy": _SMALL,
    "kin8nm": Change(0.10, 0.10),
    "naval": Change(0.45, 0.40),
    "powerplant": Change(0.20, 0.20),
    "protein": Change(0.05, 0.08),
    "yacht": Change(0.50, 0.50),
}
MEAN_TOLERANCE = Change(0.10, 0.15)


class Comparison(NamedTuple):
    """One cell run twice, or the mean over the cells of a row (``dataset`` is ``"mean"``)."""

    method: str
    dataset: str
    change: Change
    limit: Change

    @property
    def agrees(self) -> bool:
        """Whether both scores are within the limits."""
        return self.change.within(self.limit)


def rerun(options: Options, *, data_dir: str | None = None) -> list[Comparison]:
    """Run what is missing of ``rerun.jsonl`` beside the records, choices included, and compare."""
    folder = options.output
    recorded = RecordStore(folder / "records.jsonl").read()
    if not recorded:
        raise DataError(f"{folder} has no records to compare with")
    choices = RecordStore(folder / "rerun_choices.jsonl")
    work = Table1Work(choices, data_dir, options.quick)
    splits = {name: [_SPLIT] for name in options.data or DATASETS}
    units = plan_units(options.methods or METHODS, splits, seeds=(_SEED,), chunk=lambda name: 1)
    store = RecordStore(folder / RERUN_FILE)
    run_units(units, work, store, options)
    return compare(recorded.values(), store.read().values())


def compare(recorded: Iterable[Record], again: Iterable[Record]) -> list[Comparison]:
    """Compare the cells that both have; the mean of a row follows its cells."""
    before = {(r["method"], r["dataset"], r["split"], r["seed"]): r for r in recorded}
    rows: dict[str, list[Comparison]] = {}
    for record in again:
        old = before.get((record["method"], record["dataset"], record["split"], record["seed"]))
        if old is None:
            continue
        change = Change(math.log(record["rmse"] / old["rmse"]), record["mnll"] - old["mnll"])
        cell = Comparison(record["method"], record["dataset"], change, TOLERANCE[record["dataset"]])
        rows.setdefault(record["method"], []).append(cell)
    return [each for cells in rows.values() for each in (*cells, _mean(cells))]


def _mean(cells: Sequence[Comparison]) -> Comparison:
    log_rmse, mnll = (
        sum(each) / len(cells) for each in zip(*(c.change for c in cells), strict=True)
    )
    return Comparison(cells[0].method, "mean", Change(log_rmse, mnll), MEAN_TOLERANCE)


def comparison_table(comparisons: Sequence[Comparison]) -> str:
    """Lay out the comparisons, with the limits and the verdicts."""
    lines = [["method", "data", "log RMSE ratio", "limit", "MNLL difference", "limit", ""]]
    for each in comparisons:
        cells = [
            text
            for value, limit in zip(each.change, each.limit, strict=True)
            for text in (number(value, "+.3f"), f"± {limit:.2f}")
        ]
        verdict = "agrees" if each.agrees else "DISAGREES"
        lines.append([each.method, each.dataset, *cells, verdict])
    return markdown_table(lines)
