"""A grid of structured blocks against dense blocks made of explicit Hadamard matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.conformance.layer_suite import DTYPE, EPS, normal, run, scramble, seeded
from tests.layers.oracle import hadamard_matrix
from whvi import WHVIConv2d, WHVILinear, linearize
from whvi.errors import ConfigError
from whvi.layers.grid import GridMatrix
from whvi.likelihoods import Gaussian
from whvi.sampling import LocalReparameterization, MeanWeights, WeightDraws

SHAPES = [(6, 5, 2), (6, 5, 3), (5, 7, 4), (12, 3, 3), (3, 9, 3), (9, 1, 3), (24, 40, 3), (1, 4, 1)]
shapes = pytest.mark.parametrize(("in_features", "out_features", "num_blocks"), SHAPES)


def dense(matrix: GridMatrix, g: Tensor) -> Tensor:
    """``[W_1, …, W_J]`` block by block, each cut to the width of its slice."""
    K, D = matrix.plan.vector_shape
    s1, g, s2 = (v.reshape(matrix.num_slices, K, D) for v in (matrix.s1, g, matrix.s2))
    H = hadamard_matrix(D)
    columns = [
        torch.cat([s1[j, k].diag() @ H @ g[j, k].diag() @ H @ s2[j, k].diag() for k in range(K)])
        for j in range(matrix.num_slices)
    ]
    cut = [column[:, : matrix.plan.in_features] for column in columns]
    return torch.cat(cut, 1)[: matrix.out_features, : matrix.in_features]


def grid(in_features: int, out_features: int, num_blocks: int, **options: object) -> GridMatrix:
    matrix = GridMatrix(in_features, out_features, num_blocks, dtype=DTYPE, **options)
    scramble(matrix)
    return matrix


@shapes
def test_values_and_gradients_are_those_of_the_dense_matrix(
    in_features: int, out_features: int, num_blocks: int
) -> None:
    matrix, x = grid(in_features, out_features, num_blocks), normal(4, in_features, seed=3)
    bias, upstream = normal(out_features, seed=4), normal(4, out_features, seed=5)
    wanted = [x.requires_grad_(), matrix.s1, matrix.s2, matrix.posterior.loc]
    g = matrix.posterior.rsample(generator=seeded(6))
    both = [
        (y, *torch.autograd.grad(y, wanted, upstream))
        for y in (
            matrix.multiply(x, bias, WeightDraws(generator=seeded(6))),
            x @ dense(matrix, g).T + bias,
        )
    ]
    for actual, expected in zip(*both, strict=True):
        scale = expected.detach().abs().max() + 1
        torch.testing.assert_close(actual, expected, rtol=0, atol=float(64 * EPS * scale))
    torch.testing.assert_close(matrix.dense(g), dense(matrix, g), rtol=0, atol=64 * EPS)


@pytest.mark.parametrize("posterior", ["diagonal", "full"])
def test_moments_are_those_of_the_jacobian(posterior: str) -> None:
    matrix = grid(5, 3, 2, posterior=posterior)
    g = matrix.posterior.loc.detach()
    J = torch.autograd.functional.jacobian(lambda g: dense(matrix, g), g).reshape(15, -1)
    expected = J @ torch.block_diag(*matrix.posterior.covariance().detach()) @ J.T
    mean, covariance = matrix.moments()
    torch.testing.assert_close(mean, dense(matrix, g).flatten())
    torch.testing.assert_close(covariance, expected)
    x = normal(4, 5, seed=2)
    output_mean, variance = matrix.output_moments(x)
    torch.testing.assert_close(output_mean, x @ dense(matrix, g).T)
    through = torch.stack([torch.kron(torch.eye(3, dtype=DTYPE), row) for row in x.unsqueeze(1)])
    torch.testing.assert_close(variance, (through @ expected * through).sum(-1))


def test_local_noise_has_these_moments() -> None:
    layer = scramble(WHVILinear(6, 5, num_blocks=3, dtype=DTYPE))
    x = normal(6, seed=1)
    with torch.no_grad():
        y = run(layer, x.expand(40000, 6), LocalReparameterization(seeded()))
    mean, variance = layer.output_moments(x)
    n = len(y)
    assert ((y.mean(0) - mean).abs() < 5 * (variance / n).sqrt()).all()
    assert ((y.var(0) / variance - 1).abs() < 5 * (2 / n) ** 0.5).all()


@pytest.mark.parametrize(
    ("num_blocks", "count"), [(1, 4 * 384), (3, 4 * 9 * 128), (12, 4 * 144 * 32)]
)
def test_parameters_grow_with_the_number_of_slices(num_blocks: int, count: int) -> None:
    layer = WHVILinear(384, 384, bias=False, num_blocks=num_blocks)
    assert sum(p.numel() for p in layer.parameters()) == count


def test_the_start_has_the_variance_of_he() -> None:
    layer = WHVILinear(384, 512, num_blocks=3)
    assert abs(float(layer.matrix.mean.detach().var()) * 384 / 2 - 1) < 0.1


def test_a_convolution_takes_blocks_too() -> None:
    layer = scramble(WHVIConv2d(4, 6, 3, padding=1, groups=2, num_blocks=3, dtype=DTYPE))
    x = normal(2, 4, 5, 5)
    weight = layer._shaped(layer.matrix.mean)
    expected = torch.nn.functional.conv2d(x, weight, layer.bias, padding=1, groups=2)
    torch.testing.assert_close(run(layer, x, MeanWeights()), expected)


def test_linearize_takes_a_grid() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(WHVILinear(6, 4, num_blocks=2), torch.nn.Tanh(), WHVILinear(4, 1))
    x = torch.randn(30, 6)
    posterior = linearize(model, Gaussian(), (x, x[:, 0]))
    assert posterior.function_moments(x).variance.min() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_blocks": 6}, "at most in_features = 5, got 6"),
        ({"num_blocks": 0}, "num_blocks must be an integer of at least 1, got 0"),
        ({"num_blocks": 2, "scales": "gaussian"}, "needs num_blocks=1, got 2"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WHVILinear(5, 4, **options)
