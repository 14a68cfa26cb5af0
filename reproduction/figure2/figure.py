"""The figures: errors and seconds against the number of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from reproduction.figure2.cells import DATASETS, LABELS, label
from reproduction.report import SummaryRow
from whvi.plots import save_figure

_STYLES: dict[str, dict[str, Any]] = {
    LABELS["whvi"]: {"color": "C3", "marker": "o", "linewidth": 2.0, "zorder": 3},
    LABELS["fourier"]: {"color": "C0", "marker": "s"},
    LABELS["sparse-spectrum"]: {"color": "C2", "marker": "^"},
    LABELS["sparse-gp"]: {"color": "C1", "marker": "D"},
    LABELS["sparse-gp/uncounted"]: {"color": "C1", "marker": "D", "linestyle": "--", "mfc": "none"},
}


def draw_errors(rows: Sequence[SummaryRow], path: Path) -> None:
    """Draw RMSE and MNLL."""
    quantities = [
        (f"{score}_mean", covariance, f"{score.upper()}, {covariance} covariance")
        for covariance in ("diagonal", "full")
        for score in ("rmse", "mnll")
    ]
    _draw(rows, path, quantities)


def draw_seconds(rows: Sequence[SummaryRow], path: Path) -> None:
    """Draw the CPU time of a fit."""
    _draw(rows, path, [("seconds", c, f"seconds, {c} covariance") for c in ("diagonal", "full")])


def _draw(
    rows: Sequence[SummaryRow], path: Path, quantities: Sequence[tuple[str, str, str]]
) -> None:
    datasets = [name for name in DATASETS if any(row["dataset"] == name for row in rows)]
    drawn = [each for each in quantities if any(row["covariance"] == each[1] for row in rows)]
    figure = Figure(
        figsize=(2.7 * len(datasets) + 0.8, 2.5 * len(drawn) + 0.6), layout="constrained"
    )
    axes = figure.subplots(len(drawn), len(datasets), squeeze=False)
    for line, (quantity, covariance, title) in zip(axes, drawn, strict=True):
        for axis, dataset in zip(line, datasets, strict=True):
            chosen = [r for r in rows if (r["dataset"], r["covariance"]) == (dataset, covariance)]
            _panel(axis, chosen, quantity)
        line[0].set_ylabel(title)
    for axis, dataset in zip(axes[0], datasets, strict=True):
        axis.set_title(dataset.replace("_", " "))
    for axis in axes[-1]:
        axis.set_xlabel("parameters")
    handles = {h.get_label(): h for axis in axes.flat for h in axis.get_lines()}
    figure.legend(
        handles=list(handles.values()),
        loc="outside lower center",
        ncols=len(handles),
        frameon=False,
    )
    save_figure(figure, path, formats=("png", "svg"))


def _panel(axis: Any, rows: Sequence[SummaryRow], quantity: str) -> None:
    for name, style in _STYLES.items():
        line = sorted((row for row in rows if label(row) == name), key=lambda row: row["side"])
        if line:
            x = [row["num_parameters"] for row in line]
            y = [row[quantity] for row in line]
            axis.plot(x, y, label=name, markersize=4, **style)
    axis.set_xscale("log", base=2)
    if quantity != "mnll_mean":
        axis.set_yscale("log")
    axis.xaxis.set_major_formatter("{x:.0f}")
    axis.tick_params(which="both", labelsize=7)
    axis.grid(visible=True, alpha=0.25)
