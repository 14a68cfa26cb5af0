"""Inference against the closed form of the linear-in-g model."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from scipy import stats
from torch import Tensor

from tests.statistical.linear_model import (
    DTYPE,
    Problem,
    closed_form_elbo,
    design,
    exact_posterior,
    log_evidence,
    make_problem,
    seeded,
    set_exact,
)
from whvi import FitConfig, MeanFieldLinear, WHVILinear, elbo, fit, mlp
from whvi.layers import WHVIConv1d
from whvi.likelihoods import Gaussian
from whvi.posteriors import PointMass
from whvi.priors import FixedPrior
from whvi.sampling import LocalReparameterization, WeightDraws, sampling

SHAPES = [(5, 7), (3, 9), (4, 4), (11, 1)]  # padded and trimmed, stacked, square, a column
each_shape = pytest.mark.parametrize("sizes", SHAPES, ids=str)


def scatter(problem: Problem, size: float, seed: int) -> None:
    """Give every replica a posterior of its own around the exact mean."""
    mean, _ = exact_posterior(problem)
    q = problem.layer.matrix.posterior
    generator = seeded(seed)
    with torch.no_grad():
        for parameter in q.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=DTYPE)
            parameter.copy_(size * noise)
        if hasattr(q, "log_scale"):
            q.log_scale.sub_(1.0)
        q.loc.add_(mean)


# --- a bound on the evidence ---------------------------------------------------------------------


@each_shape
@pytest.mark.parametrize("posterior", ["diagonal", "low_rank", "full"])
def test_elbo_never_exceeds_the_evidence(posterior: str, sizes: tuple[int, int]) -> None:
    problem = make_problem(*sizes, posterior=posterior, num_replicas=1000)
    evidence = log_evidence(problem)
    for size in (0.03, 0.3):
        scatter(problem, size, seed=1)
        gap = evidence - closed_form_elbo(problem)
        assert (gap > -1e-9).all()
        assert (gap > 0).float().mean() == 1


@each_shape
def test_elbo_at_the_exact_posterior_is_the_evidence(sizes: tuple[int, int]) -> None:
    problem = make_problem(*sizes, num_replicas=50)
    set_exact(problem)
    torch.testing.assert_close(
        closed_form_elbo(problem).detach(), log_evidence(problem), rtol=0, atol=1e-10
    )


@each_shape
def test_best_factorized_posterior_misses_the_evidence_by_its_kl(sizes: tuple[int, int]) -> None:
    """For precision ``Λ`` the best diagonal has ``KL = ½ (Σ log Λ_kk − log det Λ)``."""
    problem = make_problem(*sizes, posterior="diagonal", num_replicas=50)
    set_exact(problem)
    _, precision = exact_posterior(problem)
    kl = 0.5 * (precision.diagonal(dim1=-2, dim2=-1).log().sum(-1) - precision.logdet())
    assert (kl > 0).all()
    expected = log_evidence(problem) - kl
    torch.testing.assert_close(closed_form_elbo(problem).detach(), expected, rtol=0, atol=1e-10)
    gradients = torch.autograd.grad(
        closed_form_elbo(problem).sum(), list(problem.layer.matrix.posterior.parameters())
    )
    assert all(gradient.abs().max() < 1e-9 for gradient in gradients)


@each_shape
@pytest.mark.parametrize("posterior", ["diagonal", "low_rank", "full"])
def test_estimated_elbo_is_the_closed_form_on_average(
    posterior: str, sizes: tuple[int, int]
) -> None:
    problem = make_problem(*sizes, posterior=posterior, num_replicas=1)
    scatter(problem, 0.3, seed=2)
    one = closed_form_elbo(problem).item()
    with torch.no_grad():
        estimates = torch.cat(
            [
                elbo(
                    problem.layer, problem.likelihood, problem.x, problem.y,
                    num_data=problem.x.shape[1], generator=seeded(seed),
                ).value
                for seed in range(300)
            ]
        )  # fmt: skip
    z = (estimates.mean().item() - one) / (estimates.std().item() / math.sqrt(len(estimates)))
    assert abs(z) < 4.5


# --- unbiased gradients --------------------------------------------------------------------------


@pytest.mark.parametrize("posterior", ["diagonal", "low_rank", "full"])
@pytest.mark.parametrize("sizes", [(5, 7), (3, 9), (11, 1)], ids=str)
def test_minibatch_gradients_are_unbiased(posterior: str, sizes: tuple[int, int]) -> None:
    """Replicas with equal parameters and batches of their own are independent estimates."""
    R, N, B = 4000, 12, 4
    alone = make_problem(*sizes, posterior=posterior, num_rows=N)
    scatter(alone, 0.3, seed=3)
    alone.likelihood.log_noise_variance.requires_grad_()
    alone.layer.matrix.s1.requires_grad_()
    alone.layer.matrix.s2.requires_grad_()
    exact = gradients_of(closed_form_elbo_with_noise(alone), alone)

    many = WHVILinear(
        *sizes, bias=False, posterior=posterior, prior=FixedPrior(alone.prior_variance),
        batch_shape=(R,), dtype=DTYPE,
    )  # fmt: skip
    state = {n: t.expand(R, *t.shape[1:]) for n, t in alone.layer.state_dict().items()}
    many.load_state_dict(state)
    likelihood = Gaussian(sizes[1], batch_shape=(R,), dtype=DTYPE)
    noise = {n: t.expand(R, *t.shape[1:]) for n, t in alone.likelihood.state_dict().items()}
    likelihood.load_state_dict(noise)
    rows = torch.rand(R, N, generator=seeded(4)).argsort(-1)[:, :B]
    batch = (alone.x[0][rows], alone.y[0][rows])
    value = elbo(many, likelihood, *batch, num_data=N, generator=seeded(5)).value
    estimates = gradients_of(value, alone._replace(layer=many, likelihood=likelihood))
    for name, expected in exact.items():
        found = estimates[name]
        error = found.std(0) / math.sqrt(R)
        z = (found.mean(0) - expected.squeeze(0)).abs() / error.clamp_min(1e-12)
        assert z.max() < 4.5, name


def closed_form_elbo_with_noise(problem: Problem) -> Tensor:
    """As :func:`closed_form_elbo`, differentiable in the noise variance too."""
    mean, variance = problem.layer.output_moments(problem.x)
    noise_variance = problem.likelihood.noise_scale.square().unsqueeze(1)
    at_mean = problem.likelihood.log_prob(mean.unsqueeze(1), problem.y).sum((-2, -1))
    return at_mean - 0.5 * (variance / noise_variance).sum((-2, -1)) - problem.layer.kl()


def gradients_of(value: Tensor, problem: Problem) -> dict[str, Tensor]:
    named = dict(problem.layer.named_parameters())
    named["noise"] = problem.likelihood.log_noise_variance
    found = torch.autograd.grad(value.sum(), list(named.values()))
    return dict(zip(named, found, strict=True))


# --- draws ---------------------------------------------------------------------------------------


@each_shape
@pytest.mark.parametrize("posterior", ["diagonal", "low_rank", "full"])
def test_draws_follow_the_gaussian_of_equation_3(posterior: str, sizes: tuple[int, int]) -> None:
    """For one row ``y ~ N(A μ, A Σ Aᵀ)``: Mahalanobis distances are chi-square, marginals normal.

    Both samplers are held to the same law, so they agree in distribution.
    """
    problem = make_problem(*sizes, posterior=posterior, num_rows=1)
    scatter(problem, 0.4, seed=6)
    q = problem.layer.matrix.posterior
    A = design(problem.layer, problem.x)[0, 0]  # (out, K·D)
    mean = A @ q.mean.detach().flatten()
    covariance = A @ torch.block_diag(*q.covariance().detach()[0]) @ A.T
    values, vectors = torch.linalg.eigh(covariance)
    kept = values > 1e-9 * values.max()  # outputs may outnumber the entries of g
    num = 20_000
    rows = problem.x.expand(1, num, -1)
    for sampler in (WeightDraws(num, seeded(7)), LocalReparameterization(seeded(8))):
        with torch.no_grad(), sampling(sampler):
            y = problem.layer(rows)[0]
        white = ((y - mean) @ vectors[:, kept]) / values[kept].sqrt()
        distances = white.square().sum(-1).numpy()
        assert stats.kstest(distances, stats.chi2(int(kept.sum())).cdf).pvalue > 1e-4
        for column in white.T.numpy():
            assert stats.kstest(column, stats.norm.cdf).pvalue > 1e-4
        correlation = white.T.cov().reshape(len(white.T), -1) - torch.eye(len(white.T))
        assert correlation.abs().max() < 5 * math.sqrt(2 / num)
        outside = (y - mean) @ vectors[:, ~kept]
        assert outside.numel() == 0 or outside.abs().max() < 1e-6


def test_rows_are_correlated_within_a_draw_and_independent_across_local_rows() -> None:
    problem = make_problem(5, 4, num_rows=2)
    scatter(problem, 0.4, seed=6)
    q, num = problem.layer.matrix.posterior, 20_000
    A = design(problem.layer, problem.x)[0]  # (2, out, D)
    exact = torch.einsum("ok,kl,ol->o", A[0], q.covariance().detach()[0, 0], A[1])
    rows = problem.x.expand(num, 2, -1).unsqueeze(0)
    found = {}
    for name, sampler in {
        "draw": WeightDraws(num, seeded(1)),
        "local": LocalReparameterization(seeded(2)),
    }.items():
        with torch.no_grad(), sampling(sampler):
            y = problem.layer(rows)[0]
        centred = y - y.mean(0)
        found[name] = (centred[:, 0] * centred[:, 1]).mean(0)
        error = centred.square().mean(0).prod(0).mul(2 / num).sqrt()
        expected = exact if name == "draw" else torch.zeros_like(exact)
        assert ((found[name] - expected) / error).abs().max() < 5
    assert exact.abs().max() > 0.05


# --- one method is another -----------------------------------------------------------------------


@each_shape
def test_full_covariance_is_bayesian_linear_regression(sizes: tuple[int, int]) -> None:
    problem = make_problem(*sizes, num_replicas=3)
    set_exact(problem)
    new = torch.randn(3, 6, sizes[0], generator=seeded(9), dtype=DTYPE)
    features = design(problem.layer, new)
    mean, precision = exact_posterior(problem)
    moments = problem.layer.output_moments(new)
    expected_mean = torch.einsum("rnok,rk->rno", features, mean)
    covariance = torch.linalg.inv(precision).unsqueeze(1)
    variance = (features @ covariance * features).sum(-1)
    torch.testing.assert_close(moments.mean, expected_mean, rtol=0, atol=1e-10)
    torch.testing.assert_close(moments.variance, variance, rtol=0, atol=1e-10)


def test_mean_field_weights_of_one_output_are_the_factorized_regression() -> None:
    """``MeanFieldLinear`` is linear in its weights too: same bound, features = inputs."""
    generator = seeded(0)
    x = torch.randn(12, 4, generator=generator, dtype=DTYPE)
    y = torch.randn(12, generator=generator, dtype=DTYPE)
    layer = MeanFieldLinear(4, 1, bias=False, prior=FixedPrior(0.5), dtype=DTYPE)
    likelihood = Gaussian(log_noise_variance=math.log(0.3), dtype=DTYPE)
    s2 = likelihood.noise_scale.square().item()
    precision = torch.eye(4, dtype=DTYPE) / 0.5 + x.T @ x / s2
    with torch.no_grad():
        layer.matrix.posterior.loc.copy_(torch.linalg.solve(precision, x.T @ y / s2))
        layer.matrix.posterior.log_scale.copy_(-0.5 * precision.diagonal().log())
    mean, variance = layer.output_moments(x)
    bound = likelihood.log_prob(mean.unsqueeze(0), y).sum() - 0.5 * variance.sum() / s2 - layer.kl()
    marginal = 0.5 * x @ x.T + s2 * torch.eye(12, dtype=DTYPE)
    evidence = torch.distributions.MultivariateNormal(y.new_zeros(12), marginal).log_prob(y)
    kl = 0.5 * (precision.diagonal().log().sum() - precision.logdet())
    torch.testing.assert_close(bound, evidence - kl, rtol=0, atol=1e-10)


def test_replicas_train_as_separate_models() -> None:
    """Without noise in the weights, replica ``r`` of a fit is the fit with ``seed + r`` alone."""
    point = partial(WHVILinear, posterior=PointMass, prior=FixedPrior(1.0))
    build = partial(mlp, 3, (8,), 1, layer=point, last_layer=point, dtype=DTYPE)
    generator = seeded(0)
    x = torch.randn(40, 3, generator=generator, dtype=DTYPE)
    y = x.prod(-1) + 0.1 * torch.randn(40, generator=generator, dtype=DTYPE)
    together, likelihood = build(batch_shape=(3,)), Gaussian(batch_shape=(3,), dtype=DTYPE)
    start = {name: t.clone() for name, t in together.state_dict().items()}
    options = {"num_steps": 40, "batch_size": 8, "warmup_steps": 5, "noise_hold_steps": 10}
    fit(together, likelihood, (x, y), config=FitConfig(**options, seed=7))
    for r in range(3):
        alone, own = build(), Gaussian(dtype=DTYPE)
        alone.load_state_dict({name: t[r] for name, t in start.items()})
        fit(alone, own, (x, y), config=FitConfig(**options, seed=7 + r))
        for name, t in alone.state_dict().items():
            torch.testing.assert_close(together.state_dict()[name][r], t, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(likelihood.log_noise_variance[r], own.log_noise_variance)


def test_convolution_over_one_position_is_the_linear_model() -> None:
    """A kernel as long as the input is a dense layer: same moments of its draws."""
    conv = WHVIConv1d(2, 4, 3, bias=False, dtype=DTYPE)
    linear = WHVILinear(6, 4, bias=False, dtype=DTYPE)
    linear.load_state_dict({name: t.squeeze(0) for name, t in conv.state_dict().items()})
    x = torch.randn(2, 3, generator=seeded(1), dtype=DTYPE)
    with torch.no_grad(), sampling(LocalReparameterization(seeded(2))):
        y = conv(x.expand(20_000, 2, 3)).squeeze(-1)
    mean, variance = linear.output_moments(x.flatten())
    assert ((y.mean(0) - mean) / (y.std(0) / math.sqrt(len(y)))).abs().max() < 4.5
    assert ((y.var(0) / variance - 1) * math.sqrt(len(y) / 2)).abs().max() < 4.5


# --- training finds the optimum ------------------------------------------------------------------

CLOSE = 1e-3  # nats


def train(problem: Problem, num_steps: int, *, learning_rate: float, num_draws: int) -> None:
    """Maximise the ELBO over q by sampled gradients, noise and scales held fixed."""
    config = FitConfig(
        num_steps=num_steps, batch_size=problem.x.shape[1], learning_rate=learning_rate,
        num_draws=num_draws,
        warmup_steps=20, noise_hold_steps=num_steps, record_every=num_steps,
    )  # fmt: skip
    fit(problem.layer, problem.likelihood, (problem.x, problem.y), config=config)


def optimum(problem: Problem) -> Tensor:
    """Return the best ELBO of the family in closed form, leaving the posterior as it is."""
    before = {n: t.clone() for n, t in problem.layer.state_dict().items()}
    set_exact(problem)
    best = closed_form_elbo(problem).detach()
    problem.layer.load_state_dict(before)
    return best


@pytest.mark.parametrize("posterior", ["diagonal", "full"])
def test_training_comes_near_the_optimum(posterior: str) -> None:
    problem = make_problem(3, 4, posterior=posterior, num_replicas=4)
    best = optimum(problem)
    train(problem, 600, learning_rate=0.1, num_draws=4)
    gap = best - closed_form_elbo(problem).detach()
    assert (gap > -1e-9).all()
    assert gap.max() < 0.1


@pytest.mark.nightly
@each_shape
@pytest.mark.parametrize("posterior", ["diagonal", "full"])
def test_training_reaches_the_optimum(posterior: str, sizes: tuple[int, int]) -> None:
    """The gap to the closed form is below a thousandth of a nat in every replica."""
    problem = make_problem(*sizes, posterior=posterior, num_replicas=4)
    best = optimum(problem)
    train(problem, 12_000, learning_rate=0.03, num_draws=64)
    gap = best - closed_form_elbo(problem).detach()
    assert (gap > -1e-9).all()
    assert gap.max() < CLOSE
