"""The layer of functions against dense weights, and as a member of the layer library."""

from __future__ import annotations

import math

import pytest
import torch

import whvi
from whvi.errors import ConfigError, ShapeError
from whvi.gp.basis import PlainWeights
from whvi.gp.features import RandomFeatures
from whvi.gp.layer import DeepGP, FeatureLayer
from whvi.likelihoods import Gaussian
from whvi.sampling import LocalReparameterization, MeanWeights, WeightDraws, sampling


def rows(num=6, d=3, seed=0):
    return torch.randn(num, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(num_features=60, num_outputs=1, **options):
    features = RandomFeatures(3, num_features, dtype=torch.float64)
    layer = FeatureLayer(features, num_outputs, **options)
    layer.reset_parameters(generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        layer.posterior.loc.normal_(generator=torch.Generator().manual_seed(2))
    return layer


VARIANTS = [
    {"structured": True, "posterior": "diagonal"},
    {"structured": True, "posterior": "full"},
    {"structured": False, "posterior": "diagonal"},
    {"structured": False, "posterior": "full"},
]
variants = pytest.mark.parametrize("options", VARIANTS)


@variants
def test_samplers_agree_with_the_moments(options):
    layer = make(16, 2, **options)
    x = rows(3)
    mean, variance = layer.output_moments(x)
    with sampling(MeanWeights()):
        torch.testing.assert_close(layer(x), mean)
    S = 20_000
    many = x.expand(S, 3, 3)
    generator = torch.Generator().manual_seed(3)
    for sampler in (WeightDraws(S, generator), LocalReparameterization(generator)):
        with torch.no_grad(), sampling(sampler):
            draws = layer(many)
        assert draws.shape == (S, 3, 2)
        error = (variance / S).sqrt()
        assert ((draws.mean(0) - mean).abs() < 5 * error).all()
        assert ((draws.var(0) / variance - 1).abs() < 6 * math.sqrt(2 / S)).all()


@variants
def test_rows_shared_by_draws_give_what_copies_of_them_give(options):
    layer = make(16, **options)
    x = rows(4)
    with sampling(WeightDraws(5, torch.Generator().manual_seed(0))), torch.no_grad():
        torch.testing.assert_close(layer(x.expand(5, 4, 3)), layer(x.repeat(5, 1, 1)))


@variants
def test_kl_is_that_of_gaussians(options):
    layer = make(4, **options)
    q = torch.distributions.MultivariateNormal(
        layer.posterior.mean, layer.posterior.covariance()[0]
    )
    p = torch.distributions.MultivariateNormal(q.loc * 0, torch.eye(len(q.loc)).double())
    torch.testing.assert_close(whvi.kl(layer), torch.distributions.kl_divergence(q, p))


def test_plain_weights_have_one_coefficient_per_feature():
    layer = make(10, structured=False)
    assert isinstance(layer.basis.weights, PlainWeights)
    assert layer.posterior.shape == (1, 10)
    torch.testing.assert_close(layer.basis.psi(rows()).squeeze(-2), layer.features(rows()))


@variants
def test_the_basis_is_that_of_the_layer(options):
    layer = make(**options)
    torch.testing.assert_close(layer.basis(rows()), layer.basis.psi(rows()).squeeze(-2))


# ---- deep Gaussian processes -----------------------------------------------------------------

weights = pytest.mark.parametrize("weights", ["whvi", "mean-field"])


@weights
@pytest.mark.parametrize("hidden", [(), (3,), (3, 2)])
def test_shapes_and_the_path_of_the_inputs(hidden, weights):
    model = DeepGP(4, hidden, 2, num_features=32, weights=weights)
    assert [f.in_features for f in model.features] == [4, *(size + 4 for size in hidden)]
    x = torch.randn(5, 7, 4)
    assert model(x).shape == (5, 7, 2)
    assert len(whvi.layers.protocol.bayesian_layers(model)) == len(hidden) + 1


def test_every_layer_sees_the_inputs():
    model, x = DeepGP(2, (3,), num_features=32), torch.randn(6, 2)
    with torch.no_grad(), whvi.sampling(whvi.MeanWeights()):
        hidden = model.functions[0](model.features[0](x))
        expected = model.functions[1](model.features[1](torch.cat([hidden, x], -1)))
        torch.testing.assert_close(model(x), expected)


@weights
def test_functions_have_unit_variance_under_the_prior(weights):
    """With ``g ~ N(0, I)`` (or ``w ~ N(0, I)``) every function has variance 1, at any width."""
    values = []
    x = torch.randn(1, 3)
    for seed in range(300):
        model = DeepGP(3, (2,), num_features=64, weights=weights, seed=seed)
        with torch.no_grad():
            for function in model.functions:
                function.matrix.posterior.loc.normal_(generator=torch.Generator().manual_seed(seed))
                function.matrix.posterior.log_scale.fill_(-20.0)
            hidden = model.functions[0](model.features[0](x))
            values.append(torch.cat([hidden[0], model(x)[0]]))
    variance = torch.stack(values).var(0)
    assert ((variance - 1).abs() < 5 * (2 / 300) ** 0.5).all()


def test_a_draw_is_a_function(generator):
    model = DeepGP(2, (3,), num_features=32)
    x = torch.randn(50, 2)
    state = generator.get_state()
    together = whvi.draw_functions(model, x, num_draws=4, generator=generator)
    generator.set_state(state)
    apart = whvi.draw_functions(model, x, num_draws=4, generator=generator, batch_size=7)
    torch.testing.assert_close(apart, together, rtol=0, atol=1e-5)


def test_gradients_reach_every_parameter(generator):
    model, likelihood = DeepGP(2, (3,), num_features=32), Gaussian()
    x, y = torch.randn(20, 2), torch.randn(20)
    bound = whvi.elbo(model, likelihood, x, y, num_data=20, generator=generator)
    (-bound.value).backward()
    for name, parameter in model.named_parameters():
        if "bias" not in name or parameter.numel():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


def test_depth_helps_where_the_lengthscale_changes():
    """A step is no draw of a stationary process: one layer rings, two layers do not."""
    x = torch.linspace(-2, 2, 400).unsqueeze(-1)
    y = torch.tanh(12 * x[:, 0])
    config = whvi.FitConfig(num_steps=300, batch_size=100, learning_rate=2e-2)
    errors = []
    for hidden in ((), (1,)):
        torch.manual_seed(0)
        model, likelihood = DeepGP(1, hidden, num_features=64), Gaussian()
        likelihood.set_target_scaling(y)
        whvi.fit(model, likelihood, (x, y), config=config)
        mean = likelihood.predictive(whvi.draw_functions(model, x, num_draws=32)).mean
        errors.append((mean - y).square().mean().sqrt())
    shallow, deep = errors
    assert deep < 0.8 * shallow


def test_a_seed_decides_the_frequencies_and_the_start():
    first, again, other = (DeepGP(2, (3,), num_features=32, seed=seed) for seed in (0, 0, 1))
    x = torch.randn(4, 2)
    one, two, three = (f.features[1].projection.frequencies for f in (first, again, other))
    torch.testing.assert_close(one, two, rtol=0, atol=0)
    assert not torch.allclose(one, three)
    assert not torch.allclose(first.features[0](x), other.features[0](x))


def test_bad_options_are_refused():
    with pytest.raises(ConfigError, match=r"sequence such as \(4,\)"):
        DeepGP(2, 4)
    with pytest.raises(ConfigError, match="every size must be an integer of at least 1, got 0"):
        DeepGP(2, (0,))
    with pytest.raises(ConfigError, match="'whvi' or 'mean-field', got 'full'"):
        DeepGP(2, weights="full")
    with pytest.raises(ShapeError, match=r"\(\.\.\., 2\), got \(5, 3\)"):
        DeepGP(2)(torch.zeros(5, 3))
