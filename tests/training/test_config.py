from __future__ import annotations

import dataclasses
import json
import math

import pytest

from whvi.errors import ConfigError
from whvi.training import FitConfig
from whvi.training.config import kl_weight, learning_rate


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_steps", 0),
        ("num_steps", 2.0),
        ("batch_size", True),
        ("learning_rate", 0.0),
        ("learning_rate", float("inf")),
        ("warmup_steps", -1),
        ("warmup_steps", 8001),
        ("noise_hold_steps", 8001),
        ("schedule", "linear"),
        ("num_draws", 0),
        ("beta", -0.1),
        ("beta", float("nan")),
        ("beta", float("inf")),
        ("beta", "a"),
        ("max_grad_norm", 0.0),
        ("ema_decay", 1.0),
        ("patience", 0),
        ("eval_every", 0),
        ("record_every", 0),
        ("seed", "1"),
        ("compiled", "yes"),
    ],
)
def test_values_outside_their_range_are_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=field):
        FitConfig(**{field: value})


def test_a_config_is_frozen_and_json_ready():
    config = FitConfig(num_steps=600, patience=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_steps = 5
    assert FitConfig(**json.loads(json.dumps(config.as_dict()))) == config


OPTIONS = {"num_steps": 1000, "warmup_steps": 100, "noise_hold_steps": 0, "learning_rate": 0.02}


def test_warmup_is_linear_and_reaches_the_peak():
    config = FitConfig(**OPTIONS)
    assert learning_rate(config, 0) == pytest.approx(0.02 / 100)
    assert learning_rate(config, 49) == pytest.approx(0.01)
    assert learning_rate(config, 99) == learning_rate(config, 100) == 0.02


def test_cosine_against_closed_form():
    config = FitConfig(**OPTIONS)
    for t in (100, 325, 550, 999):
        expected = 0.02 * math.cos(math.pi / 2 * (t - 100) / 900) ** 2  # half-angle form
        assert learning_rate(config, t) == pytest.approx(expected, rel=1e-12)
    assert learning_rate(config, 550) == pytest.approx(0.01)
    assert 0 < learning_rate(config, 999) < 1e-7


def test_constant_stays_at_the_peak():
    config = FitConfig(**OPTIONS, schedule="constant")
    assert {learning_rate(config, t) for t in (99, 100, 500, 999)} == {0.02}


def test_warmup_over_the_whole_run():
    config = FitConfig(**(OPTIONS | {"warmup_steps": 1000}))
    assert learning_rate(config, 999) == 0.02


def test_kl_weight_rises_to_beta():
    config = FitConfig(**OPTIONS, beta=0.6, kl_warmup_steps=10)
    assert kl_weight(config, 0) == pytest.approx(0.06)
    assert kl_weight(config, 4) == pytest.approx(0.3)
    assert kl_weight(config, 9) == kl_weight(config, 500) == 0.6
    assert kl_weight(FitConfig(**OPTIONS), 0) == 1.0
