from __future__ import annotations

import pytest
import torch

from reproduction.figure2.inducing import InducingBasis, cluster_centres
from whvi.gp.optimise import fit_collapsed


def test_psi_gives_the_nystrom_approximation():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 2, generator=generator, dtype=torch.float64)
    basis = InducingBasis(2, 6)
    basis.restart(x, generator)
    unit = x / basis.log_lengthscale.exp()
    z = basis.locations / basis.log_lengthscale.exp()

    def kernel(a, b):
        return (-0.5 * torch.cdist(a, b).square()).exp() * basis.log_variance.exp()

    inner = kernel(z, z) + 1e-9 * torch.eye(6, dtype=torch.float64)
    expected = kernel(unit, z) @ torch.linalg.solve(inner, kernel(z, unit))
    psi = basis(x)
    torch.testing.assert_close(psi @ psi.T, expected)


def test_points_on_all_rows_give_the_exact_process():
    x = torch.linspace(-2, 2, 9, dtype=torch.float64).unsqueeze(-1)
    basis = InducingBasis(1, 9)
    with torch.no_grad():
        basis.locations.copy_(x)
    psi = basis(x)
    exact = (-0.5 * torch.cdist(x, x).square()).exp()
    torch.testing.assert_close(psi @ psi.T, exact, rtol=0, atol=1e-7)


def test_centres_stand_in_the_clusters():
    generator = torch.Generator().manual_seed(0)
    truth = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]], dtype=torch.float64)
    noise = 0.1 * torch.randn(3, 50, 2, generator=generator, dtype=torch.float64)
    x = (truth.unsqueeze(1) + noise).flatten(0, 1)
    centres = cluster_centres(x, 12, generator)
    assert torch.cdist(truth, centres).min(-1).values.max() < 0.5
    assert torch.cdist(centres, truth).min(-1).values.max() < 0.5
    few = cluster_centres(x[:2], 5, generator)  # more centres than rows
    assert few.shape == (5, 2)
    assert bool(torch.isfinite(few).all())


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_a_fit(covariance):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 2, generator=generator, dtype=torch.float64)
    y = torch.sin(x[:, 0]) * x[:, 1]
    fit = fit_collapsed(
        InducingBasis(2, 16), x, y / y.std(), covariance=covariance, starts=2, iterations=60
    )
    mean, variance = fit.function_moments(x)
    assert (mean - y / y.std()).square().mean().sqrt() < 0.05
    assert bool((variance >= 0).all())


def test_gpytorch_agrees():
    reference = pytest.importorskip("reproduction.gpytorch_reference")
    pytest.importorskip("gpytorch")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    y = torch.sin(x).sum(-1)
    fit = fit_collapsed(
        InducingBasis(2, 7), x, y, covariance="full", starts=1, iterations=20, seed=0
    )
    bound = reference.gpytorch_bound(fit.basis, fit.noise_variance, x, y)
    assert bound == pytest.approx(fit.bound, rel=1e-4)
