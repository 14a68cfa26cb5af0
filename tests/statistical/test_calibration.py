"""Calibration on data simulated from the model itself.

If ``g`` is drawn from the prior and data from the model, the exact posterior must cover ``g``:
ranks of the truth among posterior draws are uniform (Talts et al., 2018) and intervals have their
level. Every replica is one simulated data set.
"""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from tests.statistical.linear_model import (
    DTYPE,
    Problem,
    design,
    draw_targets,
    make_problem,
    seeded,
    set_exact,
)
from whvi import FitConfig, draw_functions, fit

NUM_DRAWS = 99  # ranks 0 … 99: ten equal bins
P_VALUE = 1e-4


def simulate(
    num_replicas: int, *, posterior: str = "full", seed: int = 0
) -> tuple[Problem, Tensor]:
    """Draw ``g`` and data for every replica; the inputs are correlated."""
    problem = make_problem(3, 4, posterior=posterior, num_replicas=num_replicas, seed=seed)
    g, y = draw_targets(problem, problem.x, seeded(seed + 1))
    return problem._replace(y=y), g


def train(problem: Problem, num_steps: int) -> None:
    config = FitConfig(
        num_steps=num_steps, batch_size=problem.x.shape[1], learning_rate=0.1, num_draws=2,
        warmup_steps=20, noise_hold_steps=num_steps, record_every=num_steps,
    )  # fmt: skip
    fit(problem.layer, problem.likelihood, (problem.x, problem.y), config=config)


def ranks(problem: Problem, g: Tensor, seed: int) -> dict[str, Tensor]:
    """Ranks of the true values among draws: entries of ``g``, and the function at a new row."""
    posterior = problem.layer.matrix.posterior
    new = torch.randn(g.shape[0], 1, 3, generator=seeded(seed), dtype=DTYPE)
    truth = torch.einsum("rnok,rk->rno", design(problem.layer, new), g)[:, 0]  # (R, out)
    f = draw_functions(problem.layer, new, num_draws=NUM_DRAWS, generator=seeded(seed + 1))
    with torch.no_grad():
        draws = posterior.rsample((NUM_DRAWS,), generator=seeded(seed + 2))
    of_g = (draws < g).sum(0)
    of_f = (f[:, :, 0] < truth.unsqueeze(1)).sum(1)
    return {"g": of_g, "f": of_f}


def uniformity(rank: Tensor) -> float:
    """P-value of a chi-square test over ten bins."""
    counts = torch.bincount(rank // 10, minlength=10)
    return float(stats.chisquare(counts.numpy()).pvalue)


def assert_calibrated(problem: Problem, g: Tensor) -> None:
    for name, columns in ranks(problem, g, seed=11).items():
        for index, column in enumerate(columns.T):
            assert uniformity(column) > P_VALUE, (name, index)


def test_ranks_under_the_exact_posterior_are_uniform() -> None:
    problem, g = simulate(500)
    set_exact(problem)
    assert_calibrated(problem, g)


def test_an_overconfident_posterior_is_noticed() -> None:
    """The alarm rings: half the standard deviation is far from uniform."""
    problem, g = simulate(500)
    set_exact(problem)
    q = problem.layer.matrix.posterior
    with torch.no_grad():
        q.log_diagonal.sub_(math.log(2))
        q.lower.div_(2)
    assert min(uniformity(column) for column in ranks(problem, g, seed=11)["g"].T) < P_VALUE


@pytest.mark.nightly
def test_ranks_under_the_trained_posterior_are_uniform() -> None:
    """1,000 data sets, each posterior found by training."""
    problem, g = simulate(1000, seed=3)
    train(problem, 3000)
    assert_calibrated(problem, g)


def assert_coverage(problem: Problem, g: Tensor, num_draws: int) -> None:
    """Nominal ± 3 standard errors for new targets; one row and output per data set.

    An interval of a mixture over ``S`` draws is itself random; ``S`` is large enough that this
    moves the coverage by much less than a standard error.
    """
    num_replicas = g.shape[0]
    new = torch.randn(num_replicas, 1, 3, generator=seeded(21), dtype=DTYPE)
    f = torch.einsum("rnok,rk->rno", design(problem.layer, new), g)
    noise = torch.randn(f.shape, generator=seeded(22), dtype=DTYPE)
    y = (f + problem.noise_variance**0.5 * noise)[:, 0, 0]
    draws = draw_functions(problem.layer, new, num_draws=num_draws, generator=seeded(23))
    with torch.no_grad():
        predictive = problem.likelihood.predictive(draws)
    for level in (0.5, 0.9, 0.95):
        low, high = (bound[:, 0, 0] for bound in predictive.interval(level))
        covered = ((low <= y) & (y <= high)).double().mean().item()
        error = math.sqrt(level * (1 - level) / num_replicas)
        assert abs(covered - level) < 3 * error, level


def test_intervals_of_the_exact_posterior_have_their_level() -> None:
    problem, g = simulate(500, seed=5)
    set_exact(problem)
    assert_coverage(problem, g, num_draws=200)


@pytest.mark.nightly
def test_intervals_of_the_trained_posterior_have_their_level() -> None:
    problem, g = simulate(2000, seed=5)
    train(problem, 3000)
    assert_coverage(problem, g, num_draws=500)
