"""The figure of Table 1: one dot per split, the paper's value as a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reproduction.paper import DATASETS, TABLE_1
from reproduction.records import Record
from reproduction.report import METHOD_ORDER

_SCORES = ("rmse", "mnll")
_WIDE = 50  # ratio of errors from which their axis is logarithmic
_LABELS = {"rmse": "RMSE", "mnll": "MNLL (nats)"}


def draw_figure(records: Sequence[Record], folder: Path) -> bool:
    """Write ``table1.png`` and ``table1.svg``; returns whether matplotlib was there to do it."""
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    datasets = [d for d in DATASETS if any(r["dataset"] == d for r in records)]
    methods = [m for m in METHOD_ORDER if any(r["method"] == m for r in records)]
    figure = Figure(figsize=(2.6 * len(datasets) + 1.5, 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(datasets), squeeze=False)
    for row, score in enumerate(_SCORES):
        for column, dataset in enumerate(datasets):
            _panel(axes[row, column], records, dataset, score, methods)
        axes[row, 0].set_ylabel(_LABELS[score])
    # no date and fixed ids: the same records give the same file
    with mpl.rc_context({"svg.hashsalt": "whvi", "svg.fonttype": "none"}):
        figure.savefig(folder / "table1.svg", metadata={"Date": None})
    figure.savefig(folder / "table1.png", dpi=110)
    return True


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
