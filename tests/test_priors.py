from __future__ import annotations

import copy
import functools
import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from tests.conformance.posterior_suite import DTYPE, scramble, seeded
from whvi.errors import ConfigError, ShapeError
from whvi.posteriors import DiagonalGaussian, FullGaussian, LowRankGaussian, PlanarFlow, Posterior
from whvi.priors import EmpiricalBayesPrior, FixedPrior, LearnedPrior, make_prior

GAUSSIANS = [DiagonalGaussian, LowRankGaussian, FullGaussian]


def best_variance(posterior: Posterior) -> float:
    """Return the λ with the least KL, found by search."""

    def kl(log_variance: float) -> float:
        return posterior.kl(FixedPrior(math.exp(log_variance))).item()

    found = minimize_scalar(kl, bracket=(-3.0, 3.0), tol=1e-12)
    return math.exp(found.x)


def gradients(kl: Tensor, posterior: Posterior) -> list[Tensor]:
    return list(torch.autograd.grad(kl, list(posterior.parameters())))


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_empirical_bayes_variance_minimises_the_kl(kind: type[Posterior]) -> None:
    posterior = scramble(kind((2, 4), dtype=DTYPE))
    prior = EmpiricalBayesPrior()
    variance = prior.variance(posterior.mean_square()).item()
    assert variance == pytest.approx(best_variance(posterior), rel=1e-6)  # flat minimum: √eps
    kl = posterior.kl(prior).item()
    assert kl == pytest.approx(posterior.kl(FixedPrior(variance)).item(), rel=1e-12)
    for factor in (0.9, 1.1):
        assert kl < posterior.kl(FixedPrior(factor * variance)).item()


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_empirical_bayes_variance_is_the_formula(kind: type[Posterior]) -> None:
    posterior = scramble(kind((3, 2, 4), dtype=DTYPE))
    trace = posterior.covariance().diagonal(dim1=-2, dim2=-1).sum((-2, -1))
    expected = (posterior.mean.square().sum(-1) + trace) / 8
    variance = EmpiricalBayesPrior().variance(posterior.mean_square())
    torch.testing.assert_close(variance, expected, rtol=1e-13, atol=0)
    profiled = 0.5 * (8 * expected.log() - posterior.covariance().logdet().sum(-1))
    kl = posterior.kl(EmpiricalBayesPrior())
    torch.testing.assert_close(kl, profiled, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_empirical_bayes_gradient_is_that_of_the_minimum_over_variances(
    kind: type[Posterior],
) -> None:
    """Envelope theorem: the gradient of min_λ KL(λ) is that of KL at the fixed minimiser."""
    posterior = scramble(kind((2, 4), dtype=DTYPE))
    profiled = gradients(posterior.kl(EmpiricalBayesPrior()), posterior)
    at_minimum = gradients(posterior.kl(FixedPrior(best_variance(posterior))), posterior)
    for ours, theirs in zip(profiled, at_minimum, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_empirical_bayes_gradient_matches_differences_of_the_minimum() -> None:
    posterior = scramble(DiagonalGaussian((1, 3), dtype=DTYPE))
    grad = gradients(posterior.kl(EmpiricalBayesPrior()), posterior)[0][1].item()
    step, values = 1e-4, []
    for sign in (1, -1):
        moved = copy.deepcopy(posterior)
        with torch.no_grad():
            moved.loc[1] += sign * step
        values.append(moved.kl(FixedPrior(best_variance(moved))).item())
    assert grad == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5)


def test_learned_prior_reaches_the_empirical_bayes_variance() -> None:
    posterior = scramble(DiagonalGaussian((3, 2, 4), dtype=DTYPE)).requires_grad_(False)
    prior = LearnedPrior((3,), dtype=DTYPE)
    optimiser = torch.optim.LBFGS(prior.parameters(), line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        total = posterior.kl(prior).sum()
        total.backward()
        return total

    for _ in range(5):
        optimiser.step(loss)
    learned = prior.variance(posterior.mean_square())
    torch.testing.assert_close(learned, posterior.mean_square(), rtol=1e-6, atol=0)


def test_learned_prior_has_one_variance_per_replica() -> None:
    posterior = scramble(DiagonalGaussian((2, 1, 4), dtype=DTYPE))
    prior = LearnedPrior((2,), dtype=DTYPE)
    with torch.no_grad():
        prior.log_variance.copy_(torch.tensor([0.0, math.log(5.0)], dtype=DTYPE))
    kl = posterior.kl(prior)
    for index, variance in enumerate((1.0, 5.0)):
        expected = posterior.kl(FixedPrior(variance))[index]
        torch.testing.assert_close(kl[index], expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", [*GAUSSIANS, PlanarFlow])
def test_one_learned_variance_may_serve_all_replicas(kind: type[Posterior]) -> None:
    posterior = scramble(kind((2, 1, 4), dtype=DTYPE))
    prior = LearnedPrior(variance=2.0, dtype=DTYPE)
    kl = posterior.kl(prior, generator=seeded())
    fixed = posterior.kl(FixedPrior(2.0), generator=seeded())
    torch.testing.assert_close(kl, fixed, rtol=1e-12, atol=0)
    kl.sum().backward()
    assert prior.log_variance.grad is not None
    assert prior.log_variance.grad.shape == ()


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_replicas_of_prior_and_posterior_must_agree(kind: type[Posterior]) -> None:
    with pytest.raises(ShapeError, match="same batch_shape"):
        kind((1, 4)).kl(LearnedPrior((3,)))


def test_a_prior_variance_is_not_a_standard_deviation() -> None:
    posterior = DiagonalGaussian((1, 4), dtype=DTYPE)
    posterior.reset(0.0, 3.0)
    assert posterior.kl(FixedPrior(9.0)).abs() < 1e-14
    assert posterior.kl(FixedPrior(3.0)) > 1


def test_flow_accepts_every_prior() -> None:
    flow = scramble(PlanarFlow((2, 1, 4), dtype=DTYPE))
    for prior in (FixedPrior(), LearnedPrior((2,), dtype=DTYPE), EmpiricalBayesPrior()):
        kl = flow.kl(prior, generator=seeded())
        assert kl.shape == (2,)
        assert torch.isfinite(kl).all()


@pytest.mark.parametrize("variance", [0.0, -1.0, math.nan, math.inf])
def test_variances_must_be_positive(variance: float) -> None:
    with pytest.raises(ConfigError, match="variance must be"):
        FixedPrior(variance)
    with pytest.raises(ConfigError, match="variance must be"):
        LearnedPrior(variance=variance)


def test_make_prior_knows_names_instances_and_factories() -> None:
    assert isinstance(make_prior("empirical_bayes"), EmpiricalBayesPrior)
    learned = make_prior("learned", (3,), dtype=DTYPE)
    assert isinstance(learned, LearnedPrior)
    assert learned.log_variance.shape == (3,)
    assert learned.log_variance.dtype == DTYPE
    assert make_prior("standard_normal").variance(torch.tensor(7.0)) == 1
    fixed = FixedPrior(0.1)
    assert make_prior(fixed) is fixed
    built = make_prior(functools.partial(LearnedPrior, variance=0.25), (2,))
    torch.testing.assert_close(built.variance(torch.ones(2)), torch.full((2,), 0.25))
    with pytest.raises(ConfigError, match="'gaussian'"):
        make_prior("gaussian")


def test_repr_shows_the_fixed_variance() -> None:
    assert "variance=0.1" in repr(FixedPrior(0.1))
