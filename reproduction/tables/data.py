"""The tables that people have: mixed columns, missing cells, texts; 5 folds of each.

The folder ``tables`` below ``--data-dir`` or ``WHVI_DATA`` holds ``index.json`` and CSV files.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.model_selection import KFold, StratifiedKFold

from reproduction.data import data_folder
from whvi.errors import DataError

NUM_FOLDS = 5
_SEED = 0  # of folds and of subsamples
_MOST_ROWS = {"diamonds": 10_000, "letter": 10_000}


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of columns, and what is to be predicted.

    Attributes:
        name: In the index.
        task: ``"regression"``, ``"count"`` or ``"classification"``.
        x: Columns; texts as objects, missing cells as NaN.
        y: Numbers, or for classes their positions in the sorted labels.
        num_classes: 0 unless the task is classification.
        sha256: Of the file.
    """

    name: str
    task: str
    x: pd.DataFrame
    y: NDArray[np.float64]
    num_classes: int
    sha256: str

    @property
    def is_classification(self) -> bool:
        """Whether ``y`` are classes."""
        return self.task == "classification"

    @property
    def unit(self) -> float:
        """Standard deviation of all targets; 1 where they are counts or classes."""
        return float(self.y.std()) if self.task == "regression" else 1.0

    def fold(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the row numbers of training and test; classes are spread evenly over folds."""
        cut = StratifiedKFold if self.is_classification else KFold
        folds = cut(NUM_FOLDS, shuffle=True, random_state=_SEED).split(self.x, self.y)
        train, test = list(folds)[number]
        return train, test

    def rows(self, chosen: NDArray[np.int64]) -> Table:
        """Return the table of some rows."""
        return Table(
            self.name, self.task, self.x.iloc[chosen].reset_index(drop=True), self.y[chosen],
            self.num_classes, self.sha256,
        )  # fmt: skip


def table_names(root: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the names in the index."""
    return list(_index(root))


def load_table(
    name: str, root: str | os.PathLike[str] | None = None, *, most_rows: int | None = None
) -> Table:
    """Read one of the tables without rows whose target is missing; large ones are subsampled.

    Raises:
        DataError: There is no such table, or its file cannot be read.
    """
    index = _index(root)
    if name not in index:
        raise DataError(f"there is no table {name!r}; choose from {', '.join(index)}")
    entry = index[name]
    path = data_folder("tables", root) / entry["file"]
    frame = pd.read_csv(path)
    if len(frame) != entry["rows"] or entry["target"] not in frame:
        raise DataError(f"{path} does not hold what the index says; copy the file again")
    frame = frame[frame[entry["target"]].notna()].reset_index(drop=True)
    limit = most_rows or _MOST_ROWS.get(name, len(frame))
    if limit < len(frame):
        kept = np.random.default_rng(_SEED).choice(len(frame), limit, replace=False)
        frame = frame.iloc[np.sort(kept)].reset_index(drop=True)
    target = frame.pop(entry["target"])
    num_classes = 0
    if entry["task"] == "classification":
        labels, target = np.unique(target.astype(str), return_inverse=True)
        num_classes = len(labels)
    columns = {column: _plain(frame[column]) for column in frame}
    return Table(
        name,
        entry["task"],
        pd.DataFrame(columns),
        np.array(target, dtype=np.float64),
        num_classes,
        hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def _index(root: str | os.PathLike[str] | None) -> dict[str, dict[str, Any]]:
    entries = json.loads((data_folder("tables", root) / "index.json").read_text())
    return {entry["name"]: entry for entry in entries}


def _plain(values: pd.Series) -> pd.Series:
    """Return numbers as float64, and texts and truth values as objects with NaN."""
    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
        return values.astype(np.float64)
    texts = values.astype(object)
    return texts.where(values.isna(), texts.map(str)).where(values.notna(), np.nan).astype(object)
