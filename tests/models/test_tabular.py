"""Parts of networks for tables."""

from __future__ import annotations

import math

import pytest
import torch

import whvi
from whvi.layers.sines import Sine, Tile
from whvi.models.tabular import reset_network, sine_network


def test_tile_repeats_and_sine_is_scaled() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0]])
    assert Tile(3, 8)(x).tolist() == [[1, 2, 3, 1, 2, 3, 1, 2]]
    shared = x.expand(4, 5, 3)  # draws and replicas that see the same rows: not copied
    assert Tile(3, 8)(shared).stride()[:2] == (0, 0)
    phase = torch.linspace(0, 2 * math.pi, 1001)[:-1]
    assert float(Sine()(phase).square().mean()) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("in_features", [3, 40])
def test_sine_network_maps_replicas(in_features: int) -> None:
    model = sine_network(in_features, (16, 8), 2, batch_shape=(5,))
    f = whvi.draw_functions(model, torch.randn(7, in_features), num_samples=3)
    assert f.shape == (5, 3, 7, 2)


def test_reset_depends_on_the_generator_only() -> None:
    models = [sine_network(3, (8, 8)) for _ in range(2)]
    for model in models:
        reset_network(model, torch.Generator().manual_seed(1))
    first, second = (model.state_dict() for model in models)
    assert all(torch.equal(first[name], second[name]) for name in first)
