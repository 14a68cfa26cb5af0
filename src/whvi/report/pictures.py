"""The plots of the report: inline SVG in the text color of the page."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from whvi import plots
from whvi.layers.linear import RandomLinear
from whvi.plots.figures import shortened, with_margin
from whvi.predictive import Predictive
from whvi.report.explanations import MOST_COLUMNS, spread_rows
from whvi.report.scores import pit_values
from whvi.report.words import number
from whvi.training.history import History

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_INK = "#010203"  # placeholder of the page's text color
_PAGE_STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), _INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), _INK),
    "legend.framealpha": 0.0,
    "legend.edgecolor": "none",
    "font.size": 9,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
}
_WIDTH, _HEIGHT = 4.6, 3.7  # inches
_EFFECT_VALUES, _EFFECT_ROWS, _MOST_CATEGORIES = 11, 50, 8
_COVARIANCE_SIDE, _COVARIANCE_DRAWS = 8, 400


_CAPTIONS = {
    "Predicted against true": "Each dot is a row, each vertical line its interval. On the dashed "
    "line predictions are exact; red intervals miss the true value.",
    "Calibration": "The share of true values below the predicted quantile of each probability. "
    "Calibrated predictions follow the dashed line, up to chance (grey band).",
    "Coverage by level": "The share of true values inside the central interval of each level. "
    "Below the dashed line intervals are too narrow, above it wider than necessary.",
    "Where true values fall in their predictions": "The histogram is flat for calibrated "
    "predictions. High ends: overconfident. A high middle: underconfident. A slope: predictions "
    "that are too low or too high overall.",
    "Error against predicted deviation": "The orange line compares actual with predicted errors, "
    "in groups of equally many rows; it follows the dashed line if the deviations are right.",
    "Error over the most certain rows": "The error if only the rows with the least uncertainty are "
    "kept. If the curve rises to the right, the uncertainty can be used to rank rows.",
    "Reliability": "Accuracy against the confidence of the model. Dots below the dashed line: "
    "overconfident. Bars: the share of rows with that confidence.",
    "Confusion": "Rows of each true class (down) by predicted label (across); the shade is the "
    "share of the true class.",
    "Wrong labels among the most certain rows": "The share of wrong labels if only the rows with "
    "the least uncertainty are kept.",
    "Training: objective": "What training maximizes, on batches of training rows; it should have "
    "leveled off. Thin lines: members of the ensemble.",
    "Training: KL divergence": "The divergence of the posterior from the prior, in nats, of all "
    "layers and of each. Thin lines: members of the ensemble.",
    "Training: noise": "Logarithms of the noise parameters, for the standardized target.",
    "Correlation of weights": "Red: two weights increase together under the posterior; blue: one "
    "decreases as the other increases.",
}


@dataclass(frozen=True)
class Picture:
    """A plot with a title and a caption that says how to read it."""

    title: str
    svg: str
    caption: str


def _draw(title: str, plot: Callable[..., None], *args: Any, **options: Any) -> Picture:
    """Call ``plot(axes, *args, **options)`` on new axes."""
    import matplotlib as mpl

    with mpl.rc_context(_PAGE_STYLE):
        figure = plots.new_figure(width=_WIDTH, height=_HEIGHT)
        plot(figure.axes[0], *args, **options)
        svg = plots.svg_text(figure, name=f"p{zlib.crc32(title.encode()):08x}")
    return Picture(title, svg.replace(_INK, "currentColor"), _CAPTIONS.get(title, ""))


def regression_pictures(predictive: Predictive, y: Tensor, *, level: float) -> list[Picture]:
    """Plot predictions, calibration, PIT, coverage, errors and risk of one output."""
    mean, std, pit = predictive.mean, predictive.std, pit_values(predictive, y)
    against_true, ends = plots.plot_predicted_against_true, predictive.interval(level)
    bins = min(20, max(4, len(y) // 15))
    return [
        _draw("Predicted against true", against_true, y, mean, *ends, level=level),
        _draw("Calibration", plots.plot_calibration, pit),
        _draw("Coverage by level", plots.plot_coverage, pit),
        _draw("Where true values fall in their predictions", plots.plot_pit, pit, num_bins=bins),
        _draw("Error against predicted deviation", plots.plot_error_by_std, mean - y, std),
        _draw("Error over the most certain rows", plots.plot_risk_coverage, (mean - y) ** 2, std),
    ]


def label_pictures(predictive: Predictive, labels: Tensor, names: Sequence[str]) -> list[Picture]:
    """Plot reliability, confusion and risk of a classification."""
    predicted, entropy = predictive.mode, predictive.entropy()
    wrong, risk = (predicted != labels).double(), plots.plot_risk_coverage
    return [
        _draw("Reliability", plots.plot_reliability, predictive.probs, labels),
        _draw("Confusion", plots.plot_confusion, predicted, labels, names),
        _draw("Wrong labels among the most certain rows", risk, wrong, entropy, risk="error rate"),
    ]


def effect_pictures(model: Any, x: pd.DataFrame, names: Sequence[str]) -> list[Picture]:
    """Plot the effects of columns, the first of ``names``, on every class, on common axes."""
    classes = getattr(model, "classes_", None)
    targets: list[tuple[int | None, str]] = [(None, model.target_name_)]
    if classes is not None:
        labels = range(len(classes)) if len(classes) > 2 else [len(classes) - 1]  # P(other) = 1 - P
        targets = [(label, f"P({classes[label]})") for label in labels]
    sample = x.iloc[spread_rows(len(x), _EFFECT_ROWS)]
    kinds = {column.name: column for column in model.schema_.columns}
    predicted: dict[str, dict[Any, Predictive]] = {}
    for name in names:
        values = _effect_values(kinds[name], x[name])
        if len(values) > 1 and len(predicted) < max(1, MOST_COLUMNS // len(targets)):
            predicted[name] = {v: model.predict_dist(_with(sample, name, v)) for v in values}
    return [picture for target in targets for picture in _effects_on(*target, predicted, x)]


def _effects_on(
    label: int | None, target: str, predicted: dict[str, dict[Any, Predictive]], x: pd.DataFrame
) -> list[Picture]:
    effects = {
        name: plots.feature_effect(each.__getitem__, list(each), label=label)
        for name, each in predicted.items()
    }
    if not effects:
        return []
    curves = [curve for each in effects.values() for curve in (each.mean, *(each.band or ()))]
    ends = with_margin(torch.cat(curves), 0.05)
    return [_effect_picture(effect, x[name], target, ends) for name, effect in effects.items()]


def _with(table: pd.DataFrame, name: str, value: Any) -> pd.DataFrame:
    """Return the table with one value in all rows of a column."""
    changed = table.copy()
    changed[name] = value
    return changed


def _effect_values(column: Any, series: pd.Series) -> list[Any]:
    if column.kind == "numeric":
        numbers = series.to_numpy(dtype=np.float64, na_value=np.nan)
        numbers = numbers[np.isfinite(numbers)]
        levels = np.linspace(0.02, 0.98, _EFFECT_VALUES)
        values: list[Any] = np.unique(np.quantile(numbers, levels)).tolist() if len(numbers) else []
        return values
    return sorted(series.dropna().value_counts().index[:_MOST_CATEGORIES], key=str)


def _effect_picture(
    effect: plots.Effect, series: pd.Series, target: str, ends: tuple[float, float]
) -> Picture:
    name = str(series.name)
    numeric = series.dtype.kind in "fiu"
    data = torch.tensor(series.dropna().tolist(), dtype=torch.float64) if numeric else None

    def draw(ax: Axes) -> None:
        plots.plot_effect(ax, effect, name=name, data=data)
        ax.set(ylabel=shortened(target, 30), ylim=ends)

    band = " The band is the uncertainty about the model." if effect.band is not None else ""
    strength = number((effect.mean.max() - effect.mean.min()).item())
    caption = f"The mean prediction when only this column varies; it changes by {strength}.{band}"
    return replace(_draw(f"Effect of {name}", draw), caption=caption)


def training_pictures(history: History, network: nn.Module) -> list[Picture]:
    """Plot objective, KL and noise over the steps, and correlations of weights."""
    pictures = []
    if len(history):
        pictures.append(_draw("Training: objective", plots.plot_elbo, history))
        pictures.append(_draw("Training: KL divergence", plots.plot_kl, history))
    if history.noise and history.noise[0]:
        pictures.append(_draw("Training: noise", plots.plot_noise, history))
    return pictures + _covariance_pictures(network)


@torch.no_grad()
def _covariance_pictures(network: nn.Module) -> list[Picture]:
    """Plot correlations of the first weights of the widest Bayesian layer, first member."""
    layers = [(n, m) for n, m in network.named_modules() if isinstance(m, RandomLinear)]
    if not layers:
        return []
    name, layer = max(layers, key=lambda pair: pair[1].in_features * pair[1].out_features)
    generator = torch.Generator().manual_seed(0)
    draws = []
    for _ in range(_COVARIANCE_DRAWS):
        weight = layer.sample_weight(generator=generator)
        corner = weight.reshape(-1, *weight.shape[-2:])[0, :_COVARIANCE_SIDE, :_COVARIANCE_SIDE]
        draws.append(corner.flatten())
    covariance = torch.cov(torch.stack(draws).T)
    title = f"{len(covariance)} weights of layer {name}"
    return [_draw("Correlation of weights", plots.plot_covariance, covariance, title)]
