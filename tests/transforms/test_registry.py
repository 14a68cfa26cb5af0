"""What ``transform=`` may be, and what is refused by its value."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import whvi
from tests.layers.test_transforms import Rotation
from whvi.errors import ConfigError, ShapeError
from whvi.transforms import NAMES, Butterfly, make_mixing


@pytest.mark.parametrize("name", NAMES)
def test_every_name_makes_a_mixing_of_that_name(name: str) -> None:
    mixing = make_mixing(name, 12)
    assert mixing.name == name
    assert mixing.size == (12 if name in ("dct", "hartley", "circulant") else 16)


@pytest.mark.parametrize("name", NAMES)
def test_structured_product_is_that_of_the_dense_matrix(name: str) -> None:
    x, s1, g, s2 = (torch.randn(3, 8, dtype=torch.float64) for _ in range(4))
    mixing = make_mixing(name, 8, dtype=torch.float64)
    W = whvi.dense_matrix(s1[0], g[0], s2[0], transform=mixing)
    y = whvi.structured_product(x, s1[0], g[0], s2[0], transform=mixing)
    torch.testing.assert_close(y, x @ W.mT)
    if name == "butterfly":
        plain = whvi.structured_product(x, s1[0], g[0], s2[0])
        torch.testing.assert_close(y, plain)


def test_noise_is_that_of_the_generator() -> None:
    x, s1, mean, s2 = (torch.randn(5, 12) for _ in range(4))
    scale = torch.full((5, 12), 0.5)
    draws = [
        whvi.noisy_structured_product(
            x, s1, mean, scale * k, s2, generator=torch.Generator().manual_seed(1), transform="dct"
        )
        for k in (0, 1, 1)
    ]
    plain = whvi.structured_product(x, s1, mean, s2, transform="dct")
    torch.testing.assert_close(draws[0], plain)
    assert torch.equal(draws[1], draws[2])
    assert not torch.equal(draws[0], draws[1])


@pytest.mark.parametrize(
    ("transform", "error", "message"),
    [
        ("wavelet", ConfigError, "'wavelet'"),
        ("butterfly", ShapeError, "takes size 16, got 12"),
        (Rotation(8), ConfigError, "has size 8, but 12 entries"),
        (Rotation(16), ShapeError, "takes size 16, got 12"),
        (3, ConfigError, "lacks size, forward, transpose"),
        (nn.Linear(12, 12), ConfigError, r"Linear\(.*lacks size, transpose"),
    ],
)
def test_refusals(transform: object, error: type[Exception], message: str) -> None:
    x = torch.zeros(2, 12)
    with pytest.raises(error, match=message):
        whvi.structured_product(x, x, x, x, transform=transform)


class Stretched(Rotation):
    def forward(self, x: Tensor) -> Tensor:
        return 1.5 * super().forward(x)


class Rotated(Rotation):
    def transpose(self, x: Tensor) -> Tensor:
        return self.forward(x)


class Cut(Rotation):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[..., 1:]

    def transpose(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize(
    ("kind", "message"),
    [(Stretched, "deviates from x by up to 1"), (Rotated, "x by"), (Cut, "maps")],
)
def test_an_object_that_is_not_orthonormal_is_refused(kind: type[Rotation], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_mixing(kind, 8)


class Learned(nn.Module):
    """A Householder reflection whose direction is learned."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.v = size, nn.Parameter(torch.randn(size))

    def forward(self, x: Tensor) -> Tensor:
        v = self.v / self.v.norm()
        return x - 2 * (x @ v).unsqueeze(-1) * v

    transpose = forward


def test_parameters_of_an_object_are_trained_and_counted() -> None:
    model = whvi.mlp(5, (6,), transform=Learned)
    assert any(name.endswith("mixing.transform.v") for name, _ in model.named_parameters())
    model(torch.randn(3, 5)).sum().backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if name.endswith(".v"))
    assert "Learned" in str(whvi.summary(model))


@pytest.mark.parametrize("transform", ["dct", Butterfly("random")])
def test_summary_and_repr_name_the_transform(transform: object) -> None:
    model = whvi.mlp(13, transform=transform)
    name = transform if isinstance(transform, str) else "butterfly-random"
    assert f"WHVILinear ({name})" in str(whvi.summary(model))
    assert name in repr(model)
    assert "(" not in whvi.summary(whvi.mlp(13)).layers[0].kind
