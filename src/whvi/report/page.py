"""The report: a fitted estimator and a table with its target, as one self-contained HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import whvi
from whvi.errors import ConfigError, DataError
from whvi.predictive import Predictive
from whvi.report import explanations, pictures, words
from whvi.report.scores import SCORE_NAMES, label_numbers, score_labels, score_regression
from whvi.report.words import count, level, number, share
from whvi.tabular.inputs import place
from whvi.tabular.reading import listed

if TYPE_CHECKING:
    import pandas as pd

Rows = list[tuple[str, ...]]

_MOST_CATEGORIES = 6
_USUAL_SHARE = 0.03  # new extremes in this share of the rows are usual


def build_report(
    model: Any, x: pd.DataFrame, y: pd.Series, *, source: str = "table", main_level: float = 0.9
) -> str:
    """Return a self-contained HTML page with scores and plots of ``model`` on a table.

    Args:
        model: A fitted ``WHVIRegressor`` (one target) or ``WHVIClassifier``.
        x: The model's columns, by name.
        y: True values or labels.
        source: Name of the table, for the headline.
        main_level: Level of the interval that is plotted and described first.
    """
    if len(x) < 2:
        raise DataError(f"a report compares rows: at least 2 are needed, got {len(x)}")
    predictive, far = model.predict_dist(x), model.far_share(x)
    if hasattr(model, "classes_"):
        values = label_numbers(model.classes_, y)
        judged = _judge_labels(predictive, values, model.classes_)
        true = model.classes_[values.numpy()]
    elif model.n_outputs_ == 1:
        true = np.array(y, dtype=float)
        values = torch.from_numpy(true)
        judged = _judge_regression(predictive, values, main_level)
    else:
        raise ConfigError(
            f"a report needs a model of one target, this one predicts {model.n_outputs_}: fit one "
            f"model per target"
        )
    columns = model.schema_.columns
    importance, names = explanations.importance_table(model, x, true)
    return render(
        title=f"How well is {model.target_name_} predicted?",
        source=f"{source}: {count(len(x), 'row')}, {count(len(columns), 'column')}",
        warnings=[*data_warnings(model.schema_, x), *far_warnings(far, x)],
        importance=importance,
        effects=pictures.effect_pictures(model, x, names),
        rows=explanations.row_tables(model, x, predictive, values, true),
        columns=[_describe(column, x[column.name]) for column in columns],
        card=model_card(model),
        training=pictures.training_pictures(model.history_, model.model_),
        version=whvi.__version__,
        **judged,
    )


def render(**content: Any) -> str:
    """Fill the template ``page.html``; every text is escaped, only the SVG of a plot is not."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("whvi.report", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(content)


def _judge_regression(predictive: Predictive, y: Tensor, main_level: float) -> dict[str, Any]:
    levels = sorted({0.5, 0.8, 0.95, main_level}, key=lambda each: (each != main_level, each))
    scores = score_regression(predictive, y, levels=levels)
    first = scores.intervals[0]
    table: Rows = [
        ("rows", number(scores.num_rows)),
        ("root mean squared error", number(scores.rmse)),
        ("mean absolute error", number(scores.mae)),
        ("R²", number(scores.r2)),
        ("mean negative log-likelihood (nats)", number(scores.mnll)),
        ("CRPS", number(scores.crps)),
        ("calibration error (0 is best, ½ is worst)", number(scores.calibration_error)),
    ]
    for each in sorted(scores.intervals, key=lambda interval: interval.level):
        table.append((f"coverage of {level(each.level)} intervals", share(each.coverage)))
        table.append((f"median width of {level(each.level)} intervals", number(each.median_width)))
    return {
        "tiles": [
            (number(scores.rmse), "root mean squared error"),
            (share(scores.r2), "of the variance explained"),
            (share(first.coverage), f"inside {level(first.level)} intervals"),
            (number(scores.mnll), "negative log-likelihood (nats per row)"),
        ],
        "sentences": words.regression_sentences(scores, predictive, y),
        "scores": table,
        "pictures": pictures.regression_pictures(predictive, y, level=main_level),
    }


def _judge_labels(predictive: Predictive, labels: Tensor, classes: np.ndarray) -> dict[str, Any]:
    scores = score_labels(predictive, labels)
    table: Rows = [
        ("rows", number(scores.num_rows)),
        ("accuracy", share(scores.accuracy)),
        ("accuracy of the most frequent class", share(scores.accuracy_of_most_frequent)),
        ("log loss (nats)", number(scores.log_loss)),
        ("Brier score", number(scores.brier)),
        ("expected calibration error", share(scores.ece)),
        ("mean confidence", share(scores.mean_confidence)),
    ]
    if scores.auroc is not None:
        table.append(("area under the ROC curve", number(scores.auroc)))
    return {
        "tiles": [
            (share(scores.accuracy), "accuracy"),
            (share(scores.mean_confidence), "mean confidence"),
            (number(scores.log_loss), "log loss (nats per row)"),
            (share(scores.ece), "expected calibration error"),
        ],
        "sentences": words.label_sentences(scores, predictive, labels),
        "scores": table,
        "pictures": pictures.label_pictures(predictive, labels, [str(name) for name in classes]),
    }


def _describe(column: Any, values: pd.Series) -> tuple[str, ...]:
    """Describe a column of the table beside its range in training."""
    seen = ""
    if column.categories is not None:
        seen = count(len(column.categories), "value")
    elif column.minimum is not None:
        seen = f"{number(column.minimum)} to {number(column.maximum)}"
    if column.categories is None and values.dtype.kind in "fiub" and values.notna().any():
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        quantiles = np.nanquantile(numbers, [0, 0.5, 1])
        return (column.name, column.kind, "", *map(number, quantiles), seen)
    counts = values.astype(str).value_counts()
    shown = ", ".join(f"{name} ({amount:,})" for name, amount in counts[:_MOST_CATEGORIES].items())
    rest = len(counts) - _MOST_CATEGORIES
    shown += f", {rest} more" if rest > 0 else ""
    return (column.name, column.kind, shown, "", "", "", seen)


def data_warnings(schema: Any, x: pd.DataFrame) -> list[str]:
    """Name the columns with categories or ranges that training did not have."""
    warnings = [
        f"Column {name!r} has categories that training did not have: "
        f"{listed(values)}. The model treats them as unknown."
        for name, values in schema.unseen(x).items()
        if len(values)
    ]
    for column in schema.columns:
        if column.kind != "numeric" or column.minimum is None:
            continue
        values = x[column.name].to_numpy(dtype=np.float64, na_value=np.nan)
        outside = int(((values < column.minimum) | (values > column.maximum)).sum())
        if outside > _USUAL_SHARE * len(values):
            warnings.append(
                f"Column {column.name!r} is outside its range in training "
                f"({number(column.minimum)} to {number(column.maximum)}) in "
                f"{count(outside, 'row')} of {len(values):,}: there the model extrapolates."
            )
    return warnings


def far_warnings(far: np.ndarray, x: pd.DataFrame) -> list[str]:
    """Name the rows that are far from all training rows, the farthest first."""
    rows = [int(row) for row in np.argsort(-far, kind="stable") if far[row] > 0.5]
    if not rows:
        return []
    named = listed([place(x.iloc[:, 0], row) for row in rows])
    return [
        f"{count(len(rows), 'row')} of {len(far):,} "
        f"{'is' if len(rows) == 1 else 'are'} far from all rows in training, and the model knows "
        f"little there (the farthest first): {named}."
    ]


def model_card(model: Any) -> list[tuple[str, str]]:
    """Describe how a fitted estimator was trained, as names and values."""
    training = model.training_summary_
    members = training["num_members"]
    units = "" if hasattr(model, "classes_") else ", for the standardized target"

    def nats(mnll: float | None) -> str:
        return "not scored" if mnll is None else f"{number(mnll)} nats{units}"

    card = [
        ("estimator", type(model).__name__),
        ("target", ", ".join(model.schema_.target_names)),
        ("columns", str(len(model.schema_.columns))),
        ("training rows", number(training["num_rows"])),
        ("likelihood", str(model.likelihood_)),
        ("networks in the ensemble", number(members)),
        ("hidden layers", " × ".join(map(str, training["hidden_layer_sizes"])) or "none"),
        ("parameters of one network", number(training["num_parameters"] // members)),
        ("steps", f"{number(training['steps'])} of {number(training['batch_size'])} rows"),
        ("learning rate", number(training["learning_rate"])),
        ("weight of the KL", f"{number(training['beta'])} (1 is the evidence lower bound)"),
        ("seconds", number(round(float(training["seconds"]), 1))),
        ("MNLL on held-out rows", nats(training["validation_mnll"])),
    ]
    if model.conformal_scores_ is not None:
        card.append(("rows for conformal intervals", number(len(model.conformal_scores_))))
    far = model._predictor.linearized
    how = "weight draws only"
    if far is not None:
        size = sum(part.shape[-1] for tangent in far.tangents for part in tangent.displacements)
        how = f"linearized networks, full covariance of {number(size)} parameters each"
    card.append(("far from the training rows", how))
    for candidate in model.candidates_ if len(model.candidates_) > 1 else []:
        inputs = " and bins" if candidate["bins"] else ""
        inputs += ", rough functions" if candidate["features"] == "laplace" else ""
        name = f"tried: {candidate['likelihood']}{inputs}, {number(candidate['steps'])} steps"
        card.append((name, nats(candidate["validation_mnll"])))
    if model.validation_:
        card.append(("scores on rows not trained on", model.validation_[0]["split"]))
    for row in model.validation_:
        error = "" if row["standard_error"] is None else f" ± {number(row['standard_error'])}"
        name = SCORE_NAMES.get(row["score"], row["score"])
        card.append((name, f"{number(row['mean'])}{error}"))
    return card
