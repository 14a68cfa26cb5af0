"""The learned butterfly against its levels one by one, and where it is Hadamard."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from whvi.errors import ConfigError
from whvi.transforms import Butterfly, butterfly, fwht, hadamard_matrix

SIZES = [1, 2, 4, 8, 32, 64, 128]
EPS = torch.finfo(torch.float64).eps
sizes = pytest.mark.parametrize("size", SIZES)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def level_matrix(angles: Tensor, level: int) -> Tensor:
    """One level of the definition as a dense matrix."""
    size = 2 * len(angles)
    firsts = [i for i in range(size) if not i >> level & 1]
    matrix = torch.zeros(size, size, dtype=torch.float64)
    for theta, i in zip(angles.tolist(), firsts, strict=True):
        j = i + (1 << level)
        matrix[i, i], matrix[i, j] = math.cos(theta), math.sin(theta)
        matrix[j, i], matrix[j, j] = math.sin(theta), -math.cos(theta)
    return matrix


@sizes
def test_it_is_the_product_of_its_levels(size: int) -> None:
    levels = size.bit_length() - 1
    angles, x = normal(levels, size // 2), normal(3, size, seed=1)
    T = torch.eye(size, dtype=torch.float64)
    for level in range(levels):
        T = level_matrix(angles[level], level) @ T
    torch.testing.assert_close(butterfly(x, angles), x @ T.mT, rtol=0, atol=64 * EPS)
    back = butterfly(x, angles, transpose=True)
    torch.testing.assert_close(back, x @ T, rtol=0, atol=64 * EPS)


@sizes
def test_it_starts_as_hadamard(size: int) -> None:
    mixing, g = Butterfly()(size, dtype=torch.float64), normal(size, seed=2)
    unit = torch.eye(size, dtype=torch.float64)
    H = hadamard_matrix(size, dtype=torch.float64)
    torch.testing.assert_close(mixing.forward(unit), H, rtol=0, atol=16 * EPS)
    mixed = mixing.mix(unit, g)
    torch.testing.assert_close(mixed, fwht(g * fwht(unit)), rtol=0, atol=64 * EPS)
    assert mixing.angles.numel() == size * (size.bit_length() - 1) // 2


def test_replicas_have_angles_of_their_own() -> None:
    x, g = normal(2, 5, 3, 8), normal(2, 1, 3, 8, seed=1)
    many = Butterfly("random")(8, batch_shape=(2,), dtype=torch.float64)
    for k in range(2):
        one = Butterfly()(8, dtype=torch.float64)
        one.load_state_dict({"angles": many.angles[k]})
        torch.testing.assert_close(many.mix(x, g)[k], one.mix(x[k], g[k]), rtol=0, atol=16 * EPS)


def test_gradients() -> None:
    angles = normal(3, 4).requires_grad_()
    x = normal(2, 8, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(butterfly, (x, angles))


def test_random_angles_come_from_the_generator() -> None:
    mixing = Butterfly("random")(8)
    found = []
    for _ in range(2):
        mixing.reset_parameters(generator=torch.Generator().manual_seed(3))
        found.append(mixing.angles.detach().clone())
    assert torch.equal(*found)
    assert found[0].unique().numel() == 12


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="got size 12"):
        Butterfly()(12)
    with pytest.raises(ConfigError, match="got 'dct'"):
        Butterfly("dct")
