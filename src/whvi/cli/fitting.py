"""``whvi fit``: a table in, a model file out."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whvi.cli.files import STREAM, check_output
from whvi.cli.tables import TableOptions, is_text, labels, read, training_columns
from whvi.errors import ConfigError, DataError
from whvi.tabular.reading import numeric_columns

if TYPE_CHECKING:
    import pandas as pd

_FEW_VALUES = 10


@dataclass(frozen=True)
class FitOptions:
    """What ``whvi fit`` was asked for."""

    target: str
    task: str = "auto"
    likelihood: str = "auto"
    members: int | None = None
    hidden: str | None = None
    steps: int | None = None
    drop: tuple[str, ...] = ()
    impute: bool = False
    seed: int = 0
    checkpoint: str | None = None
    quiet: bool = False


def fit_table(source: str, output: str, options: FitOptions, table: TableOptions) -> None:
    """Read, fit, write; progress and a summary go to stderr."""
    if output == STREAM:
        raise ConfigError("a model is a file: name it with -o, such as -o model.whvi")
    table = replace(table, quiet=options.quiet)
    check_output(output, [source])
    hidden = parse_widths(options.hidden)
    frame = read(source, table)
    is_classifier = _is_classification(frame, options, table)
    x = training_columns(frame, options.target, options.drop, impute=options.impute)
    model = _estimator(options, hidden, is_classifier=is_classifier)
    model.fit(x, _target(frame, options.target, is_classifier), checkpoint=options.checkpoint)
    model.save(output)
    if not options.quiet:
        print(_summary(model, output), file=sys.stderr)


def parse_widths(text: str | None) -> tuple[int, ...] | None:
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


def _is_classification(frame: pd.DataFrame, options: FitOptions, table: TableOptions) -> bool:
    texts = is_text(frame, options.target)
    if options.task == "regression" and texts:
        numeric_columns(frame, [options.target])  # raises for texts; booleans count as 0 and 1
        return False
    if options.task == "classification" and options.likelihood != "auto":
        raise ConfigError(
            f"--likelihood {options.likelihood} is for regressions, and this is a classification"
        )
    if options.task != "auto":
        return options.task == "classification"
    if texts and options.likelihood != "auto":
        raise ConfigError(
            f"--likelihood {options.likelihood} is for numbers, and the target "
            f"{options.target!r} holds texts, which are classes"
        )
    if not texts:
        values = frame[options.target].dropna().unique()
        if len(values) <= _FEW_VALUES and len(frame) > 5 * len(values):
            table.note(
                f"the target {options.target!r} holds only {len(values)} different numbers; if "
                f"they are classes, pass --task classification"
            )
    return texts


def _target(frame: pd.DataFrame, name: str, is_classifier: bool) -> Any:
    import pandas

    values = labels(frame, name) if is_classifier else numeric_columns(frame, [name])[:, 0]
    if is_classifier and len(set(values.tolist())) > max(2, len(values) / 2):
        raise DataError(
            f"the target {name!r} holds {len(set(values.tolist()))} classes in {len(values)} rows; "
            f"expected a few classes with several rows each (a column of numbers with a stray "
            f"text? then correct that cell)"
        )
    return pandas.Series(values, name=name, index=frame.index)


def _estimator(options: FitOptions, hidden: tuple[int, ...] | None, *, is_classifier: bool) -> Any:
    from whvi.tabular import WHVIClassifier, WHVIRegressor

    shared: dict[str, Any] = {
        "hidden_layer_sizes": hidden,
        "n_members": options.members,
        "max_iter": options.steps,
        "imputer": "median" if options.impute else None,
        "random_state": options.seed,
        "verbose": 0 if options.quiet else 1,
    }
    if is_classifier:
        return WHVIClassifier(**shared)
    return WHVIRegressor(likelihood=options.likelihood, **shared)


def _summary(model: Any, output: str) -> str:
    training = model.training_summary_
    kind = "classification" if hasattr(model, "classes_") else "regression"
    members = training["num_members"]
    size = np.ceil(Path(output).stat().st_size / 1000)
    return (
        f"{kind} of {model.target_name_!r} by {len(model.schema_.columns)} columns, "
        f"{training['num_rows']:,} rows: {members} network{'s' * (members != 1)}, "
        f"{model.likelihood_} likelihood, {training['seconds']:.1f} s; "
        f"wrote {output} ({size:,.0f} kB)"
    )
