r"""Predictions of a layer ``f(x) = ψ(x)·a`` in the user's units: blocks, draws, exact marginals.

Every block of rows has the same size (the last one is filled up with zeros), so that the same
vectorised code meets every row: the value of a row is the same to the bit whatever other rows are
predicted with it. Memory is ``O(block · M + N · K)``; features of all rows never exist at once.

- :class:`FunctionDraws`: ``x ↦ ψ(x)·a_s`` for draws ``a_s ~ q(a)``.
- :func:`gaussian_marginals`: ``y ~ N(m, e² + n²)`` per row: function ``m ± e``, noise ``n``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from whvi.errors import ShapeError
from whvi.gp.layer import FeatureLayer
from whvi.predictive import Predictive
from whvi.predictive.components import Components, Gaussian

_BLOCK_ELEMENTS = 1 << 19  # features per block: 2 MB in single precision, about a cache
_LEAST_ROWS = 16


@final
class InputScaling(nn.Module):
    """``(x − mean) / scale`` per column in float64; the identity until it is fitted."""

    mean: Tensor
    scale: Tensor

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(in_features, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(in_features, dtype=torch.float64))

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
    layer: FeatureLayer,
    scaling: InputScaling,
    x: Tensor,
    compute: Callable[[Tensor], tuple[Tensor, ...]],
    *,
    row_axis: int = 0,
) -> tuple[Tensor, ...]:
    """Apply ``compute`` to the waves ``φ / scale (block, M)`` of all rows, block by block.

    Args:
        layer, scaling: Features, and the map from the user's units to the layer's.
        x: Rows ``(N, d)``; gradients flow through if it asks for them.
        compute: Returns tensors with rows along ``row_axis``; those of all blocks are joined.
        row_axis: That axis.
    """
    size = block_rows(layer.features.num_features)
    num_blocks = max(1, -(-len(x) // size))
    with torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad):
        filled = functional.pad(scaling(x), (0, 0, 0, num_blocks * size - len(x)))
        unit = layer.features.scaling()
        parts = [compute(layer.features.waves(block, unit)) for block in filled.split(size)]
        joined = (torch.cat(column, dim=row_axis) for column in zip(*parts, strict=True))
        return tuple(column.narrow(row_axis, 0, len(x)) for column in joined)


@final
class FunctionDraws:
    """``S`` functions ``x ↦ ψ(x)·a_s``, with coefficients that were drawn once.

    They read the features of the model: a refit of the model invalidates them.

    Args:
        layer, scaling, in_units: Of the model; to its units, and from function values to targets.
        coefficients: ``a``, shape ``(S, O, K)``.
    """

    def __init__(
        self,
        layer: FeatureLayer,
        scaling: InputScaling,
        coefficients: Tensor,
        in_units: Callable[[Tensor], Tensor],
    ) -> None:
        self._layer, self._scaling = layer, scaling
        self._coefficients, self._in_units = coefficients, in_units

    def __len__(self) -> int:
        return len(self._coefficients)

    def __call__(self, x: Tensor) -> Tensor:
        """Evaluate all functions at ``x (N, d)``: ``(S, N)``, or ``(S, N, O)`` without units."""
        if x.dim() != 2:
            expected = self._scaling.mean.numel()
            raise ShapeError(f"x must have shape (N, {expected}), got {tuple(x.shape)}")
        psi, num_outputs = self._layer.basis.psi_of_waves(), self._coefficients.shape[1]

        def values(waves: Tensor) -> tuple[Tensor]:
            each = psi(waves).double().expand(-1, num_outputs, -1)
            return (torch.einsum("nok,sok->sno", each, self._coefficients),)

        return self._in_units(*map_blocks(self._layer, self._scaling, x, values, row_axis=1))

    def gradient(self, x: Tensor) -> Tensor:
        """Return the gradients at ``x (N, d)``: ``(S, N, d)``, or ``(S, N, O, d)``, float64."""
        size = block_rows(self._layer.features.num_features)
        blocks = x.detach().double().split(size) if len(x) else (x.detach().double(),)
        return torch.cat([self._gradient(block) for block in blocks], dim=1)

    def _gradient(self, rows: Tensor) -> Tensor:
        rows.requires_grad_()
        with torch.enable_grad():
            values = self(rows)
            flat = values.transpose(0, 1).flatten(1)  # rows do not depend on each other
            columns = [
                torch.autograd.grad(column.sum(), rows, retain_graph=True)[0]
                for column in flat.unbind(1)
            ]
        stacked = torch.stack(columns).view(len(self), *values.shape[2:], *rows.shape)
        return stacked if values.dim() == 2 else stacked.transpose(1, 2)


@final
class GaussianMarginals(Components):
    """``y ~ N(m, e² + n²)`` as two sigma points ``m ± e``: exact, with its uncertainty split.

    A :class:`~whvi.predictive.Predictive` reads the epistemic variance off the spread of its
    components' means and the aleatoric one off their variances. Two points at ``m ± e`` carry
    exactly ``m``, ``e²`` and ``n²``; density, cdf and samples are those of the Gaussian itself.

    Parameters: ``m``, ``±e`` (the first component has the minus) and ``n``, each ``(2, N)``.
    """

    name = "Gaussian process"

    def _marginal(self) -> Gaussian:
        loc, deviation, noise = self.parameters
        return Gaussian(loc, (deviation.square() + noise.square()).sqrt())

    def mean(self) -> Tensor:
        """``m ± e``."""
        return self.parameters[0] + self.parameters[1]

    def variance(self) -> Tensor:
        """``n²``."""
        return self.parameters[2].square()

    def cdf(self, y: Tensor) -> Tensor:
        """Probability of at most ``y``, the same for both components."""
        return self._marginal().cdf(y)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density at ``y`` in nats, the same for both components."""
        return self._marginal().log_prob(y)

    def sample(self, generator: torch.Generator | None) -> Tensor:
        """Draw from the marginals: rows are independent. Functions come from function draws."""
        return self._marginal().sample(generator)


def gaussian_marginals(mean: Tensor, epistemic: Tensor, aleatoric: Tensor) -> Predictive:
    """Return ``N(mean, epistemic² + aleatoric²)`` per row.

    Args:
        mean, epistemic: Mean and standard deviation of the function, shape ``(N,)`` each.
        aleatoric: Standard deviation of the noise, broadcastable to ``(N,)``, above 0.
    """
    if mean.dim() != 1 or epistemic.shape != mean.shape:
        raise ShapeError(
            f"mean and epistemic must have one shape (N,), got {tuple(mean.shape)} and "
            f"{tuple(epistemic.shape)}"
        )
    loc, spread = mean.double(), epistemic.double()
    noise = aleatoric.double().expand(2, len(loc))
    deviation = torch.stack([-spread, spread])
    return Predictive(GaussianMarginals(loc.expand(2, -1), deviation, noise))
