from __future__ import annotations

import json
import threading

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.training.doubles import (
    TinyMeanField,
    assert_bitwise,
    gaussian,
    tiny_config,
    tiny_data,
    tiny_net,
    weights_of,
)
from whvi.elbo import elbo
from whvi.errors import ConfigError, DataError
from whvi.layers.protocol import kl
from whvi.training import FitConfig, fit
from whvi.training.batches import TensorBatches
from whvi.training.config import kl_weight, learning_rate, seeded_generator
from whvi.training.distributed import Ranks
from whvi.training.loop import log_predictive_density


def trained(config, *, data=None, **options):
    net, likelihood = tiny_net(), gaussian()
    history = fit(net, likelihood, data or tiny_data(), config=config, **options)
    return weights_of(net, likelihood), history


def test_training_lowers_the_objective():
    config = FitConfig(num_steps=300, warmup_steps=20, noise_hold_steps=50, batch_size=20)
    _, history = trained(config)
    first, last = (
        history.expected_log_lik[i] - history.beta[i] * history.kl[i] for i in (0, len(history) - 1)
    )
    assert last > first + 20


def test_the_loop_against_one_written_by_hand():
    """Order, noise, schedules, scaling, held noise and Adam, step by step and bit by bit."""
    config = tiny_config(beta=0.7, kl_warmup_steps=4, num_draws=2)
    (x, y), net, likelihood = tiny_data(), tiny_net(), gaussian()
    noise = likelihood.noise_parameters()
    optimizer = torch.optim.Adam([*net.parameters(), *likelihood.parameters()], fused=True)
    generator = seeded_generator("noise", config.seed, 0)
    batches = TensorBatches(x, y, (), 8, config.seed, Ranks()).batches(0)
    for step in range(config.num_steps):
        xb, yb = next(batches)
        optimizer.zero_grad()
        result = elbo(
            net, likelihood, xb, yb,
            num_data=40, num_draws=2, beta=kl_weight(config, step), generator=generator,
        )  # fmt: skip
        (result.value * (-1 / 40)).backward()
        if step < config.noise_hold_steps:
            for parameter in noise:
                parameter.grad = None
        optimizer.param_groups[0]["lr"] = learning_rate(config, step)
        optimizer.step()
    weights, history = trained(config)
    assert_bitwise(weights, weights_of(net, likelihood))
    assert history.expected_log_lik[-1] == result.expected_log_lik.item()
    assert sum(history.layer_kl[-1].values()) == pytest.approx(kl(net).item())


def test_the_same_seed_twice_is_bitwise_the_same():
    first, second = trained(tiny_config()), trained(tiny_config())
    assert_bitwise(first[0], second[0])
    assert first[1] == second[1]
    other = trained(tiny_config(seed=1))
    assert not torch.equal(first[0][0], other[0][0])


def test_torchs_global_generator_is_left_alone():
    state = torch.get_rng_state()
    trained(tiny_config(), validation=tiny_data(seed=1))
    assert torch.equal(torch.get_rng_state(), state)


class TestNoiseHold:
    def test_noise_is_held_and_then_moves(self):
        _, history = trained(tiny_config(noise_hold_steps=15))
        values = dict(zip(history.step, history.noise, strict=True))
        assert values[5] == values[15] == [[-2.0]]
        assert values[20] != [[-2.0]]

    def test_no_moments_leak_from_the_held_steps(self):
        """The first free step of Adam has size lr exactly: nothing was accumulated before."""
        config = tiny_config(num_steps=11, noise_hold_steps=10, record_every=1)
        _, history = trained(config)
        move = history.noise[-1][0][0] - history.noise[-2][0][0]
        assert abs(move) == pytest.approx(learning_rate(config, 10), rel=1e-4)

    def test_fixed_noise_stays_fixed(self):
        likelihood = gaussian()
        likelihood.log_noise_variance.requires_grad_(False)
        fit(tiny_net(), likelihood, tiny_data(), config=tiny_config(noise_hold_steps=2))
        assert likelihood.log_noise_variance.item() == -2.0
        assert not likelihood.log_noise_variance.requires_grad


def test_history_is_complete_and_json_ready():
    config = tiny_config(num_steps=33, record_every=5, eval_every=7)
    records = []
    _, history = trained(config, validation=tiny_data(seed=1), callbacks=[records.append])
    due = [s for s in range(1, 34) if s % 5 == 0 or s % 7 == 0 or s == 33]
    assert history.step == due == [r.step for r in records]
    scored = [s for s, v in zip(due, history.validation, strict=True) if v is not None]
    assert scored == [7, 14, 21, 28, 33]
    assert history.learning_rate == [learning_rate(config, s - 1) for s in due]
    assert json.loads(json.dumps(history.as_dict())) == history.as_dict()
    columns = history.as_dict()
    assert columns.pop("compiled") is False
    assert {len(column) for column in columns.values()} == {len(history)}


class TestValidation:
    def test_score_against_a_direct_mixture(self):
        net, likelihood = tiny_net(), gaussian()
        x, y = tiny_data(5, seed=1)
        from whvi.functions import draw_functions

        generator = seeded_generator("validation", 3)
        f = draw_functions(net, x, num_draws=16, generator=generator)
        density = torch.distributions.Normal(f.squeeze(-1), likelihood.noise_scale)
        expected = density.log_prob(y).double().exp().mean(0).log().mean()
        score = log_predictive_density(net, likelihood, x, y, seed=3)
        torch.testing.assert_close(score.double(), expected, rtol=1e-5, atol=1e-6)

    def test_early_stopping_ends_with_the_best_weights(self):
        config = tiny_config(
            num_steps=400, eval_every=5, patience=3, learning_rate=0.3, schedule="constant"
        )
        x, y = tiny_data(12)
        held_out = tiny_data(30, seed=1)
        net, likelihood = tiny_net(), gaussian()
        history = fit(net, likelihood, (x, y), config=config, validation=held_out)
        scores = [v for v in history.validation if v is not None]
        assert history.step[-1] < 400
        assert len(scores) - 1 - scores.index(max(scores)) == 3
        now = log_predictive_density(net, likelihood, *held_out, seed=0).item()
        assert now == max(scores)

    def test_without_patience_it_only_watches(self):
        watched, _ = trained(tiny_config(), validation=tiny_data(seed=1))
        alone, _ = trained(tiny_config())
        assert_bitwise(watched, alone)

    def test_batch_norm_learns_nothing_from_validation(self):
        class Normed(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.net = nn.BatchNorm1d(3), tiny_net()

            def forward(self, x):
                return self.net(self.norm(x.reshape(-1, 3)).reshape(x.shape))

        def statistics(**options):
            net = Normed()
            fit(net, gaussian(), tiny_data(), config=tiny_config(), **options)
            assert net.training
            return weights_of(net)

        assert_bitwise(statistics(), statistics(validation=tiny_data(seed=1)))


def test_weight_average_is_what_the_model_ends_with():
    config = tiny_config(record_every=1, ema_decay=0.8)
    net, likelihood = tiny_net(), gaussian()
    path = []
    fit(net, likelihood, tiny_data(), config=config,
        callbacks=[lambda _: path.append(net[0].mean.detach().clone())])  # fmt: skip
    expected = torch.zeros_like(path[0])
    for step, weight in enumerate(path, start=1):
        decay = min(0.8, (step - 1) / step)
        expected = decay * expected + (1 - decay) * weight
    torch.testing.assert_close(net[0].mean.detach(), expected)


def test_validation_scores_the_average():
    config = tiny_config(ema_decay=0.9, patience=100)
    net, likelihood = tiny_net(), gaussian()
    held_out = tiny_data(seed=1)
    history = fit(net, likelihood, tiny_data(), config=config, validation=held_out)
    best = max(v for v in history.validation if v is not None)
    assert log_predictive_density(net, likelihood, *held_out, seed=0).item() == best


def test_a_loader_trains_like_its_batches():
    x, y = tiny_data()
    data = TensorDataset(x, y)
    config = tiny_config()
    loader = DataLoader(data, batch_size=8)
    parts = list(zip(x.split(8), y.split(8), strict=True))
    first, _ = trained(config, data=loader, num_data=40)
    second, _ = trained(config, data=parts, num_data=40)
    assert_bitwise(first, second)


def test_clipping_bounds_the_step():
    free, _ = trained(tiny_config())
    clipped, _ = trained(tiny_config(max_grad_norm=1e-3))
    loose, _ = trained(tiny_config(max_grad_norm=1e9))
    assert not torch.equal(free[0], clipped[0])
    assert_bitwise(free, loose)


def test_it_runs_outside_the_main_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(trained(tiny_config())[0]))
    thread.start()
    thread.join()
    assert_bitwise(results[0], trained(tiny_config())[0])


def test_refusals():
    frozen = tiny_net().requires_grad_(False)
    likelihood = gaussian().requires_grad_(False)
    with pytest.raises(ConfigError, match="nothing to train"):
        fit(frozen, likelihood, tiny_data(), config=tiny_config())
    x, y = tiny_data()
    x[3, 1] = float("inf")
    with pytest.raises(DataError, match=r"validation x.*\(3, 1\)"):
        fit(tiny_net(), gaussian(), tiny_data(), config=tiny_config(), validation=(x, y))


# ---- weights -------------------------------------------------------------------------------------


def test_weights_of_one_change_no_bit():
    x, y = tiny_data()
    config = tiny_config(patience=3)
    plain, history = trained(config, validation=(x, y))
    weighted, same = trained(config, data=(x, y, torch.ones(40)), validation=(x, y))
    assert_bitwise(plain, weighted)
    assert history == same


def test_weights_count_rows_several_times():
    """A linear model, whose posterior is known, given weighted rows or the same rows repeated."""
    x, y = tiny_data(60)
    weights = torch.tensor([0.0, 1.0, 5.0]).repeat(20)
    config = FitConfig(num_steps=2500, batch_size=20, num_draws=4)

    def posterior(*data):
        layer, likelihood = TinyMeanField(3, 1), gaussian()
        likelihood.requires_grad_(False)
        fit(nn.Sequential(layer), likelihood, data, config=config)
        return torch.cat([layer.mean[0], layer.bias]).detach(), layer.log_scale[0].exp().detach()

    times = weights.long()
    found, repeated = (
        posterior(x, y, weights),
        posterior(x.repeat_interleave(times, 0), y.repeat_interleave(times)),
    )
    design = torch.cat([x, torch.ones(60, 1)], 1)
    noise = gaussian().noise_scale.item() ** 2
    precision = (design.T * weights) @ design / noise + torch.diag(torch.tensor([1.0, 1, 1, 0]))
    exact = torch.linalg.solve(precision, (design.T * weights) @ y / noise)
    plain = torch.linalg.lstsq(design, y).solution
    for mean, scale in (found, repeated):
        torch.testing.assert_close(mean, exact, rtol=0, atol=0.03)  # noise of minibatches
        torch.testing.assert_close(scale, precision.diagonal()[:3].rsqrt(), rtol=0.1, atol=0)
    assert (exact - plain).abs().max() > 0.1


def test_validation_is_weighted():
    x, y = tiny_data()
    weights = torch.zeros(40)
    weights[:7] = 2.0
    net, likelihood = tiny_net(), gaussian()
    part = log_predictive_density(net, likelihood, x[:7], y[:7], seed=0)
    whole = log_predictive_density(net, likelihood, x, y, seed=0, weights=weights)
    torch.testing.assert_close(whole, part)
    _, history = trained(tiny_config(num_steps=10), validation=(x, y, weights))
    _, same = trained(tiny_config(num_steps=10), validation=(x[:7], y[:7]))
    torch.testing.assert_close(history.validation[-1], same.validation[-1])


@pytest.mark.parametrize("num_rows", [1, 2])
def test_tiny_and_degenerate_data_train(num_rows):
    x, y = tiny_data(num_rows)
    model = tiny_net()
    history = fit(model, gaussian(), (x * 0 + 1, y * 0), config=tiny_config())
    assert torch.tensor(history.expected_log_lik).isfinite().all()
    assert all(parameter.isfinite().all() for parameter in model.parameters())
