"""Kernels against scikit-learn, against quadrature, and as positive definite functions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from whvi.errors import ConfigError
from whvi.gp.kernels import KERNELS, RBF, ArcCosine, Matern, make_kernel

every_kernel = pytest.mark.parametrize("name", KERNELS)


def rows(num, d, seed=0):
    return torch.randn(num, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("kernel", "nu"), [(RBF(), None), (Matern(0.5), 0.5), (Matern(1.5), 1.5), (Matern(2.5), 2.5)]
)
def test_stationary_kernels_are_those_of_scikit_learn(kernel, nu):
    reference = pytest.importorskip("sklearn.gaussian_process.kernels")
    x, z = rows(7, 3), rows(5, 3, seed=1)
    other = reference.RBF(1.0) if nu is None else reference.Matern(1.0, nu=nu)
    np.testing.assert_allclose(kernel.matrix(x, z), other(x.numpy(), z.numpy()), rtol=1e-13)


def arc_cosine_by_quadrature(order, x, z):
    """``2 E[s(ωᵀx̃) s(ωᵀz̃)]`` by polar coordinates in the plane of x̃ and z̃.

    The angle runs over a fine midpoint rule; the radius integrates to 1 (order 0) or 2 (order 1)
    under the density ``r exp(−r²/2)``.
    """
    x, z = np.append(x, 1.0), np.append(z, 1.0)
    length_x, length_z = np.linalg.norm(x), np.linalg.norm(z)
    theta = math.acos(x @ z / (length_x * length_z))
    angles = (np.arange(2_000_000) + 0.5) * (2 * math.pi / 2_000_000)
    first, second = np.cos(angles), np.cos(angles - theta)
    both = (first > 0) & (second > 0)
    if order == 0:
        return 2 * both.mean()
    return 2 * (2 * length_x * length_z) * (first * second * both).mean()


@pytest.mark.parametrize("order", [0, 1])
def test_arc_cosine_kernels_are_the_mean_of_their_features(order):
    x, z = rows(2, 3), rows(2, 3, seed=1)
    found = ArcCosine(order).matrix(x, z)
    for i in range(2):
        for j in range(2):
            expected = arc_cosine_by_quadrature(order, x[i].numpy(), z[j].numpy())
            assert found[i, j].item() == pytest.approx(expected, rel=2e-6)


@every_kernel
def test_kernel_matrices_are_symmetric_and_positive(name):
    x = rows(20, 4)
    matrix = KERNELS[name].matrix(x, x)
    torch.testing.assert_close(matrix, matrix.mT)
    assert torch.linalg.eigvalsh(matrix).min() > -1e-10


@every_kernel
def test_leading_axes_are_batches(name):
    x, z = rows(12, 2).view(3, 4, 2), rows(15, 2).view(3, 5, 2)
    together = KERNELS[name].matrix(x, z)
    assert together.shape == (3, 4, 5)
    apart = torch.stack([KERNELS[name].matrix(x[i], z[i]) for i in range(3)])
    torch.testing.assert_close(together, apart)


@pytest.mark.parametrize("name", ["rbf", "matern32", "matern52", "arccos1"])
def test_gradients_are_finite_for_equal_rows(name):
    x = rows(3, 2).requires_grad_()
    KERNELS[name].matrix(x, x.detach()).sum().backward()
    assert x.grad.isfinite().all()


def test_small_distances_keep_their_digits():
    x = torch.full((1, 2), 1e4, dtype=torch.float64)
    z = x + torch.tensor([[1e-3, 0.0]], dtype=torch.float64)
    assert Matern(0.5).matrix(x, z).item() == pytest.approx(math.exp(-1e-3), rel=1e-9)


def test_names_and_kernels_are_accepted_and_others_refused():
    assert make_kernel("matern52") == Matern(2.5)
    assert make_kernel(ArcCosine(0)) == ArcCosine(0)
    with pytest.raises(ConfigError, match=r"'matern12'.*got 'matern'"):
        make_kernel("matern")
    with pytest.raises(ConfigError, match=r"0\.5, 1\.5 or 2\.5, got 2"):
        Matern(2)
    with pytest.raises(ConfigError, match="0 or 1, got 2"):
        ArcCosine(2)
