"""Networks for tables: shapes, starting points, features, dropout."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import whvi
from whvi.errors import ConfigError
from whvi.layers.sines import Sine, Tile
from whvi.tabular.networks import build_network, reset_network


@pytest.mark.parametrize("features", ["relu", "sine", "laplace"])
@pytest.mark.parametrize("in_features", [3, 40])
def test_networks_map_replicas(in_features: int, features: str) -> None:
    model = build_network(in_features, (16, 8), 2, features=features, batch_shape=(5,))
    f = whvi.draw_functions(model, torch.randn(7, in_features), num_draws=3)
    assert f.shape == (5, 3, 7, 2)


def test_the_plain_network_is_the_paper_s() -> None:
    ours, paper = build_network(3, (8, 16), 2), whvi.mlp(3, (8, 16), 2)
    assert str(ours) == str(paper)


def test_sines_see_every_input_also_if_the_layer_is_narrower() -> None:
    model = build_network(40, (16,), features="sine")
    assert isinstance(model[0], Tile)
    assert model[0].width == 40
    assert build_network(3, (16,), features="sine")[0].width == 16
    assert [type(module) for module in build_network(3, (16, 8), features="laplace")[1::2]] == [
        Sine,
        nn.ReLU,
    ]


@pytest.mark.parametrize("features", ["relu", "sine", "laplace"])
def test_a_reset_depends_on_the_generator_only(features: str) -> None:
    models = [build_network(3, (8, 8), features=features, dropout=0.1) for _ in range(2)]
    for model in models:
        reset_network(model, torch.Generator().manual_seed(1), features=features)
    first, second = (model.state_dict() for model in models)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_laplace_features_start_with_spread_frequencies() -> None:
    model = build_network(3, (16, 16), features="laplace", batch_shape=(2,))
    reset_network(model, torch.Generator().manual_seed(1), features="laplace")
    spread = model[0].matrix.s2.detach().abs()
    assert spread.shape == (2, 16)  # stacked blocks of 4 × 4, not one of 16 × 16
    assert len(spread.unique()) == 32
    # ¼ / |z|: its median is 0.37, that of 1 / |z| would be 1.48
    assert 0.15 < float(spread.median()) < 0.8
    reset_network(model, torch.Generator().manual_seed(1), features="sine")
    assert bool((model[0].matrix.s2.abs() == 1).all())


def test_every_replica_may_have_a_dropout_of_its_own() -> None:
    rates = torch.tensor([0.0, 0.4])
    model = build_network(3, (8, 8), dropout=rates, batch_shape=(2,))
    masks = [module for module in model if isinstance(module, whvi.MCDropout)]
    assert len(masks) == 2
    assert all(torch.equal(torch.as_tensor(mask.p), rates) for mask in masks)


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of relu, sine, laplace"):
        build_network(3, (8,), features="Laplace")
    with pytest.raises(ConfigError, match="hidden layers"):
        build_network(3, ())
    plain = build_network(3, (8,), layer=whvi.MeanFieldLinear, features="laplace")
    with pytest.raises(ConfigError, match="structured"):
        reset_network(plain, torch.Generator(), features="laplace")
