"""Sine features: tiling, scale, and frequencies of a Laplace kernel."""

from __future__ import annotations

import math

import pytest
import torch

from whvi.errors import ConfigError
from whvi.layers import WHVILinear
from whvi.layers.sines import Sine, Tile, spread_frequencies
from whvi.sampling import MeanWeights, sampling


def test_tile_repeats_and_sine_is_scaled() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0]])
    assert Tile(3, 8)(x).tolist() == [[1, 2, 3, 1, 2, 3, 1, 2]]
    shared = x.expand(4, 5, 3)  # draws and replicas that see the same rows: not copied
    assert Tile(3, 8)(shared).stride()[:2] == (0, 0)
    phase = torch.linspace(0, 2 * math.pi, 1001)[:-1]
    assert float(Sine()(phase).square().mean()) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(("in_features", "scale"), [(3, 1.0), (4, 0.5)])
def test_spread_frequencies_are_those_of_a_laplace_kernel(
    in_features: int, scale: float, generator: torch.Generator
) -> None:
    blocks = 50_000
    layer = WHVILinear(in_features, 4 * blocks)
    layer.reset_parameters(generator=generator)
    spread_frequencies(layer.matrix, scale=scale, generator=generator)
    length = math.sqrt(in_features / 2) / scale
    for shift in (0.1, 0.5, 1.5):
        delta = torch.linspace(0.5, -shift, in_features)
        # units of one block share its factors, so their mean counts as one number
        with sampling(MeanWeights()), torch.no_grad():
            waves = layer(delta).double().cos().view(blocks, 4).mean(-1)
        kernel = math.exp(-float(delta.abs().sum()) / length)
        error = float(waves.std()) / math.sqrt(blocks)
        # factors above 64 are cut off: a share of 1.2 % of frequencies, which is seen for small
        # differences only
        assert abs(float(waves.mean()) - kernel) < 5 * error + 2e-3


def test_sines_of_a_layer_without_phases_are_odd_features(generator: torch.Generator) -> None:
    blocks = 50_000
    layer = WHVILinear(4, 4 * blocks)
    layer.reset_parameters(generator=generator)
    spread_frequencies(layer.matrix, scale=0.25, generator=generator)
    x, other = torch.tensor([1.0, 0.5, -1.0, 0.2]), torch.tensor([0.8, 0.5, -1.0, -0.3])

    def kernel(delta: torch.Tensor) -> float:
        return math.exp(-float(delta.abs().sum()) * 0.25 / math.sqrt(2))

    with sampling(MeanWeights()), torch.no_grad():
        features = [Sine()(layer(row)).double() for row in (x, other)]
    products = (features[0] * features[1]).view(blocks, 4).mean(-1)
    error = float(products.std()) / math.sqrt(blocks)
    expected = kernel(x - other) - kernel(x + other)
    assert abs(float(products.mean()) - expected) < 5 * error + 2e-3


def test_the_largest_frequencies_are_cut_off() -> None:
    layer = WHVILinear(4, 40_000)
    spread_frequencies(layer.matrix, scale=0.25, generator=torch.Generator().manual_seed(1))
    assert float(layer.matrix.s2.detach().abs().max()) == 64 * 0.25
    with pytest.raises(ConfigError, match="scale must be"):
        spread_frequencies(layer.matrix, scale=0.0)


def test_spreading_depends_on_the_generator_and_keeps_signs(generator: torch.Generator) -> None:
    layer = WHVILinear(4, 16, batch_shape=(2,))
    before = layer.matrix.s2.detach().clone()
    spread_frequencies(layer.matrix, generator=torch.Generator().manual_seed(1))
    factors = (layer.matrix.s2 / before).detach()
    assert bool((factors > 0).all())
    assert len(factors.unique()) == factors.numel()  # every replica, block and column its own
    again = WHVILinear(4, 16, batch_shape=(2,))
    with torch.no_grad():
        again.matrix.s2.copy_(before)
    spread_frequencies(again.matrix, generator=torch.Generator().manual_seed(1))
    assert torch.equal(again.matrix.s2, layer.matrix.s2)
