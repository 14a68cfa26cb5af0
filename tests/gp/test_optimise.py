from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from reproduction.figure2.models import InducingBasis, function_moments
from tests.gp.bases import column, fourier, spectrum
from whvi.errors import ConfigError, ShapeError
from whvi.gp.collapsed import Statistics, collapsed_bound, stream_statistics
from whvi.gp.optimise import best_noise_variance, fit_collapsed, gauss_newton


def smooth(num: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 3, generator=generator, dtype=torch.float64)
    y = torch.sin(x[:, 0] + 0.5 * x[:, 1]) + 0.3 * x[:, 2]
    return x, y


@pytest.mark.parametrize(
    "basis", [column(3, 8), fourier(3, 24), spectrum(3, 8), InducingBasis(3, 12)]
)
def test_a_fit_explains_a_smooth_function(basis):
    x, y = smooth(400)
    noise = 0.05 * torch.randn(400, generator=torch.Generator().manual_seed(3)).double()
    fit = fit_collapsed(basis, x, y + noise, starts=2, iterations=60, subset=300, seed=1)
    new_x, new_y = smooth(200, seed=1)
    mean, variance = function_moments(fit, new_x)
    assert (mean - new_y).square().mean().sqrt() < 0.15 * new_y.std()
    assert mean.dtype == variance.dtype == torch.float64
    assert 0.03 < fit.noise_variance**0.5 < 0.15


def test_posterior_and_bound_belong_to_all_rows():
    x, y = smooth(400)
    fit = fit_collapsed(column(3, 8), x, y, starts=1, iterations=10, subset=100)
    found = collapsed_bound(stream_statistics(fit.basis, x, y), fit.noise_variance)
    assert float(found.value) == pytest.approx(fit.bound, rel=1e-12)
    torch.testing.assert_close(found.posterior.mean, fit.posterior.mean)


def test_same_seed_same_fit_and_more_starts_do_not_hurt_the_search():
    x, y = smooth(200)
    fits = [
        fit_collapsed(column(3, 8), x, y, starts=2, iterations=15, seed=seed) for seed in (0, 0, 1)
    ]
    assert fits[0].bound == fits[1].bound != fits[2].bound


def test_lbfgs_climbs():
    x, y = smooth(200)
    fit = fit_collapsed(InducingBasis(3, 10), x, y, starts=1, iterations=40)
    assert max(fit.history) > fit.history[0] + 10
    assert fit.bound >= max(fit.history) - 1e-6 * abs(fit.bound)  # the subset is all rows here


def test_gauss_newton_descends_and_finds_a_function_of_its_own_kind():
    x, _ = smooth(300)
    truth, basis = column(3, 4, dtype=torch.float64), column(3, 4, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    truth.restart(x, generator)
    basis.load_state_dict(truth.state_dict())
    with torch.no_grad():
        y = truth(x) @ torch.randn(4, generator=generator, dtype=torch.float64)
        basis.weights.s1 += 0.3 * torch.randn(4, generator=generator, dtype=torch.float64)
        basis.features.log_lengthscale += 0.1
    errors = gauss_newton(basis, x, y, steps=60)
    assert all(b < a for a, b in itertools.pairwise(errors))
    assert errors[-1] < 1e-8 < 1e-4 < errors[0]
    # the coefficients of the scaled basis look like draws of N(0, I)
    rescaled = torch.linalg.lstsq(basis(x).detach(), y.unsqueeze(-1)).solution
    assert float(rescaled.square().mean()) == pytest.approx(1.0, rel=1e-2)


def test_gauss_newton_sums_over_chunks(monkeypatch):
    x, y = smooth(60)
    histories = []
    for elements in (1 << 20, 100):  # one chunk, or ten
        monkeypatch.setattr("whvi.gp.collapsed._CHUNK_ELEMENTS", elements)
        basis = column(3, 4, dtype=torch.float64)
        basis.restart(x, torch.Generator().manual_seed(0))
        histories.append(gauss_newton(basis, x, y, steps=3))
    assert len(histories[0]) == 4
    assert histories[0] == pytest.approx(histories[1], rel=1e-6)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_the_noise_is_the_best_there_is(covariance):
    generator = torch.Generator().manual_seed(0)
    psi = torch.randn(200, 5, generator=generator, dtype=torch.float64)
    noise = 0.2 * torch.randn(200, generator=generator, dtype=torch.float64)
    statistics = Statistics.zeros(5).add(psi, psi.sum(-1) + noise)
    best = best_noise_variance(statistics, 1.0, covariance)
    assert best == pytest.approx(0.04, rel=0.3)

    def bound(variance: float) -> float:
        return float(collapsed_bound(statistics, variance, covariance).value)

    assert bound(best) >= max(bound(best * 1.01), bound(best / 1.01))


def test_noise_is_found_under_noisy_targets():
    x, y = smooth(1000)
    noisy = y + 0.3 * torch.randn(1000, generator=torch.Generator().manual_seed(7)).double()
    fit = fit_collapsed(column(3, 8), x, noisy, starts=3, iterations=30)
    assert fit.noise_variance == pytest.approx(0.09, rel=0.2)


@pytest.mark.nightly
def test_a_million_rows_need_memory_for_a_chunk_only():
    resource = pytest.importorskip("resource")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1_000_000, 8, generator=generator, dtype=torch.float64)
    y = torch.sin(x[:, 0] + x[:, 1])
    fit_collapsed(column(8, 32), x[:5000], y[:5000], starts=1, iterations=3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fit = fit_collapsed(column(8, 32), x, y, starts=1, iterations=10)
    mean, _ = function_moments(fit, x)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 300  # MB; all features at once would be 4,000
    assert (mean - y).square().mean().sqrt() < 0.2


def test_wrong_calls():
    x, y = smooth(20)
    basis = column(3, 4)
    with pytest.raises(ShapeError, match=r"psi must be \(n, 4\) and y \(n,\)"):
        fit_collapsed(basis, x, y.unsqueeze(-1))
    with pytest.raises(ConfigError, match="starts"):
        fit_collapsed(basis, x, y, starts=0)
    with pytest.raises(ConfigError, match="covariance"):
        fit_collapsed(basis, x, y, covariance="none")
