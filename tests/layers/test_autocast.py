"""Mixed precision: outputs have autocast's data type, everything else keeps that of the layer."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from whvi import (
    FitConfig,
    LocalReparameterization,
    MCDropout,
    MeanFieldConv2d,
    MeanFieldLinear,
    MeanWeights,
    WeightDraws,
    WHVIConv1d,
    WHVIConv2d,
    WHVILinear,
    draw_functions,
    elbo,
    fit,
    kl,
    mlp,
    sampling,
)
from whvi.errors import ShapeError
from whvi.likelihoods import Gaussian

HALVES = pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
LINEAR = {
    "whvi": WHVILinear,
    "mean_field": MeanFieldLinear,
    **{name: partial(WHVILinear, posterior=name) for name in ("full", "low_rank", "flow")},
    "point": partial(WHVILinear, posterior="point", prior="standard_normal"),
    "random_bias": partial(WHVILinear, bias_posterior="diagonal"),
}
SAMPLERS = {
    "mean": MeanWeights,
    "draw": lambda: WeightDraws(generator=seeded()),
    "local": lambda: LocalReparameterization(seeded()),
}


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def check(layer: nn.Module, x: Tensor, half: torch.dtype, sampler: str) -> None:
    """Output and gradients are those of float32, rounded."""
    found = {}
    for name, enabled in (("full", False), ("half", True)):
        torch.manual_seed(2)  # of a KL that is estimated
        with sampling(SAMPLERS[sampler]()), torch.autocast("cpu", half, enabled=enabled):
            y = layer(x.to(half).float() if name == "full" else x.to(half))
            value = kl(layer)
        parameters = list(layer.parameters())
        loss = y.float().square().sum()
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
        found[name] = y, value, gradients
    y, value, gradients = found["half"]
    exact, exact_value, exact_gradients = found["full"]
    assert y.dtype is half
    assert value.dtype is torch.float32
    torch.testing.assert_close(y, exact.to(half), rtol=0, atol=0)
    torch.testing.assert_close(value, exact_value, rtol=0, atol=0)
    for one, other in zip(gradients, exact_gradients, strict=True):
        # rounded outputs make rounded slopes; sums of them cancel
        torch.testing.assert_close(
            one, other, rtol=0.05, atol=0.02 * float(other.abs().max()) + 1e-6
        )


@HALVES
@pytest.mark.parametrize("sampler", ["mean", "draw", "local"])
@pytest.mark.parametrize("name", LINEAR)
def test_linear_layers(name: str, sampler: str, half: torch.dtype) -> None:
    torch.manual_seed(0)
    check(LINEAR[name](5, 7), torch.randn(6, 5), half, sampler)


@HALVES
@pytest.mark.parametrize("sampler", ["mean", "draw", "local"])
@pytest.mark.parametrize("kind", [WHVIConv2d, MeanFieldConv2d])
def test_convolutions(kind: type[nn.Module], sampler: str, half: torch.dtype) -> None:
    torch.manual_seed(0)
    check(kind(2, 3, 3, padding=1), torch.randn(4, 2, 5, 5), half, sampler)


def test_float64_is_left_alone() -> None:
    layer = WHVILinear(5, 7, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(3, 5, dtype=torch.float64)).dtype is torch.float64
        with pytest.raises(ShapeError, match="bfloat16"):
            layer(torch.randn(3, 5).bfloat16())


def test_without_autocast_another_type_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"torch\.bfloat16"):
        WHVILinear(5, 7)(torch.randn(3, 5).bfloat16())


@HALVES
def test_elbo_and_its_gradients(half: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        WHVILinear(5, 32), nn.ReLU(), nn.Linear(32, 32), nn.GELU(), MCDropout(0.0),
        MeanFieldLinear(32, 1),
    )  # fmt: skip
    likelihood, x, y = Gaussian(), torch.randn(64, 5), torch.randn(64)
    parameters = [*model.parameters(), *likelihood.parameters()]
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", half, enabled=enabled):
            terms = elbo(model, likelihood, x, y, num_data=64, generator=seeded())
        assert terms.value.dtype is torch.float32
        gradients = torch.autograd.grad(terms.value, parameters)
        found.append((terms, torch.cat([g.reshape(-1) for g in gradients])))
    (full, exact), (rounded, ours) = found
    torch.testing.assert_close(rounded.kl, full.kl, rtol=0, atol=0)
    torch.testing.assert_close(rounded.expected_log_lik, full.expected_log_lik, rtol=0.02, atol=0)
    assert (ours - exact).norm() < 0.05 * exact.norm()


@HALVES
@pytest.mark.parametrize("outputs", [1, 7])
def test_fit_runs_by_the_layers(outputs: int, half: torch.dtype) -> None:
    torch.manual_seed(0)
    data = torch.randn(64, 5), torch.randn(64, outputs)
    with torch.autocast("cpu", half):
        history = fit(
            mlp(5, (16,), outputs), Gaussian(outputs), data, config=FitConfig(num_steps=20)
        )
    assert not history.compiled


def test_draws_of_a_convolutional_network() -> None:
    model = nn.Sequential(WHVIConv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), WHVILinear(16, 2))
    with torch.autocast("cpu", torch.bfloat16):
        f = draw_functions(model, torch.randn(3, 2, 6), num_draws=5)
    assert f.shape == (5, 3, 2)
    assert f.dtype is torch.bfloat16
