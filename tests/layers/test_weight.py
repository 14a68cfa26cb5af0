"""``layer.weight`` and ``layer.bias``: what code that knows torch's layers may read."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.conformance.layer_suite import DTYPE, EPS, normal, run, scramble, seeded
from whvi import MeanFieldConv2d, MeanFieldLinear, WHVIConv1d, WHVIConv2d, WHVILinear
from whvi.layers.conv import RandomConv
from whvi.layers.linear import RandomAffine
from whvi.sampling import LocalReparameterization, MeanWeights, Sampler, WeightDraws, sampling

LAYERS: dict[str, Callable[..., RandomAffine]] = {
    "whvi": partial(WHVILinear, 5, 7),
    "low_rank": partial(WHVILinear, 3, 9, posterior="low_rank"),
    "flow": partial(WHVILinear, 5, 7, posterior="flow"),
    "column": partial(WHVILinear, 11, 1),
    "row": partial(WHVILinear, 1, 11),
    "random bias": partial(WHVILinear, 5, 7, bias_posterior="diagonal"),
    "no bias": partial(WHVILinear, 5, 7, bias=False),
    "mean field": partial(MeanFieldLinear, 5, 7, bias_posterior="full"),
    "conv": partial(WHVIConv2d, 4, 6, (2, 3), bias_posterior="diagonal"),
    "groups": partial(WHVIConv2d, 4, 6, (2, 3), groups=2, posterior="full"),
    "dense conv": partial(MeanFieldConv2d, 4, 6, (2, 3), groups=2, bias_posterior="diagonal"),
}
each_layer = pytest.mark.parametrize("name", LAYERS)


def make(name: str, **options: object) -> RandomAffine:
    return scramble(LAYERS[name](dtype=DTYPE, **options))


def rows(layer: RandomAffine, *leading: int) -> Tensor:
    if isinstance(layer, RandomConv):
        return normal(*leading, layer.in_channels, 4, 5)
    return normal(*leading, layer.in_features)


def by_torch(layer: RandomAffine, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if isinstance(layer, RandomConv):
        return functional.conv2d(x, weight, bias, groups=layer.groups)
    return functional.linear(x, weight, bias)


@each_layer
@pytest.mark.parametrize("kind", ["mean", "draw"])
def test_forward_is_torchs_with_weight_and_bias(name: str, kind: str) -> None:
    """Values and the gradient of every parameter, whichever is read first."""
    layer, x = make(name), rows(make(name), 3)
    parameters = list(layer.parameters())
    for weight_first in (True, False):
        sampler: Sampler = MeanWeights() if kind == "mean" else WeightDraws(generator=seeded())
        with sampling(sampler):
            y = None if weight_first else layer(x)
            expected = by_torch(layer, x, layer.weight, layer.bias)
            y = layer(x) if y is None else y
        torch.testing.assert_close(y, expected, rtol=0, atol=256 * EPS)
        upstream = normal(*y.shape, seed=7)
        found = [
            torch.autograd.grad(value, parameters, upstream, allow_unused=True, retain_graph=True)
            for value in (y, expected)
        ]
        for ours, theirs in zip(*found, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                torch.testing.assert_close(ours, theirs, rtol=0, atol=4096 * EPS)


@each_layer
def test_draws_and_replicas_have_axes_before_torchs(name: str) -> None:
    layer = make(name, batch_shape=(2,))
    x = rows(layer, 2, 3, 4)
    with sampling(WeightDraws(3, seeded())):
        y, weight, bias = layer(x), layer.weight.clone(), layer.bias
        bias = None if bias is None else bias.expand(2, 3, -1) if bias.dim() == 3 else bias
    assert weight.shape == (2, 3, *layer.weight_shape)
    for r in range(2):
        for s in range(3):
            own = None if bias is None else bias[r, s] if bias.dim() == 3 else bias[r]
            expected = by_torch(layer, x[r, s], weight[r, s], own)
            torch.testing.assert_close(y[r, s], expected, rtol=0, atol=256 * EPS)


@each_layer
def test_shape_device_and_dtype_do_not_form_the_matrix(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = make(name, batch_shape=(2,))
    state = torch.get_rng_state()

    def never(draw: Tensor) -> Tensor:
        raise AssertionError("formed")

    with monkeypatch.context() as patched:
        patched.setattr(layer.matrix, "dense", never)
        weight = layer.weight
        assert isinstance(weight, Tensor)
        assert weight.shape == weight.size() == (2, *layer.weight_shape)
        assert (weight.dtype, weight.device) == (DTYPE, torch.device("cpu"))
        assert weight.dim() == weight.ndim == 1 + len(layer.weight_shape)
        assert len(weight) == 2
        assert weight.numel() == 2 * torch.Size(layer.weight_shape).numel()
        with sampling(WeightDraws(5)):
            assert layer.weight.shape == (2, 5, *layer.weight_shape)
        assert torch.equal(torch.get_rng_state(), state)
        with pytest.raises(AssertionError, match="formed"):
            weight.sum()


def test_a_weight_is_formed_once() -> None:
    weight = make("whvi").weight
    assert torch.equal(weight, weight)
    assert torch.equal(weight + 0, weight.clone())
    assert type(weight.detach()) is Tensor
    assert weight.requires_grad


def test_without_a_sampler_every_weight_is_a_new_draw() -> None:
    layer = make("whvi")
    assert not torch.equal(layer.weight, layer.weight)
    with sampling(WeightDraws()):
        assert torch.equal(layer.weight, layer.weight)
    with sampling(LocalReparameterization(seeded(1))):
        first = layer.weight.clone()
    with sampling(LocalReparameterization(seeded(1))):
        assert torch.equal(layer.weight, first)
        assert first.shape == (7, 5)


@each_layer
def test_the_bias_is_a_parameter_unless_it_is_random(name: str) -> None:
    layer = make(name)
    if layer.bias_posterior is None:
        parameter = dict(layer.named_parameters()).get("bias")
        assert layer.bias is parameter
        assert (parameter is None) == (name == "no bias")
        assert layer.has_bias is (name != "no bias")
        if parameter is not None:
            layer.bias = nn.Parameter(torch.ones_like(parameter))
            assert layer.state_dict()["bias"].eq(1).all()
    else:
        assert "bias" not in layer.state_dict()
        assert layer.has_bias
        state = torch.get_rng_state()
        assert repr(layer)
        assert layer.bias is not None
        assert layer.bias.shape == layer.weight_shape[:1]
        assert torch.equal(torch.get_rng_state(), state)
        with sampling(MeanWeights()):
            assert torch.equal(layer.bias, layer.bias_posterior.mean)


def test_keys_of_the_state_say_what_is_what() -> None:
    assert set(WHVILinear(5, 7).state_dict()) == {
        *("bias", "matrix.s1", "matrix.s2", "matrix.posterior.loc", "matrix.posterior.log_scale")
    }
    random = MeanFieldLinear(5, 7, bias_posterior="diagonal", prior="learned")
    assert set(random.state_dict()) == {
        *("matrix.posterior.loc", "matrix.posterior.log_scale", "matrix.prior.log_variance"),
        *("bias_posterior.loc", "bias_posterior.log_scale"),
    }


@pytest.mark.parametrize(
    "build", [partial(WHVILinear, 5, 70), partial(WHVIConv1d, 3, 70, 2), partial(WHVILinear, 70, 1)]
)
def test_vectors_are_one_dimensional_and_replicas_add_an_axis(build: Callable[..., nn.Module]):
    """So that a recipe such as ``p.ndim >= 2`` gives weight decay to matrices only."""
    assert {p.ndim for p in build().parameters()} == {1}
    assert {p.ndim for p in build(batch_shape=(3,)).parameters()} == {2}


@pytest.mark.parametrize("name", LAYERS)
def test_moments_of_the_matrix_are_properties(name: str) -> None:
    matrix = make(name).matrix
    torch.testing.assert_close(matrix.mean, matrix.dense(matrix.posterior.mean), rtol=0, atol=0)
    if name != "flow":
        variance = matrix.moments().covariance.diagonal(dim1=-2, dim2=-1)
        expected = variance.reshape(matrix.mean.shape)
        torch.testing.assert_close(matrix.variance, expected, rtol=0, atol=256 * EPS)


@each_layer
def test_samples_come_first(name: str) -> None:
    layer = make(name, batch_shape=(2,))
    draws = layer.sample_weight((3, 4), generator=seeded(3))
    assert draws.shape == (3, 4, 2, *layer.weight_shape)
    assert layer.matrix.sample((3, 4)).shape[:3] == (3, 4, 2)
    if "conv" not in name and name != "groups":
        ours = layer.matrix.dense(layer.matrix.posterior.draw((3, 4), seeded(3)))
        assert torch.equal(draws, ours.movedim(0, 2))


# --- code that reads weights ---------------------------------------------------------------------


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("kind", [WHVILinear, MeanFieldLinear])
def test_attention_with_a_random_output_projection(
    mode: bool, grad: bool, kind: type[nn.Module]
) -> None:
    """``nn.MultiheadAttention`` reads ``out_proj.weight`` and never calls ``out_proj``."""
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True, dtype=DTYPE).train(mode)
    plain = copy.deepcopy(attention)
    attention.out_proj = scramble(kind(8, 8, dtype=DTYPE))
    x = normal(3, 4, 8)
    for sampler in (MeanWeights(), WeightDraws(generator=seeded())):
        with torch.set_grad_enabled(grad), sampling(sampler):
            y, _ = attention(x, x, x)
            projected = attention.out_proj
            with torch.no_grad():
                plain.out_proj.weight.copy_(projected.weight)
                plain.out_proj.bias.copy_(projected.bias)
            expected, _ = plain(x, x, x)
        torch.testing.assert_close(y, expected, rtol=0, atol=64 * EPS)
    if grad:
        y.sum().backward()
        assert all(p.grad is not None for p in attention.out_proj.parameters())


def test_transformer_layers_take_random_layers() -> None:
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, dtype=DTYPE).eval()
    block.linear1 = scramble(WHVILinear(8, 16, dtype=DTYPE))
    x, sampler = normal(3, 4, 8), WeightDraws(generator=seeded())
    with torch.no_grad():
        fast = run(block, x, sampler)
    torch.testing.assert_close(fast, run(block, x, sampler), rtol=0, atol=64 * EPS)


@pytest.mark.filterwarnings("ignore")  # of torch's own compiler
def test_weights_are_read_in_compiled_code() -> None:
    layer, x = make("whvi"), normal(3, 5)
    read = torch.compile(lambda x: functional.linear(x, layer.weight, layer.bias), backend="eager")
    with sampling(MeanWeights()):
        torch.testing.assert_close(read(x), layer(x), rtol=0, atol=64 * EPS)
