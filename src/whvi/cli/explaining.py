"""``whvi importance`` and ``whvi explain``: which columns matter, and why rows are predicted so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from whvi._files import STREAM, check_output
from whvi.cli.app import printable
from whvi.cli.commands import (
    TableOptions,
    check_one_target,
    labels_of,
    model_columns,
    numbers_of,
    write_table,
)
from whvi.errors import ConfigError
from whvi.tabular import load_model
from whvi.tabular.explaining import Contributions, contributions, importances
from whvi.tabular.formats import check_format
from whvi.tabular.modelfile import load_predictor

if TYPE_CHECKING:
    from whvi.tabular.inputs import TableSchema
    from whvi.tabular.reading import Table

_LINE = ("prediction", "base", "column", "value", "contribution", "std")
_MOST_ROWS = 1000  # on which columns are permuted: more take long and say little more


def print_importances(
    model_file: str, source: str, options: TableOptions, *, as_json: bool
) -> None:
    """Print the importance of every column on a table with its target."""
    from whvi.report.explanations import spread_rows

    check_one_target(load_predictor(model_file))  # which refuses models of another kind
    model: Any = load_model(model_file)
    table = options.open(source)
    x, y = model_columns(table, model.schema_, options), _targets(table, model.schema_)
    if hasattr(model, "classes_"):
        from whvi.report.scores import label_numbers

        y = model.classes_[label_numbers(model.classes_, y).numpy()]
    rows = spread_rows(len(x), _MOST_ROWS)
    if len(rows) < len(x):
        options.note(f"measured on {len(rows):,} of {len(x):,} rows, from the first to the last")
    found = importances(model, x.iloc[rows], y[rows])
    if as_json:
        print(json.dumps(found.to_dict("records"), indent=1))
        return
    print(f"{'column':<36}{'nats per row':>14}{'standard error':>18}")
    for name, gain, error in found.itertuples(index=False):
        print(printable(f"{name:<36}{gain:>14.5g}{error:>18.2g}"))


def _targets(table: Table, schema: TableSchema) -> np.ndarray:
    name, kind = schema.target_names[0], schema.target_kind
    return (numbers_of if kind == "numeric" else labels_of)(table, name, kind)


def explain_rows(
    model_file: str, source: str, background: str, output: str, options: TableOptions
) -> None:
    """Write the contributions of every column to the prediction of every row, one per line.

    For classes, to the probability of the label that is predicted.
    """
    if source == background == STREAM:
        raise ConfigError("only one of the two tables can be standard input")
    check_output(output, [model_file, source, background])
    check_format(output)
    check_one_target(load_predictor(model_file))
    model: Any = load_model(model_file)
    table, schema = options.open(source), model.schema_
    x, others = (model_columns(t, schema, options) for t in (table, options.open(background)))
    found = contributions(model, x, others)
    mean, std, labels = found.mean, found.std, None
    if hasattr(model, "classes_"):
        best = (found.base + mean.sum(1)).argmax(-1)
        labels, base = model.classes_[best], found.base[best]
        mean, std = (part[np.arange(len(x)), :, best] for part in (mean, std))
    else:
        base = np.full(len(x), found.base)
    found = found._replace(mean=mean, std=std, base=base)
    cells = table.original(list(found.columns)).to_numpy(dtype=object)
    parts = []
    for k, line in enumerate(x.index):
        about = {x.index.name or "row": line} | ({} if labels is None else {"label": labels[k]})
        parts.append(_lines(found, k, cells[k]).assign(**about)[[*about, *_LINE]])
    write_table(output, pd.concat(parts, ignore_index=True))


def _lines(found: Contributions, row: int, cells: np.ndarray) -> pd.DataFrame:
    """Return what a row's columns contribute, the strongest first."""
    mean, base = found.mean[row], found.base[row]
    parts = (base + mean.sum(), base, found.columns, cells, mean, found.std[row])
    lines = pd.DataFrame(dict(zip(_LINE, parts, strict=True)))
    return lines.iloc[np.argsort(-np.abs(mean), kind="stable")]
