"""torch.compile makes one graph, of the same values; fake tensors, fx and vmap work as well."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

from whvi import (
    LocalReparameterization,
    MCDropout,
    MeanFieldConv2d,
    MeanFieldLinear,
    MeanWeights,
    WeightDraws,
    WHVIConv2d,
    WHVILinear,
    draw_functions,
    elbo,
    kl,
    mean_function,
    mlp,
    sampling,
)
from whvi.errors import ConfigError
from whvi.likelihoods import Gaussian

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch's own compiler

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "whvi": partial(WHVILinear, 5, 7),
    "mean_field": partial(MeanFieldLinear, 5, 7),
    "full": partial(WHVILinear, 5, 7, posterior="full"),
    "low_rank": partial(WHVILinear, 5, 7, posterior="low_rank"),
    "column": partial(WHVILinear, 5, 1),
    "random_bias": partial(WHVILinear, 5, 7, bias_posterior="diagonal"),
    "dropout": partial(MCDropout, 0.3),
    "conv": partial(WHVIConv2d, 5, 4, 2),
    "mean_field_conv": partial(MeanFieldConv2d, 5, 4, 2),
}
SAMPLERS = {
    "default": None,
    "mean": MeanWeights,
    "local": LocalReparameterization,
    "draw": WeightDraws,
}


def rows(name: str) -> Tensor:
    return torch.randn(4, 5, 3, 3) if "conv" in name else torch.randn(4, 5)


def under(layer: nn.Module, name: str) -> Callable[[Tensor], Tensor]:
    make = SAMPLERS[name]

    def call(x: Tensor) -> Tensor:
        if make is None:
            return layer(x)
        with sampling(make()):
            return layer(x)

    return call


def check(call: Callable[..., Tensor], *given: Tensor, backend: str = "aot_eager") -> None:
    """One graph, the same values twice: the second call has another noise."""
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend=backend)
    for seed in (3, 4):
        torch.manual_seed(seed)
        found = compiled(*given)
        torch.manual_seed(seed)
        torch.testing.assert_close(found, call(*given), rtol=1e-5, atol=1e-5)


def under_all(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.stack([under(layer, sampler)(x) for sampler in SAMPLERS])


EVERY_DAY = ("whvi", "mean_field", "full", "random_bias", "conv")


@pytest.mark.parametrize(
    "name", [n if n in EVERY_DAY else pytest.param(n, marks=pytest.mark.nightly) for n in LAYERS]
)
def test_layers_are_one_graph(name: str) -> None:
    torch.manual_seed(0)
    check(under_all(LAYERS[name]()), rows(name))


def test_draws_of_equal_layers_differ() -> None:
    """Equal calls of an operator would be made one, and a network of copies less random."""
    torch.manual_seed(0)
    layer = WHVILinear(8, 8)
    check(under_all(nn.Sequential(layer, nn.Tanh(), layer, MCDropout(0.3))), torch.randn(4, 8))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_sampler_around_the_compiled_model(sampler: str) -> None:
    torch.manual_seed(0)
    model, x = mlp(5, (16, 16), 1), torch.randn(4, 5)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for seed in (3, 4, 5):
        values = []
        for each in (compiled, model):
            torch.manual_seed(seed)
            values.append(under(each, sampler)(x))
        torch.testing.assert_close(*values, rtol=1e-5, atol=1e-5)


def test_compiled_and_eager_layers_share_a_sampler() -> None:
    torch.manual_seed(0)
    one, other, x = WHVILinear(8, 8), WHVILinear(8, 8), torch.randn(4, 8)
    torch._dynamo.reset()
    mixed = nn.Sequential(torch.compile(one, fullgraph=True, backend="aot_eager"), other, one)
    values = []
    for model in (mixed, nn.Sequential(one, other, one)):
        torch.manual_seed(3)
        values.append(under(model, "local")(x))
    torch.testing.assert_close(*values)


def objective(model: nn.Module, likelihood: Gaussian) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: elbo(model, likelihood, x, y, num_data=60, num_draws=2).value


def test_elbo_draws_and_kl_are_one_graph() -> None:
    torch.manual_seed(0)
    model, likelihood, x = mlp(5, (16, 16), 1), Gaussian(), torch.randn(6, 5)
    check(objective(model, likelihood), x, torch.randn(6))
    check(lambda x: draw_functions(model, x, num_draws=3), x)
    check(lambda x: mean_function(model, x), x)
    check(lambda x: kl(model) + x.sum(), x)


@pytest.mark.parametrize("kind", [WHVILinear, MeanFieldLinear])
def test_gradients_of_the_compiled_elbo(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(kind(5, 8), nn.ReLU(), kind(8, 2, bias=False))
    likelihood, x, y = Gaussian(2), torch.randn(6, 5), torch.randn(6, 2)
    parameters = [*model.parameters(), *likelihood.parameters()]
    value = objective(model, likelihood)
    torch._dynamo.reset()
    found = []
    for call in (value, torch.compile(value, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(3)
        found.append(torch.autograd.grad(call(x, y), parameters))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.nightly
def test_inductor_gives_the_same_values() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(WHVILinear(5, 16), nn.ReLU(), WHVILinear(16, 16), MCDropout(0.2))
    check(model, torch.randn(4, 5), backend="inductor")
    check(under(model, "local"), torch.randn(4, 5), backend="inductor")


def test_another_number_of_rows() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(WHVILinear(5, 16), nn.ReLU(), WHVILinear(16, 2))
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for count in (3, 7, 11):
        x = torch.randn(count, 5)
        with sampling(MeanWeights()):
            torch.testing.assert_close(compiled(x), model(x))


def test_a_generator_is_refused_in_a_graph() -> None:
    layer, generator = WHVILinear(5, 7), torch.Generator()

    def call(x: Tensor) -> Tensor:
        with sampling(LocalReparameterization(generator)):
            return layer(x)

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    with pytest.raises(
        (ConfigError, torch._dynamo.exc.Unsupported), match=r"manual_seed|Generator"
    ):
        compiled(torch.randn(4, 5))


# --- other tracers -------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("name", LAYERS)
def test_fake_tensors(name: str, sampler: str) -> None:
    real = under(LAYERS[name](), "mean")(rows(name)).shape
    with FakeTensorMode():
        assert under(LAYERS[name](), sampler)(rows(name)).shape == real


def test_elbo_of_fake_tensors() -> None:
    with FakeTensorMode():
        model, x = mlp(5, (16,), 1), torch.randn(4, 5)
        value = elbo(model, Gaussian(), x, torch.randn(4), num_data=4).value
        value.backward()
        assert all(p.grad is not None for p in model.parameters())


def test_layers_are_leaves_of_fx() -> None:
    model = nn.Sequential(mlp(5, (16,), 3), MCDropout(0.2), WHVILinear(3, 2))
    traced, x = symbolic_trace(model), torch.randn(4, 5)
    for sampler in SAMPLERS:
        values = []
        for each in (model, traced):
            torch.manual_seed(3)
            values.append(under(each, sampler)(x))
        assert torch.equal(*values)


def test_make_fx() -> None:
    model, x = mlp(5, (16,), 3), torch.randn(4, 5)
    with sampling(MeanWeights()):
        graph = make_fx(model)(x)
        torch.testing.assert_close(graph(x), model(x))
    assert make_fx(under(model, "local"))(x)(x).shape == (4, 3)
