from __future__ import annotations

import math

import pytest
import torch

from reproduction.figure2.models import (
    InducingBasis,
    MixtureProjection,
    cluster_centres,
    function_moments,
)
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
    mean, variance = function_moments(fit, x)
    assert (mean - y / y.std()).square().mean().sqrt() < 0.05
    assert bool((variance >= 0).all())


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_moments_of_the_function(covariance, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    y = torch.sin(x).sum(-1)
    basis = InducingBasis(3, 4)
    fit = fit_collapsed(basis, x, y, covariance=covariance, starts=1, iterations=10)
    psi, prior = basis(x).detach(), basis.prior_variance().detach()
    root = fit.posterior.variance.sqrt().diag() if covariance == "diagonal" else fit.posterior.root
    spread = (psi @ root @ root.T @ psi.T).diagonal() + (prior - psi.square().sum(-1)).clamp_min(0)
    monkeypatch.setattr("whvi.gp.collapsed._CHUNK_ELEMENTS", 100)  # several chunks
    mean, variance = function_moments(fit, x)
    torch.testing.assert_close(mean, psi @ fit.posterior.mean)
    torch.testing.assert_close(variance, spread)
    # far from the data the process returns to its prior
    far = function_moments(fit, 1e3 + x)
    torch.testing.assert_close(far[0], torch.zeros(50, dtype=torch.float64))
    torch.testing.assert_close(far[1], prior.expand(50))


@pytest.mark.parametrize("learned", [True, False])
def test_frequencies_of_a_mixture(learned):
    projection = MixtureProjection(3, 4000, learned=learned)
    projection.restart(torch.Generator().manual_seed(1))
    assert projection.frequencies.requires_grad is learned
    assert len(projection.learned_frequencies()) == learned
    # E[ω²] = E[e^2u] = sinh(2) / 2 for u ~ U(-1, 1)
    omega = projection(torch.eye(3, dtype=torch.float64)).detach()
    assert omega.square().mean().item() == pytest.approx(math.sinh(2) / 2, rel=0.05)
    unit = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    x = torch.randn(5, 3, dtype=torch.float64)
    phases = projection.phases(x, projection.scaling(unit), torch.float64)
    torch.testing.assert_close(phases, (x * unit) @ omega)


def test_gpytorch_agrees():
    pytest.importorskip("gpytorch")
    from tests.reproduction.gpytorch_reference import gpytorch_bound

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    y = torch.sin(x).sum(-1)
    fit = fit_collapsed(
        InducingBasis(2, 7), x, y, covariance="full", starts=1, iterations=20, seed=0
    )
    bound = gpytorch_bound(fit.basis, fit.noise_variance, x, y)
    assert bound == pytest.approx(fit.bound, rel=1e-4)
