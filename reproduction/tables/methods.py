"""The estimators of the comparison, each with its defaults, and the densities they predict.

Rivals give a mean; their density is a Gaussian whose scale is that of out-of-fold residuals of
the training rows. CatBoost also predicts a variance of its own (``RMSEWithUncertainty``), and
the rate of a Poisson for counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import whvi
from reproduction.records import commit
from reproduction.tables.data import Table
from whvi.predictive import Predictive
from whvi.tabular import WHVIClassifier, WHVIRegressor

BEFORE = "whvi-before"
"""Records of an earlier commit, made there as those of ``whvi``."""

_LEAST_PROBABILITY = 1e-15  # as scikit-learn's log_loss
_INNER_FOLDS = 5
_TICKS = Callable[[], None]

Predict = Callable[[pd.DataFrame], Predictive]


@dataclass(frozen=True)
class TableMethod:
    """A column of the tables of results.

    Attributes:
        name: In records.
        fit: Gets a table, a seed, whether the run is quick, and what to call after every single
            fit, from which on a new time limit counts.
        package: That it needs beyond the project's requirements.
        tasks: That it is for.
        most_rows: Larger tables are left out.
    """

    name: str
    fit: Callable[[Table, int, bool, _TICKS], Predict]
    package: str | None = None
    tasks: Sequence[str] = ("regression", "count", "classification")
    most_rows: int | None = None


# Ours ---------------------------------------------------------------------------------------------


def _fit_whvi(table: Table, seed: int, quick: bool, tick: _TICKS) -> Predict:
    kind = WHVIClassifier if table.is_classification else WHVIRegressor
    model = kind(random_state=seed, max_iter=60 if quick else None).fit(table.x, table.y)
    tick()
    if not table.is_classification:
        return model.predict_dist
    return lambda x: _classes(model.predict_proba(x), model.classes_, table.num_classes)


# Rivals -------------------------------------------------------------------------------------------


def _fit_rival(
    make: Callable[[bool, int, bool], Any],
    prepare: Callable[[pd.DataFrame], pd.DataFrame],
    num_inner: int,
    table: Table,
    seed: int,
    quick: bool,
    tick: _TICKS,
) -> Predict:
    """Fit once on all rows, and for the residual scale on folds of them."""
    is_class = table.is_classification
    x = prepare(table.x)

    def fitted(rows: Any) -> Any:
        model = make(is_class, seed, quick)
        y = table.y.astype(np.int64) if is_class else table.y
        model.fit(x.iloc[rows].reset_index(drop=True), y[rows])
        tick()
        return model

    model = fitted(slice(None))
    if is_class:
        return lambda rows: _classes(
            model.predict_proba(_like(prepare(rows), x)), model.classes_, table.num_classes
        )
    folds = list(KFold(_INNER_FOLDS, shuffle=True, random_state=0).split(x))[:num_inner]
    residuals = [
        table.y[out] - np.ravel(fitted(train).predict(x.iloc[out].reset_index(drop=True)))
        for train, out in folds
    ]
    scale = float(np.sqrt(np.square(np.concatenate(residuals)).mean()))
    return lambda rows: _gaussian(model.predict(_like(prepare(rows), x)), scale)


def _like(x: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    """Give columns of categories those of the training rows; others become missing."""
    kinds = {c: known[c].dtype for c in known if isinstance(known[c].dtype, pd.CategoricalDtype)}
    return x.astype(kinds)


def _texts(x: pd.DataFrame) -> list[str]:
    return [c for c in x if not pd.api.types.is_numeric_dtype(x[c])]


def _as_texts(x: pd.DataFrame) -> pd.DataFrame:
    """Missing texts are a text of their own."""
    return x.assign(**{c: x[c].fillna("missing").astype(object) for c in _texts(x)})


def _as_categories(x: pd.DataFrame) -> pd.DataFrame:
    return x.assign(**{c: x[c].astype("category") for c in _texts(x)})


def _complete(x: pd.DataFrame) -> pd.DataFrame:
    """Fill in numbers too, for those who do not take missing ones: 0 and an indicator."""
    numbers = [c for c in x if c not in _texts(x)]
    holes = {f"{c} missing": x[c].isna().astype(np.float64) for c in numbers}
    return _as_texts(x).fillna(dict.fromkeys(numbers, 0.0)).assign(**holes)


class _CatBoost:
    """CatBoost, told which columns are texts."""

    def __init__(self, is_class: bool, seed: int, quick: bool, loss: str | None = None) -> None:
        from catboost import CatBoostClassifier, CatBoostRegressor

        kind = CatBoostClassifier if is_class else CatBoostRegressor
        options = {"loss_function": loss} if loss else {}
        self.model = kind(
            **options,
            **({"iterations": 20} if quick else {}),
            random_seed=seed,
            thread_count=1,
            allow_writing_files=False,
            verbose=False,
        )

    def fit(self, x: pd.DataFrame, y: NDArray[Any]) -> None:
        self.model.fit(x, y, cat_features=_texts(x))
        self.classes_ = getattr(self.model, "classes_", None)

    def predict(self, x: pd.DataFrame, **options: Any) -> Any:
        return self.model.predict(x, **options)

    def predict_proba(self, x: pd.DataFrame) -> Any:
        return self.model.predict_proba(x)


def _fit_uncertain(table: Table, seed: int, quick: bool, tick: _TICKS) -> Predict:
    model = _CatBoost(False, seed, quick, "RMSEWithUncertainty")
    model.fit(_as_texts(table.x), table.y)
    tick()

    def predict(x: pd.DataFrame) -> Predictive:
        mean, variance = np.asarray(model.predict(_as_texts(x))).T
        return _gaussian(mean, np.sqrt(variance.clip(1e-12)))

    return predict


def _fit_poisson(table: Table, seed: int, quick: bool, tick: _TICKS) -> Predict:
    model = _CatBoost(False, seed, quick, "Poisson")
    model.fit(_as_texts(table.x), table.y)
    tick()

    def predict(x: pd.DataFrame) -> Predictive:
        rate = model.predict(_as_texts(x), prediction_type="Exponent")
        return Predictive.poisson(torch.as_tensor(np.asarray(rate)).double().unsqueeze(0))

    return predict


def _lightgbm(is_class: bool, seed: int, quick: bool) -> Any:
    from lightgbm import LGBMClassifier, LGBMRegressor

    kind = LGBMClassifier if is_class else LGBMRegressor
    return kind(random_state=seed, n_jobs=1, verbosity=-1)


def _hist_boosting(is_class: bool, seed: int, quick: bool) -> Any:
    kind = HistGradientBoostingClassifier if is_class else HistGradientBoostingRegressor
    return kind(random_state=seed)


def _extra_trees(is_class: bool, seed: int, quick: bool) -> Any:
    kind = ExtraTreesClassifier if is_class else ExtraTreesRegressor
    inputs = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_exclude="number")),
        remainder=SimpleImputer(add_indicator=True),
    )
    return make_pipeline(inputs, kind(30 if quick else 300, random_state=seed))


def _pytabkit(name: str, is_class: bool, seed: int, quick: bool) -> Any:
    import pytabkit

    kind = getattr(pytabkit, f"{name}_{'Classifier' if is_class else 'Regressor'}")
    options = {"n_epochs": 2} if quick else {}
    return kind(device="cpu", random_state=seed, n_threads=1, **options)


# Densities ----------------------------------------------------------------------------------------


def _gaussian(mean: Any, scale: Any) -> Predictive:
    loc = torch.as_tensor(np.ravel(mean)).double().unsqueeze(0)
    return Predictive.gaussian(loc, torch.as_tensor(scale).double().expand_as(loc))


def _classes(probs: Any, classes: Any, num_classes: int) -> Predictive:
    """Return probabilities of all classes; those not seen in training have none."""
    full = np.zeros((len(probs), num_classes))
    full[:, np.asarray(classes, dtype=np.int64)] = probs
    logits = torch.as_tensor(full).clamp(_LEAST_PROBABILITY, 1).log()
    return Predictive.categorical(logits.unsqueeze(0))


def _rival(make: Callable[..., Any], prepare: Callable[..., Any], num_inner: int = 5) -> Any:
    return partial(_fit_rival, make, prepare, num_inner)


_NUMBERS = ("regression", "count")
METHODS: dict[str, TableMethod] = {
    method.name: method
    for method in (
        TableMethod("whvi", _fit_whvi),
        TableMethod(BEFORE, _fit_whvi),
        TableMethod("catboost", _rival(_CatBoost, _as_texts), "catboost"),
        TableMethod("catboost-uncertainty", _fit_uncertain, "catboost", _NUMBERS),
        TableMethod("catboost-poisson", _fit_poisson, "catboost", ("count",)),
        TableMethod("lightgbm", _rival(_lightgbm, _as_categories), "lightgbm"),
        TableMethod("hist-gradient-boosting", _rival(_hist_boosting, _as_categories)),
        TableMethod("extra-trees", _rival(_extra_trees, _as_texts)),
        TableMethod(
            "realmlp-td", _rival(partial(_pytabkit, "RealMLP_TD"), _complete, 1), "pytabkit",
            most_rows=5_000,
        ),
        TableMethod(
            "tabm-d", _rival(partial(_pytabkit, "TabM_D"), _complete, 1), "pytabkit",
            most_rows=2_000,
        ),
    )
}  # fmt: skip
TREES = ("catboost", "lightgbm", "hist-gradient-boosting", "extra-trees")


def missing_package(method: str) -> str | None:
    """Return what a method needs and is not there."""
    package = METHODS[method].package
    if package is not None and find_spec(package) is None:
        return package
    if method == BEFORE:
        return "whvi of an earlier commit (see reproduction/tables.md)"
    return None


def library_commit() -> str:
    """Return the commit of the working copy that ``whvi`` is imported from."""
    return commit(Path(whvi.__file__).parent) or "unknown"
