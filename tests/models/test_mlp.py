"""Perceptrons: the paper's network, options, replicas, and uncertainty where there are no data."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from tests.conformance.layer_suite import DTYPE, normal, run, scramble, seeded
from whvi import FitConfig, MeanFieldLinear, WHVILinear, draw_functions, fit, mlp
from whvi.errors import ConfigError
from whvi.likelihoods import Gaussian
from whvi.posteriors import FullGaussian
from whvi.sampling import MeanWeights


def test_default_is_the_network_of_the_paper() -> None:
    model = mlp(13)
    assert [type(m) for m in model] == [WHVILinear, nn.ReLU, WHVILinear, nn.ReLU, MeanFieldLinear]
    assert [m.out_features for m in model[::2]] == [128, 128, 1]


def test_options_reach_the_layers() -> None:
    model = mlp(
        3, (8, 4), 2, activation=nn.Tanh, layer=partial(WHVILinear, posterior="full"),
        last_layer=WHVILinear, batch_shape=(3,), dtype=DTYPE,
    )  # fmt: skip
    assert isinstance(model[0].matrix.posterior, FullGaussian)
    assert isinstance(model[1], nn.Tanh)
    assert isinstance(model[-1], WHVILinear)
    assert {p.dtype for p in model.parameters()} == {DTYPE}
    assert model(normal(3, 5, 4, 3)).shape == (3, 5, 4, 2)


def test_no_hidden_layer_is_one_layer() -> None:
    model = mlp(3, (), 2)
    assert len(model) == 1
    assert isinstance(model[0], MeanFieldLinear)


def test_replicas_are_separate_networks() -> None:
    """R replicas in one set of tensors compute what R networks compute."""
    together = scramble(mlp(3, (8, 8), 1, batch_shape=(3,), dtype=DTYPE))
    x = normal(4, 3)
    y = run(together, x.expand(3, 4, 3), MeanWeights())
    for r in range(3):
        alone = mlp(3, (8, 8), 1, dtype=DTYPE)
        alone.load_state_dict({name: t[r] for name, t in together.state_dict().items()})
        torch.testing.assert_close(y[r], run(alone, x, MeanWeights()), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    "sizes", [{"in_features": 0}, {"hidden": (8, 0)}, {"hidden": 8}, {"out_features": -1}]
)
def test_wrong_widths_are_refused(sizes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"width|hidden"):
        mlp(**{"in_features": 3, **sizes})


def test_uncertainty_is_larger_where_there_are_no_data() -> None:
    """Two clusters with a gap: draws of functions spread in the gap and far outside.

    Full covariance and a random bias: factorized posteriors are known to be too sure between
    clusters (Foong et al., 2020), and with a deterministic bias the first layer has no spread at
    x = 0 at all.
    """
    torch.manual_seed(0)
    x = torch.cat([torch.linspace(-1.6, -0.8, 20), torch.linspace(0.8, 1.6, 20)]).unsqueeze(-1)
    y = (3 * x).sin().squeeze(-1) + 0.05 * torch.randn(40, generator=seeded())
    model = mlp(
        1, (32, 32), layer=partial(WHVILinear, posterior="full", bias_posterior="diagonal"),
        last_layer=partial(MeanFieldLinear, bias_posterior="diagonal"),
    )  # fmt: skip
    likelihood = Gaussian(log_noise_variance=-4.0)
    likelihood.set_target_scaling(y)
    fit(model, likelihood, (x, y), config=FitConfig(num_steps=700, noise_hold_steps=350, seed=1))

    gap, far = torch.linspace(-0.2, 0.2, 11).unsqueeze(-1), torch.tensor([[-4.6], [4.6]])
    spread = {}
    for name, rows in {"data": x, "gap": gap, "far": far}.items():
        predictive = likelihood.predictive(
            draw_functions(model, rows, num_draws=500, generator=seeded(2))
        )
        spread[name] = predictive.epistemic.mean().item()
        if name == "data":  # it has learnt the function, whose values are between -1 and 1
            assert (predictive.mean - y).square().mean().sqrt() < 0.2
    assert spread["gap"] > 1.1 * spread["data"]
    assert spread["far"] > 1.5 * spread["data"]
