"""Step size and KL weight as pure functions of the step, counted from 0."""

from __future__ import annotations

import math

from whvi.training.config import FitConfig


def learning_rate(config: FitConfig, step: int) -> float:
    r"""Return the step size: linear warm-up over ``w`` steps, then constant or cosine.

    ``lr · (t + 1) / w`` for ``t < w``, then ``lr`` or
    ``lr · ½ (1 + cos(π (t − w) / (T − w)))``, which reaches zero at ``t = T``, one step after
    the last.
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    if config.schedule == "constant":
        return peak
    done = (step - warmup) / (config.num_steps - warmup)
    return peak * 0.5 * (1 + math.cos(math.pi * done))


def kl_weight(config: FitConfig, step: int) -> float:
    """Return the weight of the KL: ``beta · min(1, (t + 1) / kl_warmup_steps)``."""
    if step + 1 >= config.kl_warmup_steps:
        return config.beta
    return config.beta * (step + 1) / config.kl_warmup_steps
