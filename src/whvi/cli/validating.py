"""``whvi fit --cv`` and ``--holdout``: scores on rows that the model was not trained on.

Rows are held out at random (of every class its share), by whole groups, or in time order: then
a model is scored only on rows that are later than all of its training rows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from whvi.cli.judging import coverage_name, judge
from whvi.errors import ConfigError, DataError
from whvi.tabular.inputs import place
from whvi.tabular.reading import Table, listed, require_column

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from whvi.cli.commands import TableOptions
    from whvi.report.scores import RowScores

    Rows = NDArray[np.intp]
    Split = tuple[Rows, Rows]  # to train on, to score
    Fit = Callable[[Rows, str | None], Any]


@dataclass(frozen=True)
class Validation:
    """Which rows to hold out.

    Attributes:
        folds: Hold out each of so many parts once, and train on all rows at the end.
        share: Hold out this share of the rows, and keep the model of the others.
        group: Column; rows of one value stay together.
        time: Column of numbers or dates; later rows are held out.
        learn_split: Whether the column of groups or times is an input too.
    """

    folds: int | None = None
    share: float | None = None
    group: str | None = None
    time: str | None = None
    learn_split: bool = False

    def __post_init__(self) -> None:
        if self.folds is not None and self.share is not None:
            raise ConfigError("--cv and --holdout exclude each other; pass one of them")
        if self.group is not None and self.time is not None:
            raise ConfigError("--group and --time exclude each other; pass one of them")
        if self.column is not None and not self:
            option = "--time" if self.group is None else "--group"
            raise ConfigError(f"{option} says which rows to hold out; pass --cv 5 or --holdout .2")
        if self.learn_split and self.column is None:
            raise ConfigError("--learn-split is for the column of --group or --time; pass one")
        if self.share is not None and not 0 < self.share < 1:
            raise ConfigError(f"--holdout must lie strictly between 0 and 1, got {self.share:g}")

    def __bool__(self) -> bool:
        return self.folds is not None or self.share is not None

    @property
    def _share(self) -> float:
        assert self.share is not None  # where there are no folds
        return self.share

    @property
    def column(self) -> str | None:
        """The column that tells which rows to hold out."""
        return self.time if self.group is None else self.group

    def not_inputs(self, target: str) -> list[str]:
        """Return the columns that the model does not learn from."""
        if self.column == target:
            option = "--time" if self.group is None else "--group"
            raise ConfigError(
                f"{option} names the target {target!r}; name a column that is known of new rows"
            )
        return [] if self.column is None or self.learn_split else [self.column]

    def __str__(self) -> str:
        rows = f"{self.folds} folds" if self.share is None else f"{100 * self.share:g} % held out"
        if self.group is not None:
            return f"{rows}, groups of {self.group!r}"
        return rows if self.time is None else f"{rows}, in the order of {self.time!r}"

    def splits(self, table: Table, y: NDArray[Any], is_classifier: bool, seed: int) -> list[Split]:
        """Return the rows to train on and to score, one pair for every fit.

        Raises:
            DataError: There are too few rows, groups or times, or the labels of some rows are
                missing among the rows to train on.
        """
        most = len(y)
        if self.folds is not None and self.folds + (self.time is not None) > most:
            raise DataError(f"--cv {self.folds} needs more rows than the {most} of the table")
        if most < 2:
            raise DataError("a table of one row has none to hold out")
        if self.time is not None:
            splits = self._by_time(_times(table, self.time))
        elif self.group is not None:
            splits = self._by_group(_groups(table, self.group), seed)
        else:
            splits = self._at_random(y, is_classifier, seed)
        for k, (train, held_out) in enumerate(splits if is_classifier else ()):
            labels = y.astype(str)
            if unknown := sorted({*labels[held_out]} - {*labels[train]}):
                raise DataError(
                    f"split {k + 1} of {len(splits)} ({self}) would score rows of classes that its "
                    f"training rows do not have: {listed(unknown)}; leave out the rows of these "
                    "classes, or hold out fewer rows"
                )
        return splits

    def _at_random(self, y: NDArray[Any], is_classifier: bool, seed: int) -> list[Split]:
        from sklearn import model_selection as by

        no_inputs = np.zeros(len(y))
        classes, sizes = np.unique(y.astype(str), return_counts=True)
        if self.folds is not None:
            kind = by.StratifiedKFold if is_classifier and max(sizes) >= self.folds else by.KFold
            splitter = kind(self.folds, shuffle=True, random_state=seed)
        else:
            held_out = math.ceil(self._share * len(y))
            if held_out == len(y):
                raise DataError(f"--holdout {self._share:g} of {len(y)} rows leaves none to train")
            enough = min(sizes) > 1 and min(held_out, len(y) - held_out) >= len(classes)
            kind = by.StratifiedShuffleSplit if is_classifier and enough else by.ShuffleSplit
            splitter = kind(1, test_size=held_out, random_state=seed)
        with warnings.catch_warnings():  # of classes with fewer rows than folds, which is no harm
            warnings.filterwarnings("ignore", message="The least populated class")
            return list(splitter.split(no_inputs, y.astype(str) if is_classifier else None))

    def _by_group(self, groups: NDArray[Any], seed: int) -> list[Split]:
        from sklearn.model_selection import GroupKFold, GroupShuffleSplit

        different = len(np.unique(groups))
        if different < (self.folds or 2):
            raise DataError(
                f"column {self.group!r} holds {different} group{'s' * (different != 1)}, and "
                f"{self} need{'s' * (self.folds is None)} at least {self.folds or 2}"
            )
        if self.folds is not None:
            splitter = GroupKFold(self.folds)
        else:
            held_out = min(max(round(self._share * different), 1), different - 1)
            splitter = GroupShuffleSplit(1, test_size=held_out, random_state=seed)
        return list(splitter.split(groups, groups=groups))

    def _by_time(self, times: NDArray[np.float64]) -> list[Split]:
        """Hold out later rows; rows of the same time as the first of them are not trained on."""
        from sklearn.model_selection import TimeSeriesSplit

        order = np.argsort(times, kind="stable")
        if self.folds is not None:
            parts = [order[held_out] for _, held_out in TimeSeriesSplit(self.folds).split(order)]
        else:
            first = times[order[-math.ceil(self._share * len(order))]]
            parts = [order[times[order] >= first]]
        splits = [(order[times[order] < times[part].min()], part) for part in parts]
        if not all(len(train) for train, _ in splits):
            raise DataError(
                f"{self}: no row is earlier than the first of those held out; column "
                f"{self.time!r} holds {len(np.unique(times))} different times in {len(times)} rows"
            )
        return splits


def _groups(table: Table, name: str) -> NDArray[Any]:
    require_column(table, name)
    return np.array(_complete(table.frame([name], {name: "categorical"})[name]), dtype=str)


def _times(table: Table, name: str) -> NDArray[np.float64]:
    require_column(table, name)
    values = _complete(table.frame([name])[name])
    if values.dtype.kind not in "fiuM":
        raise DataError(
            f"column {name!r} is to order the rows in time, and holds {str(values.iloc[0])!r:.60}; "
            "expected numbers, or dates all written as 2020-12-31"
        )
    found = values.to_numpy().astype("datetime64[us]") if values.dtype.kind == "M" else values
    return np.asarray(found).astype(np.float64)


def _complete(values: pd.Series) -> pd.Series:
    missing = values.isna().to_numpy()
    if count := int(missing.sum()):
        raise DataError(
            f"column {values.name!r} holds {count} missing value{'s' * (count > 1)} (first in "
            f"{place(values, int(missing.argmax()))}), so it does not tell where these rows "
            "belong; fill them or leave out the rows"
        )
    return values


# Scores ----------------------------------------------------------------------------------------


def validated(
    fit: Fit,
    x: pd.DataFrame,
    y: NDArray[Any],
    validation: Validation,
    splits: list[Split],
    options: TableOptions,
    checkpoint: str | None,
) -> Any:
    """Fit and score every split; return the model to keep, which knows its scores."""
    found = []
    for k, (train, held_out) in enumerate(splits):
        part = f"fold {k + 1} of {len(splits)}" if validation.folds else "holdout"
        options.note(f"{part}: {len(train):,} rows to train on, {len(held_out):,} to score")
        model = fit(train, _within(checkpoint, f"fold-{k + 1}"))
        found.append(judge(model._predictor, x.iloc[held_out], y[held_out]))
    if validation.folds:
        options.note(f"the model to keep: all {len(x):,} rows")
        model = fit(np.arange(len(x)), _within(checkpoint, "all"))
    model.validation_ = summarize(found, validation)
    return model


def _within(folder: str | None, name: str) -> str | None:
    return None if folder is None else str(Path(folder) / name)


def summarize(
    found: list[tuple[dict[str, Any], RowScores]], validation: Validation
) -> list[dict[str, Any]]:
    """Return every score that all splits have: its mean and standard error.

    Over folds, or over the rows of one holdout; rows of one group or a stretch of time are not
    independent, so one such holdout has no standard error.
    """
    from whvi.report.scores import mean_and_error

    summary = []
    flat = [_flat(scores) for scores, _ in found]
    for name in flat[0]:
        values = [scores.get(name) for scores in flat]
        if any(value is None or not math.isfinite(value) for value in values):
            continue
        mean, error = mean_and_error(torch.tensor(values, dtype=torch.float64))
        if len(found) == 1 and validation.column is None and name in found[0][1]:
            error = mean_and_error(found[0][1][name])[1]
        row = {"split": str(validation), "score": name, "mean": mean, "standard_error": error}
        summary.append(row)
    return summary


def _flat(scores: dict[str, Any]) -> dict[str, Any]:
    from whvi.report.scores import SCORE_NAMES

    flat = {name: scores[name] for name in SCORE_NAMES if name in scores and name != "num_rows"}
    for each in scores.get("intervals", ()):
        flat[coverage_name(each["level"])] = each["coverage"]
    return flat


def score_lines(summary: list[dict[str, Any]], validation: Validation) -> list[str]:
    """Return what ``fit`` prints of the scores."""
    from whvi.report.scores import SCORE_NAMES

    over = "mean over folds" if validation.folds else "mean over rows"
    over += " ± standard error" * any(row["standard_error"] is not None for row in summary)
    kept = "all rows" if validation.folds else "the other rows"
    lines = [f"{validation}: {over}; the model is of {kept}"]
    for row in summary:
        name, error = SCORE_NAMES.get(row["score"], row["score"]), row["standard_error"]
        shown = "" if error is None else f" ± {error:.2g}"
        lines.append(f"{name:<36}{row['mean']:>12.5g}{shown}")
    return lines
