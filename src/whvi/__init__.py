"""Walsh-Hadamard variational inference for PyTorch.

Fast structured Bayesian layers: ``W = diag(s1) H diag(g) H diag(s2)`` with a posterior on ``g``.
Public names are imported on first use, so ``whvi --help`` does not wait for torch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whvi.adapters import convert, unconvert
    from whvi.elbo import Elbo, elbo
    from whvi.errors import WhviError
    from whvi.functional import dense_matrix, noisy_structured_product, structured_product
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
        parameter_groups,
    )
    from whvi.layers.summary import summary
    from whvi.linearized import LinearizedPosterior, linearize
    from whvi.models.mlp import mlp
    from whvi.predictive import Predictive
    from whvi.sampling import LocalReparameterization, MeanWeights, WeightDraws, sampling
    from whvi.tabular import (
        FastfoodFeatures,
        WHVIClassifier,
        WHVIGPRegressor,
        WHVIRegressor,
        load_model,
    )
    from whvi.training import FitConfig, fit
    from whvi.transforms.fwht import fwht, fwht_

__version__ = "0.1.0.dev0"

__all__ = [
    "Elbo",
    "FastfoodFeatures",
    "FitConfig",
    "LinearizedPosterior",
    "LocalReparameterization",
    "MCDropout",
    "MeanFieldConv1d",
    "MeanFieldConv2d",
    "MeanFieldConv3d",
    "MeanFieldLinear",
    "MeanWeights",
    "Predictive",
    "WHVIClassifier",
    "WHVIConv1d",
    "WHVIConv2d",
    "WHVIConv3d",
    "WHVIGPRegressor",
    "WHVILinear",
    "WHVIRegressor",
    "WeightDraws",
    "WhviError",
    "convert",
    "dense_matrix",
    "draw_functions",
    "elbo",
    "fit",
    "fwht",
    "fwht_",
    "kl",
    "linearize",
    "load_model",
    "mean_function",
    "mlp",
    "noisy_structured_product",
    "parameter_groups",
    "sampling",
    "structured_product",
    "summary",
    "unconvert",
]

_HOMES = {
    "whvi.adapters": ("convert", "unconvert"),
    "whvi.elbo": ("Elbo", "elbo"),
    "whvi.errors": ("WhviError",),
    "whvi.tabular": (
        *("FastfoodFeatures", "WHVIClassifier", "WHVIGPRegressor", "WHVIRegressor", "load_model"),
    ),
    "whvi.functions": ("draw_functions", "mean_function"),
    "whvi.layers": (
        *("MCDropout", "MeanFieldConv1d", "MeanFieldConv2d", "MeanFieldConv3d", "MeanFieldLinear"),
        *("WHVIConv1d", "WHVIConv2d", "WHVIConv3d", "WHVILinear", "kl"),
        *("parameter_groups", "summary"),
    ),
    "whvi.linearized": ("LinearizedPosterior", "linearize"),
    "whvi.models.mlp": ("mlp",),
    "whvi.predictive": ("Predictive",),
    "whvi.functional": ("dense_matrix", "noisy_structured_product", "structured_product"),
    "whvi.sampling": ("LocalReparameterization", "MeanWeights", "WeightDraws", "sampling"),
    "whvi.training": ("FitConfig", "fit"),
    "whvi.transforms": ("fwht", "fwht_"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


class _Front(ModuleType):
    """The package, in which a function may have the name of its module."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOME_OF and isinstance(value, ModuleType):
            return  # importing the module whvi.elbo does not hide the function whvi.elbo
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Front


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
