"""Parts of networks for tables."""

from __future__ import annotations

import pytest
import torch

import whvi
from whvi.tabular.networks import reset_network, sine_network


@pytest.mark.parametrize("in_features", [3, 40])
def test_sine_network_maps_replicas(in_features: int) -> None:
    model = sine_network(in_features, (16, 8), 2, batch_shape=(5,))
    f = whvi.draw_functions(model, torch.randn(7, in_features), num_draws=3)
    assert f.shape == (5, 3, 7, 2)


def test_reset_depends_on_the_generator_only() -> None:
    models = [sine_network(3, (8, 8)) for _ in range(2)]
    for model in models:
        reset_network(model, torch.Generator().manual_seed(1))
    first, second = (model.state_dict() for model in models)
    assert all(torch.equal(first[name], second[name]) for name in first)
