"""``whvi fit``: from a table to a model file."""

from __future__ import annotations

import math
import shlex
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from whvi.cli.app import printable
from whvi.cli.commands import STREAM, TableOptions, check_output, labels_of, numbers_of
from whvi.errors import ConfigError, DataError
from whvi.tabular.inputs import Column
from whvi.tabular.reading import Table, require_column

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from whvi.cli.validating import Validation
    from whvi.tabular.inputs import Kind

_FEW_VALUES = 10  # different numbers of a target, at most so many of which may well be classes


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
    kinds: dict[str, Kind],
    checkpoint: str | None,
    validation: Validation | None,
    **parameters: Any,
) -> None:
    """Read, fit, write; progress and a summary go to stderr. ``parameters``: of the estimators."""
    from whvi.tabular import WHVIClassifier, WHVIRegressor

    if output == STREAM:
        raise ConfigError("a model is a file: name it with -o, such as -o model.whvi")
    check_output(output, [source])
    parameters |= {"hidden_layer_sizes": _widths(hidden), "verbose": int(not options.quiet)}
    table = options.open(source)
    drop = [*drop, *(validation.not_inputs if validation else [])]
    for name in (target, *drop, *kinds):
        require_column(table, name)
    values = table.frame([target], kinds)[target]
    is_classifier = _is_classification(values, task, likelihood, options)
    x, y = _training_columns(table, target, drop, kinds, is_classifier)
    if is_classifier and (different := len(pd.unique(y))) > len(y) / 2:
        options.note(
            f"the target {target!r} holds {different} different labels in {len(y)} rows; if they "
            "are numbers to predict, pass --task regression"
        )
    splits = []
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
            from whvi.cli.validating import validated

            model = validated(fit, x, y, validation, splits, options, checkpoint)
        else:
            model = fit(slice(None), checkpoint)
    model.save(output)
    for note in model.notes_:
        options.note(note)
    if not options.quiet:
        print(printable(_summary(model, output)), file=sys.stderr)
    if validation:
        from whvi.cli.validating import score_lines

        print(printable("\n".join(score_lines(model.validation_, validation))))


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
    if task == "auto" and not texts:
        different = values.nunique()
        if different <= _FEW_VALUES and len(values) > 5 * different:
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
    members = training["num_members"]
    path = Path(output)
    size = f" ({math.ceil(path.stat().st_size / 1000):,} kB)" if path.is_file() else ""
    return (
        f"{kind} of {model.target_name_!r} by {len(model.schema_.columns)} columns, "
        f"{training['num_rows']:,} rows: {members} network{'s' * (members != 1)}, "
        f"{model.likelihood_} likelihood, {training['seconds']:.1f} s; "
        f"wrote {output}{size}"
    )
