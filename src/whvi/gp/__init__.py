"""Gaussian processes by random features: features, models, deep models and collapsed bounds."""

from __future__ import annotations

from whvi.gp.features import RBF, ArcCosine, Kernel, Matern, RandomFeatures
from whvi.gp.layer import DeepGP
from whvi.gp.model import FunctionDraws, RandomFeatureGP

__all__ = [
    "RBF",
    "ArcCosine",
    "DeepGP",
    "FunctionDraws",
    "Kernel",
    "Matern",
    "RandomFeatureGP",
    "RandomFeatures",
]
