"""``whvi evaluate`` and ``whvi report``: predictions against the truth."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any

from whvi.cli.files import check_output, open_output
from whvi.cli.predicting import check_level
from whvi.cli.tables import TableOptions, model_columns, read, target_column
from whvi.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

_NAMES = {
    "num_rows": "rows",
    "rmse": "RMSE",
    "rmse_of_mean": "RMSE of the mean",
    "mae": "mean absolute error",
    "r2": "R²",
    "mnll": "MNLL (nats)",
    "crps": "CRPS",
    "calibration_error": "calibration error",
    "epistemic_share": "epistemic share of variance",
    "accuracy": "accuracy",
    "accuracy_of_most_frequent": "accuracy of the most frequent class",
    "log_loss": "log loss (nats)",
    "brier": "Brier score",
    "ece": "expected calibration error",
    "mean_confidence": "mean confidence",
    "auroc": "area under the ROC curve",
}


def evaluate_table(
    model_file: str, source: str, options: TableOptions, *, level: float, as_json: bool
) -> None:
    """Print scores as a table, or as JSON."""
    check_level(level)
    model, x, y = _load(model_file, source, options)
    scores = score(model, x, y, level)
    print(json.dumps(_plain(scores), indent=1) if as_json else "\n".join(_lines(scores)))


def report_table(
    model_file: str, source: str, output: str, options: TableOptions, *, level: float
) -> None:
    """Write the page."""
    from whvi.report import build_report

    check_level(level)
    check_output(output, [model_file, source])
    model, x, y = _load(model_file, source, options)
    name = "standard input" if source == "-" else os.path.basename(source)
    page = build_report(model, x, y, source=name, main_level=level)
    with open_output(output) as stream:
        stream.write(page)


def score(model: Any, x: pd.DataFrame, y: Any, level: float) -> dict[str, Any]:
    """Score a model's predictions for ``x`` against ``y``, as plain values."""
    import torch

    from whvi.report.scores import label_numbers, score_labels, score_regression

    predictive = model.predict_dist(x)
    if hasattr(model, "classes_"):
        return score_labels(predictive, label_numbers(model.classes_, y)).as_dict()
    if predictive.mean.dim() != 1:
        raise ConfigError("the model predicts several targets; the command line judges one")
    levels = sorted({0.5, 0.8, 0.9, 0.95, level})
    return score_regression(predictive, torch.as_tensor(y), levels=levels).as_dict()


def _load(model_file: str, source: str, options: TableOptions) -> tuple[Any, pd.DataFrame, Any]:
    from whvi.tabular.modelfile import load_model

    model = load_model(model_file)
    frame = read(source, options)
    return model, model_columns(frame, model, options), target_column(frame, model)


def _plain(value: Any) -> Any:
    """Return the same with ``None`` for NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _lines(scores: dict[str, Any]) -> list[str]:
    rows = [(_NAMES[name], value) for name, value in scores.items() if name in _NAMES]
    lines = [f"{name:<36}{_shown(value):>12}" for name, value in rows if value is not None]
    for each in scores.get("intervals", ()):
        name = f"coverage of {100 * each['level']:g} % intervals"
        lines.append(f"{name:<36}{100 * each['coverage']:>10.1f} %")
    return lines


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}"
