"""Kernels against scikit-learn and quadrature; their features, and the rate of the error."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

from whvi.errors import ConfigError, ShapeError
from whvi.gp.features import (
    KERNELS,
    RBF,
    ArcCosine,
    Matern,
    RandomFeatures,
    cos_sin,
    make_kernel,
)
from whvi.gp.projections import PROJECTIONS

every_kernel = pytest.mark.parametrize("kernel", KERNELS)
every_projection = pytest.mark.parametrize("projection", PROJECTIONS)


def rows(num=24, d=3, seed=0):
    return torch.randn(num, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(num_features, kernel="rbf", projection="iid", seed=0, d=3):
    return RandomFeatures(
        d, num_features, kernel=kernel, projection=projection, seed=seed, dtype=torch.float64
    )


@torch.no_grad()
def errors(x, num_features, kernel, projection, num_seeds):
    """Differences between approximate and exact kernel, ``(num_seeds, N, N)``."""
    exact = make(num_features, kernel, projection, d=x.shape[1]).kernel_matrix(x)
    found = []
    for seed in range(num_seeds):
        phi = make(num_features, kernel, projection, seed, x.shape[1])(x)
        found.append(phi @ phi.mT - exact)
    return torch.stack(found)


@every_projection
@every_kernel
def test_features_approximate_the_kernel(kernel, projection):
    """The error per entry is a mean over J frequencies: within 1.5 / √J in root mean square.

    A product of two ReLU features has a larger variance, in proportion to the squared norms.
    """
    x = rows()
    J = 2048 // KERNELS[kernel].features_per_frequency
    error = errors(x, 2048, kernel, projection, num_seeds=4)
    norms = x.square().sum(-1) + 1 if kernel == "arccos1" else torch.ones(len(x)).double()
    scaled = error / (norms.unsqueeze(1) * norms).sqrt()
    assert scaled.square().mean().sqrt() < 2.5 / math.sqrt(J)


@pytest.mark.parametrize("projection", ["iid", "orthogonal", "fastfood", "structured"])
@pytest.mark.parametrize("kernel", ["rbf", "matern32", "arccos1"])
def test_the_error_falls_like_one_over_root_m(kernel, projection):
    x = rows()
    small = errors(x, 128, kernel, projection, 60).square().mean().sqrt()
    large = errors(x, 2048, kernel, projection, 15).square().mean().sqrt()
    assert 4 / 1.35 < small / large < 4 * 1.35


def test_quasi_random_features_are_better_than_the_rate():
    x = rows(d=2)
    quasi, iid = (
        errors(x, 4096, "rbf", name, 4).square().mean().sqrt() for name in ("quasi", "iid")
    )
    assert quasi < 0.25 * iid


def test_orthogonal_features_are_better_than_independent_ones():
    x = rows(d=8)
    x = x / x.norm(dim=-1, keepdim=True)
    orthogonal, iid = (
        errors(x, 64, "rbf", name, 60).square().mean() for name in ("orthogonal", "iid")
    )
    assert orthogonal < 0.6 * iid


@pytest.mark.parametrize("projection", ["iid", "orthogonal", "fastfood"])
@every_kernel
def test_features_are_unbiased(kernel, projection):
    """The mean over seeds is the kernel, within standard errors (largest of 36 entries)."""
    error = errors(rows(8), 64, kernel, projection, 400)
    z = error.mean(0) / (error.std(0) / 20 + 1e-12)
    assert z.abs().max() < 4.5


def test_the_bias_of_signs_is_small():
    error = errors(rows(8), 512, "rbf", "structured", 200)
    assert error.mean(0).abs().max() < 0.01


def test_lengthscales_and_variance_belong_to_the_kernel():
    features = make(8192, "matern52", "quasi")
    with torch.no_grad():
        features.log_lengthscale.copy_(torch.tensor([0.5, 0.0, -0.5]))
        features.log_variance.fill_(math.log(4.0))
    x = rows(6)
    phi = features(x)
    unit = x / torch.tensor([0.5, 0.0, -0.5], dtype=torch.float64).exp()
    torch.testing.assert_close(
        features.kernel_matrix(x), 4 * KERNELS["matern52"].matrix(unit, unit)
    )
    torch.testing.assert_close(phi @ phi.mT, features.kernel_matrix(x), rtol=0, atol=0.1)
    torch.testing.assert_close(phi.square().sum(-1), torch.full((6,), 4.0).double())


@every_projection
@pytest.mark.parametrize("kernel", ["rbf", "matern12", "arccos1"])
def test_gradients_with_respect_to_inputs_and_hyperparameters(kernel, projection):
    features = make(6, kernel, projection, d=2)
    x = rows(3, 2).requires_grad_()

    def phi(x, log_lengthscale, log_variance):
        return torch.func.functional_call(
            features, {"log_lengthscale": log_lengthscale, "log_variance": log_variance}, (x,)
        )

    assert torch.autograd.gradcheck(phi, (x, features.log_lengthscale, features.log_variance))


@every_projection
def test_leading_axes_and_zero_rows(projection):
    features = make(10, projection=projection)
    x = rows().view(2, 3, 4, 3)
    assert features(x).shape == (2, 3, 4, 10)
    torch.testing.assert_close(features(x)[1, 2], features(x[1, 2]))
    assert features(x[:, :, :0]).shape == (2, 3, 0, 10)


@every_projection
def test_single_and_double_precision_have_the_same_frequencies(projection):
    single = RandomFeatures(3, 32, projection=projection, seed=5, dtype=torch.float32)
    x = rows()
    torch.testing.assert_close(
        single(x.float()).double(), make(32, projection=projection, seed=5)(x), rtol=0, atol=1e-5
    )


@every_kernel
def test_an_odd_number_of_features_leaves_out_the_last_sine(kernel):
    odd, even = make(7, kernel), make(8, kernel)
    assert odd(rows()).shape == (24, 7)
    if kernel == "rbf":
        torch.testing.assert_close(odd(rows()) * (7 / 8) ** 0.5, even(rows())[:, :7])


def test_state_dict_restores_other_seeds():
    first, second = make(16, projection="fastfood"), make(16, projection="fastfood", seed=9)
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second(rows()), first(rows()), rtol=0, atol=0)


def test_bad_inputs_are_refused():
    with pytest.raises(ConfigError, match="lengthscale must be a finite number above 0"):
        RandomFeatures(3, 8, lengthscale=0.0)
    with pytest.raises(ShapeError, match=r"\(\.\.\., 3\), got \(24, 2\)"):
        make(8)(rows(d=2))
    with pytest.raises(ShapeError, match=r"floating dtype, got torch.int64; use x.float\(\)"):
        make(8)(rows().long())


# ---- kernels ---------------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_matrices_are_symmetric_and_positive(name):
    x = rows(20, 4)
    matrix = KERNELS[name].matrix(x, x)
    torch.testing.assert_close(matrix, matrix.mT)
    assert torch.linalg.eigvalsh(matrix).min() > -1e-10


@pytest.mark.parametrize("name", KERNELS)
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


# ---- cosines and sines -----------------------------------------------------------------------


def phases(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_both_halves():
    p = phases(4, 3, 5)
    expected = torch.cat([p.cos(), p.sin()], -1)
    assert torch.equal(cos_sin(p), expected)
    assert torch.equal(cos_sin(p.clone().requires_grad_()), expected)
    assert cos_sin(p[:, :, :0]).shape == (4, 3, 0)


def test_derivatives_of_first_and_second_order():
    p = phases(3, 4).requires_grad_()
    assert torch.autograd.gradcheck(cos_sin, p)
    assert torch.autograd.gradgradcheck(cos_sin, p)


# torch's own forward mode compiles a part of itself with torch.jit.script on first use
@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:DeprecationWarning")
def test_function_transforms():
    p = phases(4)
    jacobian = torch.cat([torch.diag(-p.sin()), torch.diag(p.cos())])
    torch.testing.assert_close(torch.func.jacrev(cos_sin)(p), jacobian)
    with forward_ad.dual_level():
        moved = forward_ad.unpack_dual(cos_sin(forward_ad.make_dual(p, torch.ones_like(p))))
    torch.testing.assert_close(moved.tangent, jacobian.sum(-1))
    torch.testing.assert_close(torch.func.vmap(cos_sin)(phases(3, 4)), cos_sin(phases(3, 4)))


@pytest.mark.parametrize("kernel", ["rbf", "arccos1"])
def test_scaling_that_was_computed_before_changes_nothing(kernel):
    for projection in ("orthogonal", "fastfood"):
        features, x = make(8, kernel, projection), rows(5)
        assert torch.equal(features.waves(x), features.waves(x, features.scaling()))
