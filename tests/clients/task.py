"""A small regression and a network for it, shared by the clients."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from whvi import WHVILinear


def table(num_rows: int = 64, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, 4, generator=generator)
    return x, (x[:, :1] - 0.5 * x[:, 1:2]).squeeze(-1)


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(WHVILinear(4, 16), nn.ReLU(), WHVILinear(16, 1))
