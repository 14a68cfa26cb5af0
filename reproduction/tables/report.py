"""The page: a table of RMSE, of log-likelihoods, of accuracies and of seconds; what is best."""

from __future__ import annotations

import math
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
)
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
        f"[tables.md](../../tables.md). Means over folds ({', '.join(map(str, folds))} of 5); "
        "a cell with fewer folds than others in its row tells how many, and is never bold. "
        "Comparisons are made on the folds that both methods have.\n",
        _overall(records),
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
        scored = [row for row in cells.values() if score in row]
        most = max(row["num_folds"] for row in scored)
        complete = [row[score] for row in scored if row["num_folds"] == most]
        best = (max if score == "accuracy" else min)(complete) if len(complete) > 1 else None
        lines.append([dataset, *[_cell(cells.get(m), score, best, most) for m in methods]])
    return lines


def _cell(row: SummaryRow | None, score: str, best: float | None, most: int) -> str:
    if row is None:
        return "–"
    if row["outcome"] != "done":
        return UNFINISHED if row["outcome"] == UNFINISHED else "failed"
    text = number(row[score], ".1f" if score == "fit_seconds" else ".3f")
    if row["num_folds"] < most:
        return f"{text} ({row['num_folds']} of {most})"
    return f"**{text}**" if row[score] == best and score != "fit_seconds" else text


def _overall(records: Sequence[Record]) -> str:
    """Return the figures that the floors are about, for each version of our estimators."""
    unfinished = {(r["dataset"], r["method"]) for r in records if r["outcome"] != "done"}
    done = [r for r in records if (r["dataset"], r["method"]) not in unfinished]
    lines = [["", "RMSE ÷ best tree (geometric mean)", "largest", "RMSE ÷ RealMLP-TD",
              "log-likelihood best of all"]]  # fmt: skip
    for ours in ("whvi-before", "whvi"):
        errors = paired_differences([r for r in done if "rmse" in r], ours, ("rmse",))
        trees, nets = _ratios(errors, TREES), _ratios(errors, ("realmlp-td",))
        wins = _wins(paired_differences(done, ours, ("mnll",)))
        if wins:
            name, largest = max(trees.items(), key=lambda item: item[1], default=("–", math.nan))
            lines.append(
                [
                    ours,
                    f"{_geometric_mean(trees)} ({len(trees)} tables)",
                    f"{number(largest, '.3f')} ({name})",
                    f"{_geometric_mean(nets)} ({len(nets)} tables)",
                    f"{sum(wins.values())} of {len(wins)}",
                ]
            )
    return markdown_table(lines)


def _ratios(pairs: Iterable[Pair], rivals: Sequence[str]) -> dict[str, float]:
    """Return our RMSE over that of the best of the rivals, by table, on folds that both have."""
    ratios: dict[str, float] = {}
    for pair in pairs:
        if pair.rival in rivals:
            both = pair.differences["rmse"]
            ratios[pair.dataset] = max(ratios.get(pair.dataset, 0.0), both.reference / both.rival)
    return ratios


def _wins(pairs: Iterable[Pair]) -> dict[str, bool]:
    """Tell by table whether our log-likelihood is the best, on folds that both have."""
    wins: dict[str, bool] = {}
    for pair in pairs:
        if not pair.rival.startswith("whvi"):
            ahead = pair.differences["mnll"].mean >= 0
            wins[pair.dataset] = wins.get(pair.dataset, True) and ahead
    return wins


def _geometric_mean(ratios: dict[str, float]) -> str:
    if not ratios:
        return "–"
    return f"{math.exp(sum(map(math.log, ratios.values())) / len(ratios)):.3f}"
