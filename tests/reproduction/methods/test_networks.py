from __future__ import annotations

import pytest
import torch
from torch import nn

from reproduction.methods.grids import METHODS
from reproduction.methods.networks import NetworkMethod, PointLinear, make_noise
from tests.reproduction.conftest import tiny
from whvi import MCDropout, draw_functions, elbo
from whvi.errors import ConfigError
from whvi.functions import mean_function
from whvi.likelihoods import (
    BalancedGradients,
    Gaussian,
    HeteroscedasticGaussian,
    TemperedLikelihood,
)
from whvi.tabular.networks import build_network


def test_point_linear_is_torch_linear_per_replica(generator: torch.Generator) -> None:
    layer = PointLinear(3, 2, batch_shape=(4,))
    x = torch.randn(4, 5, 7, 3, generator=generator)
    y = layer(x)
    for r in range(4):
        expected = nn.functional.linear(x[r], layer.weight[r].T, layer.bias[r])
        assert torch.allclose(y[r], expected, atol=1e-6)
    single = PointLinear(3, 2)
    expected = nn.functional.linear(x, single.weight.T, single.bias)
    assert torch.allclose(single(x), expected, atol=1e-6)


def test_noise_is_constant_or_trained_with_balanced_gradients() -> None:
    constant, trained = make_noise({"noise": "constant"}, 3, balance=0.5)
    assert isinstance(constant, Gaussian)
    assert trained is constant
    for given, expected in (({}, 0.5), ({"balance": 1.0}, 1.0)):
        varying, trained = make_noise({"noise": "heteroscedastic", **given}, 3, balance=0.5)
        assert isinstance(varying, HeteroscedasticGaussian)
        assert isinstance(trained, BalancedGradients)
        assert (trained.inner, trained.balance) == (varying, expected)
        assert varying.batch_shape == (3,)


@pytest.mark.parametrize(("layers", "features"), [("structured", "Laplace"), ("plain", "laplace")])
def test_features_that_do_not_exist_are_refused(layers: str, features: str) -> None:
    method = NetworkMethod("tiny", layers, lambda size: ())
    with pytest.raises(ConfigError, match=r"one of relu, sine, laplace|structured"):
        method.fit([tiny(1.0, features=features)], torch.randn(1, 9, 3), torch.randn(1, 9), seed=0)


def test_the_penalty_of_plain_weights_is_half_their_square() -> None:
    layer = PointLinear(4, 3, batch_shape=(2,))
    value = layer.kl()
    assert torch.allclose(value, 0.5 * layer.weight.square().sum((-2, -1)))
    (gradient,) = torch.autograd.grad(value @ torch.tensor([1.0, 3.0]), layer.weight)
    factors = torch.tensor([1.0, 3.0]).view(2, 1, 1)
    assert torch.allclose(gradient, factors * layer.weight)


def test_a_tempered_likelihood_has_the_gradient_of_a_weighted_kl(
    generator: torch.Generator,
) -> None:
    betas = torch.tensor([0.2, 1.0, 3.0])
    model = build_network(3, [16], batch_shape=(3,))
    x, y = torch.randn(9, 3, generator=generator), torch.randn(9, generator=generator)
    plain = Gaussian(batch_shape=(3,))
    parameters = list(model.parameters())

    def gradient(likelihood: Gaussian | TemperedLikelihood, r: int, beta: float) -> torch.Tensor:
        draws = torch.Generator().manual_seed(1)
        terms = elbo(model, likelihood, x, y, num_data=9, beta=beta, generator=draws)
        found = torch.autograd.grad(terms.value[r], parameters)
        return torch.cat([part[r].flatten() for part in found])

    tempered = TemperedLikelihood(plain, betas)
    for r, beta in enumerate(betas.tolist()):
        expected = gradient(plain, r, beta) / beta
        assert torch.allclose(gradient(tempered, r, 1.0), expected, rtol=1e-4, atol=1e-4)


def test_dropout_has_the_moments_of_its_masks(generator: torch.Generator) -> None:
    rate, num_draws = 0.3, 40_000
    layer = PointLinear(6, 1, batch_shape=(2,))
    model = nn.Sequential(MCDropout(rate, batch_shape=(2,)), layer)
    x = torch.randn(1, 6, generator=generator)
    f = draw_functions(model, x, num_draws=num_draws, generator=generator)[..., 0, 0].double()
    terms = (x[0, :, None] * layer.weight.detach())[..., 0].double()
    variance = terms.square().sum(-1) * rate / (1 - rate)
    error = (f.mean(-1) - terms.sum(-1)) / (variance / num_draws).sqrt()
    assert float(error.abs().max()) < 4.5
    assert torch.allclose(f.var(-1), variance, rtol=0.05)  # its standard error is 1 %


def test_dropout_of_rate_zero_is_the_plain_network(generator: torch.Generator) -> None:
    plain = {"layer": PointLinear, "last_layer": PointLinear, "batch_shape": (2,)}
    model = build_network(3, [16], **plain)
    x = torch.randn(2, 8, 3, generator=generator)
    first, last = model[0], model[-1]
    assert isinstance(first, PointLinear)
    assert isinstance(last, PointLinear)
    hidden = (x @ first.weight + first.bias.unsqueeze(1)).relu()
    expected = hidden @ last.weight + last.bias.unsqueeze(1)
    f = draw_functions(model, x, num_draws=3, generator=generator)
    assert torch.allclose(f, expected.unsqueeze(1).expand_as(f), atol=1e-5)
    dropped = build_network(3, [16], dropout=0.5, **plain)
    dropped.load_state_dict(
        {key.replace("2.", "3."): value for key, value in model.state_dict().items()}
    )
    assert torch.allclose(mean_function(dropped, x), expected, atol=1e-5)


def test_networks_on_normal_scores_see_the_order_of_inputs_only(
    generator: torch.Generator,
) -> None:
    x, y = torch.randn(2, 40, 3, generator=generator), torch.randn(2, 40, generator=generator)
    settings = [{**tiny(0.3), "inputs": "normal scores"}] * 2
    plain, warped = (
        METHODS["whvi"].fit(settings, rows, y, seed=1).predict(rows, num_draws=4)
        for rows in (x, (2 * x).exp())
    )
    assert torch.equal(plain.mean, warped.mean)
