"""One small convolutional network in four kinds of layers, and how it is trained.

28 × 28 → 3 × 3 convolution, 16 channels, stride 2 → the same with 32 → 64 units → 10 classes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import whvi
from reproduction.methods import Settings
from whvi.layers import MCDropout, MeanFieldConv2d, MeanFieldLinear, WHVIConv2d, WHVILinear
from whvi.layers.linear import RandomAffine
from whvi.likelihoods import Categorical
from whvi.training.config import seeded_generator

NUM_CLASSES = 10
CHANNELS, UNITS = (16, 32), 64
_FEATURES = CHANNELS[1] * 7 * 7

Layer = Callable[..., nn.Module]
LAYERS: dict[str, tuple[Layer, Layer, Layer]] = {
    "structured": (WHVIConv2d, WHVILinear, MeanFieldLinear),
    "mean-field": (MeanFieldConv2d, MeanFieldLinear, MeanFieldLinear),
    "plain": (nn.Conv2d, nn.Linear, nn.Linear),
}
"""Convolutions, hidden and last layer."""


def build(layers: str, *, dropout: float = 0.0) -> nn.Sequential:
    """Return an untrained network; dropout, if any, stands before both linear layers."""
    conv, hidden, last = LAYERS[layers]
    first, second = CHANNELS

    def drop() -> list[nn.Module]:
        return [MCDropout(dropout)] if dropout else []

    return nn.Sequential(
        conv(1, first, 3, stride=2, padding=1),
        nn.ReLU(),
        conv(first, second, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(-3),
        *drop(),
        hidden(_FEATURES, UNITS),
        nn.ReLU(),
        *drop(),
        last(UNITS, NUM_CLASSES),
    )


def train(settings: Settings, x: Tensor, y: Tensor, *, layers: str, seed: int) -> nn.Sequential:
    """Maximise the (tempered) ELBO, or the likelihood where no layer is random."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # torch's own layers draw their start from the global generator
        model = build(layers, dropout=float(settings.get("dropout", 0.0)))
    generator = seeded_generator("start", seed)
    for layer in model:
        if isinstance(layer, RandomAffine):
            layer.reset_parameters(generator=generator)
    steps = int(settings["epochs"]) * len(y) // int(settings["batch"])
    config = whvi.FitConfig(
        num_steps=max(1, steps),
        batch_size=int(settings["batch"]),
        learning_rate=float(settings["lr"]),
        beta=float(settings.get("beta", 1.0)),
        seed=seed,
    )
    whvi.fit(model, Categorical(NUM_CLASSES), (x, y), config=config)
    return model
