"""Are the error bars honest? Calibration, PIT, coverage, error against deviation, risk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from whvi._checks import check_positive_int
from whvi.plots.curves import (
    calibration_curve,
    chance_band,
    coverage_by_level,
    error_by_std,
    risk_coverage,
)
from whvi.plots.style import BARS, BY_CHANCE, MEAN, POINTS, REFERENCE, is_rasterized, row_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GRID = torch.linspace(0, 1, 101, dtype=torch.float64)


def plot_calibration(ax: Axes, pit: Tensor) -> None:
    """Draw the share of targets below their predicted quantile, against its probability.

    A curve on the diagonal is calibrated; an S shape (below, then above) means error bars that are
    too wide, the reverse too narrow. The grey band is where chance alone puts 95 % of the curve.
    """
    _against_diagonal(ax, calibration_curve(pit, _GRID), row_of("pit", pit).numel())
    ax.set(xlabel="predicted probability", ylabel="share of targets below")


def plot_coverage(ax: Axes, pit: Tensor) -> None:
    """Draw the share of targets inside central intervals, against the interval's level.

    Below the diagonal the intervals promise too much.
    """
    _against_diagonal(ax, coverage_by_level(pit, _GRID), row_of("pit", pit).numel())
    ax.set(xlabel="level of the interval", ylabel="share of targets inside")


def _against_diagonal(ax: Axes, share: Tensor, num_rows: int) -> None:
    lower, upper = chance_band(_GRID, num_rows)
    ax.fill_between(_GRID, lower, upper, label="95% by chance", **BY_CHANCE)
    ax.plot([0, 1], [0, 1], label="calibrated", **REFERENCE)
    ax.plot(_GRID, share, label="observed", **MEAN)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ax.legend(loc="upper left", fontsize=8)


def plot_pit(ax: Axes, pit: Tensor, *, num_bins: int = 20) -> None:
    """Draw the histogram of ``cdf(y)``: flat if calibrated, ∪ if too sure, ∩ if too cautious."""
    check_positive_int("num_bins", num_bins)
    values = row_of("pit", pit).double().numpy()
    share = np.full(len(values), num_bins / len(values))  # so that a flat histogram stands at 1
    lower, upper = chance_band(torch.full((1,), 1 / num_bins), len(values))
    ax.hist(values, bins=num_bins, range=(0, 1), weights=share, **BARS)
    ax.axhline(1, label="calibrated", **REFERENCE)
    for end, label in ((lower, "95% of bars by chance"), (upper, None)):
        ax.axhline(num_bins * end.item(), label=label, **REFERENCE | {"linestyle": ":"})
    ax.set(xlim=(0, 1), xlabel="predicted probability of a smaller target", ylabel="density")
    ax.set_ylim(0, 1.3 * max(ax.get_ylim()[1], num_bins * upper.item()))  # room for the legend
    ax.legend(loc="upper center", ncols=2, fontsize=8)


def plot_error_by_std(ax: Axes, error: Tensor, std: Tensor, *, num_bins: int = 10) -> None:
    """Draw absolute errors and their root mean square, against the predicted deviation.

    Dots are rows; the line joins bins of equal counts and lies on the diagonal if calibrated.
    """
    bins = error_by_std(error, std, num_bins=num_bins)
    error, std = row_of("error", error), row_of("std", std)
    many = is_rasterized(len(error))
    ax.plot(std, error.abs(), label="|error| of a row", rasterized=many, **POINTS | {"alpha": 0.25})
    end = 1.05 * max(bins.std.max().item(), bins.rmse.max().item())
    ax.plot([0, end], [0, end], label="calibrated", **REFERENCE)
    ax.plot(bins.std, bins.rmse, "o-", color="C1", label="root mean square", markersize=4)
    ax.set(xlabel="predicted standard deviation", ylabel="error")
    ax.set_ylim(0, 1.05 * max(torch.quantile(error.abs().double()[:100_000], 0.99).item(), end))
    low, high = std.min().item(), std.max().item()
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    ax.set_xlim(max(0.0, low - margin), high + margin)
    ax.legend(loc="upper left", fontsize=8)


def plot_risk_coverage(
    ax: Axes, loss: Tensor, uncertainty: Tensor, *, risk: Literal["rmse", "error rate"] = "rmse"
) -> None:
    """Draw the risk over the surest rows, against the share of rows kept.

    Args:
        ax: Where to draw.
        loss: Squared errors for ``"rmse"``, or 0/1 for wrong labels.
        uncertainty: What the rows are sorted by, such as the predicted deviation.
        risk: How the mean loss is shown.
    """
    kept, mean = risk_coverage(loss, uncertainty)
    shown = mean.sqrt() if risk == "rmse" else mean
    ax.axhline(shown[-1].item(), label="all rows", **REFERENCE)
    ax.plot(kept, shown, label="surest rows", **MEAN)
    start = min(int(0.05 * len(shown)), len(shown) - 1)  # a mean over few rows is all noise
    low, high = shown[start:].min().item(), shown[start:].max().item()
    margin = 0.1 * (high - low) or 0.1 * abs(high) or 0.1
    ax.set(xlim=(0, 1), ylim=(max(0.0, low - margin), high + margin))
    names = {"rmse": "root mean squared error", "error rate": "share of wrong labels"}
    ax.set(xlabel="share of rows kept", ylabel=names[risk])
    ax.legend(loc="lower right", fontsize=8)
