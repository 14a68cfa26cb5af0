"""How good predictions are: against true values, by calibration, by error and by risk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from whvi._checks import check_positive_int
from whvi.errors import ShapeError
from whvi.plots import curves
from whvi.plots.figures import BARS, MEAN, POINTS, REFERENCE, flat_rows, shortened, with_margin

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GRID = torch.linspace(0, 1, 101, dtype=torch.float64)
_MOST_CLASSES_WITH_NUMBERS = 12
_MANY_POINTS = 2000  # more points than this are rasterized, also in vector formats


def plot_predicted_against_true(
    ax: Axes, y: Tensor, mean: Tensor, lower: Tensor, upper: Tensor, *, level: float
) -> None:
    """Plot the predicted mean and interval of every row against its true value.

    Rows whose interval misses the true value (it does not cross the diagonal) are red. ``level`` is
    that of the intervals, for the legend.
    """
    y = flat_rows("y", y).double()
    named = {"mean": mean, "lower": lower, "upper": upper}
    mean, lower, upper = (flat_rows(name, v, len(y)).double() for name, v in named.items())
    missed = (y < lower) | (y > upper)
    many: dict[str, Any] = {"rasterized": len(y) > _MANY_POINTS}
    for rows, color, name in ((~missed, "C0", "inside"), (missed, "C3", "outside")):
        if bool(rows.any()):
            ax.vlines(y[rows], lower[rows], upper[rows], color, alpha=0.25, linewidth=1, **many)
            label = f"{name} its {level:.0%} interval"
            ax.plot(y[rows], mean[rows], label=label, **many, **POINTS | {"color": color})
    span = [min(y.min().item(), mean.min().item()), max(y.max().item(), mean.max().item())]
    ax.plot(span, span, **REFERENCE)
    ax.set(xlabel="true", ylabel="predicted")
    ax.legend(loc="upper left", fontsize=8)


def plot_calibration(ax: Axes, pit: Tensor) -> None:
    """Plot the fraction of targets below their predicted quantile against its probability.

    On the diagonal the predictions are calibrated; an S shape (below, then above) means that error
    bars are too wide, the reverse too narrow. The grey band holds 95 % of curves by chance alone.
    """
    _against_diagonal(ax, curves.calibration_curve(pit, _GRID), len(flat_rows("pit", pit)))
    ax.set(xlabel="predicted probability", ylabel="share of targets below")


def plot_coverage(ax: Axes, pit: Tensor) -> None:
    """Plot the fraction of targets inside central intervals against the level of the intervals.

    Below the diagonal the intervals are too narrow.
    """
    _against_diagonal(ax, curves.coverage_by_level(pit, _GRID), len(flat_rows("pit", pit)))
    ax.set(xlabel="level of the interval", ylabel="share of targets inside")


def _against_diagonal(ax: Axes, share: Tensor, num_rows: int) -> None:
    lower, upper = curves.chance_band(_GRID, num_rows)
    ax.fill_between(
        _GRID, lower, upper, label="95% by chance", color="0.5", alpha=0.18, linewidth=0
    )
    ax.plot([0, 1], [0, 1], label="calibrated", **REFERENCE)
    ax.plot(_GRID, share, label="observed", **MEAN)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ax.legend(loc="upper left", fontsize=8)


def plot_pit(ax: Axes, pit: Tensor, *, num_bins: int = 20) -> None:
    """Plot the histogram of ``cdf(y)``: flat if calibrated, ∪ overconfident, ∩ underconfident."""
    check_positive_int("num_bins", num_bins)
    values = flat_rows("pit", pit).double().numpy()
    share = np.full(len(values), num_bins / len(values))  # a flat histogram has height 1
    lower, upper = curves.chance_band(torch.full((1,), 1 / num_bins), len(values))
    ax.hist(values, bins=num_bins, range=(0, 1), weights=share, **BARS)
    ax.axhline(1, label="calibrated", **REFERENCE)
    for end, label in ((lower, "95% of bars by chance"), (upper, None)):
        ax.axhline(num_bins * end.item(), label=label, **REFERENCE | {"linestyle": ":"})
    ax.set(xlim=(0, 1), xlabel="predicted probability of a smaller target", ylabel="density")
    ax.set_ylim(0, 1.3 * max(ax.get_ylim()[1], num_bins * upper.item()))  # space for the legend
    ax.legend(loc="upper center", ncols=2, fontsize=8)


def plot_error_by_std(ax: Axes, error: Tensor, std: Tensor, *, num_bins: int = 10) -> None:
    """Plot absolute errors and their root mean square against the predicted standard deviation.

    Dots are rows; the line joins bins of equal counts and is on the diagonal if calibrated.
    """
    bins = curves.error_by_std(error, std, num_bins=num_bins)
    error, std = flat_rows("error", error), flat_rows("std", std)
    many = len(error) > _MANY_POINTS
    ax.plot(std, error.abs(), label="|error| of a row", rasterized=many, **POINTS | {"alpha": 0.25})
    end = 1.05 * max(bins.std.max().item(), bins.rmse.max().item())
    ax.plot([0, end], [0, end], label="calibrated", **REFERENCE)
    ax.plot(bins.std, bins.rmse, "o-", color="C1", label="root mean square", markersize=4)
    ax.set(xlabel="predicted standard deviation", ylabel="error")
    ax.set_ylim(0, 1.05 * max(torch.quantile(error.abs().double()[:100_000], 0.99).item(), end))
    ax.set_xlim(*with_margin(std, 0.05, lowest=0.0))
    ax.legend(loc="upper left", fontsize=8)


def plot_risk_coverage(
    ax: Axes, loss: Tensor, uncertainty: Tensor, *, risk: Literal["rmse", "error rate"] = "rmse"
) -> None:
    """Plot the risk over the most certain rows against the fraction of rows kept.

    Args:
        loss: Squared errors for ``"rmse"``, or 0/1 for wrong labels.
        uncertainty: What the rows are sorted by, such as the predicted standard deviation.
        risk: How the mean loss is shown.
    """
    kept, mean = curves.risk_coverage(loss, uncertainty)
    shown = mean.sqrt() if risk == "rmse" else mean
    ax.axhline(shown[-1].item(), label="all rows", **REFERENCE)
    ax.plot(kept, shown, label="most certain rows", **MEAN)
    start = min(int(0.05 * len(shown)), len(shown) - 1)  # a mean over few rows is mostly noise
    name = "root mean squared error" if risk == "rmse" else "share of wrong labels"
    ax.set(xlim=(0, 1), ylim=with_margin(shown[start:], 0.1, lowest=0.0))
    ax.set(xlabel="share of rows kept", ylabel=name)
    ax.legend(loc="lower right", fontsize=8)


def plot_reliability(ax: Axes, probs: Tensor, labels: Tensor, *, num_bins: int = 10) -> None:
    """Plot accuracy against confidence; bars show the fraction of rows with that confidence.

    See :func:`whvi.plots.curves.reliability`.
    """
    bins = curves.reliability(probs, labels, num_bins=num_bins)
    share = bins.num_rows / bins.num_rows.sum()
    ax.bar(bins.confidence.numpy(), share.numpy(), 0.6 / num_bins, label="share of rows", **BARS)
    ax.plot([0, 1], [0, 1], label="calibrated", **REFERENCE)
    ax.plot(bins.confidence, bins.accuracy, "o", label="observed", **MEAN)
    ax.set(xlim=(0, 1.02), ylim=(0, 1.02), aspect="equal")
    ax.set(xlabel="confidence in the predicted label", ylabel="share of right labels")
    ax.legend(loc="upper left", fontsize=8)


def plot_confusion(ax: Axes, predicted: Tensor, labels: Tensor, names: Sequence[str]) -> None:
    """Plot the number of rows of every true class with every predicted label.

    ``predicted`` and ``labels`` are integers 0, …, C − 1, shape ``(N,)``, for the C ``names``.
    """
    if predicted.shape != labels.shape or labels.dim() != 1 or len(labels) == 0:
        shapes = f"{tuple(predicted.shape)} and {tuple(labels.shape)}"
        raise ShapeError(f"predicted and labels must both have shape (N,), got {shapes}")
    size = len(names)
    counts = torch.bincount(labels.long() * size + predicted.long(), minlength=size**2)
    if len(counts) > size**2:
        raise ShapeError(f"a label is outside the range of the {size} names")
    counts = counts.reshape(size, size)
    share = counts / counts.sum(1, keepdim=True).clamp_min(1)
    ax.imshow(share.numpy(), cmap="Blues", vmin=0, vmax=1)
    ticks = [shortened(name) for name in names]
    rotation = 0 if size <= 4 and max(map(len, ticks)) <= 12 else 45 if size <= 12 else 90
    small: dict[str, Any] = {
        "fontsize": max(3.0, min(9.0, 150 / size))
    }  # 50 names stand beside each other
    ax.set_xticks(range(size), ticks, rotation=rotation, **small)
    ax.set_yticks(range(size), ticks, **small)
    ax.set(xlabel="predicted", ylabel="true")
    if size > _MOST_CLASSES_WITH_NUMBERS:
        return
    for (i, j), count in np.ndenumerate(counts.numpy()):
        color = "white" if share[i, j] > 0.5 else "black"
        ax.text(j, i, str(count), ha="center", va="center", color=color)
