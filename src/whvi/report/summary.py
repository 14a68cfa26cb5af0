"""Which data were judged, and which model judged them, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from whvi.report.page import Table
from whvi.report.text import count, listed, number

if TYPE_CHECKING:
    import pandas as pd

_MOST_CATEGORIES = 6
_USUAL_SHARE = 0.03  # of rows beyond the range of training: new extremes are usual


def column_table(schema: Any, x: pd.DataFrame) -> Table:
    """Describe every column of the table beside its range in training."""
    rows = []
    for column in schema.columns:
        values = x[column.name]
        if column.categories is not None or not _is_numeric(values):
            rows.append((column.name, column.kind, _categories(values), *([""] * 3), _seen(column)))
            continue
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        low, middle, high = np.nanquantile(numbers, [0, 0.5, 1])
        cells = (number(low), number(middle), number(high))
        rows.append((column.name, column.kind, "", *cells, _seen(column)))
    head = ("column", "kind", "categories", "least", "median", "greatest", "in training")
    return Table(head, tuple(rows), first_number=3)


def data_warnings(schema: Any, x: pd.DataFrame) -> list[str]:
    """Tell which columns hold what the model has not seen: other categories, other ranges."""
    warnings = [
        f"Column {name!r} holds categories that training did not have: "
        f"{listed([str(value) for value in values])}. The model treats them as unknown."
        for name, values in schema.unseen(x).items()
        if len(values)
    ]
    for column in schema.columns:
        if column.kind != "numeric" or column.minimum is None or not _is_numeric(x[column.name]):
            continue
        values = x[column.name].to_numpy(dtype=np.float64, na_value=np.nan)
        outside = int(((values < column.minimum) | (values > column.maximum)).sum())
        if outside > _USUAL_SHARE * len(values):
            warnings.append(
                f"Column {column.name!r} lies outside its range in training "
                f"({number(column.minimum)} to {number(column.maximum)}) in "
                f"{count(outside, 'row')} of {len(values):,}: there the model extrapolates."
            )
    return warnings


def model_card(model: Any) -> list[tuple[str, str]]:
    """Describe how the model was made."""
    training = model.training_summary_
    card = [
        ("estimator", type(model).__name__),
        ("target", ", ".join(model.schema_.target_names)),
        ("columns", str(len(model.schema_.columns))),
        ("rows it was fitted on", number(training["num_rows"])),
        ("likelihood", str(model.likelihood_)),
        ("networks in the ensemble", number(training["num_members"])),
        ("hidden layers", " × ".join(map(str, training["hidden_layer_sizes"])) or "none"),
        ("parameters of one network", number(training["num_parameters"])),
        ("steps", f"{number(training['steps'])} of {number(training['batch_size'])} rows"),
        ("learning rate", number(training["learning_rate"])),
        ("weight of the KL", f"{number(training['beta'])} (1 is the evidence lower bound)"),
        ("seconds", number(round(float(training["seconds"]), 1))),
    ]
    card.append(("MNLL on rows held out of the fit", _nats(model, training["validation_mnll"])))
    for candidate in model.candidates_ if len(model.candidates_) > 1 else []:
        score = _nats(model, candidate["validation_mnll"])
        card.append((f"the same with {candidate['likelihood']}", score))
    return card


def _nats(model: Any, mnll: float | None) -> str:
    """Write a score of held-out rows, which the estimator keeps in standard units."""
    if mnll is None:
        return "not scored"
    units = "" if hasattr(model, "classes_") else ", the target in standard units"
    return f"{number(mnll)} nats{units}"


def _is_numeric(values: pd.Series) -> bool:
    return values.dtype.kind in "fiub"


def _categories(values: pd.Series) -> str:
    counts = values.astype(str).value_counts()
    shown = ", ".join(f"{name} ({amount:,})" for name, amount in counts[:_MOST_CATEGORIES].items())
    rest = len(counts) - _MOST_CATEGORIES
    return shown + (f", {rest} more" if rest > 0 else "")


def _seen(column: Any) -> str:
    if column.categories is not None:
        return count(len(column.categories), "value")
    if column.minimum is None:
        return ""
    return f"{number(column.minimum)} to {number(column.maximum)}"
