"""Small trained-like networks of plain layers, shared by the tests of adapters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.conformance.layer_suite import normal


class ImageNet(nn.Module):
    """Convolutions, batch norms and a linear head, as a ResNet has them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2)
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.linear(torch.relu(self.conv2(x)).mean((-2, -1)))


class Tied(nn.Module):
    """An embedding whose weight is that of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, 9)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.embedding(ids))))


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3)
    )


def rows(num_rows: int = 40) -> tuple[Tensor, Tensor]:
    x = normal(num_rows, 6, dtype=torch.float32)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
