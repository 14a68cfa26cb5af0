"""Starting points against dense matrices: exact where there is an exact answer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.conformance.layer_suite import DTYPE, normal, scramble
from whvi import WHVIConv2d, WHVILinear
from whvi.adapters.start import least_squares, start_at, start_at_zero
from whvi.errors import ConfigError
from whvi.layers.linear import RandomAffine


def weight_of(layer: RandomAffine) -> Tensor:
    return layer._shaped(layer.matrix.mean).detach()


@pytest.mark.parametrize(
    "make",
    [
        lambda: WHVILinear(8, 8, dtype=DTYPE),
        lambda: WHVILinear(6, 20, dtype=DTYPE),
        lambda: WHVILinear(20, 3, dtype=DTYPE),
        lambda: WHVILinear(12, 20, num_blocks=3, dtype=DTYPE),
        lambda: WHVILinear(9, 1, dtype=DTYPE),
        lambda: WHVIConv2d(4, 6, 3, groups=2, dtype=DTYPE),
        lambda: WHVILinear(8, 8, scales="gaussian", bias_posterior="diagonal", dtype=DTYPE),
        lambda: WHVILinear(6, 20, transform="dct", dtype=DTYPE),
        lambda: WHVILinear(12, 20, num_blocks=3, transform="hartley", dtype=DTYPE),
        lambda: WHVILinear(9, 1, transform="circulant", dtype=DTYPE),
        lambda: WHVIConv2d(4, 6, 3, groups=2, transform="butterfly", dtype=DTYPE),
    ],
)
def test_structured_weights_near_the_start_are_found_again(make) -> None:
    """Weights with scales near one are within reach of the alternating fit, up to its speed."""
    layer, target = make(), make()
    with torch.no_grad():
        for each in (target.matrix.s1, target.matrix.s2):
            each.copy_(1 + 0.1 * torch.tanh(normal(*each.shape, seed=4)))
    bias = normal(layer.weight_shape[0], seed=5)
    share = start_at(layer, weight_of(target), bias)
    assert share > 0.9999
    shown = layer.bias if layer.bias_posterior is None else layer.bias_posterior.mean
    assert torch.equal(shown.detach(), bias)


def test_every_vector_is_the_least_squares_solution_given_the_others() -> None:
    W = normal(8, 8)
    s1, c, s2 = least_squares(W, torch.ones_like(W))
    i = torch.arange(8)
    design = torch.zeros(64, 8, dtype=DTYPE)  # of c, from the definition
    for row in range(8):
        for column in range(8):
            design[8 * row + column, row ^ column] = s1[row] * s2[column]
    best = torch.linalg.lstsq(design, W.flatten()[:, None]).solution.squeeze(-1)
    torch.testing.assert_close(c, best)
    assert (design @ c).view(8, 8)[0, 3] == s1[0] * c[i[3]] * s2[3]


@pytest.mark.parametrize(("in_features", "num_blocks"), [(64, 1), (64, 4), (48, 3)])
def test_independent_weights_are_explained_to_three_parts_in_d(in_features, num_blocks) -> None:
    W = normal(64, in_features, seed=7)
    layer = WHVILinear(in_features, 64, num_blocks=num_blocks, dtype=DTYPE)
    share, D = start_at(layer, W, None), layer.matrix.plan.block_size
    error = (W - weight_of(layer)).square().sum() / W.square().sum()
    assert math.isclose(share, 1 - float(error), rel_tol=1e-9)
    # alternating fits find more than the 3 D − 2 directions of a fixed subspace would hold
    assert 2.5 / D < share < 8 / D


@pytest.mark.parametrize("options", [{}, {"num_blocks": 2}, {"posterior": "full"}])
def test_a_residual_starts_at_zero_with_a_known_spread(options) -> None:
    layer, W = scramble(WHVILinear(12, 20, False, dtype=DTYPE, **options)), 3 * normal(20, 12)
    start_at_zero(layer, W, 0.05)
    assert not weight_of(layer).any()
    size = W.square().mean().sqrt()
    expected = (0.05 * size).square().expand(20, 12)
    torch.testing.assert_close(layer.matrix.variance.detach(), expected)


def test_weights_of_zero_give_a_residual_that_can_move() -> None:
    layer = WHVILinear(16, 16, False)
    start_at_zero(layer, torch.zeros(16, 16), 0.05)
    assert layer.matrix.variance.min() > 0


def test_a_flow_cannot_start_at_zero() -> None:
    with pytest.raises(ConfigError, match="mean of a flow"):
        start_at_zero(WHVILinear(4, 4, posterior="flow"), torch.ones(4, 4), 0.1)
