"""Monte-Carlo dropout: masks, rates, and the plain network at rate zero."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.conformance.layer_suite import DTYPE, normal, run, seeded
from whvi.errors import ConfigError, ShapeError
from whvi.layers import MCDropout, kl
from whvi.sampling import LocalReparameterization, MeanWeights, WeightDraws


def test_rate_zero_is_the_plain_network() -> None:
    """Bit by bit, whatever the sampler."""
    first, second, x = nn.Linear(5, 8), nn.Linear(8, 2), torch.randn(6, 5, generator=seeded())
    plain = nn.Sequential(first, nn.ReLU(), second)
    dropped = nn.Sequential(first, nn.ReLU(), MCDropout(0.0), second)
    for sampler in (WeightDraws(), LocalReparameterization(), MeanWeights()):
        assert torch.equal(run(dropped, x, sampler), plain(x))
    assert torch.equal(dropped(x), plain(x))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_masks_keep_the_mean_and_the_rate(p: float) -> None:
    x, num = torch.ones(8, dtype=DTYPE), 20_000
    for sampler in (WeightDraws(num, seeded(1)), LocalReparameterization(seeded(2))):
        y = run(MCDropout(p), x.expand(num, 8), sampler)
        assert set(y.unique().tolist()) == {0.0, 1 / (1 - p)}
        z = (y.mean(0) - 1) / (p / (1 - p) / num) ** 0.5
        assert z.abs().max() < 4.5


def test_every_replica_may_have_its_own_rate() -> None:
    rates, num = torch.tensor([0.0, 0.2, 0.7], dtype=DTYPE), 4000
    layer, x = MCDropout(rates, batch_shape=(3,)), torch.ones(3, num, 6, dtype=DTYPE)
    for sampler in (WeightDraws(num, seeded(1)), LocalReparameterization(seeded(2))):
        rows = x if isinstance(sampler, LocalReparameterization) else x.unsqueeze(2)
        y = run(layer, rows, sampler).reshape(3, -1)
        assert torch.equal(y[0], torch.ones_like(y[0]))
        for r in (1, 2):
            assert set(y[r].unique().tolist()) == {0.0, 1 / (1 - rates[r].item())}
            share = (y[r] == 0).double().mean()
            deviation = (rates[r] * (1 - rates[r]) / y[r].numel()).sqrt()
            assert (share - rates[r]).abs() < 4.5 * deviation


def test_rates_of_another_shape_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"batch_shape \(3,\), got \(2,\)"):
        MCDropout(torch.tensor([0.1, 0.2]), batch_shape=(3,))


def test_local_masks_are_independent_between_features_and_rows() -> None:
    y = run(MCDropout(0.5), torch.ones(4000, 6, dtype=DTYPE), LocalReparameterization(seeded()))
    assert y.T.corrcoef().fill_diagonal_(0).abs().max() < 4.5 / 4000**0.5
    assert (y[0] != y[1:]).any(1).float().mean() > 0.9


def test_mean_weights_drop_nothing_and_kl_is_zero() -> None:
    x = normal(4, 5)
    assert torch.equal(run(MCDropout(0.5), x, MeanWeights()), x)
    assert torch.equal(MCDropout(0.5, batch_shape=(3,)).kl(), torch.zeros(3))
    assert kl(nn.Sequential(nn.Linear(2, 2), MCDropout())).item() == 0


def test_state_dict_is_empty() -> None:
    assert not MCDropout().state_dict()


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan")])
def test_rates_outside_the_range_are_refused(p: float) -> None:
    with pytest.raises(ConfigError, match=r"p must be in \[0, 1\)"):
        MCDropout(p)
