"""``whvi fit`` and ``whvi predict``: tables in, models and predictions out."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from whvi._files import atomic_write
from whvi.errors import ConfigError, DataError, MissingDependencyError
from whvi.tabular.inputs import place
from whvi.tabular.modelfile import load_predictor
from whvi.tabular.reading import (
    check_categories,
    is_number,
    listed,
    numeric_columns,
    read_table,
    require_column,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from whvi.predictive import Predictive
    from whvi.tabular.inputs import Kind, TableSchema
    from whvi.tabular.predictor import Predictor

STREAM = "-"
_FEW_VALUES = 10  # different numbers of a target, at most so many of which may well be classes
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which a spreadsheet would begin to compute
_LABEL = ["label", "confidence", "entropy"]
_FAR = 0.5  # share of the linearised networks above which a row is far from the training rows
_MOMENTS = ["mean", "std", "epistemic", "aleatoric", "lower", "upper"]


@dataclass(frozen=True)
class TableOptions:
    """How to read a table, and whether to say what is odd about it."""

    separator: str | None = None
    decimal: str = "."
    encoding: str = "utf-8"
    quiet: bool = False

    def note(self, message: str) -> None:
        """Tell something that is worth knowing and no error, on stderr."""
        if not self.quiet:
            print(f"note: {message}", file=sys.stderr)

    def read(self, source: str, kinds: Mapping[str, Kind] | None = None) -> pd.DataFrame:
        """Read a table from a path or, for ``-``, from standard input; errors name the table."""
        separator = {"\\t": "\t", "tab": "\t"}.get(self.separator or "", self.separator)
        try:
            return read_table(
                sys.stdin.buffer if source == STREAM else source,
                separator=separator,
                decimal=self.decimal,
                encoding=self.encoding,
                kinds=kinds,
                spell=lambda name, value: f"--{name} {value}",
            )
        except DataError as error:
            if repr(source) in str(error):
                raise
            name = "standard input" if source == STREAM else source
            raise DataError(f"{name}: {error}") from error


# fit -------------------------------------------------------------------------------------------


def fit_table(
    source: str,
    output: str,
    options: TableOptions,
    *,
    target: str,
    task: str,
    likelihood: str,
    hidden: str | None,
    drop: list[str],
    checkpoint: str | None,
    **parameters: Any,
) -> None:
    """Read, fit, write; progress and a summary go to stderr.

    ``parameters`` are those that both estimators have.
    """
    from whvi.tabular import WHVIClassifier, WHVIRegressor

    if output == STREAM:
        raise ConfigError("a model is a file: name it with -o, such as -o model.whvi")
    check_output(output, [source])
    parameters |= {"hidden_layer_sizes": _widths(hidden), "verbose": int(not options.quiet)}
    frame = options.read(source)
    require_column(frame, target)
    is_classifier = _is_classification(frame[target], task, likelihood, options)
    x = _training_columns(frame, target, drop)
    model: WHVIClassifier | WHVIRegressor
    if is_classifier:
        y, model = labels_of(frame, target), WHVIClassifier(**parameters)
    else:
        y, model = numbers_of(frame, target), WHVIRegressor(likelihood=likelihood, **parameters)
    model.fit(x, pd.Series(y, name=target), checkpoint=checkpoint)
    model.save(output)
    if not options.quiet:
        print(_summary(model, output), file=sys.stderr)


def _widths(text: str | None) -> tuple[int, ...] | None:
    """Read ``"128,64"`` as (128, 64)."""
    if text is None:
        return None
    try:
        widths = tuple(int(part) for part in text.split(","))
    except ValueError:
        widths = ()
    if not widths or min(widths) < 1:
        raise ConfigError(f"--hidden takes widths such as 128,128, got {text!r}")
    return widths


def _is_classification(
    values: pd.Series, task: str, likelihood: str, options: TableOptions
) -> bool:
    texts = values.dtype.kind not in "fiu"  # or booleans
    is_classifier = texts if task == "auto" else task == "classification"
    if is_classifier and likelihood != "auto":
        raise ConfigError(
            f"--likelihood {likelihood} is for regressions, and the target {values.name!r} "
            + ("holds texts, which are classes" if texts else "is to be classified")
        )
    if task == "auto" and not texts:
        different = values.nunique()
        if different <= _FEW_VALUES and len(values) > 5 * different:
            options.note(
                f"the target {values.name!r} holds only {different} different numbers; if they "
                "are classes, pass --task classification"
            )
    return is_classifier


def _training_columns(frame: pd.DataFrame, target: str, drop: list[str]) -> pd.DataFrame:
    """Return all columns but the target and those left out; texts must look like categories."""
    for name in drop:
        require_column(frame, name)
    if target in drop:
        raise ConfigError(f"the target {target!r} cannot be dropped")
    x = frame.drop(columns=[target, *drop])
    if not len(x.columns):
        raise DataError(f"there is no column to learn from besides {target!r}")
    for name in x.columns:
        if x[name].dtype.kind == "O":
            check_categories(x[name], name)
    return x


def numbers_of(frame: pd.DataFrame, name: str) -> NDArray[np.float64]:
    """Return a column of finite numbers."""
    return numeric_columns(frame, [name])[:, 0]


def labels_of(frame: pd.DataFrame, name: str) -> NDArray[Any]:
    """Return a column as labels: texts as they are, whole numbers as integers, booleans."""
    require_column(frame, name)
    values = frame[name]
    if values.dtype.kind == "b":
        return np.asarray(values, dtype=bool)
    if values.dtype.kind != "O":
        numbers = numbers_of(frame, name)
        whole = numbers.astype(np.int64) if np.abs(numbers).max() < 2**53 else numbers
        return whole if (whole == numbers).all() else numbers
    missing = values.isna().to_numpy()
    if missing.any():
        raise DataError(
            f"column {name!r} holds {missing.sum()} missing values (first in "
            f"{place(values, int(missing.argmax()))}); drop these rows"
        )
    return np.asarray(values, dtype=object)


def _summary(model: Any, output: str) -> str:
    training = model.training_summary_
    kind = "classification" if hasattr(model, "classes_") else "regression"
    members = training["num_members"]
    size = math.ceil(Path(output).stat().st_size / 1000)
    return (
        f"{kind} of {model.target_name_!r} by {len(model.schema_.columns)} columns, "
        f"{training['num_rows']:,} rows: {members} network{'s' * (members != 1)}, "
        f"{model.likelihood_} likelihood, {training['seconds']:.1f} s; "
        f"wrote {output} ({size:,} kB)"
    )


# predict ---------------------------------------------------------------------------------------


def predict_table(
    model_file: str,
    source: str,
    output: str,
    options: TableOptions,
    *,
    level: float,
    keep: list[str],
) -> None:
    """Read, predict, write."""
    check_level(level)
    check_output(output, [model_file, source])
    predictor = load_predictor(model_file)
    kept: dict[str, Kind] = dict.fromkeys(keep, "categorical")  # copied as they are
    frame = options.read(source, kept | predictor.schema.kinds)
    classes = predictor.classes
    names = _MOMENTS if classes is None else [*_LABEL, *(f"p_{name}" for name in classes)]
    for name in keep:
        require_column(frame, name)
        if name in names or keep.count(name) > 1:
            raise ConfigError(f"--keep: the predictions have a column {name!r} already")
    x = model_columns(frame, predictor.schema, options)
    *found, far = _moments(predictor, x, level) if classes is None else _class_columns(predictor, x)
    if (num_far := int((far > _FAR).sum())) and len(far):
        options.note(
            f"{num_far} of {len(far)} rows are far from all training rows (first: row "
            f"{int((far > _FAR).argmax())}, counted from 0): the model knows little there"
        )
    predictions = pd.DataFrame(dict(zip(names, found, strict=True)), index=frame.index)
    _write(output, pd.concat([frame[keep], predictions], axis=1))


def _moments(predictor: Predictor, x: pd.DataFrame, level: float) -> list[np.ndarray]:
    def of(p: Predictive) -> Tensor:
        moments = [p.mean, p.std, p.epistemic, p.aleatoric, *p.interval(level)]
        return torch.stack([*moments, predictor.share(p)], dim=1)

    check_one_target(predictor)
    return list(predictor.evaluate(x, of).T)


def _class_columns(predictor: Predictor, x: pd.DataFrame) -> list[np.ndarray]:
    def of(p: Predictive) -> Tensor:
        ends = p.entropy()[:, None], predictor.share(p)[:, None]
        return torch.cat([ends[0], p.probs, ends[1]], dim=1)

    assert predictor.classes is not None  # as the caller knows
    entropy, *probs, far = predictor.evaluate(x, of).T
    best = predictor.classes.astype(str)[np.argmax(probs[: len(predictor.classes)], axis=0)]
    return [best, np.max(probs, axis=0), entropy, *probs[: len(predictor.classes)], far]


def model_columns(frame: pd.DataFrame, schema: TableSchema, options: TableOptions) -> pd.DataFrame:
    """Return the columns that a model takes, in its order; the frame was read by its schema.

    Missing columns are an error that names them; extra columns and categories that training did
    not have are told by name, and prediction goes on.
    """
    wanted = [column.name for column in schema.columns]
    if missing := [name for name in wanted if name not in frame.columns]:
        raise DataError(
            f"the table lacks {len(missing)} of {len(wanted)} columns that the model was fitted "
            f"on: {listed(missing)}; it has {listed(list(frame.columns))}"
        )
    known = {*wanted, *schema.target_names}
    if extra := [name for name in frame.columns if name not in known]:
        options.note(f"columns that the model does not use are ignored: {listed(extra)}")
    x = frame[wanted]
    for name, texts in schema.unseen(x).items():
        if set(texts) == set(x[name].dropna()) and all(map(is_number, texts)):
            raise DataError(
                f"column {name!r} holds numbers such as {texts[0]}, and held categories in training"
            )
        options.note(
            f"column {name!r} holds categories that training did not have, taken as unknown: "
            f"{listed(texts)}"
        )
    return x


def harmless(cell: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would take for a formula."""
    is_formula = isinstance(cell, str) and cell.startswith(_FORMULA) and not is_number(cell)
    return f"'{cell}" if is_formula else cell


# Options and outputs ---------------------------------------------------------------------------


def check_level(level: float) -> None:
    """Refuse a level that is no probability strictly between 0 and 1."""
    if not 0 < level < 1:
        raise ConfigError(f"--level must lie strictly between 0 and 1, got {level:g}")


def check_one_target(predictor: Predictor) -> None:
    """Refuse a model of several targets."""
    if len(predictor.schema.target_names) != 1:
        raise ConfigError("the model predicts several targets; the command line takes one")


def check_output(output: str, inputs: Sequence[str]) -> None:
    """Refuse an output that is an input, a folder, or in a folder that is not there."""
    if output == STREAM:
        return
    path = Path(output)
    if not output or "\0" in output:
        raise ConfigError(f"the output must be the name of a file, got {output!r}")
    if path.is_dir():
        raise ConfigError(f"the output {output!r} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise ConfigError(f"the folder of the output {output!r} does not exist; create it first")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"the folder of the output {output!r} cannot be written to")
    for each in inputs:
        if each != STREAM and Path(each).exists() and path.resolve() == Path(each).resolve():
            raise ConfigError(
                f"the output {output!r} is also an input and would be lost; name another file"
            )
    if output.lower().endswith(".parquet") and importlib.util.find_spec("pyarrow") is None:
        raise MissingDependencyError(
            "writing Parquet needs pyarrow: pip install pyarrow, or name a .csv file"
        )


@contextlib.contextmanager
def open_output(output: str) -> Iterator[IO[Any]]:
    """Open a text file that takes its name only when all of it is written; ``-`` is stdout."""
    if output == STREAM:
        yield sys.stdout
        return
    with atomic_write(output, "w", encoding="utf-8", newline="", follow_symlinks=False) as stream:
        yield stream


def _write(output: str, table: pd.DataFrame) -> None:
    if output.lower().endswith(".parquet"):
        with atomic_write(output, follow_symlinks=False) as stream:
            table.to_parquet(stream, index=False)
        return
    separator = "\t" if output.lower().endswith((".tsv", ".tab")) else ","
    texts = [name for name in table.columns if table[name].dtype.kind == "O"]
    cells = table.assign(**{name: table[name].map(harmless) for name in texts})
    with open_output(output) as stream:
        cells.rename(columns=harmless).to_csv(
            stream, sep=separator, index=False, lineterminator="\n"
        )
