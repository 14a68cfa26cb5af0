"""Gaussian processes by random features: features, models, deep models and collapsed bounds."""

from __future__ import annotations

from whvi.gp.deep import DeepGP
from whvi.gp.draws import FunctionDraws
from whvi.gp.features import RandomFeatures
from whvi.gp.kernels import RBF, ArcCosine, Kernel, Matern
from whvi.gp.model import RandomFeatureGP

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
