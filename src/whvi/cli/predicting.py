"""``whvi predict``: a model and a table in, a table of predictions out."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whvi.cli.files import STREAM, check_output, open_output, replaced
from whvi.cli.tables import TableOptions, model_columns, read
from whvi.errors import ConfigError, DataError, MissingDependencyError

if TYPE_CHECKING:
    import pandas as pd

_ROWS_AT_ONCE = 8192
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which a spreadsheet would begin to compute


def predict_table(
    model_file: str,
    source: str,
    output: str,
    options: TableOptions,
    *,
    level: float,
    keep: tuple[str, ...],
) -> None:
    """Read, predict in blocks of rows, write."""
    check_level(level)
    check_output(output, [model_file, source])
    _check_parquet(output)
    from whvi.tabular.modelfile import load_model

    model = load_model(model_file)
    frame = read(source, options)
    for name in keep:
        if name not in frame.columns:
            raise DataError(f"--keep: the table has no column {name!r}")
    head = [*keep, *column_names(model)]
    clashes = sorted({name for name in head if head.count(name) > 1})
    if clashes:
        raise ConfigError(f"--keep: the predictions have a column {clashes[0]!r} already")
    x = model_columns(frame, model, options)
    rows = _rows(model, x, frame[list(keep)], level)
    _write(output, head, rows)


def check_level(level: float) -> None:
    """Refuse a level that is no probability strictly between 0 and 1."""
    if not 0 < level < 1:
        raise ConfigError(f"--level must lie strictly between 0 and 1, got {level:g}")


def column_names(model: Any) -> list[str]:
    """Name the columns of the predictions."""
    if hasattr(model, "classes_"):
        return ["label", "confidence", "entropy", *(f"p_{name}" for name in model.classes_)]
    return ["mean", "std", "epistemic", "aleatoric", "lower", "upper"]


def _rows(model: Any, x: pd.DataFrame, kept: pd.DataFrame, level: float) -> Iterator[list[Any]]:
    for start in range(0, len(x), _ROWS_AT_ONCE):
        block = slice(start, start + _ROWS_AT_ONCE)
        predictive = model.predict_dist(x.iloc[block])
        copies = kept.iloc[block].itertuples(index=False, name=None)
        for copy, numbers in zip(copies, _numbers(model, predictive, level), strict=True):
            yield [*map(harmless, copy), *numbers]


def _numbers(model: Any, predictive: Any, level: float) -> Iterator[list[Any]]:
    import torch

    if hasattr(model, "classes_"):
        probs = predictive.probs
        confidence, best = probs.max(-1)
        table = torch.cat([confidence[:, None], predictive.entropy()[:, None], probs], 1).tolist()
        for index, numbers in zip(best.tolist(), table, strict=True):
            yield [harmless(str(model.classes_[index])), *numbers]
        return
    if predictive.mean.dim() != 1:
        raise ConfigError("the model predicts several targets; the command line predicts one")
    moments = (predictive.mean, predictive.std, predictive.epistemic, predictive.aleatoric)
    yield from torch.stack([*moments, *predictive.interval(level)], 1).tolist()


def harmless(cell: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would take for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def _check_parquet(output: str) -> None:
    if output.lower().endswith(".parquet") and importlib.util.find_spec("pyarrow") is None:
        raise MissingDependencyError(
            "writing Parquet needs pyarrow: pip install pyarrow, or name a .csv file"
        )


def _write(output: str, head: list[str], rows: Iterator[list[Any]]) -> None:
    if output != STREAM and output.lower().endswith(".parquet"):
        import pandas

        with replaced(Path(output)) as temporary:
            pandas.DataFrame(rows, columns=head).to_parquet(temporary, index=False)
        return
    separator = "\t" if output.lower().endswith((".tsv", ".tab")) else ","
    with open_output(output) as stream:
        writer = csv.writer(stream, delimiter=separator, lineterminator="\n")
        writer.writerow([harmless(name) for name in head])
        writer.writerows(rows)
