"""The configuration of a fit: one frozen record, and its schedules and random streams."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from dataclasses import dataclass
from typing import Literal

import torch

from whvi._checks import check_not_negative, check_positive, check_positive_int
from whvi.errors import ConfigError

Schedule = Literal["cosine", "constant"]


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """Options of :func:`whvi.fit`. The defaults train small networks on standardised tables.

    Args:
        num_steps: Steps of Adam.
        batch_size: Rows per step and replica; a smaller data set is one batch.
        learning_rate: Peak step size.
        warmup_steps: Steps of linear warm-up to that peak; ``None``: 200, but at most a tenth of
            ``num_steps``.
        schedule: What follows: ``"cosine"`` falls to zero at ``num_steps``; or ``"constant"``.
        num_draws: Draws per row and step.
        beta: Weight of the KL. 1 is the ELBO; less is a tempered objective, not a bound.
        kl_warmup_steps: Steps over which the weight of the KL rises linearly to ``beta``.
        noise_hold_steps: First steps during which ``likelihood.noise_parameters()`` stay as
            they are: a noise that adapts to an untrained mean hides the signal. ``None``: 500,
            but at most a quarter of ``num_steps``.
        max_grad_norm: Clip each replica's gradient (of the objective per datum) to this norm.
        ema_decay: Decay of an exponential moving average of the weights, which the model then
            ends with; early on, the plain average. Off by default: it had no measurable effect.
        eval_every: Steps between evaluations on validation data.
        patience: With validation data: a replica that has not improved for so many evaluations
            is finished, training stops when all are, and each ends with its best weights.
            ``None``: validation is only recorded.
        record_every: Steps between records of the history, and calls of the callbacks.
        seed: Fixes batch order and noise. Replica ``r`` sees the batches of a fit with
            ``seed + r`` alone.
        compiled: Run models of the usual kind (see :func:`whvi.layers.compiled.compile_model`)
            without a call of their layers, 1.3 times as fast and to rounding the same. ``False``:
            always call the layers. ``History.compiled`` tells which it was.
    """

    num_steps: int = 8000
    batch_size: int = 32
    learning_rate: float = 1e-2
    warmup_steps: int = None  # type: ignore[assignment]  # a number once made
    schedule: Schedule = "cosine"
    num_draws: int = 1
    beta: float = 1.0
    kl_warmup_steps: int = 0
    noise_hold_steps: int = None  # type: ignore[assignment]  # likewise
    max_grad_norm: float | None = None
    ema_decay: float | None = None
    eval_every: int = 250
    patience: int | None = None
    record_every: int = 50
    seed: int = 0
    compiled: bool = True

    def __post_init__(self) -> None:
        for name in ("num_steps", "batch_size", "num_draws", "eval_every", "record_every"):
            check_positive_int(name, getattr(self, name))
        self._set_default("warmup_steps", min(200, self.num_steps // 10))
        self._set_default("noise_hold_steps", min(500, self.num_steps // 4))
        for name in ("warmup_steps", "kl_warmup_steps", "noise_hold_steps"):
            _check_steps(name, getattr(self, name), self.num_steps)
        check_positive("learning_rate", self.learning_rate)
        if self.schedule not in ("cosine", "constant"):
            raise ConfigError(f"schedule must be 'cosine' or 'constant', got {self.schedule!r}")
        check_not_negative("beta", self.beta)
        if self.max_grad_norm is not None:
            check_positive("max_grad_norm", self.max_grad_norm)
        if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
            raise ConfigError(f"ema_decay must lie in [0, 1), got {self.ema_decay!r}")
        if self.patience is not None:
            check_positive_int("patience", self.patience)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ConfigError(f"seed must be an integer, got {self.seed!r}")
        if not isinstance(self.compiled, bool):
            raise ConfigError(f"compiled must be True or False, got {self.compiled!r}")

    def _set_default(self, name: str, value: int) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    def as_dict(self) -> dict[str, int | float | str | None]:
        """Return the fields as plain values, ready for JSON."""
        return dataclasses.asdict(self)


def _check_steps(name: str, value: int, num_steps: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= num_steps:
        raise ConfigError(
            f"{name} must be an integer between 0 and num_steps = {num_steps}, got {value!r}"
        )


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


def seeded_generator(*key: int | str, device: torch.device | str | None = None) -> torch.Generator:
    """Return a generator that is a pure function of ``key``, such as ``("order", 0, 3)``.

    The key is hashed: streams of neighbouring seeds have nothing in common, and the result does
    not depend on ``PYTHONHASHSEED``.
    """
    digest = hashlib.sha256(repr(key).encode()).digest()
    generator = torch.Generator(device or "cpu")
    generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return generator
