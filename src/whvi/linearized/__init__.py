"""Linearised posteriors: a full covariance over all parameters of a trained model."""

from __future__ import annotations

from whvi.linearized.fit import linearize, plan_of
from whvi.linearized.jacobians import jacobian
from whvi.linearized.posterior import FunctionMoments, LinearizedFunctions, LinearizedPosterior

__all__ = [
    "FunctionMoments",
    "LinearizedFunctions",
    "LinearizedPosterior",
    "jacobian",
    "linearize",
    "plan_of",
]
