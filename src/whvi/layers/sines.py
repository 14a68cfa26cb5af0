"""Sine features: the inputs repeated up to the width of a layer, and the activation after it."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn


@final
class Tile(nn.Module):
    """Repeat the features up to ``width``: one full-width block instead of many small ones.

    Args:
        in_features: Features of the input.
        width: Features of the output.
    """

    def __init__(self, in_features: int, width: int) -> None:
        super().__init__()
        self.width, self._num_copies = width, -(-width // in_features)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., in_features)`` to ``(..., width)``; axes of stride 0 stay such."""
        shared = [slice(1) if step == 0 else slice(None) for step in x.stride()[:-1]]
        row = x[tuple(shared)].unsqueeze(-2)
        copies = row.expand(*row.shape[:-2], self._num_copies, -1)  # a gather is ten times slower
        return copies.flatten(-2)[..., : self.width].expand(*x.shape[:-1], -1)


@final
class Sine(nn.Module):
    """``√2 sin``: learned random features (unit mean square for a spread-out phase)."""

    SCALE = math.sqrt(2)

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to every element."""
        return torch.sin(x).mul_(self.SCALE)
