from __future__ import annotations

import pytest
import scipy.stats
import torch
from torch import nn

from reproduction.grids import METHODS
from reproduction.methods.networks import NetworkMethod, build_network
from reproduction.methods.parts import (
    NormalScores,
    PointLinear,
    TemperedLikelihood,
    make_noise,
    train_finite,
)
from tests.reproduction.conftest import tiny
from whvi import MCDropout, draw_functions, elbo
from whvi.errors import ConfigError, NumericalError
from whvi.functions import mean_function
from whvi.layers import WHVILinear
from whvi.layers.sines import Sine
from whvi.likelihoods import BalancedGradients, Gaussian, HeteroscedasticGaussian


def test_point_linear_is_torch_linear_per_replica(generator: torch.Generator) -> None:
    layer = PointLinear(3, 2, batch_shape=(4,))
    x = torch.randn(4, 5, 7, 3, generator=generator)
    y = layer(x)
    for r in range(4):
        expected = nn.functional.linear(x[r], layer.weight[r].T, layer.bias[r])
        assert torch.allclose(y[r], expected, atol=1e-6)
    assert torch.allclose(layer.kl(), 0.5 * layer.weight.square().sum((-2, -1)))
    single = PointLinear(3, 2)
    expected = nn.functional.linear(x, single.weight.T, single.bias)
    assert torch.allclose(single(x), expected, atol=1e-6)


@pytest.mark.parametrize(("largest", "tried"), [(1, [1]), (0.5, [1, 0.3]), (0.2, [1, 0.3, 0.1])])
def test_training_that_leaves_the_numbers_starts_again(largest: float, tried: list[float]) -> None:
    seen = []

    def train(factor: float) -> float:
        seen.append(factor)
        if factor > largest:
            raise NumericalError("too fast")
        return factor

    assert train_finite(train) == tried[-1]
    assert seen == tried


def test_training_that_is_never_finite_says_so() -> None:
    def train(factor: float) -> float:
        raise NumericalError(f"not finite at {factor}")

    with pytest.raises(NumericalError, match=r"0\.1"):
        train_finite(train)


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


def test_laplace_features_start_with_spread_frequencies(generator: torch.Generator) -> None:
    x, y = torch.randn(2, 40, 3, generator=generator), torch.randn(2, 40, generator=generator)
    factors = {}
    for features in ("relu", "sine", "laplace"):
        settings = [{**tiny(0.3, features=features), "lr": 1e-12}] * 2
        first, activation = [
            module
            for module in METHODS["whvi"].fit(settings, x, y, seed=1)._model
            if isinstance(module, WHVILinear | Sine | nn.ReLU)
        ][:2]
        assert isinstance(activation, nn.ReLU if features == "relu" else Sine)
        factors[features] = first.matrix.s2.detach().abs()
    assert bool((factors["relu"] == 1).all() and (factors["sine"] == 1).all())
    assert first.matrix.plan.vector_shape == (4, 4)  # stacked blocks, not one of 16 × 16
    assert len(factors["laplace"].unique()) == 32
    # ¼ / |z|: its median is 0.37, that of 1 / |z| would be 1.48
    assert 0.15 < float(factors["laplace"].median()) < 0.8


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
    model = build_network("structured", [tiny(1.0)] * 3, 3, 1)
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
    model = build_network("plain", [tiny(1.0, dropout=0.0)] * 2, 3, 1)
    x = torch.randn(2, 8, 3, generator=generator)
    first, last = model[0], model[-1]
    assert isinstance(first, PointLinear)
    assert isinstance(last, PointLinear)
    hidden = (x @ first.weight + first.bias.unsqueeze(1)).relu()
    expected = hidden @ last.weight + last.bias.unsqueeze(1)
    f = draw_functions(model, x, num_draws=3, generator=generator)
    assert torch.allclose(f, expected.unsqueeze(1).expand_as(f), atol=1e-5)
    dropped = build_network("plain", [tiny(1.0, dropout=0.5)] * 2, 3, 1)
    dropped.load_state_dict(
        {key.replace("2.", "3."): value for key, value in model.state_dict().items()}
    )
    assert torch.allclose(mean_function(dropped, x), expected, atol=1e-5)


def test_every_replica_has_the_dropout_of_its_settings() -> None:
    model = build_network("plain", [tiny(1.0, dropout=rate) for rate in (0.0, 0.4)], 3, 1)
    masks = [module for module in model if isinstance(module, MCDropout)]
    assert masks
    for module in masks:
        assert torch.as_tensor(module.p).tolist() == pytest.approx([0.0, 0.4])


def test_normal_scores_are_the_quantiles_of_middle_ranks(generator: torch.Generator) -> None:
    x = torch.randn(2, 50, 3, generator=generator).mul(4).round()  # with ties
    x[1] = x[1].exp()
    scores = NormalScores(x)
    found = scores(x)
    for r, j in ((0, 0), (0, 2), (1, 1)):
        rank = torch.as_tensor(scipy.stats.rankdata(x[r, :, j]))  # equal values: middle rank
        expected = torch.as_tensor(scipy.stats.norm.ppf((rank - 0.5) / 50))
        assert torch.allclose(found[r, :, j].double(), expected, atol=1e-6)
    far = scores(torch.full((2, 1, 3), 1e30))
    assert torch.allclose(far, torch.tensor(scipy.stats.norm.ppf(0.99)).float())
    assert torch.equal(scores(-torch.full((2, 1, 3), 1e30)), -far)


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
