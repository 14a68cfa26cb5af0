"""What a user may ask of a model, checked: the posterior of its weights and its likelihood."""

from __future__ import annotations

import torch

from whvi.errors import ConfigError
from whvi.likelihoods import Gaussian, Likelihood

_WEIGHTS = ("whvi", "mean-field", "full")
_COVARIANCES = ("diagonal", "full")


def posterior_name(weights: str, covariance: str) -> str:
    """Return the posterior of the coefficients, or refuse a contradiction."""
    for name, value, known in (
        ("weights", weights, _WEIGHTS),
        ("covariance", covariance, _COVARIANCES),
    ):
        if value not in known:
            names = ", ".join(map(repr, known))
            raise ConfigError(f"{name} must be one of {names}, got {value!r}")
    if weights == "mean-field" and covariance == "full":
        raise ConfigError("weights='mean-field' has no covariances; use weights='full'")
    return "full" if "full" in (weights, covariance) else "diagonal"


def make_likelihood(likelihood: str | Likelihood) -> Likelihood:
    """Return the likelihood, in float64, that a name or a likelihood stands for."""
    if likelihood == "gaussian":
        return Gaussian(dtype=torch.float64)
    if not isinstance(likelihood, Likelihood):
        raise ConfigError(
            f"likelihood must be 'gaussian' or a whvi.likelihoods.Likelihood, got {likelihood!r}"
        )
    if likelihood.num_outputs != 1 or likelihood.batch_shape:
        raise ConfigError(
            "a RandomFeatureGP has one target column and no replicas; fit one model per column, "
            f"got {likelihood}"
        )
    return likelihood.double()
