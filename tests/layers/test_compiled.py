"""A compiled model gives what its layers give, and is not made of anything else."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import whvi
from whvi._kernel.backend import kernel
from whvi.errors import ShapeError
from whvi.functions import batch_shape_of
from whvi.layers.compiled import compile_model, why_not_compiled
from whvi.layers.linear import MeanFieldLinear, WHVILinear
from whvi.layers.matrix import DenseGaussianMatrix
from whvi.sampling import LocalReparameterization, sampling
from whvi.tabular.networks import build_network

needs_kernel = pytest.mark.skipif(kernel is None, reason="needs the compiled kernel")


def seeded() -> LocalReparameterization:
    return LocalReparameterization(torch.Generator().manual_seed(3))


def slope(y: Tensor) -> Tensor:
    """A gradient of the loss with respect to ``y``; that of the KL is 0.1."""
    return torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)


def by_layers(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, dict[nn.Parameter, Tensor]]:
    with sampling(seeded()):
        y, kl = model(x), whvi.kl(model)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad((y * slope(y)).sum() + 0.1 * kl.sum(), parameters)
    return y, kl, dict(zip(parameters, gradients, strict=True))


@torch.no_grad()
def by_kernel(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, dict[nn.Parameter, Tensor]]:
    compiled = compile_model(model)
    assert compiled is not None
    y, kl, kept = compiled.forward(x, seeded())
    gradients = compiled.backward(kept, slope(y), torch.full_like(kl, 0.1))
    pairs = zip(compiled.parameters, gradients, strict=True)
    return y, kl, {p: gradient for p, gradient in pairs if p is not None}


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch_shape", [(), (3,)])
@pytest.mark.parametrize(
    "sizes", [(5, (16, 8), 1), (13, (128, 128), 2), (3, (20,), 1), (4, (), 3), (300, (384,), 2)]
)
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
    before = x.clone()
    y, kl, ours = by_kernel(model, x)
    assert torch.equal(x, before)
    expected, expected_kl, theirs = by_layers(model, x)
    assert torch.equal(y, expected)
    assert torch.equal(kl, expected_kl)
    assert ours.keys() == theirs.keys()
    for parameter, gradient in ours.items():
        # the two terms of a gradient are added in the kernel or by autograd: one rounding apart
        tolerance = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 1e-6}
        torch.testing.assert_close(gradient, theirs[parameter], **tolerance)


def with_hook(register: str) -> nn.Module:
    model = whvi.mlp(5, (8,), 1)
    getattr(model[0].matrix, register)(lambda *_: None)
    return model


def with_own_forward() -> nn.Module:
    model = whvi.mlp(5, (8,), 1)
    model[2].forward = lambda x: x[..., :1]
    return model


def with_parametrization() -> nn.Module:
    model = whvi.mlp(5, (8,), 1)
    torch.nn.utils.parametrize.register_parametrization(model[0].matrix, "s1", nn.Softplus())
    return model


def with_parameter_hook() -> nn.Module:
    model = whvi.mlp(5, (8,), 1)
    model[0].matrix.s1.register_hook(lambda grad: 2 * grad)
    return model


def with_layer_twice() -> nn.Module:
    layer = WHVILinear(8, 8)
    return nn.Sequential(layer, nn.ReLU(), layer)


def with_parameter_twice() -> nn.Module:
    one, other = WHVILinear(8, 8), WHVILinear(8, 8)
    other.matrix.s1 = one.matrix.s1
    return nn.Sequential(one, nn.ReLU(), other)


def with_other_matrix() -> nn.Module:
    layer = WHVILinear(8, 8)
    layer.matrix = DenseGaussianMatrix(8, 8)
    return nn.Sequential(layer)


class ShiftedReLU(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class Twice(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@needs_kernel
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Linear(5, 1), "not Linear"),
        (nn.Sequential(nn.Linear(5, 8), nn.ReLU()), "Linear is not among"),
        (nn.Sequential(), "with modules"),
        (Twice(WHVILinear(5, 8)), "not Twice"),
        (nn.Sequential(nn.ReLU(), WHVILinear(5, 8)), "must be linear"),
        (nn.Sequential(WHVILinear(5, 8), nn.ReLU()), "must be linear"),
        (whvi.mlp(5, (8,), 1, activation=nn.Tanh), "Tanh is not among"),
        (whvi.mlp(5, (8,), 1, activation=ShiftedReLU), "ShiftedReLU is not among"),
        (whvi.mlp(5, (8,), 1, layer=partial(WHVILinear, posterior="full")), "FullGaussian"),
        (whvi.mlp(5, (8,), 1, layer=partial(WHVILinear, prior="learned")), "LearnedPrior"),
        (whvi.mlp(5, (8,), 1, last_layer=WHVILinear), "one input or output"),
        (
            whvi.mlp(5, (8,), 1, last_layer=partial(MeanFieldLinear, bias_posterior="diagonal")),
            "bias",
        ),
        (with_hook("register_forward_hook"), "'0.matrix' has hooks"),
        (with_hook("register_forward_pre_hook"), "'0.matrix' has hooks"),
        (with_hook("register_full_backward_hook"), "'0.matrix' has hooks"),
        (with_hook("register_full_backward_pre_hook"), "'0.matrix' has hooks"),
        (with_own_forward(), "'2' has a forward of its own"),
        (with_parametrization(), "not compiled"),
        (with_other_matrix(), "WHVILinear of DenseGaussianMatrix is not compiled"),
        (with_parameter_hook(), "parameter has hooks"),
        (with_layer_twice(), "occurs twice"),
        (with_parameter_twice(), "used twice"),
        (nn.Sequential(WHVILinear(5, 8), WHVILinear(9, 2)), "do not fit"),
        (nn.Sequential(WHVILinear(5, 8), WHVILinear(8, 2, batch_shape=(3,))), "do not fit"),
        (whvi.mlp(5, (8,), 1, dtype=torch.bfloat16), "float32 or float64"),
        (nn.Sequential(WHVILinear(5, 8), WHVILinear(8, 2, dtype=torch.float64)), "one type"),
    ],
)
def test_other_models_run_by_their_layers(model: nn.Module, reason: str) -> None:
    assert compile_model(model) is None
    assert reason in (why_not_compiled(model) or "")


@needs_kernel
def test_hooks_on_all_modules_stand_against_compiling() -> None:
    model = whvi.mlp(5, (8,), 1)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert why_not_compiled(model) == "there are hooks on all modules"
    finally:
        handle.remove()
    assert why_not_compiled(model) is None


@needs_kernel
def test_a_hook_that_a_callback_adds_is_run() -> None:
    model = whvi.mlp(3, (8,), 1)
    calls = []

    def add_hook(record: object) -> None:
        if not calls:
            model[0].register_forward_hook(lambda *_: calls.append(1))
            calls.append(0)

    data = torch.randn(20, 3), torch.randn(20)
    config = whvi.FitConfig(num_steps=3, batch_size=5, record_every=1)
    whvi.fit(model, whvi.likelihoods.Gaussian(), data, config=config, callbacks=[add_hook])
    assert calls == [0, 1, 1]


@needs_kernel
def test_a_layer_that_occurs_twice_counts_once_in_the_kl() -> None:
    layer = WHVILinear(8, 8)
    model = nn.Sequential(layer, nn.ReLU(), layer, MeanFieldLinear(8, 1))
    before = whvi.kl(model).item()
    config = whvi.FitConfig(num_steps=1, batch_size=10)
    data = torch.randn(10, 8), torch.randn(10)
    history = whvi.fit(model, whvi.likelihoods.Gaussian(), data, config=config)
    assert history.kl[0] == pytest.approx(before, rel=1e-6)


def test_layers_that_do_not_fit_are_refused_by_a_fit() -> None:
    model = nn.Sequential(WHVILinear(8, 8), nn.ReLU(), WHVILinear(400, 8), MeanFieldLinear(8, 1))
    data = torch.randn(10, 8), torch.randn(10)
    config = whvi.FitConfig(num_steps=1, batch_size=10)
    with pytest.raises(ShapeError, match="400"):
        whvi.fit(model, whvi.likelihoods.Gaussian(), data, config=config)


@needs_kernel
@torch.no_grad()
@pytest.mark.parametrize("layer", [WHVILinear, MeanFieldLinear])
def test_reused_tensors_hold_what_fresh_ones_would(layer) -> None:
    """Also after a batch of another shape; and they are reused."""
    model = whvi.mlp(6, (16, 8), 2, layer=layer, batch_shape=(3,))
    fresh, reusing = compile_model(model), compile_model(model, reuse=True)
    assert fresh is not None
    assert reusing is not None
    addresses = []
    for rows in (5, 5, 7, 5):
        x = torch.randn(3, 1, rows, 6, generator=torch.Generator().manual_seed(rows))
        found = []
        for compiled in (fresh, reusing):
            y, kl, kept = compiled.forward(x, seeded())
            gradients = compiled.backward(kept, slope(y), torch.full_like(kl, 0.1))
            found.append([y, kl, *(g for g in gradients if g is not None)])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
        addresses.append(found[1][0].data_ptr())
    assert addresses[0] == addresses[1]
