"""Predicted against true values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from whvi.plots.style import POINTS, REFERENCE, is_rasterized, row_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_predicted_against_true(
    ax: Axes, y: Tensor, mean: Tensor, lower: Tensor, upper: Tensor, *, level: float
) -> None:
    """Draw the predicted mean and interval of every row against its true value.

    Rows whose interval misses the truth (the vertical line does not cross the diagonal) stand out.

    Args:
        ax: Where to draw.
        y: True values, one per row.
        mean, lower, upper: Predicted means and ends of their intervals.
        level: Of the intervals, for the legend.
    """
    y = row_of("y", y).double()
    mean, lower, upper = (
        row_of(name, values, len(y)).double()
        for name, values in (("mean", mean), ("lower", lower), ("upper", upper))
    )
    missed = (y < lower) | (y > upper)
    many = is_rasterized(len(y))
    for rows, color, name in ((~missed, "C0", "inside"), (missed, "C3", "outside")):
        if bool(rows.any()):
            style = POINTS | {"color": color}
            ax.vlines(
                y[rows], lower[rows], upper[rows], color, alpha=0.25, linewidth=1, rasterized=many
            )
            label = f"{name} its {level:.0%} interval"
            ax.plot(y[rows], mean[rows], label=label, rasterized=many, **style)
    ends = [min(y.min().item(), mean.min().item()), max(y.max().item(), mean.max().item())]
    ax.plot(ends, ends, **REFERENCE)
    ax.set(xlabel="true", ylabel="predicted")
    ax.legend(loc="upper left", fontsize=8)
