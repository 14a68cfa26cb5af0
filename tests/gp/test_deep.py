"""Deep Gaussian processes: their prior, their place in the layer library, and that depth helps."""

from __future__ import annotations

import pytest
import torch

import whvi
from whvi.errors import ConfigError, ShapeError
from whvi.gp import DeepGP
from whvi.likelihoods import Gaussian

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
    one, two, three = (f.features[1].projection.dense() for f in (first, again, other))
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
