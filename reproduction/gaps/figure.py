"""The figures of the gap experiment: a dot per column and method, and the toy's bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from reproduction.gaps import toy
from reproduction.gaps.methods import ROWS
from reproduction.gaps.toy_fits import ToyFit
from reproduction.records import Record
from reproduction.table1.paper import DATASETS
from whvi.plots import save_figure

_PANELS = 4  # in a row
_LARGE = 20.0
_LINEAR = 5.0  # nats up to which the axis of MNLL is linear; beyond, logarithmic


def draw_gaps(records: Sequence[Record], path: Path) -> None:
    """Write MNLL by method, one panel per data set, as PNG and SVG."""
    datasets = [d for d in DATASETS if any(r["dataset"] == d for r in records)]
    methods = [m for m in ROWS if any(r["method"] == m for r in records)]
    columns = min(len(datasets), _PANELS)
    rows = -(-len(datasets) // columns)
    figure = Figure(figsize=(2.8 * columns + 1, 4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True)
    for axis in axes.flat[len(datasets) :]:
        axis.set_visible(False)
    for axis, dataset in zip(axes.flat, datasets, strict=False):
        _panel(axis, [r for r in records if r["dataset"] == dataset], methods)
        axis.set_title(dataset)
    for axis in axes[:, 0]:
        axis.set_ylabel("MNLL (nats), a dot per column")
    save_figure(figure, path, formats=("png", "svg"))


def _panel(axis: Any, records: Sequence[Record], methods: Sequence[str]) -> None:
    for position, method in enumerate(methods):
        dots = [r["mnll"] for r in records if r["method"] == method]
        if dots:
            color, mean = f"C{position % 10}", sum(dots) / len(dots)
            axis.plot([position] * len(dots), dots, ".", alpha=0.6, color=color)
            axis.plot([position - 0.35, position + 0.35], [mean, mean], color=color)
    if max(r["mnll"] for r in records) > _LARGE:  # else an axis of powers of ten has no numbers
        axis.set_yscale("symlog", linthresh=_LINEAR)
    axis.set_xlim(-0.5, len(methods) - 0.5)
    axis.set_xticks(range(len(methods)), methods, rotation=90, fontsize=7)
    axis.tick_params(axis="y", which="both", labelsize=7)


_TITLES = {
    "NUTS": "NUTS, the posterior itself",
    "whvi": "variational posterior of g",
    "whvi-linearized": "linearised, all parameters",
}


def draw_toy(fits: Mapping[str, ToyFit], path: Path) -> None:
    """Write mean ± 2 standard deviations of ``f``, one panel per method, as PNG and SVG."""
    figure = Figure(figsize=(3.6 * len(fits), 3.2), layout="constrained")
    axes = figure.subplots(1, len(fits), squeeze=False, sharey=True)[0]
    x, y = toy.toy_data()
    for axis, (name, fit) in zip(axes, fits.items(), strict=True):
        low, high = fit.mean - 2 * fit.std, fit.mean + 2 * fit.std
        axis.fill_between(toy.GRID, low, high, alpha=0.3, label="f: mean ± 2 std")
        axis.plot(toy.GRID, fit.mean)
        axis.plot(x[:, 0], y, ".", color="black", markersize=2, label="data")
        axis.set(title=_TITLES.get(name, name), xlabel="x", ylim=(-4, 4))
    axes[0].set_ylabel("y")
    axes[0].legend(fontsize=7, loc="upper center")
    save_figure(figure, path, formats=("png", "svg"))
