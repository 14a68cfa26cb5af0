"""A predictive distribution over one input: draws, mean, epistemic band, total band."""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from whvi.errors import ConfigError, ShapeError
from whvi.plots.style import DATA, DRAWS, EPISTEMIC, MEAN, TOTAL, row_of
from whvi.predictive import Predictive

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Band(NamedTuple):
    """Two curves with something between them, each of shape ``(N,)``."""

    lower: Tensor
    upper: Tensor


def plot_bands(
    ax: Axes,
    x: Tensor,
    predictive: Predictive,
    draws: Tensor | None = None,
    data: tuple[Tensor, Tensor] | None = None,
    level: float = 0.95,
) -> None:
    """Draw a predictive distribution over one input: mean, epistemic band and total band.

    Args:
        ax: Where to draw.
        x: The input of every row of ``predictive``, shape ``(N,)`` or ``(N, 1)``, ascending.
        predictive: One output, no replicas (``.pool()`` makes an ensemble one predictive).
        draws: Functions to draw as lines, shape ``(S, N)`` or ``(S, N, 1)``, in the units of ``y``.
        data: Points ``(x, y)`` to draw.
        level: Probability inside each band.
    """
    line = row_of("x", x, len(predictive))
    mean = predictive.mean
    if mean.shape != line.shape:
        raise ShapeError(
            f"plot_bands draws one output without replicas, got a mean of shape "
            f"{tuple(mean.shape)} for {len(line)} rows"
        )
    total = predictive.interval(level)
    epistemic = epistemic_band(predictive, level)
    ax.fill_between(line, total.lower, total.upper, label=f"total, {level:.0%}", **TOTAL)
    ax.fill_between(line, epistemic.lower, epistemic.upper, label="epistemic", **EPISTEMIC)
    if draws is not None:
        color = ax.xaxis.label.get_color()  # that of the text, whatever the page looks like
        for number, draw in enumerate(draws.reshape(draws.shape[0], -1)):
            label = "draws" if number == 0 else None
            ax.plot(line, row_of("draws", draw, len(line)), label=label, color=color, **DRAWS)
    ax.plot(line, mean, label="mean", **MEAN)
    if data is not None:
        ax.plot(*(values.detach().flatten() for values in data), label="data", **DATA)


def epistemic_band(predictive: Predictive, level: float) -> Band:
    """Return where the functions' values lie with probability ``level``, noise left out.

    For Gaussian components these are quantiles over the draws; for others the mean and as many
    epistemic standard deviations as a normal distribution needs.
    """
    if not 0 < level < 1:
        raise ConfigError(f"level must lie strictly between 0 and 1, got {level!r}")
    components = predictive.gaussian_components()
    if components is not None:
        ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=components[0].dtype)
        lower, upper = torch.quantile(components[0], ends, dim=-2)
        return Band(lower, upper)
    reach = NormalDist().inv_cdf((1 + level) / 2) * predictive.epistemic
    return Band(predictive.mean - reach, predictive.mean + reach)
