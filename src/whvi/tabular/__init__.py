"""Estimators in the manner of scikit-learn: tables in, predictions with error bars out."""

from __future__ import annotations

import os

from whvi.errors import MissingDependencyError, ModelFileError

try:
    import pandas  # noqa: F401 - to say what is missing before anything else fails
    import sklearn  # noqa: F401 - likewise
except ImportError as error:
    raise MissingDependencyError(
        f"the estimators need scikit-learn and pandas ({error}): pip install 'whvi[sklearn]'"
    ) from error

from whvi.tabular.classifier import WHVIClassifier
from whvi.tabular.explaining import contributions, importances
from whvi.tabular.fastfood import FastfoodFeatures
from whvi.tabular.gp import WHVIGPRegressor
from whvi.tabular.modelfile import read_model_file
from whvi.tabular.regressor import WHVIRegressor

__all__ = [
    "FastfoodFeatures",
    "WHVIClassifier",
    "WHVIGPRegressor",
    "WHVIRegressor",
    "contributions",
    "importances",
    "load_model",
]


def load_model(
    path: str | os.PathLike[str],
) -> WHVIRegressor | WHVIClassifier | WHVIGPRegressor:
    """Load the fitted estimator that a model file holds, whichever class it is of.

    Raises:
        ModelFileError: The file is damaged, does not fit its description, or is of another version.
    """
    content = read_model_file(path)
    name = content.document.get("estimator")
    for estimator in (WHVIRegressor, WHVIClassifier, WHVIGPRegressor):
        if name == estimator.__name__:
            return estimator.from_content(content)
    raise ModelFileError(f"{path} holds an unknown estimator: {name!r:.80}")
