"""Layers whose blocks have 12, 20 or 28 times a power of two entries, against dense matrices.

The plan takes such blocks for wide inputs only; here it takes them for any, so that moments and
their dense counterparts stay small.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import whvi
from tests.conformance.layer_suite import DTYPE, normal, run, scramble, seeded
from tests.layers.oracle import dense_weight
from whvi import WHVIConv2d, WHVILinear, _checks
from whvi.adapters.start import mixed_least_squares, start_at
from whvi.sampling import MeanWeights, WeightDraws
from whvi.transforms import Hadamard, hadamard_matrix

SIZES = [(12, 12), (11, 30), (20, 7), (27, 30), (24, 40)]
sizes = pytest.mark.parametrize("sizes", SIZES, ids=str)
scales = pytest.mark.parametrize("scales", ["optimised", "gaussian"])


@pytest.fixture(autouse=True)
def any_order(monkeypatch):
    monkeypatch.setattr(_checks, "_LEAST_ODD_BLOCK", 1)
    monkeypatch.setattr(_checks, "_LEAST_BLOCK_OF_28", 1)


def layer_of(sizes, **options):
    layer = scramble(WHVILinear(*sizes, dtype=DTYPE, **options))
    assert layer.matrix.plan.block_size in (12, 20, 24, 28)
    return layer


@sizes
def test_values_and_gradients_are_those_of_the_dense_matrix(sizes):
    layer, x = layer_of(sizes), normal(6, sizes[0])
    wanted = [layer.matrix.s1, layer.matrix.s2, layer.matrix.posterior.loc]
    g = layer.matrix.posterior.rsample(generator=seeded(6))
    expected = x @ dense_weight(layer, g).T + layer.bias
    actual = run(layer, x, WeightDraws(generator=seeded(6)))
    assert_close(actual, expected)
    upstream = normal(6, sizes[1], seed=3)
    pairs = [torch.autograd.grad(y, wanted, upstream) for y in (actual, expected)]
    for found, right in zip(*pairs, strict=True):
        assert_close(found, right)
    assert_close(layer.matrix.dense(g), dense_weight(layer, g))


@pytest.mark.parametrize("batch_shape", [(), (2,)])
@pytest.mark.parametrize("posterior", ["diagonal", "full", "low_rank"])
@scales
@sizes
def test_moments_of_the_output_are_those_of_the_weights(sizes, scales, posterior, batch_shape):
    layer = layer_of(sizes, posterior=posterior, scales=scales, batch_shape=batch_shape)
    x = normal(*batch_shape, 3, 2, sizes[0], seed=4)
    mean, variance = layer.output_moments(x)
    weights, covariance = layer.weight_moments()
    W = weights.reshape(*batch_shape, 1, sizes[1], sizes[0])
    assert_close(mean, x @ W.mT + layer.bias.reshape(*batch_shape, 1, 1, sizes[1]))
    entries = covariance.reshape(*batch_shape, *sizes[::-1], *sizes[::-1])
    own = torch.einsum("...oioj->...oij", entries)
    assert_close(variance, torch.einsum("...nmi,...oij,...nmj->...nmo", x, own, x))


@pytest.mark.parametrize("posterior", ["diagonal", "full"])
def test_moments_of_random_scales_match_draws(posterior):
    layer, num = layer_of((12, 5), scales="gaussian", posterior=posterior), 20_000
    x = normal(12, seed=1)
    mean, variance = (moment.detach() for moment in layer.output_moments(x))
    y = layer.sample_weight((num,), generator=seeded(2)).detach() @ x + layer.bias.detach()
    assert ((y.mean(0) - mean).abs() < 5 * (variance / num).sqrt()).all()
    squares = (y - mean).square()
    assert ((squares.mean(0) - variance).abs() < 5 * squares.std(0) / num**0.5).all()


def test_a_grid_and_a_convolution_follow_the_plan():
    grid = scramble(WHVILinear(24, 40, num_blocks=2, dtype=DTYPE))
    assert grid.matrix.plan.vector_shape == (4, 12)
    x = normal(5, 24)
    assert_close(run(grid, x, MeanWeights()), x @ grid.matrix.mean.T + grid.bias)
    conv = scramble(WHVIConv2d(3, 12, 2, dtype=DTYPE))  # 12 entries of a patch
    assert conv.matrix.plan.vector_shape == (1, 12)
    images = normal(2, 3, 5, 5)
    expected = nn.functional.conv2d(images, conv._shaped(conv.matrix.mean), conv.bias)
    assert_close(run(conv, images, MeanWeights()), expected)


@scales
@sizes
def test_structured_weights_near_the_start_are_found_again(sizes, scales):
    layer, target = (WHVILinear(*sizes, scales=scales, dtype=DTYPE) for _ in range(2))
    with torch.no_grad():
        for each in (target.matrix.s1, target.matrix.s2):
            each.copy_(1 + 0.1 * torch.tanh(normal(*each.shape, seed=4)))
    assert start_at(layer, target.matrix.mean.detach(), None) > 0.9999


@pytest.mark.parametrize(("rows", "columns"), [(12, 12), (12, 9), (7, 12), (12, 3)])
def test_g_is_the_least_squares_solution_given_the_scales(rows, columns):
    mask = torch.zeros(12, 12, dtype=DTYPE)
    mask[:rows, :columns] = 1
    W = normal(12, 12) * mask
    s1, g, s2 = mixed_least_squares(Hadamard(12), W, mask)
    H = hadamard_matrix(12, dtype=DTYPE)
    design = torch.einsum("i,ik,jk,j->ijk", s1, H, H, s2)[:rows, :columns].flatten(0, 1)
    target = W[:rows, :columns].flatten()
    best = torch.linalg.lstsq(design, target.unsqueeze(-1)).solution.squeeze(-1)
    assert (target - design @ g).norm() <= 1.01 * (target - design @ best).norm()


def test_wide_layers_of_transformers_are_not_padded():
    wide = whvi.convert(nn.Linear(384, 1536))
    assert wide.residual.matrix.plan.vector_shape == (4, 384)
    narrow = WHVILinear(1536, 384, bias=False)
    assert sum(p.numel() for p in narrow.parameters()) == 4 * 1536
