"""A chain gives what its layers give, and refuses to be made of anything else."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import whvi
from whvi._kernel.backend import kernel
from whvi.functions import batch_shape_of
from whvi.layers.linear import MeanFieldLinear, WHVILinear
from whvi.sampling import LocalReparameterization, sampling
from whvi.tabular.networks import build_network
from whvi.training.compiled import Chain

needs_kernel = pytest.mark.skipif(kernel is None, reason="a chain needs the compiled kernel")


def seeded() -> LocalReparameterization:
    return LocalReparameterization(torch.Generator().manual_seed(3))


def values_and_gradients(run, model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    y, kl = run(x)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    ((y * weights).sum() + 0.1 * kl.sum()).backward()
    return [y.detach(), kl.detach(), *[p.grad.clone() for p in model.parameters()]]


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch_shape", [(), (3,)])
@pytest.mark.parametrize("sizes", [(5, (16, 8), 1), (13, (128, 128), 2), (3, (20,), 1), (4, (), 3)])
def test_same_values_and_gradients_as_the_layers(sizes, batch_shape, dtype) -> None:
    compare_with_the_layers(whvi.mlp(*sizes, batch_shape=batch_shape, dtype=dtype), sizes[0])


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch_shape", [(), (3,), (2, 2)])
@pytest.mark.parametrize(
    "layer", [WHVILinear, MeanFieldLinear, partial(MeanFieldLinear, bias=False)]
)
def test_same_values_and_gradients_as_the_layers_with_many_outputs(
    layer, batch_shape, dtype
) -> None:
    model = whvi.mlp(6, (16, 8), 9, layer=layer, batch_shape=batch_shape, dtype=dtype)
    compare_with_the_layers(model, 6)


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch_shape", [(), (3,)])
@pytest.mark.parametrize("sizes", [(5, (16, 8), 1), (13, (32,), 2), (40, (32, 64), 1)])
def test_same_values_and_gradients_as_the_layers_with_sines(sizes, batch_shape, dtype) -> None:
    model = build_network(*sizes, features="sine", batch_shape=batch_shape).to(dtype)
    compare_with_the_layers(model, sizes[0])


def compare_with_the_layers(model: nn.Sequential, in_features: int) -> None:
    parameter = next(model.parameters())
    dtype, batch_shape = parameter.dtype, batch_shape_of(model)
    x = torch.randn(*batch_shape, 2, 7, in_features, dtype=dtype)
    chain = Chain.of(model)
    assert chain is not None

    def by_layers(x: Tensor) -> tuple[Tensor, Tensor]:
        with sampling(seeded()):
            return model(x), whvi.kl(model)

    before = x.clone()
    ours = values_and_gradients(lambda x: chain(x, seeded()), model, x)
    theirs = values_and_gradients(by_layers, model, x)
    assert torch.equal(x, before)
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])
    for one, other in zip(ours[2:], theirs[2:], strict=True):
        # the two terms of a gradient are added in the kernel or by autograd: one rounding apart
        torch.testing.assert_close(one, other, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)


@needs_kernel
def test_gradient_of_the_input_and_no_second_derivative() -> None:
    model = whvi.mlp(5, (8,), 1, dtype=torch.float64)
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    chain = Chain.of(model)
    assert chain is not None
    assert torch.autograd.gradcheck(lambda x: chain(x, seeded())[0], x)
    (grad,) = torch.autograd.grad(chain(x, seeded())[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        grad.sum().backward()


@needs_kernel
def test_frozen_parameters_get_no_gradient() -> None:
    model = whvi.mlp(5, (8,), 1)
    model[0].weight.s1.requires_grad_(False)
    chain = Chain.of(model)
    assert chain is not None
    chain(torch.randn(4, 5), seeded())[0].sum().backward()
    assert model[0].weight.s1.grad is None
    assert model[0].weight.s2.grad is not None


def hooked() -> nn.Module:
    model = whvi.mlp(5, (8,), 1)
    model[0].register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(nn.Linear(5, 1), id="no sequence"),
        pytest.param(nn.Sequential(nn.Linear(5, 8), nn.ReLU()), id="plain layers"),
        pytest.param(nn.Sequential(), id="empty"),
        pytest.param(nn.Sequential(nn.ReLU(), WHVILinear(5, 8)), id="input written over"),
        pytest.param(whvi.mlp(5, (8,), 1, activation=nn.Tanh), id="other activation"),
        pytest.param(whvi.mlp(5, (8,), 1, layer=partial(WHVILinear, posterior="full")), id="full"),
        pytest.param(whvi.mlp(5, (8,), 1, last_layer=WHVILinear), id="column"),
        pytest.param(
            whvi.mlp(5, (8,), 1, last_layer=partial(MeanFieldLinear, bias_posterior="diagonal")),
            id="random bias",
        ),
        pytest.param(hooked(), id="hooks"),
        pytest.param(whvi.mlp(5, (8,), 1, dtype=torch.bfloat16), id="bfloat16"),
    ],
)
def test_other_models_have_no_chain(model: nn.Module) -> None:
    assert Chain.of(model) is None


@needs_kernel
def test_a_fit_is_the_same_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    start = whvi.mlp(3, (8,), 1)
    x, y = torch.randn(50, 3), torch.randn(50)
    config = whvi.FitConfig(num_steps=30, batch_size=16)
    trained = []
    for chained in (True, False):
        model, likelihood = copy.deepcopy(start), whvi.likelihoods.Gaussian()
        if not chained:
            monkeypatch.setattr(Chain, "of", classmethod(lambda cls, model: None))
        whvi.fit(model, likelihood, (x, y), config=config)
        trained.append([*model.state_dict().values(), *likelihood.state_dict().values()])
    for ours, theirs in zip(*trained, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
