r"""Predictions of a layer ``f(x) = ψ(x)·a``: inputs, blocks of rows, exact marginals.

Every block of rows has the same size (the last one is filled up with zeros), so all rows
run through the same vectorised code: the value of a row does not depend on the other rows, bit for
bit. Memory is ``O(block · M + N · K)``; the features of all rows are never held at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from whvi.gp.features import RandomFeatures
from whvi.predictive import Predictive
from whvi.predictive.components import Components, Gaussian

_BLOCK_ELEMENTS = 1 << 19  # features per block: 2 MB in single precision, about a cache
_LEAST_ROWS = 16


@final
class InputScaling(nn.Module):
    """``(x − mean) / scale`` per column in float64; the identity until it is fitted."""

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.mean = nn.Buffer(torch.zeros(in_features, dtype=torch.float64))
        self.scale = nn.Buffer(torch.ones(in_features, dtype=torch.float64))

    def fit(self, x: Tensor) -> None:
        """Take mean and standard deviation of the columns of ``x (N, d)``; constant: scale 1."""
        x = x.detach().double()
        first = x[:1]
        # differences from the first row are exact where a column is constant
        drift = (x - first).mean(0)
        scale = (x - first - drift).square().mean(0).sqrt()
        self.mean.copy_(first[0] + drift)
        self.scale.copy_(torch.where(scale > 0, scale, 1.0))

    def forward(self, x: Tensor) -> Tensor:
        """Return standardised rows in float64."""
        return (x.double() - self.mean) / self.scale


def block_rows(num_features: int) -> int:
    """Return how many rows make a block: a power of two, so that no vector is cut."""
    return max(_LEAST_ROWS, 1 << (_BLOCK_ELEMENTS // num_features).bit_length() - 1)


def map_blocks(
    features: RandomFeatures, rows: Tensor, compute: Callable[[Tensor], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """Apply ``compute`` to the waves ``φ / scale (block, M)`` of standardised rows, block by block.

    Gradients flow through if the rows ask for them.
    """
    size = block_rows(features.num_features)
    num_blocks = max(1, -(-len(rows) // size))
    with torch.set_grad_enabled(torch.is_grad_enabled() and rows.requires_grad):
        filled = functional.pad(rows, (0, 0, 0, num_blocks * size - len(rows)))
        unit = features.scaling()
        parts = [compute(features.waves(block, unit)) for block in filled.split(size)]
        return tuple(torch.cat(column)[: len(rows)] for column in zip(*parts, strict=True))


@final
class _GaussianMarginals(Components):
    """``y ~ N(m, e² + n²)`` as two sigma points ``m ± e``: exact, with its uncertainty split.

    A ``Predictive`` reads the epistemic variance off the spread of its components' means, here
    ``e²``, and the aleatoric one off their variances, ``n²``. Density, cdf and samples are those of
    the Gaussian itself. Parameters: ``m``, ``∓e`` and ``n``, each ``(2, N)``.
    """

    name = "Gaussian process"

    def _marginal(self) -> Gaussian:
        loc, deviation, noise = self.parameters
        return Gaussian(loc, (deviation.square() + noise.square()).sqrt())

    def mean(self) -> Tensor:
        return self.parameters[0] + self.parameters[1]

    def variance(self) -> Tensor:
        return self.parameters[2].square()

    def cdf(self, y: Tensor) -> Tensor:
        return self._marginal().cdf(y)

    def log_prob(self, y: Tensor) -> Tensor:
        return self._marginal().log_prob(y)

    def sample(self, generator: torch.Generator | None) -> Tensor:
        return self._marginal().sample(generator)


def gaussian_marginals(mean: Tensor, epistemic: Tensor, aleatoric: Tensor) -> Predictive:
    """Return ``N(mean, epistemic² + aleatoric²)`` per row, for standard deviations ``(N,)``."""
    loc, spread = mean.double(), epistemic.double()
    noise = aleatoric.double().expand(2, len(loc))
    deviation = torch.stack([-spread, spread])
    return Predictive(_GaussianMarginals(loc.expand(2, -1), deviation, noise))
