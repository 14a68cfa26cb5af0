"""Which columns matter, and why some rows are predicted as they are, as tables of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from whvi.predictive import Predictive
from whvi.report.words import count, number

if TYPE_CHECKING:
    import pandas as pd

MOST_COLUMNS = 12
_MOST_OF_A_ROW = 8
_REPEATS, _MOST_ROWS, _MOST_PREDICTIONS = 2, 300, 40_000


class Table(NamedTuple):
    """A table with a heading and a sentence on how to read it."""

    title: str
    text: str
    rows: list[tuple[str, ...]]


def importance_table(model: Any, x: pd.DataFrame, y: np.ndarray) -> tuple[Table, list[str]]:
    """Return the most important columns as a table, and the names of all, the first the most."""
    from whvi.tabular.explaining import importances

    most = _MOST_PREDICTIONS // (_REPEATS * len(model.schema_.columns))
    rows = spread_rows(len(x), min(max(most, 30), _MOST_ROWS))
    found = importances(model, x.iloc[rows], y[rows], num_repeats=_REPEATS)
    shown = found[:MOST_COLUMNS]
    text = (
        f"The {len(shown)} most important of {count(len(found), 'column')}: how much worse "
        f"predictions get, in nats per row, when the values of the column change places between "
        f"rows; with standard errors, from {count(len(rows), 'row')} of this table."
    )
    cells: list[tuple[str, ...]] = [
        (name, number(gain), f"± {number(error)}") for name, gain, error in shown.to_numpy()
    ]
    return Table("Importance", text, cells), found["column"].tolist()


def row_tables(
    model: Any, x: pd.DataFrame, predictive: Predictive, y: Tensor, true: np.ndarray
) -> list[Table]:
    """Explain an ordinary row, the least expected one and the most uncertain one.

    Args:
        model, x: As in :func:`whvi.report.build_report`; rows are compared with each other.
        predictive: Of the rows.
        y: Their targets, as numbers.
        true: The same as they are shown.
    """
    from whvi.tabular.explaining import contributions
    from whvi.tabular.inputs import place

    is_label = hasattr(model, "classes_")
    chosen = _chosen(predictive, y, predictive.entropy() if is_label else predictive.std)
    found = contributions(model, x.iloc[list(chosen)], x)
    tables = []
    for k, (row, what) in enumerate(chosen.items()):
        mean, std, base = found.mean[k], found.std[k], found.base
        if is_label:
            label = int(predictive.probs[row].argmax())
            mean, std, base = mean[:, label], std[:, label], base[label]
            name, value = f"P({model.classes_[label]})", predictive.probs[row, label]
        else:
            name, value = model.target_name_, predictive.mean[row]
        text = (
            f"Predicted {name}: {number(value.item())}; mean prediction of this table: "
            f"{number(float(base))}; true value: {_shown(true[row])}."
        )
        cells = [_shown(x.iloc[row, j]) for j in range(len(mean))]
        title = f"{place(x.iloc[:, 0], row).capitalize()}: {what}"
        tables.append(Table(title, text, _lines(found.columns, cells, mean, std)))
    return tables


def _chosen(predictive: Predictive, y: Tensor, uncertainty: Tensor) -> dict[int, str]:
    """Return a few rows and what they are; a row that is several things is the first of them."""
    surprise = -predictive.log_prob(y)
    order = surprise.argsort(stable=True)
    whats = {"an ordinary one": order[len(order) // 2], "the least expected": order[-1]}
    whats["the most uncertain"] = uncertainty.argmax()
    chosen: dict[int, str] = {}
    for what, row in whats.items():
        chosen.setdefault(int(row), what)
    return chosen


def _lines(
    names: tuple[str, ...], cells: list[str], mean: np.ndarray, std: np.ndarray
) -> list[tuple[str, ...]]:
    order = np.argsort(-np.abs(mean), kind="stable")
    shown, others = order[:_MOST_OF_A_ROW], order[_MOST_OF_A_ROW:]
    lines: list[tuple[str, ...]] = [
        (names[j], cells[j], _signed(mean[j]), f"± {number(float(std[j]))}") for j in shown
    ]
    if len(others):
        lines.append((count(len(others), "other column"), "", _signed(mean[others].sum()), ""))
    return lines


def _signed(value: float) -> str:
    return f"{'−' if value < 0 else '+'}{number(abs(float(value)))}"


def _shown(cell: Any) -> str:
    if isinstance(cell, float | np.floating):
        return "missing" if np.isnan(cell) else number(float(cell))
    return "missing" if cell is None else str(cell)


def spread_rows(num_rows: int, most: int) -> np.ndarray:
    """Return the numbers of at most ``most`` rows from the first to the last."""
    return np.unique(np.linspace(0, num_rows - 1, most).astype(int))
