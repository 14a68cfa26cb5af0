"""Statically binarised MNIST and Fashion-MNIST, and the images that belong to neither.

Every pixel is drawn once, 1 with the probability of its grey value, by a generator with
:data:`BINARISATION_SEED` and the name of the set and part: the same binary images in every run.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from reproduction.ood.images import load_images
from whvi.training.config import seeded_generator

DATASETS = ("mnist", "fashion-mnist")
BINARISATION_SEED = 2021
SHUFFLE_SEED = 2022
_QUICK_TRAIN, _QUICK_TEST = 600, 60


class Data(NamedTuple):
    """Binary images, ``(N, 784)`` in float32."""

    train: Tensor
    test: Tensor
    outsiders: dict[str, Tensor]  # by name; only for Fashion-MNIST
    sha256: str


@lru_cache(maxsize=2)
def load(name: str, data_dir: str | None, quick: bool) -> Data:
    """Read and binarise a set; a quick run takes the first images."""
    rows = (_QUICK_TRAIN, _QUICK_TEST) if quick else (None, None)
    (train, train_hash), (test, test_hash) = (
        _binarised(name, part, data_dir) for part in ("train", "test")
    )
    outsiders = {}
    if name == "fashion-mnist":
        digits, _ = _binarised("mnist", "test", data_dir)
        outsiders = {"mnist": digits[: rows[1]], "shuffled": shuffled(test)[: rows[1]]}
    return Data(train[: rows[0]], test[: rows[1]], outsiders, f"{train_hash}+{test_hash}")


def _binarised(name: str, part: str, data_dir: str | None) -> tuple[Tensor, str]:
    images = load_images(name, part, data_dir)
    generator = seeded_generator(f"binarise {name} {part}", BINARISATION_SEED)
    return torch.bernoulli(images.x.flatten(1), generator=generator), images.sha256[:16]


def shuffled(x: Tensor) -> Tensor:
    """Put the pixels of every image in one fixed random order: same counts, no shapes."""
    order = torch.randperm(x.shape[1], generator=seeded_generator("shuffle", SHUFFLE_SEED))
    return x[:, order]
