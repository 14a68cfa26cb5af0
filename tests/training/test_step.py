"""A step by the compiled model is a step by its layers, and the history tells which it was."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

import whvi
from tests.training.doubles import (
    assert_bitwise,
    gaussian,
    tiny_config,
    tiny_data,
    tiny_net,
    weights_of,
)
from whvi._kernel.backend import kernel
from whvi.training import Checkpoints, History, fit

needs_kernel = pytest.mark.skipif(kernel is None, reason="only the kernel runs compiled models")


def network(batch_shape=(), num_outputs=1) -> nn.Sequential:
    torch.manual_seed(0)
    return whvi.mlp(3, (8, 8), num_outputs, batch_shape=batch_shape)


def trained(model, *, num_outputs=1, data=None, **options):
    """Weights and history after a fit of a copy of ``model``."""
    model = copy.deepcopy(model)
    likelihood = whvi.likelihoods.Gaussian(num_outputs, batch_shape=model[0].batch_shape)
    x, y = data or tiny_data()
    y = y.unsqueeze(-1).expand(-1, num_outputs)
    history = fit(model, likelihood, (x, y), **options)
    return weights_of(model, likelihood), history


@needs_kernel
@pytest.mark.parametrize("batch_shape", [(), (3,)])
@pytest.mark.parametrize("num_outputs", [1, 2])
@pytest.mark.parametrize("changes", [{}, {"num_draws": 3, "beta": 0.3, "kl_warmup_steps": 9}])
def test_compiled_and_by_layers_give_the_same(batch_shape, num_outputs, changes):
    start = network(batch_shape, num_outputs)
    fits = [
        trained(
            start,
            num_outputs=num_outputs,
            config=tiny_config(record_every=1, compiled=compiled, **changes),
            validation=(tiny_data(seed=1)[0], torch.zeros(40, num_outputs)),
        )
        for compiled in (True, False)
    ]
    (ours, compiled), (theirs, by_layers) = fits
    assert (compiled.compiled, by_layers.compiled) == (True, False)
    # the same noise and values; gradients, and so later steps, to rounding
    assert compiled.expected_log_lik[0] == by_layers.expected_log_lik[0]
    assert compiled.kl[0] == by_layers.kl[0]
    torch.testing.assert_close(
        torch.tensor(compiled.kl), torch.tensor(by_layers.kl), rtol=1e-4, atol=1e-4
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@needs_kernel
def test_compiled_and_by_layers_give_the_same_with_weights_per_replica():
    x, y = tiny_data()
    weights = torch.rand(3, 40, generator=torch.Generator().manual_seed(0))
    found = []
    for compiled in (True, False):
        model, likelihood = network((3,)), whvi.likelihoods.Gaussian(batch_shape=(3,))
        config = tiny_config(record_every=1, compiled=compiled)
        history = fit(model, likelihood, (x, y, weights), config=config)
        assert history.compiled is compiled
        found.append((history, weights_of(model, likelihood)))
    (ours, one), (theirs, other) = found
    assert ours.expected_log_lik[0] == theirs.expected_log_lik[0]
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def forward_hook(model):
    model[0].register_forward_hook(lambda *_: None)


def gradient_hook(model):
    next(model.parameters()).register_hook(lambda gradient: 0 * gradient)


def accumulation_hook(model):
    next(model.parameters()).register_post_accumulate_grad_hook(lambda parameter: None)


def layer_used_twice(model):
    model.insert(3, model[2])


def computed_parameter(model):
    owner = next(module for module in model.modules() if "s1" in module._parameters)
    nn.utils.parametrize.register_parametrization(owner, "s1", nn.Softplus())


@needs_kernel
@pytest.mark.parametrize(
    "change",
    [forward_hook, gradient_hook, accumulation_hook, layer_used_twice, computed_parameter],
)
def test_what_autograd_has_to_see_is_not_compiled_and_the_history_says_so(change):
    model = network()
    assert trained(model, config=tiny_config())[1].compiled
    change(model)
    likelihood = gaussian()
    assert not fit(model, likelihood, tiny_data(), config=tiny_config()).compiled


@needs_kernel
def test_a_gradient_hook_counts():
    model = network()
    gradient_hook(model)
    first = next(model.parameters())
    before = first.detach().clone()
    fit(model, gaussian(), tiny_data(), config=tiny_config())
    assert torch.equal(first, before)


@needs_kernel
@pytest.mark.parametrize("compiled", [True, False])
def test_frozen_parameters_stay(compiled):
    model = network()
    first = next(model.parameters()).requires_grad_(False)
    before = first.detach().clone()
    fit(model, gaussian(), tiny_data(), config=tiny_config(compiled=compiled))
    assert torch.equal(first, before)


@pytest.mark.parametrize("make", [network, tiny_net])
def test_gradients_from_before_do_not_count_and_none_are_left(make):
    clean, stale = make(), make()
    for parameter in stale.parameters():
        parameter.grad = torch.ones_like(parameter)
    for model in (clean, stale):
        fit(model, gaussian(), tiny_data(), config=tiny_config())
    assert_bitwise(weights_of(clean), weights_of(stale))
    assert all(parameter.grad is None for parameter in stale.parameters())


class Stopped(Exception):  # noqa: N818  # it is not an error
    pass


@needs_kernel
@pytest.mark.parametrize("compiled", [True, False])
def test_a_resumed_fit_is_bitwise_the_same_and_remembers_how_it_ran(tmp_path, compiled):
    def stop(record):
        if record.step == 15:
            raise Stopped

    config = tiny_config(compiled=compiled)
    folder = Checkpoints(tmp_path, every_steps=4)
    expected, history = trained(network(), config=config)
    with pytest.raises(Stopped):
        trained(network(), config=config, checkpoint=folder, callbacks=[stop])
    weights, resumed = trained(network(), config=config, checkpoint=folder)
    assert_bitwise(weights, expected)
    assert resumed == history
    assert resumed.compiled is compiled
    with pytest.raises(whvi.errors.ConfigError, match=r"config\.compiled"):
        trained(network(), config=tiny_config(compiled=not compiled), checkpoint=folder)


@needs_kernel
def test_a_history_is_compiled_only_if_all_of_it_was(tmp_path):
    def stop(record):
        if record.step == 15:
            raise Stopped

    model = network()
    with pytest.raises(Stopped):
        fit(model, gaussian(), tiny_data(), config=tiny_config(), callbacks=[stop],
            checkpoint=Checkpoints(tmp_path, every_steps=5))  # fmt: skip
    forward_hook(model)
    history: History = fit(
        model, gaussian(), tiny_data(), config=tiny_config(), checkpoint=tmp_path
    )
    assert len(history) == 6
    assert not history.compiled


@needs_kernel
@pytest.mark.parametrize("compiled", [True, False])
def test_torchs_global_generator_is_left_alone(compiled):
    model, state = network(), torch.get_rng_state()
    fit(model, gaussian(), tiny_data(), config=tiny_config(compiled=compiled))
    assert torch.equal(torch.get_rng_state(), state)


@needs_kernel
def test_a_hook_that_a_callback_adds_is_called_from_then_on():
    model, calls = network(), []

    def add_hook(record):
        if record.step == 5:
            model[0].register_forward_hook(lambda *_: calls.append(record.step))

    history = fit(model, gaussian(), tiny_data(), config=tiny_config(), callbacks=[add_hook])
    assert len(calls) == 25
    assert not history.compiled


@pytest.mark.parametrize("posterior", ["flow", "full"])
def test_torchs_global_generator_is_left_alone_by_estimated_kls(posterior):
    model = whvi.mlp(3, (8,), 1, layer=partial(whvi.WHVILinear, posterior=posterior))
    states = []
    for _ in range(2):
        again, state = copy.deepcopy(model), torch.get_rng_state()
        fit(again, gaussian(), tiny_data(), config=tiny_config(), validation=tiny_data(seed=1))
        assert torch.equal(torch.get_rng_state(), state)
        states.append(weights_of(again))
        torch.rand(3)
    assert_bitwise(*states)
