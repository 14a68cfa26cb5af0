"""What one feature does to the prediction: partial dependence with a band."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from whvi.errors import ConfigError
from whvi.plots.bands import Band
from whvi.plots.style import EPISTEMIC, MEAN
from whvi.predictive import Predictive

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_TICKS = 200
_LONGEST_NAME = 12


class Effect(NamedTuple):
    """The mean prediction over a sample of rows as one feature varies."""

    values: tuple[Any, ...]  # K of them: numbers, or names of categories
    mean: Tensor  # (K,)
    band: Band | None  # of the mean over rows: what the model does not know of the effect


def feature_effect(
    predict: Callable[[Any], Predictive],
    values: Sequence[Any],
    *,
    level: float = 0.9,
    label: int | None = None,
) -> Effect:
    r"""Vary one feature while the others stay as they are in a sample of rows.

    For draw :math:`s` and value :math:`v` the effect is
    :math:`\frac1N \sum_n f_s(v, x_{n,\setminus j})` (Friedman, 2001), and the band holds ``level``
    of the draws. Families other than the Gaussian show the mean and a normal band with the mean
    epistemic deviation of the rows, which is at least that wide.

    Args:
        predict: Maps a value of the feature to predictions for the sample with that value.
        values: K values, ascending if they are numbers.
        level: Probability inside the band.
        label: Of a classifier: the class whose probability is shown, without a band.
    """
    if not values:
        raise ConfigError("values must hold at least one value of the feature, got none")
    if not 0 < level < 1:
        raise ConfigError(f"level must lie strictly between 0 and 1, got {level!r}")
    predictives = [predict(value) for value in values]
    if label is not None:
        probability = torch.stack([p.probs[:, label].mean() for p in predictives])
        return Effect(tuple(values), probability, None)
    mean = torch.stack([p.mean.mean() for p in predictives])
    lower, upper = zip(*(_ends(p, level) for p in predictives), strict=True)
    return Effect(tuple(values), mean, Band(torch.stack(lower), torch.stack(upper)))


def _ends(predictive: Predictive, level: float) -> tuple[Tensor, Tensor]:
    components = predictive.gaussian_components()
    if components is None:
        mean = predictive.mean.mean()
        reach = NormalDist().inv_cdf((1 + level) / 2) * predictive.epistemic.mean()
        return mean - reach, mean + reach
    per_draw = components[0].mean(-1)
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=per_draw.dtype)
    lower, upper = torch.quantile(per_draw, ends)
    return lower, upper


def plot_effect(ax: Axes, effect: Effect, *, name: str, data: Tensor | None = None) -> None:
    """Draw an effect: a line with a band over numbers, bars of uncertainty over categories.

    Args:
        ax: Where to draw.
        effect: What to draw.
        name: Of the feature.
        data: The feature's values, as ticks along the axis.
    """
    numeric = len(effect.values) > 1 and not any(isinstance(v, str) for v in effect.values)
    if numeric:
        if effect.band is not None:
            ax.fill_between(effect.values, effect.band.lower, effect.band.upper, **EPISTEMIC)
        ax.plot(effect.values, effect.mean, **MEAN)
    else:
        names = [_short(str(value)) for value in effect.values]
        places = range(len(names))
        if effect.band is not None:
            ax.vlines(places, effect.band.lower, effect.band.upper, "C0", alpha=0.5, linewidth=5)
        ax.plot(places, effect.mean, "o", **MEAN)
        ax.set_xticks(places, names, rotation=30 if max(map(len, names)) > 5 else 0)
        ax.margins(x=0.2)
    if data is not None and numeric:
        shown = data.detach().flatten()[:: max(1, data.numel() // _MOST_TICKS)]
        transform = ax.get_xaxis_transform()
        ax.plot(shown, torch.zeros_like(shown), "|", color="0.5", transform=transform)
        ax.set_xlim(effect.values[0], effect.values[-1])
    ax.set_xlabel(name)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
