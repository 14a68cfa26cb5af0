"""Estimators in the manner of scikit-learn: tables in, predictions with error bars out."""

from __future__ import annotations

from whvi.errors import MissingDependencyError

try:
    import pandas  # noqa: F401 - to say what is missing before anything else fails
    import sklearn  # noqa: F401 - likewise
except ImportError as error:
    raise MissingDependencyError(
        f"the estimators need scikit-learn and pandas ({error}): pip install 'whvi[sklearn]'"
    ) from error

from whvi.tabular.classifier import WHVIClassifier
from whvi.tabular.fastfood import FastfoodFeatures
from whvi.tabular.gp import WHVIGPRegressor
from whvi.tabular.regressor import WHVIRegressor

__all__ = ["FastfoodFeatures", "WHVIClassifier", "WHVIGPRegressor", "WHVIRegressor"]
