from __future__ import annotations

import dataclasses
import json

import pytest

from whvi.errors import ConfigError
from whvi.training import FitConfig


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
        ("max_grad_norm", 0.0),
        ("ema_decay", 1.0),
        ("patience", 0),
        ("eval_every", 0),
        ("record_every", 0),
        ("seed", "1"),
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
