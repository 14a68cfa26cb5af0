"""Rows in the user's units through a layer, in blocks of one fixed size.

Every block has the same number of rows (the last one is filled up with zeros), so that the same
vectorised code meets every row: a row gets the same value, to the bit, whatever rows are asked for
with it. Memory is ``O(block · M + N · K)``; features of all rows never exist at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from whvi.gp.layer import FeatureLayer

_BLOCK_ELEMENTS = 1 << 19  # features per block: 2 MB in single precision, about a cache
_LEAST_ROWS = 16


@final
class InputScaling(nn.Module):
    """``(x − mean) / scale`` per column in float64; the identity until it is fitted.

    Args:
        in_features: ``d``.
    """

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
        layer: Its features give the waves.
        scaling: From the user's units to the layer's.
        x: Rows ``(N, d)``; gradients flow through if it asks for them.
        compute: Returns tensors with rows along ``row_axis``.
        row_axis: That axis.

    Returns:
        The tensors of all blocks joined along ``row_axis``.
    """
    size = block_rows(layer.features.num_features)
    num_blocks = max(1, -(-len(x) // size))
    with torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad):
        filled = functional.pad(scaling(x), (0, 0, 0, num_blocks * size - len(x)))
        unit = layer.features.inverse_lengthscale
        parts = [compute(layer.features.waves(block, unit)) for block in filled.split(size)]
        joined = (torch.cat(column, dim=row_axis) for column in zip(*parts, strict=True))
        return tuple(column.narrow(row_axis, 0, len(x)) for column in joined)
