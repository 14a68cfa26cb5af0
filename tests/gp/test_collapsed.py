from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

from reproduction.figure2.models import InducingBasis
from tests.gp.bases import column, fourier, spectrum
from whvi.errors import ConfigError, NumericalError, ShapeError
from whvi.gp.collapsed import (
    Statistics,
    bound_with_gradients,
    collapsed_bound,
)

COVARIANCES = ("diagonal", "full")
NOISE = 0.3


def problem(num_rows: int = 40, size: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    psi = torch.randn(num_rows, size, generator=generator, dtype=torch.float64)
    return psi, psi.sum(-1) + torch.randn(num_rows, generator=generator, dtype=torch.float64)


def statistics_of(psi: Tensor, y: Tensor) -> Statistics:
    return Statistics.zeros(psi.shape[1]).add(psi, y)


def dense_elbo(psi: Tensor, y: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """``E_q log p(y | a) − KL(q ‖ p)`` of any Gaussian ``q``, by dense matrices."""
    residual = y - psi @ mean
    spread = (psi @ covariance @ psi.T).trace()
    fit = -0.5 * len(y) * math.log(2 * math.pi * NOISE) - (residual @ residual + spread) / 2 / NOISE
    prior = MultivariateNormal(torch.zeros_like(mean), torch.eye(len(mean), dtype=torch.float64))
    return fit - kl_divergence(MultivariateNormal(mean, covariance), prior)


def test_full_bound_is_the_evidence_of_bayesian_linear_regression():
    psi, y = problem()
    kernel = psi @ psi.T + NOISE * torch.eye(len(y), dtype=torch.float64)
    evidence = MultivariateNormal(torch.zeros_like(y), kernel).log_prob(y)
    torch.testing.assert_close(
        collapsed_bound(statistics_of(psi, y), NOISE, "full").value, evidence
    )


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_bound_is_the_dense_elbo_of_its_posterior(covariance):
    psi, y = problem()
    bound, posterior = collapsed_bound(statistics_of(psi, y), NOISE, covariance)
    sigma = (
        posterior.variance.diag() if posterior.root is None else posterior.root @ posterior.root.T
    )
    torch.testing.assert_close(bound, dense_elbo(psi, y, posterior.mean, sigma))
    torch.testing.assert_close(sigma.diagonal(), posterior.variance)
    # no q of the family does better
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        nudge = 0.05 * torch.randn(2, len(sigma), generator=generator, dtype=torch.float64)
        wider = sigma * (nudge[1] / 2).exp() * (nudge[1] / 2).exp().unsqueeze(-1)
        assert dense_elbo(psi, y, posterior.mean + nudge[0], wider) < bound


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_posterior_is_that_of_bayesian_linear_regression(covariance):
    psi, y = problem()
    posterior = collapsed_bound(statistics_of(psi, y), NOISE, covariance).posterior
    precision = psi.T @ psi / NOISE + torch.eye(psi.shape[1], dtype=torch.float64)
    torch.testing.assert_close(posterior.mean, precision.inverse() @ psi.T @ y / NOISE)
    if covariance == "full":
        torch.testing.assert_close(posterior.root @ posterior.root.T, precision.inverse())
    else:
        torch.testing.assert_close(posterior.variance, 1 / precision.diagonal())


def test_inducing_bound_is_that_of_titsias():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    y = torch.sin(x).sum(-1)
    basis = InducingBasis(2, 5)
    basis.restart(x, generator)
    with torch.no_grad():
        basis.log_variance.fill_(0.4)
        psi, prior = basis(x), basis.prior_variance()
    nystrom = psi @ psi.T
    evidence = MultivariateNormal(
        torch.zeros_like(y), nystrom + NOISE * torch.eye(30, dtype=torch.float64)
    ).log_prob(y)
    expected = evidence - (30 * prior - nystrom.trace()) / (2 * NOISE)
    found = collapsed_bound(statistics_of(psi, y), NOISE, "full", prior_variance=prior).value
    torch.testing.assert_close(found, expected)


def test_statistics_add_up_in_any_order_and_count_as_often_as_told():
    psi, y = problem()
    whole = statistics_of(psi, y)
    parts = Statistics.zeros(psi.shape[1]).add(psi[25:], y[25:]).add(psi[:25], y[:25])
    twice = statistics_of(torch.cat([psi, psi]), torch.cat([y, y]))
    for found, expected in ((parts, whole), (whole.scaled(2.0), twice)):
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(torch.as_tensor(a).double(), torch.as_tensor(b).double())


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("kind", ["column", "fourier", "spectrum", "inducing"])
def test_streamed_gradients_are_those_of_autograd(covariance, kind, monkeypatch):
    monkeypatch.setattr("whvi.gp.collapsed._CHUNK_ELEMENTS", 700)  # several chunks, the last short
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    y = torch.sin(x).sum(-1)
    basis = {
        "column": lambda: column(3, 8, dtype=torch.float64),
        "fourier": lambda: fourier(3, 10, dtype=torch.float64),
        "spectrum": lambda: spectrum(3, 10, dtype=torch.float64),
        "inducing": lambda: InducingBasis(3, 7),
    }[kind]()
    basis.restart(x, generator)
    log_noise = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    parameters = [*(p for p in basis.parameters() if p.requires_grad), log_noise]
    direct = collapsed_bound(
        statistics_of(basis(x), y).scaled(2.5),
        log_noise.exp(),
        covariance,
        prior_variance=basis.prior_variance(),
    ).value
    expected = torch.autograd.grad(direct, parameters)
    found = bound_with_gradients(basis, log_noise, x, y, covariance, num_data=125)
    torch.testing.assert_close(found, direct.detach())
    for parameter, gradient in zip(parameters, expected, strict=True):
        # the locations of inducing points pass through an ill-conditioned Cholesky factor
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-6, atol=1e-6)


def test_frozen_parameters_receive_no_gradient():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 3, generator=generator, dtype=torch.float64)
    basis = column(3, 4)
    basis.restart(x, generator)
    s1, s2 = basis.weights.s1, basis.weights.s2
    s2.requires_grad_(False)
    log_noise = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    bound_with_gradients(basis, log_noise, x, torch.sin(x).sum(-1))
    assert s2.grad is None
    assert s1.grad is not None
    assert bool(s1.grad.abs().sum() > 0)


def test_diagonal_posterior_is_too_sure_only_in_variance():
    psi, y = problem()
    diagonal = collapsed_bound(statistics_of(psi, y), NOISE, "diagonal")
    full = collapsed_bound(statistics_of(psi, y), NOISE, "full")
    torch.testing.assert_close(diagonal.posterior.mean, full.posterior.mean)
    assert diagonal.value < full.value
    assert bool((diagonal.posterior.variance <= full.posterior.variance).all())


def test_a_diagonal_gaussian_needs_no_more_than_its_variances():
    psi, y = problem()
    posterior = collapsed_bound(statistics_of(psi, y), NOISE, "diagonal").posterior
    prior = Independent(Normal(torch.zeros(6).double(), torch.ones(6).double()), 1)
    q = Independent(Normal(posterior.mean, posterior.variance.sqrt()), 1)
    assert kl_divergence(q, prior) > 0


def test_wrong_calls():
    psi, y = problem()
    with pytest.raises(ConfigError, match="'diagonal' or 'full'"):
        collapsed_bound(statistics_of(psi, y), NOISE, "low-rank")
    with pytest.raises(ShapeError, match=r"psi must be \(n, 6\)"):
        statistics_of(psi, y).add(psi[:, :5], y)
    with pytest.raises(ShapeError):
        statistics_of(psi, y[:-1])
    with pytest.raises(NumericalError, match="noise variance"):
        collapsed_bound(statistics_of(psi * float("nan"), y), NOISE)
