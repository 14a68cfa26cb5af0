"""The figure of Table 1: one dot per split, the paper's value as a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from reproduction.records import Record
from reproduction.table1.paper import DATASETS, TABLE_1
from reproduction.table1.work import ROWS
from whvi.plots import save_figure

_WIDE = 50  # ratio of errors from which their axis is logarithmic
_LABELS = {"rmse": "RMSE", "mnll": "MNLL (nats)"}


def draw_figure(records: Sequence[Record], path: Path) -> None:
    """Write ``path`` as PNG and SVG."""
    datasets = [d for d in DATASETS if any(r["dataset"] == d for r in records)]
    methods = [m for m in ROWS if any(r["method"] == m for r in records)]
    figure = Figure(figsize=(2.6 * len(datasets) + 1.5, 5.6), layout="constrained")
    axes = figure.subplots(2, len(datasets), squeeze=False)
    for row, (score, label) in enumerate(_LABELS.items()):
        for column, dataset in enumerate(datasets):
            _panel(axes[row, column], records, dataset, score, methods)
        axes[row, 0].set_ylabel(label)
    save_figure(figure, path, formats=("png", "svg"))


def _panel(
    axis: Any, records: Sequence[Record], dataset: str, score: str, methods: Sequence[str]
) -> None:
    for position, method in enumerate(methods):
        dots = [r[score] for r in records if (r["dataset"], r["method"]) == (dataset, method)]
        spread = [position + 0.3 * ((7 * k) % 11 / 10 - 0.5) for k in range(len(dots))]
        axis.plot(spread, dots, ".", markersize=4, alpha=0.6, color=f"C{position % 10}")
        if dots:
            mean = sum(dots) / len(dots)
            axis.plot([position - 0.35, position + 0.35], [mean, mean], color=f"C{position % 10}")
    if dataset in TABLE_1["whvi"]:
        printed = getattr(TABLE_1["whvi"][dataset], score).mean
        axis.axhline(printed, color="black", linewidth=0.8, linestyle="--")
    axis.set_xlim(-0.5, len(methods) - 0.5)  # a method without dots keeps its place
    if score == "rmse":
        shown = [r["rmse"] for r in records if r["dataset"] == dataset]
        if max(shown) > _WIDE * min(shown) > 0:
            axis.set_yscale("log")
        axis.set_title(dataset)
        axis.set_xticks([])
    else:
        axis.set_xticks(range(len(methods)), methods, rotation=90, fontsize=7)
    axis.tick_params(axis="y", which="both", labelsize=7)
