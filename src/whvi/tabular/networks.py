"""Networks for tables: structured layers on the columns, narrow and plain or wide with sines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from whvi._checks import check_positive_int
from whvi.layers import MeanFieldLinear, WHVILinear
from whvi.layers.sines import Sine, Tile
from whvi.models.mlp import mlp


def sine_network(
    in_features: int,
    hidden: Sequence[int],
    out_features: int = 1,
    *,
    posterior: str = "diagonal",
    batch_shape: tuple[int, ...] = (),
) -> nn.Sequential:
    """Build a perceptron whose first layer is a sine of full-width structured features.

    The inputs are tiled up to the first width, so that ``W x`` is one structured block: Fastfood
    features with learned frequencies. The layers after it are those of :func:`whvi.mlp`.

    Args:
        in_features, hidden, out_features: Widths, from input to output; one hidden layer or more.
        posterior: Of ``g`` in the structured layers.
        batch_shape: ``(R,)`` for R independent networks in one.
    """
    check_positive_int("the number of hidden layers", len(hidden))
    layer = partial(WHVILinear, posterior=posterior)
    width = hidden[0]
    rest = mlp(width, hidden[1:], out_features, layer=layer, batch_shape=batch_shape)
    first = layer(max(width, in_features), width, batch_shape=batch_shape)
    return nn.Sequential(Tile(in_features, max(width, in_features)), first, Sine(), *rest)


def reset_network(model: nn.Module, generator: torch.Generator) -> None:
    """Draw the starting point of every layer anew from ``generator``."""
    for layer in model.modules():
        if isinstance(layer, WHVILinear | MeanFieldLinear):
            layer.reset_parameters(generator=generator)
