"""Pictures of predictions, calibration, training and covariances, on axes the caller provides.

Needs matplotlib. No function here opens a window or touches matplotlib's global state; figures
made by :func:`new_figure` are freed like any other object. What a picture shows is computed by a
pure function of its own (:mod:`whvi.plots.curves`), so the numbers can be had without the picture.
"""

from __future__ import annotations

from whvi.plots.bands import Band, epistemic_band, plot_bands
from whvi.plots.calibration import (
    plot_calibration,
    plot_coverage,
    plot_error_by_std,
    plot_pit,
    plot_risk_coverage,
)
from whvi.plots.covariance import normalised_covariance, plot_covariance
from whvi.plots.curves import (
    ErrorBins,
    Reliability,
    calibration_curve,
    coverage_by_level,
    error_by_std,
    reliability,
    risk_coverage,
)
from whvi.plots.effects import Effect, feature_effect, plot_effect
from whvi.plots.figures import new_figure, save_figure, svg_text
from whvi.plots.labels import plot_confusion, plot_reliability
from whvi.plots.predictions import plot_predicted_against_true
from whvi.plots.training import plot_elbo, plot_kl, plot_noise

__all__ = [
    "Band",
    "Effect",
    "ErrorBins",
    "Reliability",
    "calibration_curve",
    "coverage_by_level",
    "epistemic_band",
    "error_by_std",
    "feature_effect",
    "new_figure",
    "normalised_covariance",
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
    "reliability",
    "risk_coverage",
    "save_figure",
    "svg_text",
]
