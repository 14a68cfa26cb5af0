"""BoTorch: joint posteriors with gradients, qLogEI, Thompson sampling."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import whvi
from whvi.errors import ConfigError, ShapeError
from whvi.gp import RandomFeatureGP
from whvi.likelihoods import Bernoulli, Gaussian

pytest.importorskip("botorch", reason="botorch is not installed: make clients")

from botorch.acquisition import PosteriorMean, qLogExpectedImprovement
from botorch.generation import MaxPosteriorSampling
from botorch.optim import optimize_acqf

from whvi.botorch import FunctionModel

pytestmark = pytest.mark.filterwarnings("ignore")  # of botorch and what it imports
CUBE = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


def table(num_rows: int = 20) -> tuple[Tensor, Tensor]:
    x = torch.rand(num_rows, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, 10 - 3 * (x - torch.tensor([0.3, 0.7])).square().sum(-1)


def process(kernel: str = "rbf") -> RandomFeatureGP:
    model = RandomFeatureGP(2, 64, kernel=kernel, weights="full", dtype=torch.float64)
    model.fit(*table(), starts=1, iterations=20)
    return model.requires_grad_(False)


def trained_network() -> tuple[nn.Sequential, Gaussian]:
    torch.manual_seed(0)
    network = whvi.mlp(2, (8,), activation=nn.Tanh, dtype=torch.float64)
    likelihood = Gaussian(log_noise_variance=-6.0, dtype=torch.float64)
    likelihood.set_target_scaling(table()[1])
    config = whvi.FitConfig(num_steps=200, learning_rate=3e-2, beta=0.1)
    whvi.fit(network, likelihood, table(), config=config)
    return network, likelihood


@pytest.fixture(scope="module")
def models() -> dict[str, FunctionModel]:
    network, likelihood = trained_network()
    tangent = whvi.linearize(network, likelihood, table())
    return {
        "process": FunctionModel(process()),
        "tangent": FunctionModel(tangent),
        "low rank": FunctionModel(whvi.linearize(network, likelihood, table(), form="low_rank")),
        "draws": FunctionModel(network, likelihood, num_draws=16),
    }


names = pytest.mark.parametrize("name", ["process", "tangent", "low rank", "draws"])


@names
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_posteriors_have_the_shapes_of_botorch(models, name, batch):
    X = torch.rand(*batch, 4, 2, dtype=torch.float64)
    posterior = models[name].posterior(X)
    assert posterior.mean.shape == posterior.variance.shape == (*batch, 4, 1)
    assert posterior.rsample(torch.Size([5])).shape == (5, *batch, 4, 1)


@names
def test_a_batch_is_many_problems(models, name):
    X = torch.rand(3, 4, 2, dtype=torch.float64)
    whole = models[name].posterior(X)
    for k in range(3):
        part = models[name].posterior(X[k])
        torch.testing.assert_close(whole.mean[k], part.mean)
        torch.testing.assert_close(whole.variance[k], part.variance)


@names
def test_gradients_are_those_of_differences(models, name):
    X = torch.rand(2, 3, 2, dtype=torch.float64).requires_grad_()

    def moments(X: Tensor) -> tuple[Tensor, Tensor]:
        posterior = models[name].posterior(X)
        return posterior.mean, posterior.variance

    torch.autograd.gradcheck(moments, X)


def test_a_process_is_what_its_model_says():
    model, X = process(), torch.rand(6, 2, dtype=torch.float64)
    posterior = FunctionModel(model).posterior(X)
    mean, variance = model.function_moments(X)
    torch.testing.assert_close(posterior.mean.squeeze(-1), mean)
    torch.testing.assert_close(posterior.variance.squeeze(-1), variance, rtol=1e-6, atol=1e-9)
    noisy = FunctionModel(model).posterior(X, observation_noise=True)
    expected = variance + model.noise_std.square()
    torch.testing.assert_close(noisy.variance.squeeze(-1), expected, rtol=1e-6, atol=1e-9)


def test_a_tangent_is_what_its_posterior_says(models):
    X = torch.rand(6, 2, dtype=torch.float64)
    network, likelihood = trained_network()
    source = whvi.linearize(network, likelihood, table())
    predictive = source.predictive(X)
    for noise, std in ((False, predictive.epistemic), (True, predictive.std)):
        posterior = FunctionModel(source).posterior(X, observation_noise=noise)
        torch.testing.assert_close(posterior.mean.squeeze(-1), predictive.mean)
        torch.testing.assert_close(posterior.variance.squeeze(-1), std.square())


@pytest.mark.parametrize("kind", ["process", "tangent"])
def test_covariances_are_those_of_drawn_functions(models, kind):
    model, X = models[kind], torch.rand(3, 2, dtype=torch.float64)
    generator, num_draws = torch.Generator().manual_seed(0), 200
    with torch.no_grad():
        draws = torch.stack([model.draw_function(generator)(X) for _ in range(num_draws)])
        expected = model.posterior(X).distribution.covariance_matrix
    found = torch.cov(draws.squeeze(-1).T)
    scale = expected.diagonal().sqrt()
    # a correlation of 200 draws has a standard error below 0.07, a variance one of 10 %
    assert ((found - expected) / (scale * scale[:, None])).abs().max() < 0.4


def test_draws_are_jointly_the_same_functions(models):
    x = torch.rand(3, 2, dtype=torch.float64)
    values = models["draws"].posterior(x).values
    torch.testing.assert_close(models["draws"].posterior(x[1:]).values, values[..., 1:, :])
    torch.manual_seed(1)
    torch.testing.assert_close(models["draws"].posterior(x).values, values)


@names
def test_qlogei_is_optimised(models, name):
    torch.manual_seed(0)
    acquisition = qLogExpectedImprovement(models[name], best_f=9.5)
    x, value = optimize_acqf(
        acquisition, CUBE, q=2, num_restarts=2, raw_samples=16, options={"maxiter": 10}
    )
    assert x.shape == (2, 2)
    assert value.isfinite()


@names
def test_thompson_sampling(models, name):
    torch.manual_seed(0)
    candidates = torch.rand(50, 2, dtype=torch.float64)
    chosen = MaxPosteriorSampling(models[name], replacement=False)(candidates, num_samples=2)
    assert chosen.shape == (2, 2)
    function = models[name].draw_function(torch.Generator().manual_seed(0))
    x, value = optimize_acqf(
        PosteriorMean(function), CUBE, q=1, num_restarts=2, raw_samples=16, options={"maxiter": 20}
    )
    assert value >= function(candidates).max() - 1e-3
    assert (x - torch.tensor([[0.3, 0.7]])).norm() < 0.6


def test_what_cannot_be_wrapped_is_refused():
    network, likelihood = trained_network()
    with pytest.raises(ConfigError, match="a network and its likelihood; got Sequential"):
        FunctionModel(network)
    with pytest.raises(ConfigError, match="several models"):
        FunctionModel(whvi.mlp(2, (8,), batch_shape=(2,)), Gaussian(batch_shape=(2,)))
    with pytest.raises(ConfigError, match="Gaussian noise and one target"):
        FunctionModel(RandomFeatureGP(2, 16, likelihood=Bernoulli()))
    model = FunctionModel(network, likelihood)
    with pytest.raises(ShapeError, match=r"\(\*batch, q, d\)"):
        model.posterior(torch.rand(2, dtype=torch.float64))
    with pytest.raises(ConfigError, match="no noise"):
        model.posterior(torch.rand(1, 2, dtype=torch.float64), observation_noise=True)
