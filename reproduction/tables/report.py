"""The page: a table of RMSE, of log-likelihoods, of accuracies and of seconds; what is best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from reproduction.records import Record
from reproduction.report import SummaryRow, grouped, markdown_table, mean, number
from reproduction.tables.methods import METHODS, TREES
from reproduction.tables.work import UNFINISHED

_SCORES = ("rmse", "mnll", "accuracy")
_TITLES = {
    "rmse": "RMSE ÷ standard deviation of the target",
    "mnll": "Mean negative log-likelihood (standardised target, count or class), nats",
    "accuracy": "Accuracy",
    "fit_seconds": "Seconds of a fit, one thread",
}


def summarise(records: Iterable[Record]) -> list[SummaryRow]:
    """Average every method on every table over its folds; one unfinished fold leaves it out."""
    rows = []
    for (dataset, method), found in grouped(records, "dataset", "method").items():
        row: SummaryRow = {
            "dataset": dataset,
            "method": method,
            "task": found[0]["task"],
            "num_folds": len(found),
            "commits": sorted({record["commit"] for record in found}),
        }
        outcomes = {record["outcome"] for record in found} - {"done"}
        row["outcome"] = min(outcomes, default="done")
        if not outcomes:
            names = (*_SCORES, "fit_seconds", "predict_seconds")
            row |= {name: mean(found, name) for name in names if name in found[0]}
        rows.append(row)
    return rows


def markdown(records: list[Record]) -> str:
    """Return the page."""
    rows = summarise(records)
    quick = any(record["quick"] for record in records)
    folds = sorted({row["num_folds"] for row in rows})
    parts = [
        "# Tables people have\n",
        "**A quick run: it tests the machinery only.**\n" if quick else "",
        "Made from `records.jsonl` by `python -m reproduction tables`; protocol: "
        f"[tables.md](../../tables.md). Means over folds ({', '.join(map(str, folds))} of 5).\n",
        _overall(rows),
    ]
    for score, title in _TITLES.items():
        parts.append(f"## {title}\n\n{markdown_table(_grid(rows, score))}")
    return "\n".join(part for part in parts if part)


def _grid(rows: Sequence[SummaryRow], score: str) -> list[list[str]]:
    """Return a line per table; the best method is bold."""
    kept = [row for row in rows if score in row or row["outcome"] != "done"]
    methods = [m for m in METHODS if any(row["method"] == m and score in row for row in kept)]
    lines = [["table", *methods]]
    for dataset in sorted({row["dataset"] for row in kept if score in row}):
        cells = {row["method"]: row for row in kept if row["dataset"] == dataset}
        values = {m: cells[m][score] for m in methods if score in cells.get(m, {})}
        best = (max if score == "accuracy" else min)(values.values())
        lines.append([dataset, *[_cell(cells.get(m), score, best) for m in methods]])
    return lines


def _cell(row: SummaryRow | None, score: str, best: float) -> str:
    if row is None:
        return "–"
    if row["outcome"] != "done":
        return UNFINISHED if row["outcome"] == UNFINISHED else "failed"
    text = number(row[score], ".1f" if score == "fit_seconds" else ".3f")
    return f"**{text}**" if row[score] == best and score != "fit_seconds" else text


def _overall(rows: Sequence[SummaryRow]) -> str:
    """Return the figures that the floors are about, for each version of our estimators."""
    found = {(row["dataset"], row["method"]): row for row in rows if row["outcome"] == "done"}
    lines = [["", "RMSE ÷ best tree (geometric mean)", "largest", "RMSE ÷ RealMLP-TD",
              "log-likelihood best of all"]]  # fmt: skip
    for ours in ("whvi-before", "whvi"):
        trees = _ratios(found, ours, TREES)
        nets = _ratios(found, ours, ("realmlp-td",))
        wins = _wins(found, ours)
        if wins:
            name, largest = max(trees.items(), key=lambda item: item[1], default=("–", math.nan))
            lines.append(
                [
                    ours,
                    f"{_geometric_mean(trees)} ({len(trees)} tables)",
                    f"{number(largest, '.3f')} ({name})",
                    f"{_geometric_mean(nets)} ({len(nets)} tables)",
                    f"{sum(wins)} of {len(wins)}",
                ]
            )
    return markdown_table(lines)


_Cells = dict[tuple[str, str], SummaryRow]


def _ratios(found: _Cells, ours: str, rivals: Sequence[str]) -> dict[str, float]:
    """Return our RMSE over the least of the rivals', by table."""
    ratios = {}
    for (dataset, method), row in found.items():
        theirs = [
            found[dataset, r]["rmse"] for r in rivals if "rmse" in found.get((dataset, r), {})
        ]
        if method == ours and "rmse" in row and theirs:
            ratios[dataset] = row["rmse"] / min(theirs)
    return ratios


def _wins(found: _Cells, ours: str) -> list[bool]:
    """Tell for every table that rivals have done whether our log-likelihood is the best."""
    wins = []
    for (dataset, method), row in found.items():
        rivals = [
            other["mnll"]
            for (name, rival), other in found.items()
            if name == dataset and not rival.startswith("whvi")
        ]
        if method == ours and rivals:
            wins.append(row["mnll"] <= min(rivals))
    return wins


def _geometric_mean(ratios: dict[str, float]) -> str:
    if not ratios:
        return "–"
    return f"{math.exp(sum(map(math.log, ratios.values())) / len(ratios)):.3f}"
