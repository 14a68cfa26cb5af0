"""The pictures of a page: inline SVG whose ink is the colour of the page's text."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from whvi.plots import (
    new_figure,
    plot_calibration,
    plot_confusion,
    plot_covariance,
    plot_coverage,
    plot_effect,
    plot_elbo,
    plot_error_by_std,
    plot_kl,
    plot_noise,
    plot_pit,
    plot_predicted_against_true,
    plot_reliability,
    plot_risk_coverage,
    svg_text,
)
from whvi.plots.effects import Effect
from whvi.predictive import Predictive
from whvi.report.scores import pit_values
from whvi.report.text import number
from whvi.training.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK = "#010203"  # stands for the page's text colour until the graphic is in the page
_WIDTH, _HEIGHT = 4.6, 3.7  # inches: one picture fills a phone, two stand side by side elsewhere
_INK_SETTINGS = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")


@dataclass(frozen=True)
class Picture:
    """One graphic with what it shows in words."""

    title: str
    svg: str
    caption: str  # how to read it


def regression_pictures(predictive: Predictive, y: Tensor, *, level: float) -> list[Picture]:
    """Draw predictions, calibration, PIT, coverage, errors and risk of one output."""
    lower, upper = predictive.interval(level)
    mean, std, pit = predictive.mean, predictive.std, pit_values(predictive, y)
    num_bins = min(20, max(4, len(y) // 15))
    return [
        _draw(
            "Predicted against true",
            lambda ax: plot_predicted_against_true(ax, y, mean, lower, upper, level=level),
            "Each dot is a row, each vertical line its interval. On the dashed line a prediction "
            "is exact; red intervals miss the true value.",
        ),
        _draw(
            "Calibration",
            lambda ax: plot_calibration(ax, pit),
            "How many true values lie below the predicted quantile of each probability. Honest "
            "predictions follow the dashed line; chance alone keeps them in the grey band.",
        ),
        _draw(
            "Coverage by level",
            lambda ax: plot_coverage(ax, pit),
            "How many true values lie inside the central interval of each level. Below the dashed "
            "line intervals are too narrow, above it wider than need be.",
        ),
        _draw(
            "Where true values fall in their predictions",
            lambda ax: plot_pit(ax, pit, num_bins=num_bins),
            "The histogram is flat for honest predictions; high ends mean too sure, a high middle "
            "too careful, a slope predictions that are too low or too high throughout.",
        ),
        _draw(
            "Error against predicted deviation",
            lambda ax: plot_error_by_std(ax, mean - y, std),
            "The orange line compares the size of the errors with what was predicted, in groups of "
            "equally many rows; it follows the dashed line if the model knows its errors.",
        ),
        _draw(
            "Error over the surest rows",
            lambda ax: plot_risk_coverage(ax, (mean - y).square(), std),
            "The error if only the rows are kept that the model is surest of. A curve that rises "
            "to the right means that its uncertainty can be relied on to sort rows.",
        ),
    ]


def label_pictures(predictive: Predictive, labels: Tensor, names: Sequence[str]) -> list[Picture]:
    """Draw reliability, confusion and risk of a classification."""
    predicted = predictive.mode
    return [
        _draw(
            "Reliability",
            lambda ax: plot_reliability(ax, predictive.probs, labels),
            "How often the predicted label is right, against how sure the model was. Dots below "
            "the dashed line: too sure. Bars: the share of rows with that confidence.",
        ),
        _draw(
            "Confusion",
            lambda ax: plot_confusion(ax, predicted, labels, names),
            "Rows of each true class (down) by predicted label (across); the shade is the share "
            "of the true class.",
        ),
        _draw(
            "Wrong labels among the surest rows",
            lambda ax: plot_risk_coverage(
                ax, (predicted != labels).double(), predictive.entropy(), risk="error rate"
            ),
            "The share of wrong labels if only the rows are kept that the model is surest of.",
        ),
    ]


def training_pictures(history: History) -> list[Picture]:
    """Draw the objective, the KL of model and layers, and the noise."""
    pictures = [
        _draw(
            "Training: the objective",
            lambda ax: plot_elbo(ax, history),
            "What training maximises, on batches of training rows, one thin line for each member; "
            "it should have levelled off.",
        ),
        _draw(
            "Training: what the weights have learnt",
            lambda ax: plot_kl(ax, history),
            "The divergence of posterior from prior, in nats, of all layers and of each; one thin "
            "line for each member.",
        ),
    ]
    if history.noise and history.noise[0]:
        pictures.append(
            _draw(
                "Training: the noise",
                lambda ax: plot_noise(ax, history),
                "Logarithms of the noise parameters, in standard units of the target.",
            )
        )
    return pictures


def effect_picture(
    effect: Effect, *, name: str, target: str, data: Tensor | None, ends: tuple[float, float]
) -> Picture:
    """Draw what one feature does to the mean prediction, on a vertical axis shared by all."""

    def draw(ax: Axes) -> None:
        plot_effect(ax, effect, name=name, data=data)
        ax.set(ylabel=target, ylim=ends)

    spread = (effect.mean.max() - effect.mean.min()).item()
    band = " The band is what the model does not know of it." if effect.band is not None else ""
    return _draw(
        f"Effect of {name}",
        draw,
        f"The mean prediction as only this column varies; it moves by {number(spread)}.{band}",
    )


def covariance_picture(covariance: Tensor, *, layer: str) -> Picture:
    """Draw the correlations of some weights of a layer."""
    return _draw(
        "Correlation of weights",
        lambda ax: plot_covariance(
            ax, covariance, f"{covariance.shape[0]} weights of layer {layer}"
        ),
        "Red: two weights rise together under the posterior; blue: one falls as the other rises.",
    )


def _draw(title: str, draw: Callable[[Axes], None], caption: str) -> Picture:
    name = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in title)
    with _page_ink():
        figure = new_figure(width=_WIDTH, height=_HEIGHT)
        draw(figure.axes[0])
        svg = svg_text(figure, name=name.lower())
    return Picture(title, svg.replace(_INK, "currentColor"), caption)


@contextlib.contextmanager
def _page_ink() -> Iterator[None]:
    import matplotlib as mpl

    settings: dict[Any, Any] = dict.fromkeys(_INK_SETTINGS, _INK)
    settings |= {"legend.framealpha": 0.0, "legend.edgecolor": "none", "font.size": 9}
    settings["text.parse_math"] = False  # a dollar sign in a name is a dollar sign
    with mpl.rc_context(settings):
        yield
