"""Every method that trains a network by :func:`whvi.fit`: they differ in layers and members.

| method | hidden layers | last layer | members |
|---|---|---|---|
| whvi, whvi-ensemble, whvi-best | structured | mean-field | 1, 4, 4 |
| mean-field | mean-field | mean-field | 1 |
| mc-dropout | plain, dropout | plain | 1 |
| deep-ensemble | plain | plain | 5 |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from reproduction.methods.parts import (
    NormalScores,
    PointLinear,
    TemperedLikelihood,
    make_noise,
    train_finite,
)
from reproduction.methods.protocol import DataSize, Settings
from whvi.errors import ConfigError
from whvi.functions import draw_functions
from whvi.layers import MCDropout, MeanFieldLinear, WHVILinear
from whvi.layers.sines import Sine, Tile, spread_frequencies
from whvi.likelihoods import Likelihood
from whvi.models.mlp import LayerFactory
from whvi.predictive import Predictive
from whvi.training import FitConfig, fit
from whvi.training.config import seeded_generator

_LAYERS: dict[str, tuple[LayerFactory, LayerFactory]] = {
    "structured": (WHVILinear, MeanFieldLinear),
    "mean-field": (MeanFieldLinear, MeanFieldLinear),
    "plain": (PointLinear, PointLinear),
}
_FEATURES = ("relu", "sine", "laplace")
_BALANCE = 0.5  # of the gradients where the noise is a function of the input
_LAPLACE_SCALE = 0.25  # from 0.1 to 1 it makes little difference on powerplant
_VALUES_AT_ONCE = 1 << 23  # of the widest hidden layer in prediction: 32 MB


@final
@dataclass(frozen=True)
class NetworkMethod:
    """A network with posterior ``layers``, and the candidates it may choose from.

    Attributes:
        name: In records.
        layers: ``"structured"``, ``"mean-field"`` or ``"plain"``.
        candidates: The grid as a function of the size of the data.
        num_members: Networks whose predictions are pooled.
    """

    name: str
    layers: str
    candidates: Callable[[DataSize], tuple[Settings, ...]]
    num_members: int = 1
    per_replica: frozenset[str] = frozenset({"beta", "dropout"})

    @property
    def family(self) -> str:
        """Networks of the same layers differ in settings only."""
        return self.layers

    def grid(self, size: DataSize) -> tuple[Settings, ...]:
        """Return the candidates for data of this size."""
        return self.candidates(size)

    def fit(
        self, settings: Sequence[Settings], x: Tensor, y: Tensor, *, seed: int
    ) -> FittedNetwork:
        """Train R networks in one pass; ``settings`` differ in ``per_replica`` only."""
        return train_finite(lambda factor: self._fit(settings, x, y, seed=seed, factor=factor))

    def _fit(
        self, settings: Sequence[Settings], x: Tensor, y: Tensor, *, seed: int, factor: float
    ) -> FittedNetwork:
        common = settings[0]
        scores = NormalScores(x) if common.get("inputs") == "normal scores" else None
        if scores:
            x = scores(x)
        betas = torch.tensor([float(s["beta"]) for s in settings])
        noise, trained = make_noise(common, len(settings), balance=_BALANCE)
        model = build_network(self.layers, settings, x.shape[-1], noise.num_features)
        _reset(model, common, seed)
        config = _fit_config(common, x.shape[-2], seed, factor)
        fit(model, TemperedLikelihood(trained, betas), (x, y), config=config)
        return FittedNetwork(model, noise, seed, scores)


@final
class FittedNetwork:
    """R trained networks, their noise, and how they want their inputs."""

    def __init__(
        self, model: nn.Module, likelihood: Likelihood, seed: int, scores: NormalScores | None
    ) -> None:
        self._model, self._likelihood, self._seed = model, likelihood, seed
        self._scores = scores

    @property
    def num_parameters(self) -> int:
        """Parameters of one network, its noise included."""
        modules = (self._model, self._likelihood)
        total = sum(p.numel() for module in modules for p in module.parameters())
        return total // self._likelihood.batch_shape[0]

    def predict(self, x: Tensor, *, num_draws: int) -> Predictive:
        """Return the mixture over ``num_draws`` weight draws."""
        generator = seeded_generator("predict", self._seed)
        num_draws = num_draws if _is_random(self._model) else 1
        x = self._scores(x) if self._scores else x
        f = draw_functions(
            self._model,
            x,
            num_draws=num_draws,
            generator=generator,
            batch_size=max(1, _VALUES_AT_ONCE // (len(x) * num_draws * _widest(self._model))),
        )
        with torch.no_grad():
            return self._likelihood.predictive(f)


def build_network(
    layers: str, settings: Sequence[Settings], in_features: int, out_features: int
) -> nn.Sequential:
    """Build R networks of ``depth`` hidden layers of ``width`` units, each with its ``dropout``.

    ``features`` is ``"relu"`` (the paper's network), ``"sine"`` (the inputs are tiled up to the
    width and the first activation is a sine) or ``"laplace"`` (a sine after stacked blocks, whose
    frequencies start as those of a Laplace kernel).
    """
    hidden, last = _LAYERS[layers]
    common, replicas = settings[0], (len(settings),)
    width, depth = int(common["width"]), int(common["depth"])
    rates = torch.tensor([float(each.get("dropout", 0.0)) for each in settings])
    place = {"batch_shape": replicas, "device": None, "dtype": None}
    modules: list[nn.Module] = []
    before = in_features
    features = common.get("features", "relu")
    if features not in _FEATURES:
        raise ConfigError(f"features must be one of {', '.join(_FEATURES)}, got {features!r}")
    if features == "sine":
        modules.append(Tile(in_features, width))
        before = width
    for k in range(depth):
        modules.append(hidden(before, width, **place))  # type: ignore[arg-type]
        modules.append(Sine() if features != "relu" and k == 0 else nn.ReLU())
        if rates.any():
            modules.append(MCDropout(rates, batch_shape=replicas))
        before = width
    modules.append(last(before, out_features, **place))  # type: ignore[arg-type]
    return nn.Sequential(*modules)


def _reset(model: nn.Module, settings: Settings, seed: int) -> None:
    """Draw the starting point of every layer from ``seed``."""
    generator = seeded_generator("start", seed)
    kinds = (PointLinear, MeanFieldLinear, WHVILinear)
    layers = [layer for layer in model.modules() if isinstance(layer, kinds)]
    for layer in layers:
        layer.reset_parameters(generator=generator)
    if settings.get("features") == "laplace":
        first = layers[0]
        if not isinstance(first, WHVILinear):
            raise ConfigError("Laplace features need structured layers")
        spread_frequencies(first.matrix, scale=_LAPLACE_SCALE, generator=generator)


def _fit_config(settings: Settings, num_rows: int, seed: int, factor: float) -> FitConfig:
    steps = int(settings["steps"])
    return FitConfig(
        num_steps=steps,
        batch_size=int(settings["batch"]),
        learning_rate=factor * float(settings["lr"]),
        warmup_steps=min(200, steps // 4),
        noise_hold_steps=min(500, steps // 4),
        record_every=max(1, steps // 10),
        seed=seed,
    )


def _is_random(model: nn.Module) -> bool:
    """Tell whether two draws of the network differ."""
    kinds = (WHVILinear, MeanFieldLinear, MCDropout)
    return any(isinstance(module, kinds) for module in model.modules())


def _widest(model: nn.Module) -> int:
    layers = (m for m in model.modules() if isinstance(m, WHVILinear | MeanFieldLinear))
    plain = (m.weight.shape[-1] for m in model.modules() if isinstance(m, PointLinear))
    return max([*(layer.out_features for layer in layers), *plain])
