"""Layers meet the rest of torch: every feature works, or says clearly that it does not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from tests.conformance.layer_suite import DTYPE, normal, run, scramble, seeded
from whvi import MCDropout, MeanFieldLinear, WHVIConv2d, WHVILinear, elbo, kl, mlp
from whvi.functions import draw_functions
from whvi.likelihoods import Gaussian
from whvi.sampling import LocalReparameterization, MeanWeights, WeightDraws, sampling

LAYERS: dict[str, Callable[..., nn.Module]] = {
    "whvi": partial(WHVILinear, 5, 7, dtype=DTYPE),
    "full": partial(WHVILinear, 5, 7, posterior="full", dtype=DTYPE),
    "low_rank": partial(WHVILinear, 3, 9, posterior="low_rank", dtype=DTYPE),
    "column": partial(WHVILinear, 5, 1, dtype=DTYPE),
    "mean_field": partial(MeanFieldLinear, 5, 7, dtype=DTYPE),
    "conv": partial(WHVIConv2d, 5, 4, 2, dtype=DTYPE),
}
each_layer = pytest.mark.parametrize("name", LAYERS)


def make(name: str) -> tuple[nn.Module, Tensor]:
    layer = scramble(LAYERS[name]())
    width = 3 if name == "low_rank" else 5
    return layer, normal(4, width, 3, 3) if name == "conv" else normal(4, width)


def mixed_net() -> nn.Sequential:
    net = nn.Sequential(
        WHVILinear(5, 16), nn.Tanh(), MCDropout(0.2),
        nn.Sequential(nn.Linear(16, 16), nn.ReLU(), WHVILinear(16, 8, posterior="full")),
        nn.ReLU(), MeanFieldLinear(8, 1),
    )  # fmt: skip
    return scramble(net.to(DTYPE))


# --- modules in modules --------------------------------------------------------------------------


def test_layers_nest_with_plain_modules() -> None:
    net, x = mixed_net(), normal(6, 5)
    likelihood = Gaussian(dtype=DTYPE)
    value = elbo(net, likelihood, x, normal(6), num_data=6, num_draws=3).value
    value.backward()
    assert all(p.grad is not None for p in net.parameters())
    f = draw_functions(net, x, num_draws=4, generator=seeded())
    assert f.shape == (4, 6, 1)
    parts = draw_functions(net, x, num_draws=4, generator=seeded(), batch_size=2)
    torch.testing.assert_close(parts, f, rtol=1e-13, atol=1e-13)


def test_a_shared_layer_is_one_function_in_both_places() -> None:
    layer = scramble(WHVILinear(5, 5, bias=False, dtype=DTYPE))
    x, sampler = normal(4, 5), WeightDraws(generator=seeded())
    twice = run(nn.Sequential(layer, layer), x, sampler)
    once = run(layer, x, sampler)
    assert torch.equal(twice, run(layer, once, sampler))
    torch.testing.assert_close(kl(nn.Sequential(layer, layer)), layer.kl(), rtol=0, atol=0)


def test_containers_hooks_and_freezing() -> None:
    net, x = mixed_net(), normal(6, 5)
    seen: list[tuple[int, ...]] = []
    handle = net[0].register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape)))
    net(x)
    handle.remove()
    assert seen == [(6, 16)]
    net[0].requires_grad_(False)
    run(net, x, LocalReparameterization(seeded())).sum().backward()
    assert all(p.grad is None for p in net[0].parameters())
    assert net[3][2].matrix.s1.grad is not None
    assert isinstance(nn.ModuleDict({"a": net})["a"], nn.Sequential)


# --- state without pickle ------------------------------------------------------------------------


def test_state_goes_through_safetensors() -> None:
    net, other, x = mixed_net(), scramble(mixed_net(), seed=9), normal(6, 5)
    data = safetensors.torch.save(net.state_dict())
    other.load_state_dict(safetensors.torch.load(data))
    values = [run(each, x, WeightDraws(generator=seeded())) for each in (net, other)]
    assert torch.equal(*values)


def test_deepcopy_of_a_network_in_use() -> None:
    net, x = mixed_net(), normal(6, 5)
    with sampling(WeightDraws(generator=seeded())):
        net(x)
        twin = copy.deepcopy(net)
    values = [run(each, x, WeightDraws(generator=seeded())) for each in (net, twin)]
    assert torch.equal(*values)
    shared = {p.data_ptr() for p in net.parameters()} & {p.data_ptr() for p in twin.parameters()}
    assert not shared


# --- torch.func ----------------------------------------------------------------------------------


@each_layer
def test_functional_call_and_grad(name: str) -> None:
    layer, x = make(name)
    parameters = dict(layer.named_parameters())

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        with sampling(WeightDraws(generator=seeded())):
            return functional_call(layer, parameters, (x,)).square().sum()

    found = grad(loss)(parameters)
    expected = torch.autograd.grad(
        run(layer, x, WeightDraws(generator=seeded())).square().sum(), list(parameters.values())
    )
    for one, other in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@each_layer
def test_vmap_over_rows_is_the_batch(name: str) -> None:
    layer, x = make(name)
    with sampling(MeanWeights()):
        torch.testing.assert_close(vmap(layer)(x), layer(x), rtol=1e-13, atol=1e-13)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # unfold has no batching rule
@each_layer
def test_per_row_gradients_by_vmap(name: str) -> None:
    layer, x = make(name)

    def value(row: Tensor) -> Tensor:
        with sampling(MeanWeights()):
            return layer(row).square().sum()

    rows = x.clone().requires_grad_()
    expected = torch.autograd.grad(run(layer, rows, MeanWeights()).square().sum(), rows)[0]
    torch.testing.assert_close(vmap(grad(value))(x), expected, rtol=1e-12, atol=1e-12)


@each_layer
def test_vmap_with_random_weights(name: str) -> None:
    """``randomness="different"`` draws for each entry; without it torch refuses to draw."""
    layer, x = make(name)
    if name == "mean_field":  # one row repeated shows what differs
        x = x[:1].expand_as(x)
    different = vmap(lambda row: layer(row), randomness="different")(x[:1].expand_as(x))
    assert not torch.equal(different[0], different[1])
    same = vmap(lambda row: layer(row), randomness="same")(x[:1].expand_as(x))
    torch.testing.assert_close(same[0], same[1], rtol=1e-13, atol=1e-13)
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(lambda row: layer(row))(x)


@each_layer
def test_local_reparameterization_under_vmap(name: str) -> None:
    layer, x = make(name)
    with sampling(LocalReparameterization()):
        y = vmap(layer, randomness="different")(x[:1].expand_as(x))
        same = vmap(layer, randomness="same")(x[:1].expand_as(x))
    assert y.shape == run(layer, x, MeanWeights()).shape
    assert not torch.equal(y[0], y[1])
    torch.testing.assert_close(same[0], same[1], rtol=1e-13, atol=1e-13)


# --- gradients of gradients, forward mode --------------------------------------------------------


@each_layer
@pytest.mark.parametrize("kind", ["mean", "draw", "local"])
def test_double_backward(name: str, kind: str) -> None:
    layer, x = make(name)
    x = x[:2].requires_grad_()
    samplers: dict[str, Callable[[], object]] = {
        "mean": MeanWeights,
        "draw": lambda: WeightDraws(generator=seeded()),
        "local": lambda: LocalReparameterization(seeded()),
    }
    names = [n for n, p in layer.named_parameters()]

    def forward(x: Tensor, *parameters: Tensor) -> Tensor:
        call = dict(zip(names, parameters, strict=True))
        with torch.nn.utils.stateless._reparametrize_module(layer, call):
            return run(layer, x, samplers[kind]())

    inputs = (x, *(p.detach().requires_grad_() for p in layer.parameters()))
    assert torch.autograd.gradgradcheck(forward, inputs, fast_mode=True, atol=1e-4)


@each_layer
def test_double_backward_of_the_kl(name: str) -> None:
    layer, _ = make(name)
    names, values = zip(*layer.named_parameters(), strict=True)

    def value(*parameters: Tensor) -> Tensor:
        with torch.nn.utils.stateless._reparametrize_module(
            layer, dict(zip(names, parameters, strict=True))
        ):
            return layer.kl() + sum(p.square().sum() for p in parameters)

    inputs = tuple(p.detach().requires_grad_() for p in values)
    assert torch.autograd.gradgradcheck(value, inputs, fast_mode=True)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own use of it
@each_layer
def test_forward_mode(name: str) -> None:
    layer, x = make(name)
    tangent = normal(*x.shape, seed=5)

    def value(x: Tensor) -> Tensor:
        return run(layer, x, MeanWeights())

    _, found = torch.func.jvp(value, (x,), (tangent,))
    expected = value(x + tangent) - value(x)  # affine in x
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


# --- compile and export --------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # of torch's own compiler
@pytest.mark.parametrize("name", ["whvi", "mean_field", "conv"])
def test_compiled_layers_compute_the_same(name: str) -> None:
    layer, x = make(name)
    compiled = torch.compile(layer, backend="eager")
    with sampling(MeanWeights()):
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-12, atol=1e-12)
    values = [run(each, x, WeightDraws()) for each in (compiled, compiled)]
    assert not torch.equal(*values)


@pytest.mark.filterwarnings("ignore")  # of torch's compiler and export
def test_compiled_network_trains() -> None:
    net, x = mlp(5, (16,), dtype=DTYPE), normal(8, 5)
    compiled = torch.compile(net, backend="aot_eager")
    with sampling(MeanWeights()):
        expected = torch.autograd.grad(
            net(x).square().sum() + kl(net), list(net.parameters()), allow_unused=True
        )
        value = compiled(x).square().sum() + kl(net)
        found = torch.autograd.grad(value, list(net.parameters()), allow_unused=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore")  # of torch's compiler and export
@pytest.mark.parametrize("name", ["whvi", "full", "column", "mean_field", "conv"])
def test_export_of_the_mean_network(name: str) -> None:
    layer, x = make(name)
    with torch.no_grad(), sampling(MeanWeights()):
        exported = torch.export.export(layer, (x,), strict=False).module()
        torch.testing.assert_close(exported(x), layer(x), rtol=1e-12, atol=1e-12)


# --- data types and devices ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["whvi", "mean_field", "conv"])
def test_bfloat16_and_autocast_are_close(name: str) -> None:
    layer, x = make(name)
    layer, x = layer.float(), x.float()
    exact = run(layer, x, MeanWeights())
    half = copy.deepcopy(layer).bfloat16()
    y = run(half, x.bfloat16(), MeanWeights())
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), exact, rtol=0.1, atol=0.1)


def test_layers_can_be_built_on_the_meta_device() -> None:
    layer = WHVILinear(5, 7, device="meta")
    assert {p.device.type for p in layer.parameters()} == {"meta"}
    placed = layer.to_empty(device="cpu")
    placed.reset_parameters(generator=seeded())
    assert placed(torch.zeros(2, 5)).isfinite().all()
