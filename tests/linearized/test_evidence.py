from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch.testing import assert_close

from tests.linearized.problems import (
    design_matrix,
    likelihoods,
    linear_model,
    network,
    rows,
    targets,
)
from whvi.likelihoods import Gaussian
from whvi.linearized.evidence import Evidence, maximise
from whvi.linearized.parameters import parameter_space
from whvi.linearized.statistics import gram_of, stream, stream_low_rank


def evidence_of(model, likelihood, x, y, *, linear, primal=False):
    space = parameter_space(model)
    statistics = stream(model, likelihood, space, [(x, y)], block_rows=10**6, keep_rows=True)
    if primal:
        statistics.gram, statistics.rows = gram_of(statistics.rows), None
    return Evidence(statistics, space.vector(model), space, linear=linear)


def problem(name="Gaussian", num=25):
    likelihood = likelihoods()[name]
    model = network(out=likelihood.num_features)
    return model, likelihood, rows(num), targets(likelihood, num)


def some_point(evidence):
    generator = torch.Generator().manual_seed(4)
    size = len(evidence.space.sizes) + 1
    return torch.randn(size, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("primal", [False, True])
@pytest.mark.parametrize("name", ["Gaussian", "Categorical"])
def test_the_gradient_is_that_of_finite_differences(name, primal, linear):
    evidence = evidence_of(*problem(name), linear=linear, primal=primal)
    point = some_point(evidence)
    if name != "Gaussian":
        point[-1] = 0.0  # there is no noise to scale
    gradient, step = evidence(point).gradient, 1e-5
    for k in range(len(point) if name == "Gaussian" else len(point) - 1):
        change = torch.zeros_like(point)
        change[k] = step
        above, below = (evidence(point + sign * change).log_evidence for sign in (1, -1))
        assert float(gradient[k]) == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("name", ["Gaussian", "Poisson"])
def test_both_systems_agree(name, linear):
    dual = evidence_of(*problem(name), linear=linear)
    primal = evidence_of(*problem(name), linear=linear, primal=True)
    point = some_point(dual)
    one, other = dual(point), primal(point)
    assert one.log_evidence == pytest.approx(other.log_evidence, rel=1e-9)
    assert_close(one.gradient, other.gradient, rtol=1e-7, atol=1e-7)
    assert_close(one.shift, other.shift, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("linear", [False, True])
def test_rank_plus_diagonal_is_the_sum_of_both(linear):
    model, likelihood, x, y = problem()
    space = parameter_space(model)
    low = stream_low_rank(model, likelihood, space, [(x, y)], block_rows=100, rank=9)
    exact = dataclasses.replace(
        low, rows=None, gram=low.rows.mT @ low.rows + torch.diag(low.diagonal), diagonal=None
    )
    evidences = [Evidence(each, space.vector(model), space, linear=linear) for each in (low, exact)]
    one, other = (evidence(some_point(evidence)) for evidence in evidences)
    assert one.log_evidence == pytest.approx(other.log_evidence, rel=1e-9)
    assert_close(one.gradient, other.gradient, rtol=1e-7, atol=1e-7)
    assert_close(one.shift, other.shift, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("primal", [False, True])
def test_of_a_linear_model_it_is_exact(outputs, primal):
    """``log N(z | 0, σ² τ I + A Λ⁻¹ Aᵀ)``, wherever the model stands."""
    model, likelihood = linear_model(6, outputs), Gaussian(outputs, dtype=torch.float64)
    x, y = rows(7, 6), 3 + 2 * targets(likelihood, 7)
    likelihood.set_target_scaling(y)
    evidence = evidence_of(model, likelihood, x, y, linear=True, primal=primal)
    precision, noise = 0.7, 1.3
    point = torch.tensor([math.log(precision), math.log(noise)], dtype=torch.float64)
    A = design_matrix(model, x)
    z = ((y - likelihood.target_mean) / likelihood.target_scale).flatten()
    variance = noise * (float(likelihood.log_noise_variance.detach()[0].exp()) + 1e-8)
    covariance = A @ A.T / precision + variance * torch.eye(len(z), dtype=torch.float64)
    exact = torch.distributions.MultivariateNormal(torch.zeros_like(z), covariance).log_prob(z)
    exact = exact - 7 * likelihood.target_scale.log().sum()
    value = evidence(point)
    assert value.log_evidence == pytest.approx(float(exact), rel=1e-10)
    mean = torch.linalg.solve(
        A.T @ A + variance * precision * torch.eye(A.shape[1], dtype=torch.float64), A.T @ z
    )
    assert_close(evidence.theta + value.shift, mean, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("linear", [False, True])
def test_the_maximum_is_stationary(linear):
    evidence = evidence_of(*problem(num=60), linear=linear)
    found = maximise(evidence, precision=None, fit_noise=True, tolerance=1e-9, max_iterations=2000)
    point = torch.cat([found.precision, found.noise.reshape(1)]).log()
    value = evidence(point)
    assert value.log_evidence == float(found.log_evidence)
    assert value.gradient.abs().max() < 1e-3  # nats per unit of a logarithm


def test_what_is_given_stays():
    evidence = evidence_of(*problem(), linear=False)
    given = torch.full((len(evidence.space.sizes),), 2.0, dtype=torch.float64)
    kept = maximise(evidence, precision=given, fit_noise=False)
    assert_close(kept.precision, given)
    assert float(kept.noise) == 1.0
    assert float(maximise(evidence, precision=given, fit_noise=True).noise) != 1.0
    assert not kept.shift.any()


def test_few_factorizations_come_close():
    evidence = evidence_of(*problem(num=60), linear=False)
    quick = maximise(evidence, precision=None, fit_noise=True)
    best = maximise(evidence, precision=None, fit_noise=True, tolerance=1e-9, max_iterations=2000)
    assert 0 <= float(best.log_evidence) - float(quick.log_evidence) < 1.0


def test_a_tensor_that_rows_say_nothing_about_keeps_a_bounded_prior():
    model, likelihood, x, y = problem()
    model[0].bias.data.fill_(-100.0)  # tanh is flat: no slope reaches the first layer
    evidence = evidence_of(model, likelihood, x, y, linear=False)
    found = maximise(evidence, precision=None, fit_noise=True)
    spreads = found.precision.rsqrt() / evidence.theta.square().mean().sqrt()
    assert spreads.max() < 1000
    assert found.log_evidence.isfinite()
