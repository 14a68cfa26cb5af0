"""ResNet-20, 32, 44 and 56 for CIFAR-10, pretrained on the lossless images.

Shortcuts between stages take every other pixel and add zero channels. Names of parameters are those
of the files ``weights/resnet{20,32,44,56}-cifar10.safetensors``.
"""

from __future__ import annotations

import os

from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from reproduction.data import data_folder
from whvi.errors import DataError


class Block(nn.Module):
    """Two 3 × 3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.new_channels = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        """Return ``relu(x + f(x))``."""
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        half = self.new_channels // 2
        shortcut = x[:, :, :: self.stride, :: self.stride]
        if half:
            shortcut = functional.pad(shortcut, (0, 0, 0, 0, half, half))
        return functional.relu(y + shortcut)


class ResNet(nn.Module):
    """Three stages of ``(depth − 2) / 6`` blocks with 16, 32 and 64 channels."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        count = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, count, 1)
        self.layer2 = _stage(16, 32, count, 2)
        self.layer3 = _stage(32, 64, count, 2)
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of normalised images ``(N, 3, 32, 32)``."""
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


def _stage(inputs: int, outputs: int, count: int, stride: int) -> nn.Sequential:
    first = Block(inputs, outputs, stride)
    return nn.Sequential(first, *(Block(outputs, outputs, 1) for _ in range(count - 1)))


def pretrained(depth: int = 20, root: str | os.PathLike[str] | None = None) -> ResNet:
    """Return a pretrained network, in ``eval`` mode."""
    path = data_folder("weights", root) / f"resnet{depth}-cifar10.safetensors"
    if not path.exists():
        raise DataError(f"{path} is not there")
    model = ResNet(depth)
    found = model.load_state_dict(load_file(path), strict=False)
    wrong = [*found.unexpected_keys, *(k for k in found.missing_keys if "num_batches" not in k)]
    if wrong:
        raise DataError(f"{path} does not fit ResNet-{depth}: {', '.join(wrong[:5])}")
    return model.eval()
