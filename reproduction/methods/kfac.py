"""Noisy K-FAC as a method of the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from reproduction.methods.parts import make_noise, train_finite
from reproduction.methods.protocol import DataSize, Settings
from reproduction.noisy_kfac import (
    MatrixGaussianNetwork,
    NoisyKFACConfig,
    fit_noisy_kfac,
    forward,
)
from whvi.likelihoods import Likelihood
from whvi.predictive import Predictive
from whvi.training.config import seeded_generator

_VALUES_AT_ONCE = 1 << 23  # of a hidden layer in prediction: 32 MB


@final
@dataclass(frozen=True)
class NoisyKFACMethod:
    """Networks trained by :func:`reproduction.noisy_kfac.fit_noisy_kfac`."""

    candidates: Callable[[DataSize], tuple[Settings, ...]]
    name: str = "noisy-kfac"
    num_members: int = 1
    per_replica: frozenset[str] = frozenset({"beta", "damping", "prior"})

    @property
    def family(self) -> str:
        """Shares scores with no other method."""
        return self.name

    def grid(self, size: DataSize) -> tuple[Settings, ...]:
        """Return the candidates for data of this size."""
        return self.candidates(size)

    def fit(self, settings: Sequence[Settings], x: Tensor, y: Tensor, *, seed: int) -> FittedKFAC:
        """Train R networks in one pass; ``settings`` differ in ``per_replica`` only."""
        return train_finite(lambda factor: _fit(settings, x, y, seed=seed, factor=factor))


@final
class FittedKFAC:
    """R trained networks and their noise."""

    def __init__(self, network: MatrixGaussianNetwork, likelihood: Likelihood, seed: int) -> None:
        self._network, self._likelihood, self._seed = network, likelihood, seed

    @property
    def num_parameters(self) -> int:
        """Means, both factors of every layer, and the noise."""
        return self._network.num_parameters + 1

    @torch.no_grad()
    def predict(self, x: Tensor, *, num_draws: int) -> Predictive:
        """Return the mixture over ``num_draws`` weight draws."""
        generator = seeded_generator("predict", self._seed)
        weights = self._network.draw_weights(generator, num_draws)
        width = max(w.shape[-2] for w in weights)
        rows = max(1, _VALUES_AT_ONCE // (len(x) * num_draws * width))
        parts = [forward(weights, chunk)[1][-1] for chunk in x.split(rows, dim=1)]
        f = torch.cat(parts, dim=2).transpose(0, 1)
        return self._likelihood.predictive(f)


def _fit(
    settings: Sequence[Settings], x: Tensor, y: Tensor, *, seed: int, factor: float
) -> FittedKFAC:
    common = settings[0]
    steps = int(common["steps"])
    likelihood, trained = make_noise(common, len(settings), balance=0.0)
    config = NoisyKFACConfig(
        num_steps=steps,
        batch_size=int(common["batch"]),
        learning_rate=factor * float(common["lr"]),
        trust=float(common.get("trust", NoisyKFACConfig.trust)),
        warmup_steps=min(200, steps // 4),
        noise_hold_steps=min(500, steps // 4),
        seed=seed,
    )
    hidden = [int(common["width"])] * int(common["depth"])
    network = MatrixGaussianNetwork(
        [x.shape[-1], *hidden, likelihood.num_features],
        x.shape[1],
        torch.tensor([float(s["beta"]) for s in settings]),
        torch.tensor([float(s["prior"]) for s in settings]),
        seeded_generator("start", seed),
    )
    damping = torch.tensor([float(s["damping"]) for s in settings])
    fit_noisy_kfac(network, likelihood, x, y, damping=damping, config=config, trained=trained)
    return FittedKFAC(network, likelihood, seed)
