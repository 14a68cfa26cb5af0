"""From records to ``summary.json``, ``README.md`` and the figure: paired differences to Hadamard.

Splits are shared, so a variant is compared with the reference split by split. Over several data
sets the differences of the sets are averaged with equal weights; their standard error is
``(Σ se²)^½ / n``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from reproduction.records import Record
from reproduction.report import (
    SummaryRow,
    grouped,
    heading,
    markdown_table,
    mean,
    number,
    paired_differences,
    std,
    write_report,
)
from reproduction.transforms.images import TASKS
from reproduction.transforms.variants import REFERENCE, VARIANTS
from whvi.plots import save_figure

_TABLE_SCORES = ("rmse", "mnll", "log_rmse")
_IMAGE_SCORES = ("accuracy", "nll")
_LABELS = {"log_rmse": "log RMSE", "mnll": "MNLL", "accuracy": "accuracy", "nll": "NLL"}
_CLEAR = 2.0  # standard errors from which a difference is called one


@dataclass(frozen=True)
class Average:
    """The difference of a variant to the reference over data sets; negative is less."""

    variant: str
    score: str
    mean: float
    standard_error: float
    num_less: int  # data sets on which it is clearly less
    num_more: int
    num_sets: int


def write_page(records: Sequence[Record], folder: Path) -> None:
    """Write all files that are made from the records."""
    made = [_with_log(record) for record in records]
    tables = [r for r in made if r["dataset"] not in TASKS]
    images = [r for r in made if r["dataset"] in TASKS]
    parts = [(tables, _TABLE_SCORES), (images, _IMAGE_SCORES)]
    summary = {
        "rows": [row for part, scores in parts for row in rows_of(part, scores)],
        "averages": [vars(each) for part, scores in parts for each in averages(part, scores[-2:])],
    }
    write_report(folder, summary, page(tables, images))
    if made:
        draw_figure(tables, images, folder / "transforms")


def _with_log(record: Record) -> Record:
    return {**record, "log_rmse": math.log(record["rmse"])} if "rmse" in record else record


def rows_of(records: Sequence[Record], scores: Sequence[str]) -> list[SummaryRow]:
    """Average the records of every data set and variant, with differences to the reference."""
    pairs = {
        (p.dataset, p.rival): p.differences for p in paired_differences(records, REFERENCE, scores)
    }
    rows = []
    for (dataset, method), own in grouped(records, "dataset", "method").items():
        row: SummaryRow = {"dataset": dataset, "method": method, "num_splits": len(own)}
        for score in scores:
            row |= {f"{score}_mean": mean(own, score), f"{score}_std": std(own, score)}
            if found := pairs.get((dataset, method)):
                difference = found[score]
                row[f"{score}_difference"] = difference.mean
                row[f"{score}_standard_error"] = difference.standard_error
        for field in ("num_parameters", "num_steps", "num_train"):
            row[field] = round(mean(own, field))
        rows.append({**row, "cpu_seconds": round(mean(own, "cpu_seconds"), 2)})
    return rows


def averages(records: Sequence[Record], scores: Sequence[str]) -> list[Average]:
    """Average the paired differences of every variant over data sets."""
    pairs = paired_differences(records, REFERENCE, scores)
    found = []
    for variant in VARIANTS:
        own = [pair.differences for pair in pairs if pair.rival == variant]
        for score in scores if own else ():
            each = [differences[score] for differences in own]
            error = math.sqrt(sum(d.standard_error**2 for d in each)) / len(each)
            ratios = [d.mean / d.standard_error for d in each if d.standard_error]
            less, more = (sum(s * r > _CLEAR for r in ratios) for s in (-1, 1))
            average = sum(d.mean for d in each) / len(each)
            found.append(Average(variant, score, average, error, less, more, len(each)))
    return found


def page(tables: Sequence[Record], images: Sequence[Record]) -> str:
    """Return the page."""
    return (
        heading("Which transform is best with a posterior?", (*tables, *images))
        + "Made from `records.jsonl` by `python -m reproduction transforms`; what the variants are "
        "and which to choose: [transforms.md](../../../docs/transforms.md). Differences are to "
        "`hadamard` on the same splits, ± one standard error; less than 0 is better but for the "
        f"accuracy. {len(tables)} records of tables, {len(images)} of images, "
        f"{sum(r['cpu_seconds'] for r in (*tables, *images)) / 60:.0f} CPU minutes.\n\n"
        "## In short\n\nAveraged over data sets; in brackets on how many of them the variant is "
        f"lower / higher by more than {_CLEAR:.0f} standard errors.\n\n"
        + _short_table(tables, images)
        + "\n![](transforms.png)\n"
        + _set_tables(tables, "rmse", "mnll", (".4g", ".3f"))
        + _set_tables(images, "accuracy", "nll", (".4f", ".4f"))
    )


def _short_table(tables: Sequence[Record], images: Sequence[Record]) -> str:
    found = {
        (each.variant, each.score): each
        for part, scores in ((tables, ("log_rmse", "mnll")), (images, _IMAGE_SCORES))
        for each in averages(part, scores)
    }
    lines = [["variant", *(f"{label}, difference" for label in _LABELS.values())]]
    for variant in VARIANTS:
        cells = [found.get((variant, score)) for score in _LABELS]
        if any(cells):
            lines.append([variant, *(_average_cell(cell) for cell in cells)])
    return markdown_table(lines)


def _average_cell(cell: Average | None) -> str:
    if cell is None:
        return "–"
    shown = f"{number(cell.mean, '+.4f')} ± {cell.standard_error:.4f}"
    return f"{shown} ({cell.num_less} / {cell.num_more} of {cell.num_sets})"


def _set_tables(records: Sequence[Record], first: str, second: str, styles: tuple[str, str]) -> str:
    rows, text = rows_of(records, (first, second)), ""
    header = ["variant", "splits", first, "difference", second, "difference"]
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        lines = [[*header, "parameters", "CPU seconds"]]
        own = [row for row in rows if row["dataset"] == dataset]
        for row in own:
            cells = [row["method"], str(row["num_splits"])]
            for score, style in zip((first, second), styles, strict=True):
                cells += [number(row[f"{score}_mean"], style), _difference_cell(row, score, style)]
            lines.append([*cells, f"{row['num_parameters']:,}", f"{row['cpu_seconds']:.1f}"])
        facts = f"{own[0]['num_train']:,} training rows, {own[0]['num_steps']:,} steps."
        text += f"\n## {dataset}\n\n{facts}\n\n{markdown_table(lines)}"
    return text


def _difference_cell(row: SummaryRow, score: str, style: str) -> str:
    if f"{score}_difference" not in row:
        return "–"
    signed = number(row[f"{score}_difference"], f"+{style}")
    return f"{signed} ± {format(row[f'{score}_standard_error'], style)}"


def draw_figure(tables: Sequence[Record], images: Sequence[Record], path: Path) -> None:
    """Draw differences with two standard errors: a panel per score, a colour per variant."""
    figure = Figure(figsize=(13, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    for axis, score in zip(axes.flat, ("log_rmse", "mnll", *_IMAGE_SCORES), strict=True):
        part = images if score in _IMAGE_SCORES else tables
        _panel(axis, paired_differences(part, REFERENCE, (score,)), score)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=5)
    save_figure(figure, path, formats=("png", "svg"))


def _panel(axis: Any, pairs: Sequence[Any], score: str) -> None:
    datasets = list(dict.fromkeys(pair.dataset for pair in pairs))
    variants = [name for name in VARIANTS if any(pair.rival == name for pair in pairs)]
    for k, variant in enumerate(variants):
        own = [pair for pair in pairs if pair.rival == variant]
        shift = 0.8 * ((k + 0.5) / len(variants) - 0.5)
        places = [datasets.index(pair.dataset) + shift for pair in own]
        found = [pair.differences[score] for pair in own]
        errors = [_CLEAR * each.standard_error for each in found]
        axis.errorbar(places, [each.mean for each in found], errors, fmt="o", ms=4, label=variant)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(datasets)), datasets, fontsize="small")
    axis.set_ylabel(f"{_LABELS[score]} − that of {REFERENCE}")
