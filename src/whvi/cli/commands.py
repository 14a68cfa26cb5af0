"""``whvi fit``, ``whvi predict``, and what all verbs share: tables in, columns of a model."""

from __future__ import annotations

import math
import shlex
import sys
import warnings
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from whvi._files import STREAM, atomic_write, check_output, open_output
from whvi.cli.app import printable
from whvi.errors import ConfigError, DataError
from whvi.tabular.inputs import Column, place
from whvi.tabular.modelfile import load_predictor
from whvi.tabular.reading import (
    CellStyle,
    Table,
    is_number,
    listed,
    numeric_columns,
    open_table,
    require_column,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from whvi.cli.validating import Validation
    from whvi.predictive import Predictive
    from whvi.tabular.inputs import Kind, TableSchema
    from whvi.tabular.predictor import Predictor

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which a spreadsheet would begin to compute
_PLAIN = ("", ".csv", ".tsv", ".tab", ".txt")
_PACKED = (".gz", ".parquet", ".xlsx")
_LABEL = ["label", "confidence", "entropy"]
_FEW_VALUES = 10  # different numbers of a target, at most so many of which may well be classes
_FAR = 0.5  # share of the linearised networks above which a row is far from the training rows
_MOMENTS = ["mean", "std", "epistemic", "aleatoric", "lower", "upper"]


@dataclass(frozen=True)
class TableOptions:
    """How to read a table, and whether to say what is odd about it."""

    style: CellStyle = field(default_factory=CellStyle)
    quiet: bool = False
    told: set[str] = field(default_factory=set)  # of several tables, the same once

    def note(self, message: str) -> None:
        """Tell something that is worth knowing and no error, on stderr."""
        if not self.quiet and message not in self.told:
            self.told.add(message)
            print(printable(f"note: {message}"), file=sys.stderr)

    def open(self, source: str) -> Table:
        """Read a table from a path or, for ``-``, from standard input; errors name the table."""
        try:
            table = open_table(sys.stdin.buffer if source == STREAM else source, self.style)
        except DataError as error:
            name = "standard input" if source == STREAM else source
            raise error if repr(source) in str(error) else DataError(f"{name}: {error}") from error
        for note in table.notes:
            self.note(note)
        return table


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
    categorical: list[str],
    numeric: list[str],
    checkpoint: str | None,
    validation: Validation | None,
    **parameters: Any,
) -> None:
    """Read, fit, write; progress and a summary go to stderr. ``parameters``: of the estimators."""
    from whvi.tabular import WHVIClassifier, WHVIRegressor

    if output == STREAM:
        raise ConfigError("a model is a file: name it with -o, such as -o model.whvi")
    check_output(output, [source])
    kinds, splits = _kinds(categorical, numeric), []
    parameters |= {"hidden_layer_sizes": _widths(hidden), "verbose": int(not options.quiet)}
    table = options.open(source)
    drop = [*drop, *(validation.not_inputs(target) if validation else [])]
    for name in (target, *drop, *kinds):
        require_column(table, name)
    values = table.frame([target], kinds)[target]
    is_classifier = _is_classification(values, task, likelihood, options)
    x, y = _training_columns(table, target, drop, kinds, is_classifier)
    if is_classifier:
        _note_many_labels(y, target, options)
    if validation:
        splits = validation.splits(table, y, is_classifier, parameters["random_state"])
    del table  # of a million rows the texts take gigabytes
    kind = WHVIClassifier if is_classifier else partial(WHVIRegressor, likelihood=likelihood)

    def fit(rows: Any, folder: str | None) -> Any:
        targets = pd.Series(y[rows], name=target)
        return kind(**parameters).fit(x.iloc[rows], targets, checkpoint=folder)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The number of unique classes")  # a note says so
        if validation:
            from whvi.cli.validating import score_lines, validated

            model = validated(fit, x, y, validation, splits, options, checkpoint)
        else:
            model = fit(slice(None), checkpoint)
    model.save(output)
    for note in model.notes_:
        options.note(note)
    if not options.quiet:
        print(printable(_summary(model, output)), file=sys.stderr)
    if validation:
        print(printable("\n".join(score_lines(model.validation_, validation))))


def _note_many_labels(y: Any, target: str, options: TableOptions) -> None:
    if (different := len(pd.unique(y))) > len(y) / 2:
        options.note(
            f"the target {target!r} holds {different} different labels in {len(y)} rows; if they "
            "are numbers to predict, pass --task regression"
        )


def _kinds(categorical: list[str], numeric: list[str]) -> dict[str, Kind]:
    if both := [name for name in categorical if name in numeric]:
        raise ConfigError(f"--categorical and --numeric both name {both[0]!r}; pass one of them")
    kinds: dict[str, Kind] = dict.fromkeys(categorical, "categorical")
    return {**kinds, **dict.fromkeys(numeric, "numeric")}


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
    if values.dtype.kind == "M":
        raise DataError(f"the target {values.name!r} holds dates; predict a number or a text")
    texts = values.dtype.kind not in "fiu"  # or booleans
    is_classifier = texts if task == "auto" else task == "classification"
    if is_classifier and likelihood != "auto":
        raise ConfigError(
            f"--likelihood {likelihood} is for regressions, and the target {values.name!r} "
            + ("holds texts, which are classes" if texts else "is to be classified")
        )
    different = values.nunique()
    if different == 1:
        options.note(f"the target {values.name!r} is the same in all rows: nothing can be learned")
    elif task == "auto" and not texts and len(values) > 5 * different <= 5 * _FEW_VALUES:
        options.note(
            f"the target {values.name!r} holds only {different} different numbers; if they "
            "are classes, pass --task classification"
        )
    return is_classifier


def _training_columns(
    table: Table, target: str, drop: list[str], kinds: dict[str, Kind], is_classifier: bool
) -> tuple[pd.DataFrame, NDArray[Any]]:
    """Return inputs and targets; what is wrong with any column is told in one error."""
    if target in drop:
        raise ConfigError(f"the target {target!r} cannot be dropped")
    names = [name for name in table.columns if name not in {target, *drop}]
    if not names:
        raise DataError(f"there is no column to learn from besides {target!r}")
    found, problems = {}, {}
    for name in names:
        try:
            found[name] = table.frame([name], kinds)[name]
            Column.learn(found[name], name)
        except (DataError, TypeError) as error:
            problems[name] = str(error)
        else:
            if found[name].dtype.kind == "O" and name not in kinds and _doubtful(found[name]):
                from whvi.tabular.complaints import category_problem

                if problem := category_problem(found[name], name, table.style):
                    problems[name] = problem
    drops = " ".join(f"--drop {shlex.quote(name)}" for name in problems)
    advice = [f"to leave out what cannot be used: {drops}"] * bool(problems)
    try:
        y = (_classes_of if is_classifier else numbers_of)(table, target, kinds.get(target))
    except DataError as error:
        problems[target] = str(error)
    if problems:
        raise DataError("; ".join([*problems.values(), *advice]))
    return pd.DataFrame(found), y


def _classes_of(table: Table, name: str, kind: Kind | None) -> NDArray[Any]:
    labels = labels_of(table, name, kind)
    if labels.dtype.kind == "f":
        raise DataError(
            f"the target {name!r} holds numbers such as {labels[labels % 1 != 0][0]:g}, and "
            "classes are texts or whole numbers; pass --task regression"
        )
    return labels


def _doubtful(texts: pd.Series) -> bool:
    """Tell whether texts may be numbers, dates or names rather than categories."""
    known = texts.dropna().unique()
    return len(known) > _FEW_VALUES or any(any(map(str.isdigit, text)) for text in known)


def _summary(model: Any, output: str) -> str:
    training = model.training_summary_
    kind = "classification" if hasattr(model, "classes_") else "regression"
    members, num_rows = training["num_members"], training["num_rows"]
    path = Path(output)
    size = f" ({math.ceil(path.stat().st_size / 1000):,} kB)" if path.is_file() else ""
    return (
        f"{kind} of {model.target_name_!r} by {len(model.schema_.columns)} columns, "
        f"{num_rows:,} row{'s' * (num_rows != 1)}: {members} network{'s' * (members != 1)}, "
        f"{model.likelihood_} likelihood, {training['seconds']:.1f} s; "
        f"wrote {output}{size}"
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
    if output != STREAM and Path(output).suffix.lower() not in _PLAIN:
        from whvi.tabular.formats import check_format

        check_format(output)
    predictor = load_predictor(model_file)
    table = options.open(source)
    classes = predictor.classes
    names = _MOMENTS if classes is None else [*_LABEL, *(f"p_{name}" for name in classes)]
    for name in keep:
        require_column(table, name)
        if name in names or keep.count(name) > 1:
            raise ConfigError(f"--keep: the predictions have a column {name!r} already")
    x = model_columns(table, predictor.schema, options)
    *found, far = _moments(predictor, x, level) if classes is None else _class_columns(predictor, x)
    if num_far := int((far > _FAR).sum()):
        options.note(
            f"{num_far} of {len(far)} rows are far from all training rows (first: "
            f"{place(x.iloc[:, 0], int((far > _FAR).argmax()))}): the model knows little there"
        )
    if not all(np.isfinite(each).all() for each in found[classes is not None :]):
        raise DataError("the model predicts values that are not finite; it is not usable")
    predictions = pd.DataFrame(dict(zip(names, found, strict=True)), index=table.index)
    write_table(output, pd.concat([table.original(keep), predictions], axis=1))


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
    best = predictor.classes.astype(str)[np.argmax(probs, axis=0)]
    return [best, np.max(probs, axis=0), entropy, *probs, far]


def model_columns(table: Table, schema: TableSchema, options: TableOptions) -> pd.DataFrame:
    """Return the columns that a model takes, in its order and with its types.

    Missing columns are an error that names them; extra columns and categories that training did
    not have are told by name, and prediction goes on.
    """
    wanted = [column.name for column in schema.columns]
    if missing := [name for name in wanted if name not in table.columns]:
        raise DataError(
            f"the table lacks {len(missing)} of {len(wanted)} columns that the model was fitted "
            f"on: {listed(missing)}; it has {listed(list(table.columns))}"
        )
    known = {*wanted, *schema.target_names}
    if extra := [name for name in table.columns if name not in known]:
        options.note(f"columns that the model does not use are ignored: {listed(extra)}")
    x = table.frame(wanted, schema.kinds)
    for name, texts in schema.unseen(x).items():
        options.note(
            f"column {name!r} holds categories that training did not have (or seldom), taken as "
            f"unknown: {listed(texts)}"
        )
    return x


def numbers_of(table: Table, name: str, kind: Kind | None = None) -> NDArray[np.float64]:
    """Return a column of finite numbers."""
    require_column(table, name)
    return numeric_columns(table.frame([name], {name: kind} if kind else None), [name])[:, 0]


def labels_of(table: Table, name: str, kind: Kind | None = None) -> NDArray[Any]:
    """Return a column as labels: texts as they are (also ``007``), whole numbers, booleans."""
    require_column(table, name)
    values = table.frame([name], {name: kind} if kind else None)[name]
    missing = values.isna().to_numpy()
    if count := int(missing.sum()):
        raise DataError(
            f"column {name!r} holds {count} missing value{'s' * (count > 1)} (first in "
            f"{place(values, int(missing.argmax()))}); drop these rows"
        )
    if values.dtype.kind == "b":
        return np.asarray(values, dtype=bool)
    if values.dtype.kind != "O":
        numbers = numeric_columns(values.to_frame(), [name])[:, 0]
        texts = [str(cell).strip() for cell in table.columns[name]]
        is_code = any(text[:1] == "0" and text[1:2].isdigit() for text in texts)
        if kind is None and (is_code or np.abs(numbers).max() >= 2**53):
            return np.array(texts, dtype=object)
        whole = numbers.astype(np.int64)
        return whole if (whole == numbers).all() else numbers
    return np.asarray(values, dtype=object)


def harmless(cell: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would take for a formula."""
    is_text = isinstance(cell, str) and cell.startswith(_FORMULA) and not is_number(cell)
    return f"'{cell}" if is_text else cell


# Options and outputs ---------------------------------------------------------------------------


def check_level(level: float) -> None:
    """Refuse a level that is no probability strictly between 0 and 1."""
    if not 0 < level < 1:
        raise ConfigError(f"--level must lie strictly between 0 and 1, got {level:g}")


def check_one_target(predictor: Predictor) -> None:
    """Refuse a model of several targets."""
    if len(predictor.schema.target_names) != 1:
        raise ConfigError("the model predicts several targets; the command line takes one")


def write_table(output: str, table: pd.DataFrame) -> None:
    """Write a table in the format that the name of the output says."""
    cells = table.rename(columns=harmless)
    for k in [k for k, dtype in enumerate(cells.dtypes) if dtype.kind == "O"]:
        cells.isetitem(k, cells.iloc[:, k].map(harmless))
    separator = "\t" if output.lower().removesuffix(".gz").endswith((".tsv", ".tab")) else ","
    if output.lower().endswith(_PACKED):
        from whvi.tabular.formats import write_packed

        with atomic_write(output, follow_symlinks=False) as stream:
            write_packed(cells, stream, output, separator)
        return
    with open_output(output) as stream:
        cells.to_csv(stream, sep=separator, index=False, lineterminator="\n")
