"""The report of Figure 2, made from records and from nothing else."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from reproduction.figure2.cells import CELLS, DATASETS, LABELS, label
from reproduction.figure2.figure import draw_errors, draw_seconds
from reproduction.records import Record
from reproduction.report import SummaryRow, grouped, markdown_table, mean, number, std, write_report


def summarise(records: Iterable[Record]) -> list[SummaryRow]:
    """Average every cell, size and data set over seeds; ``seconds`` is CPU time of one fit."""
    groups = grouped(records, "cell", "dataset", "side")
    cells = [cell.name for cell in CELLS]
    keys = sorted(groups, key=lambda key: (DATASETS.index(key[1]), cells.index(key[0]), key[2]))
    return [_summary_row(groups[key]) for key in keys]


def _summary_row(records: Sequence[Record]) -> SummaryRow:
    first = records[0]
    kept = ("dataset", "method", "covariance", "count_inducing", "num_parameters")

    return {
        **{name: first[name] for name in kept},
        "rmse_mean": mean(records, "rmse"),
        "mnll_mean": mean(records, "mnll"),
        "seconds": round(mean(records, "seconds"), 3),
        "num_seeds": len(records),
        "side": first["side"],
        "rmse_std": std(records, "rmse"),
        "mnll_std": std(records, "mnll"),
        "target_std_mean": mean(records, "target_std"),
    }


def geometric_means(rows: Iterable[SummaryRow]) -> dict[tuple[str, int, str], float]:
    """Return the geometric mean over the data sets of the RMSE, by covariance, side and label.

    Only where every data set of the rows is there.
    """
    rows = list(rows)
    found: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for row in rows:
        found[row["covariance"], row["side"], label(row)].append(row["rmse_mean"])
    num_sets = len({row["dataset"] for row in rows})
    return {
        key: math.exp(statistics.fmean(map(math.log, values)))
        for key, values in found.items()
        if len(values) == num_sets
    }


def write_figure2(records: Sequence[Record], folder: Path) -> None:
    """Write ``summary.json``, ``README.md`` and the figures."""
    rows = summarise(records)
    write_report(folder, rows, markdown(rows, quick=any(record["quick"] for record in records)))
    if rows:
        draw_errors(rows, folder / "figure2")
        draw_seconds(rows, folder / "figure2-time")


def markdown(rows: Sequence[SummaryRow], *, quick: bool) -> str:
    """Return the page."""
    seeds = sorted({row["num_seeds"] for row in rows})
    parts = [
        "# Figure 2: Gaussian processes, test error against parameters\n",
        "Made from `records.jsonl` by `python -m reproduction figure2`; protocol, accounting "
        "and methods: [figure2.md](../../figure2.md). RMSE is in units of the standard deviation "
        "of the training targets, MNLL is that of the standardised targets (nats). Means over "
        f"{' or '.join(map(str, seeds)) or 'no'} seeds.\n",
    ]
    if quick:
        parts.append("**A quick run: few rows, little training. It tests the machinery only.**\n")
    if rows:
        parts.append("![Test error against parameters](figure2.png)\n")
    for covariance in ("diagonal", "full"):
        chosen = [row for row in rows if row["covariance"] == covariance]
        if chosen:
            parts.append(f"## {covariance.capitalize()} covariance\n\n" + _verdict(chosen))
            parts.append(_means_table(chosen))
            parts.append(_sets_table(chosen))
    if rows:
        parts.append("## Time of a fit\n\nCPU seconds on one thread, all starts included.\n")
        parts.append("![Seconds against parameters](figure2-time.png)\n")
    return "\n".join(parts)


def _verdict(rows: Sequence[SummaryRow]) -> str:
    """Say who wins where, by the mean RMSE of each data set."""
    sentences = []
    for side in sorted({row["side"] for row in rows}):
        here = [row for row in rows if row["side"] == side]
        wins: dict[str, list[str]] = defaultdict(list)
        for dataset in [name for name in DATASETS if any(r["dataset"] == name for r in here)]:
            best = min(
                (row for row in here if row["dataset"] == dataset), key=lambda row: row["rmse_mean"]
            )
            wins[label(best)].append(dataset)
        told = "; ".join(f"{name} on {', '.join(sets)}" for name, sets in wins.items())
        sentences.append(f"- √M = {side} ({_budget(here)} parameters): lowest RMSE by {told}.\n")
    return "".join(sentences)


def _budget(rows: Sequence[SummaryRow]) -> str:
    """Parameters of the structured model, or the range where it is not there."""
    counts = {row["num_parameters"] for row in rows if row["method"] == "whvi"}
    counts = counts or {row["num_parameters"] for row in rows}
    return "–".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))


def _means_table(rows: Sequence[SummaryRow]) -> str:
    """Geometric mean of the RMSE over the data sets: one line per size."""
    means = geometric_means(rows)
    names = [name for name in LABELS.values() if any(key[2] == name for key in means)]
    lines = [["√M", "parameters", *names]]
    for side in sorted({row["side"] for row in rows}):
        here = [row for row in rows if row["side"] == side]
        values = [means.get((here[0]["covariance"], side, name)) for name in names]
        lines.append([str(side), _budget(here), *_cells(values, ".4f")])
    return "Geometric mean of the RMSE over the data sets:\n\n" + markdown_table(lines)


def _sets_table(rows: Sequence[SummaryRow]) -> str:
    """RMSE / MNLL by data set and size."""
    names = [name for name in LABELS.values() if any(label(row) == name for row in rows)]
    found = {(row["dataset"], row["side"], label(row)): row for row in rows}
    lines = [["data", "√M", *names]]
    for dataset, side in dict.fromkeys((row["dataset"], row["side"]) for row in rows):
        cells = [found.get((dataset, side, name)) for name in names]
        rmse = _cells([None if row is None else row["rmse_mean"] for row in cells], ".4f")
        mnll = _cells([None if row is None else row["mnll_mean"] for row in cells], ".2f")
        both = [f"{a} / {b}" if a else "" for a, b in zip(rmse, mnll, strict=True)]
        lines.append([dataset, str(side), *both])
    return "RMSE / MNLL, the lowest of each line in bold:\n\n" + markdown_table(lines)


def _cells(values: Sequence[float | None], style: str) -> list[str]:
    best = min((value for value in values if value is not None), default=None)
    texts = ["" if v is None else number(v, style) for v in values]
    return [f"**{t}**" if t and v == best else t for t, v in zip(texts, values, strict=True)]
