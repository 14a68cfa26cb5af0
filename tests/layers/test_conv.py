"""Convolutions against torch's own, with the drawn kernel; and against linear layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.conformance.layer_suite import DTYPE, EPS, normal, run, scramble, seeded
from whvi.errors import ConfigError, ShapeError
from whvi.layers import (
    MeanFieldConv1d,
    MeanFieldConv2d,
    MeanFieldConv3d,
    MeanFieldLinear,
    WHVIConv1d,
    WHVIConv2d,
    WHVIConv3d,
    WHVILinear,
)
from whvi.layers.conv import RandomConv
from whvi.sampling import LocalReparameterization, MeanWeights, WeightDraws

CONVS = {
    1: (WHVIConv1d, MeanFieldConv1d, torch.nn.Conv1d, functional.conv1d),
    2: (WHVIConv2d, MeanFieldConv2d, torch.nn.Conv2d, functional.conv2d),
    3: (WHVIConv3d, MeanFieldConv3d, torch.nn.Conv3d, functional.conv3d),
}
SPATIAL = (7, 6, 5)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"stride": 2},
    {"padding": 1},
    {"padding": "valid"},
    {"padding": "same"},
    {"padding": "same", "dilation": 2},
    {"dilation": 2},
    {"groups": 2},
    {"groups": 4},
    {"stride": 2, "padding": 2, "dilation": 2, "groups": 2},
    {"padding": 1, "padding_mode": "reflect"},
    {"padding": 2, "padding_mode": "replicate", "stride": 2},
    {"padding": 1, "padding_mode": "circular", "groups": 2},
    {"padding": "same", "padding_mode": "circular"},
]


def as_torch(layer: RandomConv, kernel: Tensor, kind: type, **options: Any) -> torch.nn.Module:
    conv = kind(layer.in_channels, layer.out_channels, **options, dtype=DTYPE)
    conv.weight = torch.nn.Parameter(kernel)
    conv.bias = torch.nn.Parameter(layer.bias.detach())
    return conv


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_convolution_is_torchs_with_the_drawn_kernel(axes: int, options: dict[str, Any]) -> None:
    """Values and gradients with respect to input and bias."""
    *kinds, plain, _ = CONVS[axes]
    x = normal(2, 4, *SPATIAL[:axes]).requires_grad_()
    for kind in kinds:
        layer = scramble(kind(4, 8, kernel_size=3, **options, dtype=DTYPE))
        kernel = layer.sample_weight(generator=seeded(3)).detach()
        assert kernel.shape == (8, 4 // options.get("groups", 1), *(3,) * axes)
        y = run(layer, x, WeightDraws(generator=seeded(3)))
        reference = as_torch(layer, kernel, plain, kernel_size=3, **options)
        expected = reference(x)
        torch.testing.assert_close(y, expected, rtol=0, atol=256 * EPS)
        upstream = normal(*y.shape, seed=7)
        ours = torch.autograd.grad(y, [x, layer.bias], upstream)
        theirs = torch.autograd.grad(expected, [x, reference.bias], upstream)
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=2048 * EPS)


@pytest.mark.parametrize("kind", [WHVIConv2d, MeanFieldConv2d])
def test_tuples_give_each_axis_its_own(kind: type[RandomConv]) -> None:
    options = {"kernel_size": (2, 3), "stride": (1, 2), "padding": (0, 2), "dilation": (2, 1)}
    layer = scramble(kind(3, 5, **options, dtype=DTYPE))
    kernel, x = layer.sample_weight(generator=seeded(3)).detach(), normal(2, 3, 7, 6)
    expected = as_torch(layer, kernel, torch.nn.Conv2d, **options)(x)
    y = run(layer, x, WeightDraws(generator=seeded(3)))
    torch.testing.assert_close(y, expected, rtol=0, atol=256 * EPS)


@pytest.mark.parametrize(
    ("conv", "linear"), [(WHVIConv2d, WHVILinear), (MeanFieldConv2d, MeanFieldLinear)]
)
@pytest.mark.parametrize("sampler", ["mean", "draw", "draws", "local"])
def test_one_by_one_is_a_linear_layer(conv, linear, sampler: str) -> None:
    """With equal parameters and noise, a 1 × 1 kernel is a linear map of the channels."""
    layer, twin = scramble(conv(5, 7, 1, dtype=DTYPE)), linear(5, 7, dtype=DTYPE)
    state = layer.state_dict()
    twin.load_state_dict(
        {name: t.reshape(twin.state_dict()[name].shape) for name, t in state.items()}
    )
    x = normal(3, 2, 5, 4, 6)
    make = {
        "mean": MeanWeights,
        "draw": lambda: WeightDraws(generator=seeded()),
        "draws": lambda: WeightDraws(3, seeded()),
        "local": lambda: LocalReparameterization(seeded()),
    }[sampler]
    expected = run(twin, x.movedim(-3, -1), make()).movedim(-1, -3)
    torch.testing.assert_close(run(layer, x, make()), expected, rtol=0, atol=64 * EPS)
    torch.testing.assert_close(layer.kl(), twin.kl(), rtol=1e-14, atol=0)


def test_groups_are_separate_convolutions() -> None:
    layer = scramble(WHVIConv1d(4, 6, 3, groups=2, dtype=DTYPE))
    x, parts, kls = normal(2, 4, 8), [], []
    for group in range(2):
        alone = WHVIConv1d(2, 3, 3, dtype=DTYPE)
        state = {n: t[group] for n, t in layer.state_dict().items() if "matrix" in n}
        state["bias"] = layer.bias[3 * group : 3 * group + 3]
        alone.load_state_dict(state)
        parts.append(run(alone, x[:, 2 * group : 2 * group + 2], MeanWeights()))
        kls.append(alone.kl())
    y = run(layer, x, MeanWeights())
    torch.testing.assert_close(y, torch.cat(parts, 1), rtol=0, atol=64 * EPS)
    torch.testing.assert_close(layer.kl(), sum(kls), rtol=1e-14, atol=0)


def test_local_reparameterization_draws_for_every_patch() -> None:
    layer = scramble(WHVIConv1d(2, 3, 3, dtype=DTYPE))
    x = normal(2, 1, seed=2).expand(2, 400)  # every patch is the same
    y = run(layer, x, LocalReparameterization(seeded()))
    assert y.shape == (3, 398)
    assert y.unique(dim=1).shape == y.shape
    shared = run(layer, x, WeightDraws(generator=seeded()))
    assert torch.equal(shared, shared[:, :1].expand_as(shared))


def test_a_draws_axis_is_not_confused_with_positions() -> None:
    layer = WHVIConv1d(2, 3, 1)
    with pytest.raises(ShapeError, match="num_draws=4"):
        run(layer, torch.zeros(2, 4), WeightDraws(4))


@pytest.mark.parametrize("kind", [WHVIConv2d, MeanFieldConv2d])
def test_wrong_inputs_are_refused_with_their_shape(kind: type[RandomConv]) -> None:
    layer = kind(2, 3, 3)
    for shape in [(5, 3, 8, 8), (8, 8), (2, 8), ()]:
        with pytest.raises(ShapeError) as refused:
            layer(torch.zeros(shape))
        assert str(shape) in str(refused.value)
        assert "2 channels" in str(refused.value)
    with pytest.raises(ShapeError, match=r"spans \(3, 3\) positions .* only \(2, 8\)"):
        layer(torch.zeros(1, 2, 2, 8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel_size": 0}, "kernel_size must be"),
        ({"kernel_size": (3, 3, 3)}, "kernel_size must be"),
        ({"stride": 0}, "stride must be"),
        ({"padding": -1}, "padding must be"),
        ({"padding": "some"}, "padding must be"),
        ({"padding": "same", "stride": 2}, "needs stride 1"),
        ({"dilation": 1.5}, "dilation must be"),
        ({"groups": 3}, "groups must divide"),
        ({"padding_mode": "mirror"}, "padding_mode must be one of"),
        ({"in_channels": 0}, "in_channels must be"),
    ],
)
def test_wrong_options_are_refused(change: dict[str, Any], message: str) -> None:
    options = {"in_channels": 4, "out_channels": 8, "kernel_size": 3} | change
    with pytest.raises(ConfigError, match=message):
        WHVIConv2d(**options)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "build",
    [
        WHVIConv1d,
        partial(WHVIConv1d, posterior="full", bias_posterior="diagonal"),
        partial(MeanFieldConv1d, bias_posterior="low_rank"),
    ],
    ids=["diagonal", "full", "mean_field"],
)
def test_moments_are_those_of_the_kernel(build, groups: int) -> None:
    """Outputs are linear in the kernel; its moments are those of draws (|z| < 5)."""
    layer = scramble(build(4, 6, 2, groups=groups, padding=1, dtype=DTYPE))
    x, num = normal(3, 4, 5), 20_000
    moments, shape = layer.weight_moments(), layer.weight_shape

    def convolve(kernel: Tensor) -> Tensor:
        return functional.conv1d(x, kernel.reshape(shape), padding=1, groups=groups)

    J = torch.autograd.functional.jacobian(convolve, moments.mean.detach())
    mean, variance = convolve(moments.mean), (J @ moments.covariance * J).sum(-1)
    if layer.bias_posterior is None:
        mean = mean + layer.bias[:, None]
    else:
        mean = mean + layer.bias_posterior.mean[:, None]
        variance = variance + layer.bias_posterior.variance[:, None]
    found = layer.output_moments(x)
    torch.testing.assert_close(found.mean, mean, rtol=0, atol=256 * EPS)
    torch.testing.assert_close(found.variance, variance, rtol=0, atol=1024 * EPS)
    with torch.no_grad():
        draws = layer.sample_weight((num,), generator=seeded(2)).flatten(1)
        spread = moments.covariance.diagonal()
        z_mean = (draws.mean(0) - moments.mean) / (spread / num).sqrt()
        # var of a sample covariance of normals: (Σ_ij² + Σ_ii Σ_jj) / n
        error = ((moments.covariance.square() + torch.outer(spread, spread)) / num).sqrt()
        z_covariance = (draws.T.cov() - moments.covariance) / error
        assert z_mean.abs().max() < 5
        assert z_covariance.abs().max() < 5
        y = run(layer, x.expand(num, *x.shape), LocalReparameterization(seeded(3)))
        z_mean = (y.mean(0) - mean) / (variance / num).sqrt()
        z_variance = (y.var(0) / variance - 1) * (num / 2) ** 0.5
        assert z_mean.abs().max() < 5
        assert z_variance.abs().max() < 5


@pytest.mark.parametrize("groups", [1, 2])
def test_kl_is_that_of_kernel_and_bias(groups: int) -> None:
    options = {"groups": groups, "bias_posterior": "diagonal", "batch_shape": (3,)}
    layer = scramble(WHVIConv1d(4, 6, 2, **options, dtype=DTYPE))
    kernel = layer.matrix.posterior.kl(layer.matrix.prior)
    kernel = kernel.sum(-1) if groups > 1 else kernel
    expected = kernel + layer.bias_posterior.kl(layer.bias_prior)
    torch.testing.assert_close(layer.kl(), expected, rtol=1e-13, atol=0)
    terms = layer.kl_terms()
    assert (terms is None) == (groups > 1)
    if terms is not None:
        total = sum(q.kl(p) for q, p in terms)
        torch.testing.assert_close(total, expected, rtol=1e-13, atol=0)


def test_options_of_the_weight_are_handed_on() -> None:
    layer = WHVIConv2d(2, 3, 3, posterior="full", prior="standard_normal", bias=False)
    assert type(layer.matrix.posterior).__name__ == "FullGaussian"
    assert layer.bias is None
    with pytest.raises(TypeError):
        MeanFieldConv2d(2, 3, 3, posterior="full")
