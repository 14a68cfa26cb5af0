"""Projections against their dense matrices, and the distribution of their frequencies."""

from __future__ import annotations

import math

import pytest
import torch

from whvi.errors import ConfigError
from whvi.gp.projections import (
    PROJECTIONS,
    FastfoodProjection,
    StructuredProjection,
    draw_frequencies,
)
from whvi.transforms import hadamard_matrix

every_projection = pytest.mark.parametrize("name", PROJECTIONS)


def draw(name, d, J, seed=0, num_extra=0):
    generator = torch.Generator().manual_seed(seed)
    return draw_frequencies(name, d, J, num_extra=num_extra, generator=generator)


def dense(projection):
    """``Ω``, shape ``(d, J)``."""
    return projection(torch.eye(projection.in_features, dtype=torch.float64))


def hadamard(size):
    return hadamard_matrix(size, dtype=torch.float64, device=torch.device("cpu"))


@pytest.mark.parametrize(("d", "J"), [(8, 24), (5, 20), (1, 3), (3, 1)])
def test_fastfood_is_s_h_g_pi_h_b(d, J):
    projection = FastfoodProjection(d, J, torch.Generator().manual_seed(1))
    K, D = projection.vector_shape
    H = hadamard(D)
    blocks = []
    for k in range(K):
        S, G, B = (
            torch.diag(v[k]) for v in (projection.scale, projection.gaussian, projection.signs)
        )
        order = projection.permutation.view(K, D)[k] - k * D
        assert sorted(order.tolist()) == list(range(D))
        Pi = torch.eye(D, dtype=torch.float64)[order]
        blocks.append(S @ H @ G @ Pi @ H @ B)
    omega = torch.cat(blocks)[:J, :d].T
    x = torch.randn(7, d, dtype=torch.float64)
    torch.testing.assert_close(projection(x), x @ omega)
    torch.testing.assert_close(dense(projection), omega)


@pytest.mark.parametrize(("d", "J"), [(64, 128), (5, 70)])
def test_structured_is_s_h_s1_h_s2_h_s3(d, J):
    projection = StructuredProjection(d, J, torch.Generator().manual_seed(1))
    K, D = projection.vector_shape
    assert D == 64
    H = hadamard(D)
    vectors = (projection.scale, projection.s1, projection.s2, projection.s3)
    blocks = []
    for k in range(K):
        S, S1, S2, S3 = (torch.diag(v[k]) for v in vectors)
        blocks.append(S @ H @ S1 @ H @ S2 @ H @ S3)
    x = torch.randn(7, d, dtype=torch.float64)
    torch.testing.assert_close(projection(x), x @ torch.cat(blocks)[:J, :d].T)


@every_projection
@pytest.mark.parametrize("d", [1, 2, 3, 8])
def test_frequencies_are_standard_normal(name, d):
    """First four moments of entries over many seeds, in standard errors of their means."""
    J, num_seeds = 64, 200
    omegas = torch.stack([dense(draw(name, d, J, seed)[0]) for seed in range(num_seeds)])
    for power, moment in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        means = omegas.pow(power).mean((-2, -1))  # one per seed: entries of one seed depend
        error = means.std() / math.sqrt(num_seeds)
        # H S1 H S2 H S3 is normal only up to O(1/64); the others exactly
        slack = 0.15 if name == "structured" and power == 4 else 1e-3
        assert abs(means.mean() - moment) < 4.5 * error + slack


@pytest.mark.parametrize("name", ["iid", "orthogonal", "fastfood", "structured"])
def test_lengths_are_chi_distributed(name):
    omegas = torch.cat([dense(draw(name, 8, 64, seed)[0]) for seed in range(200)], dim=1)
    squares = omegas.square().sum(0)  # chi-square with 8 degrees: mean 8, variance 16
    assert squares.mean().item() == pytest.approx(8, abs=0.2)
    assert squares.var().item() == pytest.approx(16, abs=1.5)


def test_orthogonal_blocks_are_orthogonal():
    omega = dense(draw("orthogonal", 6, 18)[0])
    for block in omega.split(6, dim=1):
        directions = block / block.norm(dim=0)
        torch.testing.assert_close(directions.T @ directions, torch.eye(6, dtype=torch.float64))


def test_quasi_random_points_fill_space_better_than_independent_ones():
    def discrepancy(name):
        omega = dense(draw(name, 2, 1024)[0])
        return (omega.cos().mean(1) - math.exp(-0.5)).abs().max().item()

    assert discrepancy("quasi") < 0.2 * discrepancy("iid")


@every_projection
def test_rescaling_multiplies_frequencies(name):
    projection = draw(name, 5, 21)[0]
    before, scale = dense(projection), torch.rand(21, dtype=torch.float64) + 0.5
    projection.rescale(scale)
    torch.testing.assert_close(dense(projection), before * scale)


@every_projection
def test_a_seed_decides_everything(name):
    first, again, other = (draw(name, 4, 12, seed, num_extra=3) for seed in (3, 3, 4))
    torch.testing.assert_close(dense(first[0]), dense(again[0]), rtol=0, atol=0)
    torch.testing.assert_close(first[1], again[1], rtol=0, atol=0)
    assert not torch.allclose(dense(first[0]), dense(other[0]))
    assert first[1].shape == (12, 3)


@every_projection
def test_leading_axes_and_gradients(name):
    projection = draw(name, 3, 10)[0]
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(projection(x), x @ dense(projection))
    assert torch.autograd.gradcheck(projection, (x,))


def test_bad_requests_are_refused():
    with pytest.raises(ConfigError, match=r"'iid', 'orthogonal'.*got 'sobol'"):
        draw("sobol", 3, 4)
    with pytest.raises(ValueError, match="dimensionality"):  # torch's own
        draw("quasi", 30_000, 4)
