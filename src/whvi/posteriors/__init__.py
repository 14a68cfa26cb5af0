"""Posteriors ``q(g)``: one file per family, one interface (:class:`Posterior`)."""

from __future__ import annotations

from whvi.posteriors.base import NoClosedFormError, Posterior
from whvi.posteriors.diagonal import DiagonalGaussian
from whvi.posteriors.factory import PosteriorFactory, make_posterior
from whvi.posteriors.full import FullGaussian
from whvi.posteriors.low_rank import LowRankGaussian
from whvi.posteriors.planar_flow import PlanarFlow
from whvi.posteriors.point_mass import PointMass

__all__ = [
    "DiagonalGaussian",
    "FullGaussian",
    "LowRankGaussian",
    "NoClosedFormError",
    "PlanarFlow",
    "PointMass",
    "Posterior",
    "PosteriorFactory",
    "make_posterior",
]
