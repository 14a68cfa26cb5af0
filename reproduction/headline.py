"""The short tables of the README, from the records: ``python -m reproduction.headline``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reproduction.pages import markdown_table
from reproduction.pairs import Pair, paired_differences
from reproduction.paper import DATASETS, TABLE_1, PaperRow
from reproduction.records import Record, RecordStore
from reproduction.report import METHOD_ORDER, SummaryRow, summarise

_OURS = {"whvi": "WHVI, one model", "whvi-ensemble": "ensemble of four", "whvi-best": "`whvi-best`"}
_PAPER = {
    "whvi": "paper's WHVI",
    "mc-dropout": "paper's MC dropout",
    "noisy-kfac": "paper's noisy K-FAC",
}
_RIVALS = METHOD_ORDER[len(_OURS) :]
_NOTHING = "–"


def own_table(records: Sequence[Record]) -> str:
    """Our methods beside the paper's columns: RMSE / MNLL."""
    rows = {(row["dataset"], row["method"]): row for row in summarise(records)}
    most = _most_splits(rows)
    lines = []
    for dataset in DATASETS:
        ours = [_own_cell(rows.get((dataset, method)), most[dataset]) for method in _OURS]
        printed = [_printed_cell(TABLE_1[method][dataset]) for method in _PAPER]
        lines.append([dataset, *ours, *printed])
    return markdown_table([["data", *_OURS.values(), *_PAPER.values()], *lines])


def rivals_table(records: Sequence[Record]) -> str:
    """The other methods of this library beside ``whvi``: ratio of RMSE, difference of MNLL."""
    pairs = {(pair.dataset, pair.rival): pair for pair in paired_differences(records, "whvi")}
    lines = [
        [dataset, *(_rival_cell(pairs.get((dataset, rival))) for rival in _RIVALS)]
        for dataset in DATASETS
    ]
    return markdown_table([["data", *_RIVALS], *lines])


def _most_splits(rows: dict[tuple[str, str], SummaryRow]) -> dict[str, int]:
    numbers = {dataset: [0] for dataset in DATASETS}
    for (dataset, _), row in rows.items():
        numbers[dataset].append(row["num_splits"])
    return {dataset: max(each) for dataset, each in numbers.items()}


def _own_cell(row: SummaryRow | None, most: int) -> str:
    if row is None:
        return _NOTHING
    scores = f"{row['rmse_mean']:.4g} / {row['mnll_mean']:.3g}".replace("-", "−")
    few = row["num_splits"]
    return scores if few == most else f"{scores} ({few} split{'s' if few > 1 else ''})"


def _printed_cell(printed: PaperRow) -> str:
    return f"{printed.rmse.mean:g} / {printed.mnll.mean:g}".replace("-", "−")


def _rival_cell(pair: Pair | None) -> str:
    if pair is None:
        return _NOTHING
    rmse, mnll = pair.differences["rmse"], pair.differences["mnll"]
    scores = f"{rmse.rival / rmse.reference:.2f} / {mnll.mean:+.2f}".replace("-", "−")
    return f"{scores} ({pair.num_splits})"


def main(path: str | Path = "reproduction/results/table1/records.jsonl") -> None:
    """Print both tables."""
    records = list(RecordStore(path).read().values())
    print(own_table(records))
    print(rivals_table(records))


if __name__ == "__main__":
    main()
