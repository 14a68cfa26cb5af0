"""Predictive distributions over one input, and the effect of one feature on the prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from whvi.errors import ConfigError, ShapeError
from whvi.plots.figures import DATA, DRAWS, EPISTEMIC, MEAN, TOTAL, flat_rows, shortened
from whvi.predictive import Interval, Predictive

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_TICKS = 200


def plot_bands(
    ax: Axes,
    x: Tensor,
    predictive: Predictive,
    draws: Tensor | None = None,
    data: tuple[Tensor, Tensor] | None = None,
    level: float = 0.95,
) -> None:
    """Plot a predictive distribution over one input: mean, epistemic band and total band.

    Args:
        x: The input of every row of ``predictive``, shape ``(N,)`` or ``(N, 1)``, ascending.
        predictive: One output, no replicas (``.pool()`` merges an ensemble).
        draws: Functions to draw as lines, shape ``(S, N)`` or ``(S, N, 1)``, in the units of ``y``.
        data: Points ``(x, y)`` to draw.
        level: Probability inside each band.
    """
    line = flat_rows("x", x, len(predictive))
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
        color = ax.xaxis.label.get_color()  # the text color, which a page may have changed
        for number, draw in enumerate(draws.reshape(draws.shape[0], -1)):
            label = "draws" if number == 0 else None
            ax.plot(line, flat_rows("draws", draw, len(line)), label=label, color=color, **DRAWS)
    ax.plot(line, mean, label="mean", **MEAN)
    if data is not None:
        ax.plot(*(values.detach().flatten() for values in data), label="data", **DATA)


def epistemic_band(predictive: Predictive, level: float) -> Interval:
    """Return the central band of the function values, without noise, at probability ``level``.

    For equally weighted Gaussian components these are quantiles over the draws, else quantiles of
    a normal distribution with the predictive's mean and epistemic standard deviation.
    """
    components = None if predictive.weights is not None else predictive.gaussian_components()
    draws = None if components is None else components[0]
    return _band(draws, predictive.mean, predictive.epistemic, level)


def _band(draws: Tensor | None, mean: Tensor, std: Tensor, level: float) -> Interval:
    """Return quantiles over ``draws (S, N)``; without draws, of a normal distribution."""
    if not 0 < level < 1:
        raise ConfigError(f"level must lie strictly between 0 and 1, got {level!r}")
    if draws is not None:
        ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=draws.dtype)
        return Interval(*torch.quantile(draws, ends, dim=-2))
    reach = NormalDist().inv_cdf((1 + level) / 2) * std
    return Interval(mean - reach, mean + reach)


class Effect(NamedTuple):
    """The mean prediction over a sample of rows as one feature varies."""

    values: tuple[Any, ...]  # K values of the feature: numbers, or names of categories
    mean: Tensor  # (K,)
    band: Interval | None  # epistemic uncertainty of the mean over rows


def feature_effect(
    predict: Callable[[Any], Predictive],
    values: Sequence[Any],
    *,
    level: float = 0.9,
    label: int | None = None,
) -> Effect:
    r"""Vary one feature while the others keep their values in a sample of rows.

    For draw :math:`s` and value :math:`v` the effect is
    :math:`\frac1N \sum_n f_s(v, x_{n,\setminus j})` (Friedman, 2001), and the band contains
    ``level`` of the draws. Families other than the Gaussian have a normal band with the mean
    epistemic standard deviation of the rows, which is at least that wide.

    Args:
        predict: Maps a value of the feature to predictions for the sample with that value.
        values: K values, ascending if they are numbers.
        level: Probability inside the band.
        label: For a classifier: the class whose probability is returned, without a band.
    """
    if not values:
        raise ConfigError("values must hold at least one value of the feature, got none")
    predictives = [predict(value) for value in values]
    if label is not None:
        probability = torch.stack([p.probs[:, label].mean() for p in predictives])
        return Effect(tuple(values), probability, None)
    mean = torch.stack([p.mean.mean() for p in predictives])
    std = torch.stack([p.epistemic.mean() for p in predictives])
    each = [
        components[0].mean(-1)
        for p in predictives
        if p.weights is None and (components := p.gaussian_components())
    ]
    draws = torch.stack(each, dim=-1) if each else None
    return Effect(tuple(values), mean, _band(draws, mean, std, level))


def plot_effect(ax: Axes, effect: Effect, *, name: str, data: Tensor | None = None) -> None:
    """Plot an effect: a line with a band over numbers, dots with bars over categories.

    ``name`` is that of the feature; ``data`` are its values, drawn as ticks along the axis.
    """
    ax.set_xlabel(shortened(name, 40))
    values, mean, band = effect
    if len(values) == 1 or any(isinstance(value, str) for value in values):
        names = [shortened(str(value), 12) for value in values]
        places = range(len(names))
        if band is not None:
            ax.vlines(places, band.lower, band.upper, "C0", alpha=0.5, linewidth=5)
        ax.plot(places, mean, "o", **MEAN)
        ax.set_xticks(places, names, rotation=30 if max(map(len, names)) > 5 else 0)
        ax.margins(x=0.2)
        return
    if band is not None:
        ax.fill_between(values, band.lower, band.upper, **EPISTEMIC)
    ax.plot(values, mean, **MEAN)
    if data is not None:
        shown = data.detach().flatten()[:: max(1, data.numel() // _MOST_TICKS)]
        transform = ax.get_xaxis_transform()
        ax.plot(shown, torch.zeros_like(shown), "|", color="0.5", transform=transform)
        ax.set_xlim(values[0], values[-1])
