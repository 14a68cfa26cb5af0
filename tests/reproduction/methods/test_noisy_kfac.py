"""Noisy K-FAC against Bayesian linear regression, where the answer is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from reproduction.methods import kfac
from reproduction.methods.grids import METHODS
from reproduction.methods.noisy_kfac import (
    Curvature,
    MatrixGaussianNetwork,
    NoisyKFACConfig,
    fit_noisy_kfac,
    forward,
)
from tests.reproduction.conftest import tiny
from whvi.errors import ConfigError
from whvi.likelihoods import BalancedGradients, Gaussian, HeteroscedasticGaussian

NOISE_VARIANCE, PRIOR_VARIANCE = 0.25, 0.5


def regression_rows(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    mixing = torch.randn(3, 3, generator=generator)
    x = torch.randn(100, 3, generator=generator) @ mixing
    noise = math.sqrt(NOISE_VARIANCE) * torch.randn(100, generator=generator)
    return x, x @ torch.tensor([1.0, -0.5, 0.2]) + 0.3 + noise


def exact_posterior(x: Tensor, y: Tensor, kl_weight: float) -> tuple[Tensor, Tensor]:
    """Mean and covariance with the likelihood raised to ``1 / λ``; a bias comes last."""
    a = torch.nn.functional.pad(x, (0, 1), value=1.0).double()
    precision = a.T @ a / (NOISE_VARIANCE * kl_weight) + torch.eye(4) / PRIOR_VARIANCE
    covariance = torch.linalg.inv(precision)
    return covariance @ (a.T @ y.double()) / (NOISE_VARIANCE * kl_weight), covariance


def test_one_linear_layer_reaches_the_exact_posterior(generator: torch.Generator) -> None:
    x, y = regression_rows(generator)
    weights = [1.0, 0.3]
    R = len(weights)
    network = MatrixGaussianNetwork(
        [3, 1], 100, torch.tensor(weights), torch.full((R,), PRIOR_VARIANCE), generator
    )
    likelihood = Gaussian(batch_shape=(R,), log_noise_variance=math.log(NOISE_VARIANCE))
    config = NoisyKFACConfig(
        num_steps=400, batch_size=100, learning_rate=0.1, noise_hold_steps=400, decay=0.999,
        factor_every=1, trust=1e9,
    )  # fmt: skip
    fit_noisy_kfac(
        network, likelihood, x.expand(R, -1, -1), y.expand(R, -1),
        damping=torch.zeros(R), config=config,
    )  # fmt: skip
    draws = network.draw_weights(generator, 20_000)[0][:, :, 0].double()
    for r, kl_weight in enumerate(weights):
        mean, covariance = exact_posterior(x, y, kl_weight)
        scale = covariance.diag().sqrt()
        # steps of 0.1 in noise of one scale each, falling to zero, leave less than 0.1 scales;
        # the Fisher factor comes from 40,000 drawn targets: 1 %
        assert float(((network.means[0][r, 0] - mean) / scale).abs().max()) < 0.3
        ratio = draws[:, r].T.cov() / covariance.diag().outer(covariance.diag()).sqrt()
        expected = covariance / scale.outer(scale)
        assert torch.allclose(ratio, expected, atol=0.06)


def test_the_noise_is_learned(generator: torch.Generator) -> None:
    x, y = regression_rows(generator)
    network = MatrixGaussianNetwork([3, 1], 100, torch.ones(1), torch.ones(1), generator)
    likelihood = Gaussian(batch_shape=(1,))
    config = NoisyKFACConfig(
        num_steps=300, learning_rate=0.1, noise_learning_rate=0.05, noise_hold_steps=50, trust=1.0
    )
    fit_noisy_kfac(network, likelihood, x[None], y[None], damping=torch.zeros(1), config=config)
    assert float(likelihood.noise_scale.detach()) == pytest.approx(0.5, rel=0.25)


def test_solve_and_spread_are_the_damped_kronecker_product(generator: torch.Generator) -> None:
    root_a, root_s = (torch.randn(2, n, n, generator=generator).double() for n in (4, 3))
    a, s, damping = root_a @ root_a.mT, root_s @ root_s.mT, torch.tensor([0.1, 2.0]).double()
    curvature = Curvature.of(a, s)
    v = torch.randn(2, 3, 4, generator=generator).double()
    for r in range(2):
        dense = torch.kron(s[r], a[r]) + damping[r] * torch.eye(12)
        expected = torch.linalg.solve(dense, v[r].flatten()).reshape(3, 4)
        assert torch.allclose(curvature.solve(v, damping)[r], expected, rtol=1e-9)
        basis = torch.eye(12).double().reshape(12, 1, 3, 4).expand(12, 2, 3, 4)
        columns = curvature.spread(basis, damping, torch.ones(2).double())[:, r].flatten(1)
        assert torch.allclose(columns.T @ columns, torch.linalg.inv(dense), rtol=1e-9)


def test_forward_is_a_perceptron(generator: torch.Generator) -> None:
    weights = [torch.randn(5, 4, generator=generator), torch.randn(1, 6, generator=generator)]
    x = torch.randn(7, 3, generator=generator)
    hidden = (x @ weights[0][:, :3].T + weights[0][:, 3]).relu()
    expected = hidden @ weights[1][:, :5].T + weights[1][:, 5]
    inputs, outputs = forward(weights, x)
    assert torch.allclose(outputs[-1], expected, atol=1e-5)
    assert [a.shape[-1] for a in inputs] == [4, 6]


def test_a_kl_weight_of_zero_is_refused(generator: torch.Generator) -> None:
    with pytest.raises(ConfigError, match="KL weight must be above 0"):
        MatrixGaussianNetwork([3, 1], 10, torch.zeros(1), torch.ones(1), generator)


def test_other_gradients_move_the_means_and_leave_the_fisher_factors(
    generator: torch.Generator,
) -> None:
    x, y = (rows[None] for rows in regression_rows(generator))

    def network_after_one_step(balance: float | None) -> MatrixGaussianNetwork:
        start = torch.Generator().manual_seed(2)
        network = MatrixGaussianNetwork([3, 4, 2], 100, torch.ones(1), torch.ones(1), start)
        likelihood = HeteroscedasticGaussian(batch_shape=(1,))
        trained = None if balance is None else BalancedGradients(likelihood, balance=balance)
        config = NoisyKFACConfig(num_steps=1, warmup_steps=0, trust=1.0)
        fit_noisy_kfac(
            network, likelihood, x, y, damping=torch.ones(1), config=config, trained=trained
        )
        return network

    plain, same, other = (network_after_one_step(balance) for balance in (None, 0.0, 1.0))
    for k in range(2):
        assert torch.allclose(plain.means[k], same.means[k], rtol=1e-5)
        assert not torch.allclose(plain.means[k], other.means[k], rtol=1e-2)
        assert torch.equal(plain.s_factors[k], other.s_factors[k])
        assert torch.equal(plain.a_factors[k], other.a_factors[k])


@pytest.mark.parametrize(("given", "balance"), [({}, 0.0), ({"balance": 1.0}, 1.0)])
def test_the_method_trains_by_its_settings(
    given: dict[str, float], balance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}

    def spy(network, likelihood, x, y, *, damping, config, trained) -> None:
        seen.update(config=config, trained=trained, likelihood=likelihood, damping=damping)

    monkeypatch.setattr(kfac, "fit_noisy_kfac", spy)
    noise = {"noise": "heteroscedastic", "damping": 0.5, "prior": 1.0, "trust": 0.125}
    settings = [{**tiny(beta, **noise), **given} for beta in (0.1, 0.2)]
    METHODS["noisy-kfac"].fit(settings, torch.randn(2, 9, 3), torch.randn(2, 9), seed=0)
    assert seen["config"].trust == 0.125
    assert seen["trained"].balance == balance
    assert seen["trained"].inner is seen["likelihood"]
    assert seen["damping"].tolist() == [0.5, 0.5]
