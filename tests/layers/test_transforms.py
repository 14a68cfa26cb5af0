"""Every transform joins the conformance suite of layers, and has exact moments."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

import whvi
from tests.conformance.layer_suite import Case, LayerSuite, normal, run, scramble, seeded
from whvi._kernel.backend import kernel
from whvi._kernel.layout import BlockPlan
from whvi.layers import WHVIConv2d, WHVILinear
from whvi.layers.compiled import why_not_compiled
from whvi.layers.mixed import _compose, mixed_linear
from whvi.likelihoods import Gaussian
from whvi.posteriors import LowRankGaussian
from whvi.sampling import LocalReparameterization, MeanWeights, Sampler, WeightDraws, sampling
from whvi.transforms.butterfly import Butterfly

TRANSFORMS = ["dct", "hartley", "circulant", "butterfly", "butterfly-random"]


class Rotation:
    """A fixed random rotation: an object of one's own."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.matrix = torch.linalg.qr(normal(size, size, seed=9)).Q

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix.to(x.dtype).mT

    def transpose(self, x: Tensor) -> Tensor:
        return x @ self.matrix.to(x.dtype)


linear = partial(WHVILinear, 5, 7)


class TestDctWHVILinear(LayerSuite):
    case = Case(partial(linear, transform="dct"), (5,), (7,), is_bitwise=False)


class TestHartleyWHVILinear(LayerSuite):
    case = Case(partial(linear, transform="hartley"), (5,), (7,), is_bitwise=False)


class TestCirculantWHVILinear(LayerSuite):
    case = Case(partial(linear, transform="circulant"), (5,), (7,), is_bitwise=False)


class TestButterflyWHVILinear(LayerSuite):
    case = Case(partial(linear, transform="butterfly"), (5,), (7,), is_bitwise=False)


class TestRandomButterflyWHVILinear(LayerSuite):
    case = Case(partial(linear, transform="butterfly-random"), (5,), (7,), is_bitwise=False)


class TestLongButterflyWHVILinear(LayerSuite):
    """Of a size that runs in the kernel, as one node."""

    case = Case(
        partial(WHVILinear, 13, 20, transform="butterfly-random"), (13,), (20,), is_bitwise=False
    )


class TestRotationWHVILinear(LayerSuite):
    case = Case(partial(linear, transform=Rotation), (5,), (7,), is_bitwise=False)


class TestLowRankDctWHVILinear(LayerSuite):
    low_rank = partial(LowRankGaussian, rank=2)
    low = partial(linear, transform="dct", posterior=low_rank)
    case = Case(low, (5,), (7,), is_bitwise=False)


class TestGridDctWHVILinear(LayerSuite):
    case = Case(partial(linear, transform="dct", num_blocks=2), (5,), (7,), is_bitwise=False)


class TestGridButterflyWHVILinear(LayerSuite):
    case = Case(partial(linear, transform="butterfly", num_blocks=2), (5,), (7,), is_bitwise=False)


class TestRandomScalesCirculantWHVILinear(LayerSuite):
    random = partial(linear, transform="circulant", scales="gaussian")
    case = Case(random, (5,), (7,), is_bitwise=False)


class TestRandomScalesButterflyWHVILinear(LayerSuite):
    random = partial(linear, transform="butterfly", scales="gaussian")
    case = Case(random, (5,), (7,), is_bitwise=False)


class TestOneOutputHartleyWHVILinear(LayerSuite):
    one = partial(WHVILinear, 11, 1, transform="hartley")
    case = Case(one, (11,), (1,), is_bitwise=False)


class TestOneInputButterflyWHVILinear(LayerSuite):
    one = partial(WHVILinear, 1, 11, transform="butterfly", posterior="full")
    case = Case(one, (1,), (11,), is_bitwise=False)


class TestCirculantWHVIConv2d(LayerSuite):
    conv = partial(WHVIConv2d, 4, 6, 2, groups=2, transform="circulant")
    case = Case(conv, (4, 3, 2), (6, 2, 1), is_bitwise=False)


class TestButterflyWHVIConv2d(LayerSuite):
    conv = partial(WHVIConv2d, 4, 6, 2, groups=2, transform="butterfly-random")
    case = Case(conv, (4, 3, 2), (6, 2, 1), is_bitwise=False)


# ---- moments against the dense Jacobian ----------------------------------------------------------

SHAPES = [(5, 7), (8, 3), (11, 1), (1, 6)]
options = pytest.mark.parametrize(
    "options", [{}, {"posterior": "full"}, {"num_blocks": 2}, {"scales": "gaussian"}], ids=str
)
transforms = pytest.mark.parametrize("transform", [*TRANSFORMS, Rotation], ids=str)


@transforms
@options
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_output_moments_are_those_of_the_weights(
    transform: object, options: dict[str, object], shape: tuple[int, int]
) -> None:
    """``var(W x)`` from the covariance of all weights, which is that of draws (below)."""
    if options.get("num_blocks") and shape[0] == 1:
        pytest.skip("one input cannot be cut")
    layer = WHVILinear(
        *shape, transform=transform, batch_shape=(2,), dtype=torch.float64, **options
    )
    scramble(layer)
    x = normal(2, 3, 4, shape[0])
    mean, variance = layer.output_moments(x)
    weights, covariance = layer.weight_moments()
    W = weights.unflatten(-1, (shape[1], shape[0]))
    C = covariance.unflatten(-1, (shape[1], shape[0])).unflatten(-3, (shape[1], shape[0]))
    expected = torch.einsum("roi,rnmi->rnmo", W, x)
    if layer.bias is not None:
        expected = expected + layer.bias[:, None, None]
    spread = torch.einsum("roiok,rnmi,rnmk->rnmo", C, x, x)
    torch.testing.assert_close(mean, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(variance, spread, rtol=1e-11, atol=1e-12)


@transforms
@options
def test_weight_moments_are_those_of_draws(transform: object, options: dict[str, object]) -> None:
    layer = WHVILinear(3, 4, transform=transform, dtype=torch.float64, **options)
    scramble(layer)
    mean, covariance = layer.weight_moments()
    with torch.no_grad():
        draws = layer.sample_weight((20_000,), generator=seeded()).flatten(1)
    error = (covariance.diagonal() / len(draws)).sqrt()
    assert ((draws.mean(0) - mean) / error).abs().max() < 5
    found = torch.cov(draws.mT)
    scale = covariance.diagonal().sqrt()
    deviation = (found - covariance).abs() / (scale[:, None] * scale)
    # A correlation of n draws has a standard error of about n^-½; products have heavier tails.
    assert deviation.max() < (12 if options.get("scales") else 5) * len(draws) ** -0.5


@transforms
def test_forward_is_the_dense_weight_and_linear_in_g(transform: object) -> None:
    layer = WHVILinear(5, 7, transform=transform, dtype=torch.float64, bias=False)
    scramble(layer)
    x, draws = normal(6, 5), WeightDraws(generator=seeded())
    y = run(layer, x, draws)
    with sampling(draws):
        torch.testing.assert_close(y, x @ layer.weight.mT)
    loc = layer.matrix.posterior.loc
    parts = [layer.matrix.dense(v) for v in (loc, 2 * loc, torch.zeros_like(loc))]
    torch.testing.assert_close(parts[1], 2 * parts[0])
    assert not parts[2].any()


@transforms
def test_local_reparameterization_has_the_exact_moments(transform: object) -> None:
    layer = WHVILinear(5, 7, transform=transform, dtype=torch.float64)
    scramble(layer)
    x = normal(5).expand(20_000, 5)
    with torch.no_grad():
        y = run(layer, x, LocalReparameterization(seeded()))
        mean, variance = (each[0] for each in layer.output_moments(x[:1]))
    assert ((y.mean(0) - mean) * (len(y) / variance).sqrt()).abs().max() < 5
    # The relative standard error of a variance is (2/n)^½ for a normal.
    assert (y.var(0) / variance - 1).abs().max() < 5 * (2 / len(y)) ** 0.5


@transforms
def test_compiled_steps_leave_other_transforms_to_the_layers(transform: object) -> None:
    model = whvi.mlp(5, (8,), transform=transform)
    assert "not compiled" in str(why_not_compiled(model))
    data = (torch.randn(20, 5), torch.randn(20))
    history = whvi.fit(model, Gaussian(), data, config=whvi.FitConfig(num_steps=3))
    assert not history.compiled


@pytest.mark.parametrize("transform", ["dct", "hartley", "circulant"])
def test_sizes_need_no_padding(transform: str) -> None:
    layer = WHVILinear(13, 13, transform=transform)
    assert layer.matrix.plan.vector_shape == (1, 13)
    assert WHVILinear(100, 1, transform=transform).matrix.plan.block_size == 10


@transforms
def test_linearize_takes_it(transform: object) -> None:
    model = whvi.mlp(3, (4,), transform=transform, dtype=torch.float64)
    likelihood = Gaussian(dtype=torch.float64)
    data = (normal(20, 3), normal(20, seed=1))
    posterior = whvi.linearize(model, likelihood, data)
    assert posterior.predictive(normal(5, 3)).mean.isfinite().all()


@pytest.mark.parametrize(
    "transform",
    [
        t if t in ("hartley", "butterfly-random") else pytest.param(t, marks=pytest.mark.nightly)
        for t in [*TRANSFORMS, Rotation]
    ],
)
def test_torch_compile_takes_it_whole(transform: object) -> None:
    model = whvi.mlp(5, (8,), transform=transform, dtype=torch.float64)
    torch.compiler.reset()  # there is a limit to what one process compiles
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = normal(4, 5)
    with sampling(MeanWeights()):
        torch.testing.assert_close(compiled(x), model(x))
    with sampling(WeightDraws()):
        compiled(x).sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("sizes", [(16, 16), (13, 40), (100, 300)], ids=str)
def test_a_butterfly_layer_is_one_node(
    sizes: tuple[int, int], per_row: bool, batch: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Its values and gradients, and gradients of gradients, are those of its operations."""
    if kernel is None:
        pytest.skip("the node is in the C kernel, which is not compiled here")
    plan = BlockPlan.for_shape(*sizes)
    mixing = Butterfly("random")(plan.block_size, batch_shape=batch, dtype=torch.float64)
    mixing.reset_parameters(generator=seeded(1))
    g_shape = (*batch, 70, plan.vector_size) if per_row else (*batch, plan.vector_size)
    shapes = [(*batch, 70, sizes[0]), (*batch, plan.vector_size), g_shape]
    shapes += [(*batch, plan.vector_size), (*batch, plan.out_features)]
    exact = [normal(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes)]
    exact.append(mixing.angles)
    expected = _compose(mixing, plan, *exact)
    upstream = normal(*expected.shape, seed=9).requires_grad_()
    right = torch.autograd.grad(expected, exact, upstream, create_graph=True)
    curved = [0, 1, 2, 3, 5]  # what has second derivatives: all but the bias
    size = sum(t.square().sum() for t in right)
    right_second = torch.autograd.grad(size, [exact[i] for i in curved])
    mixing = mixing.to(dtype)
    given = [t.detach().to(dtype).requires_grad_() for t in exact[:-1]]
    actual = mixed_linear(*given, plan, mixing)
    assert type(actual.grad_fn).__name__ == "_MixedLinearBackward"
    low = upstream.detach().to(dtype).requires_grad_()
    wanted = [*given, mixing.angles]
    found = torch.autograd.grad(actual, wanted, low, retain_graph=True)
    again = torch.autograd.grad(actual, wanted, low, create_graph=True)
    size = sum(t.square().sum() for t in again)
    second = torch.autograd.grad(size, [wanted[i] for i in curved])
    results = (actual, *found, *again, *second)
    for one, other in zip(results, (expected, *right, *right, *right_second), strict=True):
        error = (one - other).abs().max() / other.abs().max()
        assert error <= 256 * torch.finfo(dtype).eps


@pytest.mark.parametrize("transform", ["hadamard", *TRANSFORMS])
@pytest.mark.parametrize(
    "sampler", [MeanWeights(), LocalReparameterization(seeded(4))], ids=["mean", "local"]
)
def test_a_layer_used_twice_keeps_its_gradients_when_they_have_a_graph(
    transform: str, sampler: Sampler
) -> None:
    """The second use has an input made of the same parameters."""
    layer = WHVILinear(16, 16, transform=transform).double()
    parameters, x = list(layer.parameters()), normal(5, 16, seed=1)
    with sampling(sampler):
        size = layer(layer(x)).square().sum()
    plain = torch.autograd.grad(size, parameters, retain_graph=True, allow_unused=True)
    graphed = torch.autograd.grad(size, parameters, create_graph=True, allow_unused=True)
    for one, other in zip(plain, graphed, strict=True):
        torch.testing.assert_close(one, other)
