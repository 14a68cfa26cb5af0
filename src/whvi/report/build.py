"""From a fitted estimator and a table with its target to a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from whvi.errors import ConfigError, DataError
from whvi.layers.linear import RandomLinear
from whvi.plots import feature_effect
from whvi.plots.effects import Effect
from whvi.predictive import Predictive
from whvi.report.page import Page, Table, render
from whvi.report.pictures import (
    Picture,
    covariance_picture,
    effect_picture,
    label_pictures,
    regression_pictures,
    training_pictures,
)
from whvi.report.reading import read_labels, read_regression
from whvi.report.scores import LabelScores, RegressionScores, score_labels, score_regression
from whvi.report.summary import column_table, data_warnings, model_card
from whvi.report.text import count, level, number, share

if TYPE_CHECKING:
    import pandas as pd

_MOST_EFFECTS = 12
_EFFECT_VALUES, _EFFECT_ROWS = 11, 50
_MOST_CATEGORIES = 8
_COVARIANCE_SIDE, _COVARIANCE_DRAWS = 8, 400


def build_report(
    model: Any, x: pd.DataFrame, y: pd.Series, *, source: str = "table", main_level: float = 0.9
) -> str:
    """Return a self-contained HTML page that tells how good ``model`` is on a table.

    Args:
        model: A fitted ``WHVIRegressor`` (one target) or ``WHVIClassifier``.
        x: The model's columns, by name.
        y: True values or labels.
        source: Name of the table, for the headline.
        main_level: Of the interval that is drawn and told first.
    """
    predictive = model.predict_dist(x)
    if hasattr(model, "classes_"):
        part = _judge_labels(predictive, label_numbers(model.classes_, y), model.classes_)
    else:
        if model.n_outputs_ != 1:
            raise ConfigError(
                f"a report judges one target, and the model predicts {model.n_outputs_}: fit one "
                f"model for each"
            )
        part = _judge_regression(predictive, torch.from_numpy(np.array(y, dtype=float)), main_level)
    target = model.target_name_
    page = Page(
        title=f"How well is {target} predicted?",
        source=f"{source}: {count(len(x), 'row')}, {count(len(model.schema_.columns), 'column')}",
        warnings=tuple(data_warnings(model.schema_, x)),
        effects=tuple(_effects(model, x)),
        columns=column_table(model.schema_, x),
        card=tuple(model_card(model)),
        training=tuple(_training(model)),
        footer=f"Made by whvi {_version()}. This page loads nothing from anywhere.",
        **part,
    )
    return render(page)


def label_numbers(classes: np.ndarray, y: Any) -> Tensor:
    """Return the position of every label in ``classes``; refuse a label that is not there."""
    places = {str(name): k for k, name in enumerate(classes)}
    numbers = []
    for row, value in enumerate(y):
        if str(value) not in places and isinstance(value, float) and value == int(value):
            value = int(value)  # 1.0 in a table, 1 among the classes
        if str(value) not in places:
            raise DataError(
                f"row {row + 1} has the label {str(value)!r}, which training did not have; "
                f"expected one of {', '.join(map(repr, list(places)[:10]))}"
            )
        numbers.append(places[str(value)])
    return torch.tensor(numbers)


def _judge_regression(predictive: Predictive, y: Tensor, main_level: float) -> dict[str, Any]:
    levels = sorted({0.5, 0.8, 0.95, main_level}, key=lambda each: (each != main_level, each))
    scores = score_regression(predictive, y, levels=levels)
    loss = (predictive.mean - y).square()
    first = scores.intervals[0]
    return {
        "tiles": (
            (number(scores.rmse), "root mean squared error"),
            (share(scores.r2), "of the variance explained"),
            (share(first.coverage), f"inside {level(first.level)} intervals"),
            (number(scores.mnll), "negative log-likelihood (nats per row)"),
        ),
        "reading": tuple(read_regression(scores, loss, predictive.std)),
        "scores": _regression_table(scores),
        "pictures": tuple(regression_pictures(predictive, y, level=main_level)),
    }


def _regression_table(scores: RegressionScores) -> Table:
    rows = [
        ("rows", number(scores.num_rows)),
        ("root mean squared error", number(scores.rmse)),
        ("mean absolute error", number(scores.mae)),
        ("R²", number(scores.r2)),
        ("mean negative log-likelihood (nats)", number(scores.mnll)),
        ("CRPS", number(scores.crps)),
        ("calibration error (0 is best, ½ worst)", number(scores.calibration_error)),
    ]
    for each in sorted(scores.intervals, key=lambda interval: interval.level):
        rows.append((f"coverage of {level(each.level)} intervals", share(each.coverage)))
        rows.append((f"median width of {level(each.level)} intervals", number(each.median_width)))
    return Table(("score", "value"), tuple(rows))


def _judge_labels(predictive: Predictive, labels: Tensor, classes: np.ndarray) -> dict[str, Any]:
    scores = score_labels(predictive, labels)
    wrong = (predictive.mode != labels).double()
    return {
        "tiles": (
            (share(scores.accuracy), "right labels"),
            (share(scores.mean_confidence), "mean confidence"),
            (number(scores.log_loss), "log loss (nats per row)"),
            (share(scores.ece), "expected calibration error"),
        ),
        "reading": tuple(read_labels(scores, wrong, predictive.entropy())),
        "scores": _label_table(scores),
        "pictures": tuple(label_pictures(predictive, labels, [str(name) for name in classes])),
    }


def _label_table(scores: LabelScores) -> Table:
    rows = [
        ("rows", number(scores.num_rows)),
        ("accuracy", share(scores.accuracy)),
        ("accuracy of the most frequent class", share(scores.accuracy_of_most_frequent)),
        ("log loss (nats)", number(scores.log_loss)),
        ("Brier score", number(scores.brier)),
        ("expected calibration error", share(scores.ece)),
        ("mean confidence", share(scores.mean_confidence)),
    ]
    if scores.auroc is not None:
        rows.append(("area under the ROC curve", number(scores.auroc)))
    return Table(("score", "value"), tuple(rows))


def _effects(model: Any, x: pd.DataFrame) -> list[Picture]:
    """Draw the effect of every column, the strongest first; of many columns only the first few."""
    is_classifier = hasattr(model, "classes_")
    label = len(model.classes_) - 1 if is_classifier else None
    target = f"P({model.classes_[-1]})" if is_classifier else model.target_name_
    sample = x.iloc[np.unique(np.linspace(0, len(x) - 1, _EFFECT_ROWS).astype(int))]
    found: list[tuple[Effect, str]] = []
    for column in model.schema_.columns[:_MOST_EFFECTS]:
        values = _values(column, x[column.name])

        def predict(value: Any, name: str = column.name) -> Predictive:
            dist: Predictive = model.predict_dist(sample.assign(**{name: value}))
            return dist

        if len(values) > 1:
            found.append((feature_effect(predict, values, label=label), column.name))
    found.sort(key=lambda pair: -(pair[0].mean.max() - pair[0].mean.min()).item())
    if not found:
        return []
    ends = _ends([effect for effect, _ in found])
    return [
        effect_picture(effect, name=name, target=target, data=_ticks(x[name]), ends=ends)
        for effect, name in found
    ]


def _ends(effects: list[Effect]) -> tuple[float, float]:
    """Return the range that all effects and their bands need, with a margin."""
    curves = [curve for each in effects for curve in (each.mean, *(each.band or ()))]
    low, high = (end.item() for end in torch.aminmax(torch.cat(curves)))
    margin = 0.05 * (high - low) or 1.0
    return low - margin, high + margin


def _values(column: Any, series: pd.Series) -> list[Any]:
    if column.kind == "numeric":
        numbers = series.to_numpy(dtype=np.float64, na_value=np.nan)
        grid = np.nanquantile(numbers, np.linspace(0.02, 0.98, _EFFECT_VALUES))
        values: list[Any] = np.unique(grid).tolist()
        return values
    present = list(series.dropna().value_counts().index[:_MOST_CATEGORIES])
    return sorted(present, key=str)


def _ticks(series: pd.Series) -> Tensor | None:
    if series.dtype.kind not in "fiu":
        return None
    return torch.tensor(series.tolist(), dtype=torch.float64)


def _training(model: Any) -> list[Picture]:
    pictures = []
    if len(model.history_):
        pictures += training_pictures(model.history_)
    covariance = _weight_covariance(model.model_)
    if covariance is not None:
        pictures.append(covariance_picture(covariance[1], layer=covariance[0]))
    return pictures


@torch.no_grad()
def _weight_covariance(network: torch.nn.Module) -> tuple[str, Tensor] | None:
    """Estimate the covariance of the first weights of the widest Bayesian layer, first member."""
    layers = [(n, m) for n, m in network.named_modules() if isinstance(m, RandomLinear)]
    if not layers:
        return None
    name, layer = max(layers, key=lambda pair: pair[1].in_features * pair[1].out_features)
    generator = torch.Generator().manual_seed(0)
    draws = []
    for _ in range(_COVARIANCE_DRAWS):
        weight = layer.sample_weight(generator=generator)
        corner = weight.reshape(-1, *weight.shape[-2:])[0, :_COVARIANCE_SIDE, :_COVARIANCE_SIDE]
        draws.append(corner.flatten())
    return name, torch.cov(torch.stack(draws).T)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("whvi")
    except PackageNotFoundError:
        return "(not installed)"
