"""Structured layers whose scales are random too: moments, KL, draws, training."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import whvi
from tests.conformance.layer_suite import DTYPE, normal, run, scramble, seeded
from whvi import WHVIConv2d, WHVILinear
from whvi.errors import ConfigError
from whvi.layers.random_scales import _dyadic_convolution
from whvi.likelihoods import Gaussian
from whvi.linearized.chain import chain_of
from whvi.linearized.jacobians import jacobian, jacobian_by_transforms
from whvi.linearized.parameters import parameter_space
from whvi.sampling import LocalReparameterization, MeanWeights, WeightDraws

SIZES = [(8, 8), (5, 11), (3, 2), (1, 6), (6, 1), (1, 1)]
POSTERIORS = ["diagonal", "full", "low_rank"]


def layer_of(sizes=(5, 11), posterior="diagonal", batch_shape=(), **options):
    layer = WHVILinear(
        *sizes, scales="gaussian", posterior=posterior, batch_shape=batch_shape, dtype=DTYPE,
        **options,
    )  # fmt: skip
    scramble(layer)
    with torch.no_grad():
        for q in (layer.matrix.s1_posterior, layer.matrix.s2_posterior, layer.matrix.posterior):
            for name, parameter in q.named_parameters():
                if name.startswith("log_"):
                    parameter.sub_(1.0)
    return layer


@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_moments_of_the_weights_match_draws(sizes, posterior):
    layer, num = layer_of(sizes, posterior), 20_000
    mean, covariance = (moment.detach() for moment in layer.weight_moments())
    W = layer.sample_weight((num,), generator=seeded(1)).detach().flatten(1)
    error = (covariance.diagonal() / num).sqrt()
    assert ((W.mean(0) - mean).abs() < 5 * error).all()
    centred = W - mean
    products = centred.mT @ centred / num  # the mean of the products of two weights
    variance = centred.square().mT @ centred.square() / num - products.square()
    assert ((products - covariance).abs() < 6 * (variance / num).sqrt()).all()


@pytest.mark.parametrize("batch_shape", [(), (2,)])
@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_moments_of_the_output_are_those_of_the_weights(sizes, posterior, batch_shape):
    layer = layer_of(sizes, posterior, batch_shape)
    x = normal(*batch_shape, 3, 2, sizes[0], seed=4)
    mean, variance = layer.output_moments(x)
    weights, covariance = layer.weight_moments()
    W = weights.unflatten(-1, (sizes[1], sizes[0]))
    bias = layer.bias.reshape(*batch_shape, 1, 1, sizes[1])
    expected = torch.einsum("...oi,...abi->...abo", W, x) + bias
    blocks = covariance.unflatten(-1, (sizes[1], -1)).unflatten(-3, (sizes[1], -1))
    own = blocks.diagonal(dim1=-4, dim2=-2)  # (..., in, in, out)
    assert_close(mean, expected, rtol=1e-10, atol=1e-10)
    spread = torch.einsum("...abi,...ijo,...abj->...abo", x, own, x)
    assert_close(variance, spread, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("make", [LocalReparameterization, WeightDraws])
def test_outputs_have_the_moments(make):
    layer, num = layer_of(), 20_000
    x = normal(5, seed=4)
    if make is WeightDraws:
        y = run(layer, x.expand(num, 5), WeightDraws(num, seeded(2)))
    else:
        y = run(layer, x.expand(num, 5), make(seeded(2)))
    mean, variance = (moment.detach() for moment in layer.output_moments(x))
    y = y.detach()
    assert ((y.mean(0) - mean).abs() < 5 * (variance / num).sqrt()).all()
    squares = (y - mean).square()
    assert ((squares.mean(0) - variance).abs() < 5 * squares.std(0) / num**0.5).all()


def test_without_spread_it_is_the_structured_layer():
    layer, plain = layer_of(), WHVILinear(5, 11, dtype=DTYPE)
    with torch.no_grad():
        layer.matrix.s1_posterior.log_scale.fill_(-40.0)
        layer.matrix.s2_posterior.log_scale.fill_(-40.0)
        for name in ("s1", "s2"):
            getattr(plain.matrix, name).copy_(getattr(layer.matrix, name))
        plain.matrix.posterior.load_state_dict(layer.matrix.posterior.state_dict())
        plain.bias.copy_(layer.bias)
    x = normal(4, 5)
    assert_close(run(layer, x, MeanWeights()), run(plain, x, MeanWeights()))
    for one, other in zip(layer.output_moments(x), plain.output_moments(x), strict=True):
        assert_close(one, other)


def test_the_kl_is_the_sum_of_three():
    layer = layer_of(batch_shape=(2,))
    m = layer.matrix
    unit = torch.distributions.Normal(torch.zeros(()).double(), torch.ones(()).double())
    expected = m.posterior.kl(m.prior)
    for q in (m.s1_posterior, m.s2_posterior):
        normals = torch.distributions.Normal(q.loc, q.log_scale.exp())
        expected = expected + torch.distributions.kl_divergence(normals, unit).sum(-1)
    assert_close(layer.kl(), expected)
    assert_close(whvi.kl(nn.Sequential(layer)), expected)


def test_the_weight_is_what_forward_multiplies_by():
    layer, x = layer_of(), normal(6, 5)
    sampler = WeightDraws(generator=seeded(3))
    with whvi.sampling(sampler):
        y, W = layer(x), layer.weight
        assert_close(y, x @ W.mT + layer.bias)
    same = layer.sample_weight(generator=seeded(3))
    assert_close(run(layer, x, WeightDraws(generator=seeded(3))), x @ same.mT + layer.bias)


def test_it_trains_and_is_linearised():
    torch.manual_seed(0)
    model = nn.Sequential(
        WHVILinear(2, 16, scales="gaussian"), nn.Tanh(), WHVILinear(16, 1, scales="gaussian")
    )
    likelihood = Gaussian()
    x = torch.randn(60, 2)
    y = torch.sin(x.sum(-1))
    likelihood.set_target_scaling(y)
    before = model[0].matrix.s1_posterior.log_scale.detach().clone()
    config = whvi.FitConfig(num_steps=300, batch_size=32)
    history = whvi.fit(model, likelihood, (x, y), config=config)
    assert not history.compiled
    assert history.expected_log_lik[-1] > history.expected_log_lik[0]
    assert not torch.equal(model[0].matrix.s1_posterior.log_scale, before)
    space = parameter_space(model)
    assert "0.matrix.s1_posterior.loc" in space.names
    assert not any("log_scale" in name for name in space.names)
    assert chain_of(model) is not None
    expected = jacobian_by_transforms(model, x, space)[1]
    assert_close(jacobian(model, x).derivatives, expected, rtol=1e-4, atol=1e-5)


def test_convolutions_take_it():
    layer = scramble(WHVIConv2d(2, 3, 2, scales="gaussian", dtype=DTYPE))
    x = normal(4, 2, 3, 3)
    with whvi.sampling(WeightDraws(generator=seeded())):
        expected = nn.functional.conv2d(x, layer.weight, layer.bias)
        assert_close(layer(x), expected)


def test_dyadic_convolution():
    a, q = normal(3, 8), normal(8, seed=2)
    index = torch.arange(8)
    expected = a @ q[index.unsqueeze(-1) ^ index]
    assert_close(_dyadic_convolution(a, q), expected)


def test_other_scales_are_refused():
    with pytest.raises(ConfigError, match="scales must be 'optimised' or 'gaussian', got 'random'"):
        WHVILinear(3, 4, scales="random")
