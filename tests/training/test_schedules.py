from __future__ import annotations

import math

import pytest

from whvi.training import FitConfig
from whvi.training.schedules import kl_weight, learning_rate

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
