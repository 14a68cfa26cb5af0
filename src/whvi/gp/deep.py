r"""Deep Gaussian processes by random features (Cutajar et al., 2017) with structured weights.

Every layer is a Gaussian process by random features; what it returns goes, together with the
inputs, into the next one:

.. math:: h_l = W_l\, \varphi_l([h_{l-1}, x]), \qquad f = w^\top \varphi_L([h_{L-1}, x]) .

Passing the inputs along keeps deep priors from collapsing to constants (Duvenaud et al., 2014).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from whvi._checks import check_positive_int
from whvi.errors import ConfigError
from whvi.gp.features import RandomFeatures
from whvi.gp.kernels import Kernel
from whvi.layers import MeanFieldLinear, WHVILinear
from whvi.layers.structured import StructuredMatrix


@final
class DeepGP(nn.Module):
    """Stacked Gaussian processes, trained by :func:`whvi.fit` like any other network.

    Args:
        in_features: ``d``.
        hidden: Number of functions in each hidden layer; ``()`` is an ordinary Gaussian process.
        out_features: Number of outputs.
        num_features: ``M``, random features per layer.
        kernel: A name of :data:`whvi.gp.kernels.KERNELS` or a kernel, for all layers.
        projection: A name of :data:`whvi.gp.projections.PROJECTIONS`.
        weights: ``"whvi"`` (structured) or ``"mean-field"``.
        seed: Decides the frequencies of all layers and the starting point.
    """

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int] = (4,),
        out_features: int = 1,
        *,
        num_features: int = 256,
        kernel: str | Kernel = "rbf",
        projection: str = "orthogonal",
        weights: str = "whvi",
        seed: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if isinstance(hidden, int):
            raise ConfigError(f"hidden must be a sequence such as ({hidden},), got {hidden}")
        for size in (in_features, *hidden, out_features, num_features):
            check_positive_int("every size", size)
        if weights not in ("whvi", "mean-field"):
            raise ConfigError(f"weights must be 'whvi' or 'mean-field', got {weights!r}")
        make = WHVILinear if weights == "whvi" else MeanFieldLinear
        generator = torch.Generator().manual_seed(seed)
        self.features, self.functions = nn.ModuleList(), nn.ModuleList()
        width = in_features
        for size in (*hidden, out_features):
            function = make(num_features, size, prior="standard_normal", dtype=dtype)
            function.matrix.posterior.reset(1.0, 0.1, generator=generator)
            features = RandomFeatures(
                width,
                num_features,
                kernel=kernel,
                projection=projection,
                lengthscale=math.sqrt(width),
                variance=1 / _prior_weight_variance(function),
                seed=int(torch.randint(2**31, (), generator=generator)),
                dtype=dtype,
            )
            self.features.append(features)
            self.functions.append(function)
            width = size + in_features

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., in_features)`` to ``(..., out_features)``; weights as the sampler says."""
        inputs = x
        for features, function in zip(self.features, self.functions, strict=True):
            h: Tensor = function(features(inputs))
            inputs = torch.cat([h, x], -1)
        return h


def _prior_weight_variance(function: WHVILinear | MeanFieldLinear) -> float:
    """Return the variance of a weight under ``g ~ N(0, I)``, ``|s1| = |s2| = 1``, or ``1``."""
    matrix = function.matrix
    return 1 / matrix.plan.block_size if isinstance(matrix, StructuredMatrix) else 1.0
