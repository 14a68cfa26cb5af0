"""CIFAR-10 as JPEG files, five corruptions of it, and Fashion-MNIST in the same shape.

``images/cifar10-jpeg.tar.gz`` has folders ``train/CLASS`` and ``test/CLASS``. The lossy compression
is a shift for networks that were trained on the lossless images.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import tarfile
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from reproduction.data import data_folder
from reproduction.ood.images import load_images
from whvi.errors import DataError

CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
NUM_STRENGTHS = 5
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # those the networks were trained with
_FILE = "cifar10-jpeg.tar.gz"


class Cifar(NamedTuple):
    """Images ``(N, 3, 32, 32)``, bytes, with their classes ``(N,)``."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    sha256: str


@lru_cache(maxsize=1)
def load_cifar(root: str | os.PathLike[str] | None = None) -> Cifar:
    """Read the archive; images of a part are in a random order that is always the same."""
    path = data_folder("images", root) / _FILE
    found: dict[str, list[tuple[str, np.ndarray]]] = {"train": [], "test": []}
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            if member.name.endswith(".jpg"):
                part, name, _ = member.name.split("/")[-3:]
                file = archive.extractfile(member)
                assert file is not None  # a regular file
                found[part].append((name, np.asarray(Image.open(io.BytesIO(file.read())))))
    sizes = {part: len(images) for part, images in found.items()}
    if sizes != {"train": 50_000, "test": 10_000}:
        raise DataError(f"{path} has {sizes} images, expected 50000 and 10000")
    parts = [_tensors(found[part]) for part in ("train", "test")]
    return Cifar(*parts[0], *parts[1], hashlib.sha256(content).hexdigest())


def _tensors(images: list[tuple[str, np.ndarray]]) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    x = torch.from_numpy(np.stack([pixels for _, pixels in images])).permute(0, 3, 1, 2)
    y = torch.tensor([CLASSES.index(name) for name, _ in images])
    return x[order].contiguous(), y[order]


def normalise(x: Tensor) -> Tensor:
    """Return what the networks take: of bytes, or of numbers from 0 to 1."""
    unit = x / 255 if x.dtype == torch.uint8 else x
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (_MEAN, _STD))
    return (unit - mean) / std


def augment(x: Tensor, generator: torch.Generator) -> Tensor:
    """Shift every image by up to four pixels and mirror every other one."""
    padded = functional.pad(x, (4, 4, 4, 4))
    top, left = torch.randint(0, 9, (2, len(x)), generator=generator)
    rows = (top[:, None] + torch.arange(32))[:, None, :, None]
    columns = (left[:, None] + torch.arange(32))[:, None, None, :]
    mirrored = torch.rand(len(x), generator=generator) < 0.5
    columns = torch.where(mirrored.view(-1, 1, 1, 1), columns.flip(-1), columns)
    image, channel = torch.arange(len(x)).view(-1, 1, 1, 1), torch.arange(3).view(1, 3, 1, 1)
    return padded[image, channel, rows, columns]


def outsiders(root: str | os.PathLike[str] | None = None) -> Tensor:
    """Return the test images of Fashion-MNIST, padded to 32 × 32, in three equal channels."""
    images = load_images("fashion-mnist", "test", root).x
    return functional.pad(images, (2, 2, 2, 2)).expand(-1, 3, -1, -1)


# Corruptions of images from 0 to 1; strengths 1 to 5


def noise(x: Tensor, strength: int) -> Tensor:
    """Normal noise of standard deviation 0.03 to 0.15, the same in every call."""
    generator = torch.Generator().manual_seed(strength)
    return x + 0.03 * strength * torch.randn(x.shape, generator=generator)


def blur(x: Tensor, strength: int) -> Tensor:
    """A Gaussian filter of standard deviation 0.4 to 2 pixels."""
    sigma = 0.4 * strength
    distance = torch.arange(-5.0, 6.0)
    window = torch.exp(-0.5 * (distance / sigma).square())
    window = (window / window.sum()).expand(3, 1, 1, 11)
    wide = functional.pad(x, (5, 5, 5, 5), mode="reflect")
    across = functional.conv2d(wide, window, groups=3)
    return functional.conv2d(across, window.transpose(2, 3), groups=3)


def contrast(x: Tensor, strength: int) -> Tensor:
    """Differences from the mean of an image, times 0.8 to 0.2."""
    mean = x.mean((1, 2, 3), keepdim=True)
    return mean + (0.95 - 0.15 * strength) * (x - mean)


def pixelation(x: Tensor, strength: int) -> Tensor:
    """Squares of equal colour: 28 to 12 of them across."""
    size = 32 - 4 * strength
    return functional.interpolate(functional.interpolate(x, size=size, mode="area"), size=32)


def rotation(x: Tensor, strength: int) -> Tensor:
    """By 6 to 30 degrees; corners are mirrored."""
    angle = math.radians(6 * strength)
    c, s = math.cos(angle), math.sin(angle)
    turn = torch.tensor([[c, -s, 0.0], [s, c, 0.0]]).expand(len(x), 2, 3)
    grid = functional.affine_grid(turn, list(x.shape), align_corners=False)
    return functional.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


CORRUPTIONS = {each.__name__: each for each in (noise, blur, contrast, pixelation, rotation)}


def corrupted(x: Tensor, name: str, strength: int) -> Tensor:
    """Corrupt bytes; returns numbers from 0 to 1, rounded as bytes are."""
    changed = CORRUPTIONS[name](x / 255, strength)
    return (changed.clamp(0, 1) * 255).round() / 255
