"""Averages over splits, and the two short tables of the project's README."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reproduction.records import Record
from reproduction.report import (
    Pair,
    SummaryRow,
    grouped,
    markdown_table,
    mean,
    number,
    paired_differences,
    std,
)
from reproduction.table1.paper import DATASETS, TABLE_1, PaperRow
from reproduction.table1.work import OWN, ROWS

_TITLES = {
    "whvi": "WHVI, one model",
    "whvi-ensemble": "ensemble of four",
    "whvi-best": "`whvi-best`",
    "WHVIRegressor": "`WHVIRegressor`",
}
_PAPER = {
    "whvi": "paper's WHVI",
    "mc-dropout": "paper's MC dropout",
    "noisy-kfac": "paper's noisy K-FAC",
}
_RIVALS = ROWS[len(OWN) :]
_NOTHING = "–"


def summarise(records: Iterable[Record]) -> list[SummaryRow]:
    """Average the records of every (data set, method) over splits and seeds.

    ``…_std`` is the standard deviation over splits (divisor n − 1; 0 for one split) and
    ``seconds`` the sum over them.
    """
    groups = grouped(records, "dataset", "method")
    cells = sorted(groups, key=order)
    return [_summary_row(dataset, method, groups[dataset, method]) for dataset, method in cells]


def order(cell: tuple[str, str]) -> tuple[int, int]:
    """Sort (data set, method) as the table does."""
    dataset, method = cell
    return DATASETS.index(dataset), ROWS.index(method)


def _summary_row(dataset: str, method: str, records: Sequence[Record]) -> SummaryRow:
    return {
        "dataset": dataset,
        "method": method,
        "rmse_mean": mean(records, "rmse"),
        "rmse_std": std(records, "rmse"),
        "mnll_mean": mean(records, "mnll"),
        "mnll_std": std(records, "mnll"),
        "crps_mean": mean(records, "crps"),
        "coverage95_mean": mean(records, "coverage95"),
        "num_splits": len({record["split"] for record in records}),
        "num_parameters": round(mean(records, "num_parameters")),
        "seconds": round(sum(record["seconds"] for record in records), 3),
        "rmse_per_draw_mean": mean(records, "rmse_per_draw"),
        "mnll_per_draw_mean": mean(records, "mnll_per_draw"),
        "num_duplicates_mean": mean(records, "num_duplicates"),
    }


def own_table(records: Sequence[Record]) -> str:
    """Our methods beside the paper's columns: RMSE / MNLL."""
    rows = {(row["dataset"], row["method"]): row for row in summarise(records)}
    own = [method for method in OWN if any(key[1] == method for key in rows)]
    lines = [["data", *(_TITLES[method] for method in own), *_PAPER.values()]]
    for dataset in DATASETS:
        most = max((row["num_splits"] for key, row in rows.items() if key[0] == dataset), default=0)
        ours = [_own_cell(rows.get((dataset, method)), most) for method in own]
        printed = [_printed_cell(TABLE_1[method][dataset]) for method in _PAPER]
        lines.append([dataset, *ours, *printed])
    return markdown_table(lines)


def rivals_table(records: Sequence[Record]) -> str:
    """The other methods beside ``whvi`` on shared splits: ratio of RMSE, difference of MNLL."""
    pairs = {(pair.dataset, pair.rival): pair for pair in paired_differences(records, "whvi")}
    lines = [
        [dataset, *(_rival_cell(pairs.get((dataset, rival))) for rival in _RIVALS)]
        for dataset in DATASETS
    ]
    return markdown_table([["data", *_RIVALS], *lines])


def _own_cell(row: SummaryRow | None, most: int) -> str:
    if row is None:
        return _NOTHING
    scores = f"{number(row['rmse_mean'], '.4g')} / {number(row['mnll_mean'], '.3g')}"
    few = row["num_splits"]
    return scores if few == most else f"{scores} ({few} split{'s' if few > 1 else ''})"


def _printed_cell(printed: PaperRow) -> str:
    return f"{number(printed.rmse.mean, 'g')} / {number(printed.mnll.mean, 'g')}"


def _rival_cell(pair: Pair | None) -> str:
    if pair is None:
        return _NOTHING
    rmse, mnll = pair.differences["rmse"], pair.differences["mnll"]
    ratio = number(rmse.rival / rmse.reference, ".2f")
    return f"{ratio} / {number(mnll.mean, '+.2f')} ({pair.num_splits})"
