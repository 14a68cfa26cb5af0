"""Walsh-Hadamard variational inference for PyTorch.

Fast structured Bayesian layers: ``W = diag(s1) H diag(g) H diag(s2)`` with a posterior on ``g``.
"""

from __future__ import annotations

from whvi.elbo import Elbo, elbo
from whvi.errors import WhviError
from whvi.functions import draw_functions, mean_function
from whvi.layers import (
    MCDropout,
    MeanFieldConv1d,
    MeanFieldConv2d,
    MeanFieldConv3d,
    MeanFieldLinear,
    WHVIConv1d,
    WHVIConv2d,
    WHVIConv3d,
    WHVILinear,
    kl,
    summary,
)
from whvi.models.mlp import mlp
from whvi.predictive import Predictive
from whvi.product import dense_matrix, noisy_structured_product, structured_product
from whvi.sampling import LocalReparameterization, MeanWeights, WeightDraws, sampling
from whvi.training import FitConfig, fit
from whvi.transforms import fwht, fwht_

__version__ = "0.1.0.dev0"

__all__ = [
    "Elbo",
    "FitConfig",
    "LocalReparameterization",
    "MCDropout",
    "MeanFieldConv1d",
    "MeanFieldConv2d",
    "MeanFieldConv3d",
    "MeanFieldLinear",
    "MeanWeights",
    "Predictive",
    "WHVIConv1d",
    "WHVIConv2d",
    "WHVIConv3d",
    "WHVILinear",
    "WeightDraws",
    "WhviError",
    "dense_matrix",
    "draw_functions",
    "elbo",
    "fit",
    "fwht",
    "fwht_",
    "kl",
    "mean_function",
    "mlp",
    "noisy_structured_product",
    "sampling",
    "structured_product",
    "summary",
]
