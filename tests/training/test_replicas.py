"""R replicas in one pass are R separate fits.

The separate fits draw other noise (one generator serves all replicas), so the comparison is made
with posterior scales that underflow. It is to 1e-6, not bitwise: a batched matrix product may sum
in another order than a single one, and Adam's division amplifies the last bit.
"""

from __future__ import annotations

import pytest
import torch

from tests.training.doubles import gaussian, tiny_config, tiny_data, tiny_net
from whvi.errors import ConfigError
from whvi.training import fit

R = 3


def quiet(net):
    for name, parameter in net.named_parameters():
        if name.endswith("log_scale"):
            parameter.data.fill_(-60.0)
            parameter.requires_grad_(False)
    return net


def separate(together, r):
    net = quiet(tiny_net(dtype=torch.float64))
    for own, all_ in zip(net.parameters(), together.parameters(), strict=True):
        own.data.copy_(all_[r])
    return net


@pytest.mark.parametrize("own_data", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_grad_norm": 0.05},
        {"max_grad_norm": 3.0},
        {"ema_decay": 0.9},
        {"patience": 2, "eval_every": 3, "learning_rate": 0.1, "num_steps": 60},
    ],
    ids=["plain", "clip", "clip some", "average", "early stopping"],
)
def test_replicas_equal_separate_fits(own_data, changes):
    config = tiny_config(seed=11, **changes)
    sets = [tiny_data(20, seed=r if own_data else 0, dtype=torch.float64) for r in range(R)]
    data = tuple(map(torch.stack, zip(*sets, strict=True))) if own_data else sets[0]
    held_out = tiny_data(20, seed=9, dtype=torch.float64) if "patience" in changes else None
    options = {"batch_shape": (R,), "dtype": torch.float64}
    net, likelihood = quiet(tiny_net(**options)), gaussian(**options)
    singles = [separate(net, r) for r in range(R)]
    history = fit(net, likelihood, data, config=config, validation=held_out)
    assert len(history.kl[-1]) == R
    for r, single in enumerate(singles):
        alone = gaussian(dtype=torch.float64)
        own_config = tiny_config(**(changes | {"seed": 11 + r}))
        fit(single, alone, sets[r], config=own_config, validation=held_out)
        for a, b in zip(single.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(a, b[r], rtol=1e-6, atol=1e-6)
        noise = alone.log_noise_variance
        torch.testing.assert_close(noise, likelihood.log_noise_variance[r], rtol=1e-6, atol=1e-6)


def test_a_wild_replica_does_not_touch_the_others():
    """Per-replica clipping: huge targets of one replica leave the others as they are, bitwise."""
    x, y = tiny_data(20)
    targets = torch.stack([y, y, y])
    wild = targets.clone()
    wild[1] *= 1e4
    results = []
    for values in (targets, wild):
        net, likelihood = tiny_net(batch_shape=(R,)), gaussian(batch_shape=(R,))
        fit(net, likelihood, (x, values), config=tiny_config(max_grad_norm=0.1))
        results.append(net)
    for a, b in zip(results[0].parameters(), results[1].parameters(), strict=True):
        assert torch.equal(a[[0, 2]], b[[0, 2]])
        assert not torch.equal(a[1], b[1])


def test_parameters_shared_by_replicas_are_refused_where_replicas_are_treated_apart():
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), *tiny_net(batch_shape=(2,)))
    with pytest.raises(ConfigError, match=r"max_grad_norm .* model\.0\.weight"):
        fit(net, gaussian(batch_shape=(2,)), tiny_data(), config=tiny_config(max_grad_norm=1.0))
