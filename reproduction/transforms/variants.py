r"""What is compared: the matrix of a layer, ``W = diag(s1) T diag(g) Tᵀ diag(s2)``, and products.

Every network has the same hidden widths; ``-matched`` variants have other ones, at which the
network has as many parameters as that of ``hadamard``, within 10 %. A product of depth 2 is two
structured layers without an activation between, the first without a bias: both have posteriors,
and the KL is the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from itertools import pairwise, product
from typing import Any, NamedTuple

import torch
from torch import nn

import whvi
from whvi.errors import ConfigError
from whvi.layers import WHVILinear
from whvi.layers.protocol import bayesian_layers

REFERENCE = "hadamard"
_TOLERANCE = 0.1  # of the number of parameters
_STEP = 8  # of widths that are tried


class Variant(NamedTuple):
    """A row of the comparison."""

    name: str
    transform: str
    depth: int = 1  # factors of the matrix
    is_matched: bool = False  # as many parameters as the reference, instead of its widths


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant("hadamard", "hadamard"),
        Variant("dct", "dct"),
        Variant("hartley", "hartley"),
        Variant("circulant", "circulant"),
        Variant("butterfly", "butterfly"),
        Variant("butterfly-random", "butterfly-random"),
        Variant("hadamard-depth2", "hadamard", depth=2),
        Variant("dct-depth2", "dct", depth=2),
        Variant("butterfly-matched", "butterfly", is_matched=True),
        Variant("hadamard-depth2-matched", "hadamard", depth=2, is_matched=True),
    )
}


class Product(nn.Sequential):
    """``W = W_b W_a``: two structured layers as one."""

    def __init__(self, transform: str, in_features: int, out_features: int, **place: Any) -> None:
        super().__init__(
            WHVILinear(in_features, out_features, bias=False, transform=transform, **place),
            WHVILinear(out_features, out_features, transform=transform, **place),
        )


def build(
    variant: Variant,
    in_features: int,
    hidden: Sequence[int],
    out_features: int,
    *,
    batch_shape: tuple[int, ...] = (),
) -> nn.Sequential:
    """Build the network: structured hidden layers, ReLU, a mean-field last layer."""
    widths = widths_of(variant, in_features, tuple(hidden), out_features)
    factory = _factory(variant)
    return whvi.mlp(in_features, widths, out_features, layer=factory, batch_shape=batch_shape)


def _factory(variant: Variant) -> Any:
    if variant.depth == 2:
        return partial(Product, variant.transform)
    return partial(WHVILinear, transform=variant.transform)


@torch.no_grad()
def reset(model: nn.Module, generator: torch.Generator) -> None:
    """Draw the starting point; a product starts with the variance of one layer."""
    for layer in bayesian_layers(model):
        layer.reset_parameters(generator=generator)  # type: ignore[operator]  # a module's method
    for module in model.modules():
        if isinstance(module, Product):
            first: Any = module[0]
            first.matrix.s1.mul_(math.sqrt(0.5))  # no activation halves its variance


def widths_of(
    variant: Variant, in_features: int, hidden: tuple[int, ...], out_features: int
) -> tuple[int, ...]:
    """Return the hidden widths of a variant.

    Of those within 10 % of the reference's number of parameters, a matched variant takes the ones
    whose narrowest is widest, then those with the largest product.
    """
    if not variant.is_matched:
        return hidden
    reference = num_parameters(VARIANTS[REFERENCE], in_features, hidden, out_features)
    tried = product(range(_STEP, 2 * max(hidden) + 1, _STEP), repeat=len(hidden))
    counts = {w: num_parameters(variant, in_features, w, out_features) for w in tried}
    close = [w for w, n in counts.items() if abs(n / reference - 1) <= _TOLERANCE]
    if not close:
        raise ConfigError(f"no widths give {variant.name} about {reference} parameters")
    return max(close, key=lambda w: (min(w), math.prod(w)))


def num_parameters(
    variant: Variant, in_features: int, hidden: tuple[int, ...], out_features: int
) -> int:
    """Return the parameters of a network."""
    layers = sum(_of_layer(variant, *sizes) for sizes in pairwise((in_features, *hidden)))
    return layers + (2 * hidden[-1] + 1) * out_features


@cache
def _of_layer(variant: Variant, in_features: int, out_features: int) -> int:
    return sum(p.numel() for p in _factory(variant)(in_features, out_features).parameters())
