"""Evaluate a fitted model on a table: scores, plots and an HTML page with all of them."""

from __future__ import annotations

from whvi.report.page import build_report, model_card
from whvi.report.scores import LabelScores, RegressionScores, score_labels, score_regression

__all__ = [
    "LabelScores",
    "RegressionScores",
    "build_report",
    "model_card",
    "score_labels",
    "score_regression",
]
