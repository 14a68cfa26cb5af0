"""The networks of tables: structured layers on the columns, plain or with sine features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whvi._checks import check_positive_int
from whvi.errors import ConfigError
from whvi.layers import MCDropout, MeanFieldLinear, WHVILinear
from whvi.layers.protocol import bayesian_layers
from whvi.layers.sines import Sine, Tile, spread_frequencies
from whvi.layers.structured import StructuredMatrix
from whvi.models.mlp import LayerFactory

FEATURES = ("relu", "sine", "laplace")
_LAPLACE_SCALE = 0.25  # from 0.1 to 1 it makes little difference


def build_network(
    in_features: int,
    widths: Sequence[int],
    out_features: int = 1,
    *,
    features: str = "relu",
    layer: LayerFactory = WHVILinear,
    last_layer: LayerFactory = MeanFieldLinear,
    dropout: float | Tensor | None = None,
    batch_shape: tuple[int, ...] = (),
) -> nn.Sequential:
    r"""Build ``f(x) = W_L φ(… φ(W_2 φ_1(W_1 x)))`` with ``φ = ReLU`` and a choice of ``φ_1``.

    Args:
        in_features, widths, out_features: From input to output; one hidden layer or more.
        features: ``"relu"``: the paper's network. ``"sine"``: ``φ_1 = √2 sin`` of one structured
            block over inputs that are tiled up to the first width, which are Fastfood features
            with learned frequencies. ``"laplace"``: the same of stacked blocks, whose frequencies
            :func:`reset_network` spreads as those of a Laplace kernel.
        layer, last_layer: Build the hidden layers and the last one.
        dropout: Rate after every hidden layer, or one per replica; ``None``: no dropout.
        batch_shape: ``(R,)`` for R independent networks in one.
    """
    _check_features(features)
    check_positive_int("the number of hidden layers", len(widths))
    place: Any = {"batch_shape": batch_shape, "device": None, "dtype": None}
    modules: list[nn.Module] = []
    before = in_features
    if features == "sine":
        before = max(widths[0], in_features)
        modules.append(Tile(in_features, before))
    for k, width in enumerate(widths):
        modules.append(layer(before, width, **place))
        modules.append(Sine() if features != "relu" and k == 0 else nn.ReLU())
        if dropout is not None:
            modules.append(MCDropout(dropout, batch_shape=batch_shape))
        before = width
    modules.append(last_layer(before, out_features, **place))
    return nn.Sequential(*modules)


def reset_network(model: nn.Module, generator: torch.Generator, *, features: str = "relu") -> None:
    """Draw the starting point of every layer from ``generator``, in the order of the layers.

    Args:
        model: From :func:`build_network`.
        generator: The only source of randomness.
        features: As the network was built; ``"laplace"`` spreads the frequencies of layer one.
    """
    _check_features(features)
    layers = [each for each in bayesian_layers(model) if not isinstance(each, MCDropout)]
    for layer in layers:
        layer.reset_parameters(generator=generator)  # type: ignore[operator]  # a module's method
    if features == "laplace":
        first = getattr(layers[0], "matrix", None)
        if not isinstance(first, StructuredMatrix):
            raise ConfigError("Laplace features need structured layers")
        spread_frequencies(first, scale=_LAPLACE_SCALE, generator=generator)


def _check_features(features: str) -> None:
    if features not in FEATURES:
        raise ConfigError(f"features must be one of {', '.join(FEATURES)}, got {features!r}")
