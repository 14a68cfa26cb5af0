"""The image tasks are made from MNIST by a seed, and by nothing else."""

from __future__ import annotations

import torch

from reproduction.transforms.images import permuted, rotated_on_noise


def test_a_permutation_is_the_same_for_all_images() -> None:
    images = torch.arange(784.0).view(1, 1, 28, 28).expand(3, 1, 28, 28)
    made = permuted(images, "train")
    assert torch.equal(made[0], made[2])
    assert torch.equal(made[0].sort().values, torch.arange(784.0))
    assert torch.equal(made, permuted(images, "test"))
    assert not torch.equal(made[0], torch.arange(784.0))


def test_digits_are_turned_and_put_on_noise() -> None:
    images = torch.zeros(50, 1, 28, 28)
    images[:, 0, 4:24, 11:17] = 1  # a vertical bar
    made = rotated_on_noise(images, "train").view(50, 28, 28)
    assert torch.equal(made, rotated_on_noise(images, "train").view(50, 28, 28))
    assert not torch.equal(made, rotated_on_noise(images, "test").view(50, 28, 28))
    assert (made[:, 13:15, 13:15] > 0.95).all()  # the middle stays
    corner = made[:, :3, :3]
    assert 0.4 < corner.mean() < 0.6  # uniform noise
    column, row = made[:, 4:24, 13:15].mean((1, 2)), made[:, 13:15, 4:24].mean((1, 2))
    assert (column - row).std() > 0.1  # bars point elsewhere
