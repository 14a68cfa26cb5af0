"""Judge a fitted model on a table: scores, sentences, pictures, and one page with all of it."""

from __future__ import annotations

from whvi.report.build import build_report
from whvi.report.scores import LabelScores, RegressionScores, score_labels, score_regression

__all__ = [
    "LabelScores",
    "RegressionScores",
    "build_report",
    "score_labels",
    "score_regression",
]
