"""Plots of predictions, calibration, training and covariances, on axes that the caller provides.

Needs matplotlib. The first argument of a plot is the axes to draw on. No function opens a window
or changes matplotlib's global state; figures made by :func:`new_figure` are garbage-collected like
any other object. The numbers behind the calibration plots: :mod:`whvi.plots.curves`.
"""

from __future__ import annotations

from whvi.plots.calibration import (
    plot_calibration,
    plot_confusion,
    plot_coverage,
    plot_error_by_std,
    plot_pit,
    plot_predicted_against_true,
    plot_reliability,
    plot_risk_coverage,
)
from whvi.plots.figures import new_figure, save_figure, svg_text
from whvi.plots.predictions import Effect, epistemic_band, feature_effect, plot_bands, plot_effect
from whvi.plots.training import correlation, plot_covariance, plot_elbo, plot_kl, plot_noise

__all__ = [
    "Effect",
    "correlation",
    "epistemic_band",
    "feature_effect",
    "new_figure",
    "plot_bands",
    "plot_calibration",
    "plot_confusion",
    "plot_covariance",
    "plot_coverage",
    "plot_effect",
    "plot_elbo",
    "plot_error_by_std",
    "plot_kl",
    "plot_noise",
    "plot_pit",
    "plot_predicted_against_true",
    "plot_reliability",
    "plot_risk_coverage",
    "save_figure",
    "svg_text",
]
