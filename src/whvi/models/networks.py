"""Encoder and decoder of an autoencoder, of one kind of layer.

    image → [3 × 3 convolutions of stride 2] → hidden layers → outputs
    latents → hidden layers → [3 × 3 convolutions, each after doubling the size] → image

ReLU between layers; the parts in brackets are there if ``channels`` are given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from torch import nn

from whvi._checks import check_positive, check_positive_int
from whvi.errors import ConfigError
from whvi.layers import MeanFieldConv2d, MeanFieldLinear, WHVIConv2d, WHVILinear


class LayerKind(NamedTuple):
    """The classes of one kind, and whether their blocks have a size."""

    linear: Callable[..., nn.Module]
    conv: Callable[..., nn.Module]
    has_blocks: bool = False


LAYERS = {
    "whvi": LayerKind(WHVILinear, WHVIConv2d, has_blocks=True),
    "mean_field": LayerKind(MeanFieldLinear, MeanFieldConv2d),
    "dense": LayerKind(nn.Linear, nn.Conv2d),
}


@dataclass(frozen=True, kw_only=True)
class VaeConfig:
    """What defines a model apart from its weights; see :func:`whvi.models.vae`."""

    image_shape: Sequence[int]  # sequences are tuples once made
    hidden: Sequence[int]
    num_latents: int
    layer: str
    decoder: str
    num_levels: int
    channels: Sequence[int]
    block_sizes: Sequence[int]
    num_importance: int
    start_scale: float

    def __post_init__(self) -> None:
        for name in ("num_latents", "num_importance"):
            check_positive_int(name, getattr(self, name))
        for name in ("image_shape", "hidden", "channels", "block_sizes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            for size in getattr(self, name):
                check_positive_int(f"every entry of {name}", size)
        check_positive("start_scale", self.start_scale)
        if len(self.block_sizes) != 2:
            raise ConfigError(
                f"block_sizes must be those of encoder and decoder, got {self.block_sizes}"
            )
        if self.layer not in LAYERS:
            raise ConfigError(f"layer must be one of {', '.join(LAYERS)}, got {self.layer!r}")
        scale = 2 ** len(self.channels)
        if self.channels and (
            len(self.image_shape) != 3 or any(size % scale for size in self.image_shape[1:])
        ):
            raise ConfigError(
                f"channels {self.channels} need an image_shape (channels, height, width) whose "
                f"height and width are multiples of {scale}, got {self.image_shape}"
            )


class Builder:
    """Makes layers of one kind.

    Args:
        layer: A key of :data:`LAYERS`.
        block_size: Of structured layers: inputs are cut into ``⌈in / block_size⌉`` slices.
    """

    def __init__(self, layer: str, block_size: int) -> None:
        self._kind, self._block_size = LAYERS[layer], block_size

    def _options(self, num_inputs: int) -> dict[str, Any]:
        blocks = -(-num_inputs // self._block_size)
        return {"num_blocks": blocks} if self._kind.has_blocks else {}

    def linear(self, before: int, after: int) -> nn.Module:
        """Return a linear layer."""
        return self._kind.linear(before, after, **self._options(before))

    def conv(self, before: int, after: int, stride: int) -> nn.Module:
        """Return a 3 × 3 convolution."""
        return self._kind.conv(before, after, 3, stride, 1, **self._options(9 * before))

    def perceptron(self, widths: Sequence[int]) -> list[nn.Module]:
        """Return linear layers with ReLUs between them."""
        modules: list[nn.Module] = []
        for before, after in pairwise(widths):
            modules += [self.linear(before, after), nn.ReLU()]
        return modules[:-1]


def encoder_network(
    build: Builder, image_shape: Sequence[int], channels: Sequence[int], widths: Sequence[int]
) -> nn.Sequential:
    """Map images (flat ones without ``channels``) to ``widths[-1]`` outputs."""
    if not channels:
        return nn.Sequential(*build.perceptron([math.prod(image_shape), *widths]))
    convs: list[nn.Module] = []
    for before, after in pairwise([image_shape[0], *channels]):
        convs += [build.conv(before, after, 2), nn.ReLU()]
    size = channels[-1] * math.prod(image_shape[1:]) // 4 ** len(channels)
    return nn.Sequential(*convs, nn.Flatten(), *build.perceptron([size, *widths]))


def decoder_network(
    build: Builder, widths: Sequence[int], channels: Sequence[int], output_shape: Sequence[int]
) -> nn.Sequential:
    """Map ``widths[0]`` latents to outputs of ``output_shape`` (flat without ``channels``)."""
    if not channels:
        return nn.Sequential(*build.perceptron([*widths, math.prod(output_shape)]))
    small = (channels[0], *(size >> len(channels) for size in output_shape[1:]))
    first = build.perceptron([*widths, math.prod(small)])
    convs: list[nn.Module] = []
    for before, after in pairwise([*channels, output_shape[0]]):
        convs += [nn.ReLU(), nn.Upsample(scale_factor=2), build.conv(before, after, 1)]
    return nn.Sequential(*first, nn.Unflatten(-1, small), *convs)
