"""``whvi evaluate``, ``report``, ``info`` and ``export``: how good a model is, what it holds."""

from __future__ import annotations

import datetime
import json
import math
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from whvi._files import STREAM, check_output, open_output
from whvi.cli.app import printable
from whvi.cli.commands import (
    TableOptions,
    check_level,
    check_one_target,
    labels_of,
    model_columns,
    numbers_of,
)
from whvi.errors import ConfigError
from whvi.layers import summary
from whvi.tabular import load_model
from whvi.tabular.modelfile import load_predictor, read_model_file

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from whvi.report.scores import RowScores
    from whvi.tabular.inputs import Column
    from whvi.tabular.predictor import Predictor
    from whvi.tabular.reading import Table

_BLOCK = 2048  # rows that are judged at once: their components take memory


def evaluate_table(
    model_file: str, source: str, options: TableOptions, *, level: float, as_json: bool
) -> None:
    """Print scores as a table, or as JSON."""
    check_level(level)
    predictor = load_predictor(model_file)
    x, y = judged_rows(predictor, options.open(source), options)
    scores, _ = judge(predictor, x, y, level)
    if as_json:
        print(json.dumps(plain(scores), indent=1))
    else:
        shown = shown_scores(scores).items()
        print("\n".join(f"{name:<36}{value:>12}" for name, value in shown))


def report_table(
    model_file: str, source: str, output: str, options: TableOptions, *, level: float
) -> None:
    """Write a page on how good a model is."""
    from whvi.report import build_report

    check_level(level)
    check_output(output, [model_file, source])
    x, y = judged_rows(load_predictor(model_file), options.open(source), options)
    name = "standard input" if source == STREAM else os.path.basename(source)
    with warnings.catch_warnings():  # of letters that the font lacks: nobody can help it
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        page = build_report(load_model(model_file), x, y, source=name, main_level=level)
    with open_output(output) as stream:
        stream.write(page)


def judged_rows(
    predictor: Predictor, table: Table, options: TableOptions
) -> tuple[pd.DataFrame, np.ndarray]:
    """Return inputs and true values: numbers for a regression, labels for a classification."""
    schema = predictor.schema
    x, name = model_columns(table, schema, options), schema.target_names[0]
    if predictor.classes is None:
        return x, numbers_of(table, name, schema.target_kind)
    labels = labels_of(table, name, schema.target_kind)
    return x, labels.astype(bool) if schema.target_kind == "boolean" else labels


def judge(
    predictor: Predictor, x: pd.DataFrame, y: np.ndarray, level: float = 0.9
) -> tuple[dict[str, Any], RowScores]:
    """Score predictions for ``x`` against ``y``, as plain values; also row by row."""
    from whvi.report.scores import judge_blocks, judge_probs, label_numbers

    if predictor.classes is not None:
        probs = torch.as_tensor(predictor.evaluate(x, lambda p: p.probs))
        found, by_row = judge_probs(probs, label_numbers(predictor.classes, y))
        return found.as_dict(), by_row
    check_one_target(predictor)
    levels = sorted({0.5, 0.8, 0.9, 0.95, level})
    parts = [slice(start, start + _BLOCK) for start in range(0, len(x), _BLOCK)]
    blocks = ((predictor.predict(x.iloc[part]), torch.as_tensor(y[part])) for part in parts)
    scores, rows = judge_blocks(blocks, levels=levels)
    return scores.as_dict(), rows


def plain(value: Any) -> Any:
    """Return the same with ``None`` for NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def shown_scores(scores: dict[str, Any]) -> dict[str, str]:
    """Return names for readers, and numbers as texts."""
    from whvi.report.scores import SCORE_NAMES

    shown = {
        SCORE_NAMES[name]: f"{value:,}" if isinstance(value, int) else f"{value:.5g}"
        for name, value in scores.items()
        if name in SCORE_NAMES and value is not None
    }
    for each in scores.get("intervals", ()):
        shown[coverage_name(each["level"])] = f"{100 * each['coverage']:.1f} %"
    return shown


def coverage_name(level: float) -> str:
    """Name the share of true values inside the intervals of a level."""
    return f"coverage of {100 * level:g} % intervals"


def describe_model(model_file: str, *, as_json: bool) -> None:
    """Print the model's card, columns and layers; or the file's document as JSON."""
    from whvi.report import model_card

    if as_json:
        print(json.dumps(read_model_file(model_file).document, indent=1))
        return
    columns = load_predictor(model_file).schema.columns  # refuses models of another kind
    model = load_model(model_file)
    size = f"{Path(model_file).stat().st_size / 1000:,.0f} kB"
    card = [*model_card(model), ("size of the file", size)]
    width = max(34, *(len(name) + 2 for name, _ in card))
    lines = [*(f"{name:<{width}}{value}" for name, value in card), "", "columns"]
    lines += [f"  {column.name:<{width - 2}}{_describe(column)}" for column in columns]
    lines += ["", str(summary(model.model_))]
    print(printable("\n".join(lines)))


def export_model(model_file: str, output: str, quantiles: list[float] | None) -> None:
    """Write an ONNX file."""
    from whvi.tabular.export import LEVELS, export_onnx

    if output == STREAM:
        raise ConfigError("an ONNX model is a file: name it with -o, such as -o model.onnx")
    check_output(output, [model_file])
    export_onnx(load_predictor(model_file), output, quantiles=quantiles or LEVELS)


def _describe(column: Column) -> str:
    if column.categories is not None:
        shown = ", ".join(column.categories[:8])
        rest = len(column.categories) - 8
        return f"{column.kind}: {shown}{f' and {rest} more' if rest > 0 else ''}"
    if column.minimum is None or column.maximum is None:
        return "no value in training, not used"
    ends: list[Any] = [column.minimum, column.maximum]
    if column.kind == "date":
        ends = [datetime.date(1970, 1, 1) + datetime.timedelta(end) for end in ends]
    shown = " to ".join(f"{end:g}" if isinstance(end, float) else str(end) for end in ends)
    return f"{column.kind}, {shown} in training{', with missing values' * column.indicator}"
