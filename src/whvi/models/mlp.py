"""Multilayer perceptrons with posteriors over their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Protocol

import torch
from torch import nn

from whvi._checks import check_positive_int
from whvi.errors import ConfigError
from whvi.layers import MeanFieldLinear, WHVILinear
from whvi.transforms import TransformLike


class LayerFactory(Protocol):
    """Builds a linear layer: ``WHVILinear``, ``MeanFieldLinear`` or a partial of one of them."""

    def __call__(  # noqa: D102 - the class says it
        self,
        in_features: int,
        out_features: int,
        *,
        batch_shape: tuple[int, ...],
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> nn.Module: ...


def mlp(
    in_features: int,
    hidden: Sequence[int] = (128, 128),
    out_features: int = 1,
    *,
    activation: Callable[[], nn.Module] = nn.ReLU,
    layer: LayerFactory = WHVILinear,
    last_layer: LayerFactory = MeanFieldLinear,
    transform: TransformLike = "hadamard",
    batch_shape: tuple[int, ...] = (),
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Sequential:
    """Build a perceptron; the defaults are the paper's network.

    The paper: two hidden layers of 128 ReLU units with structured weights, and a fully factorized
    Gaussian posterior on the last layer.

    Args:
        in_features, hidden, out_features: Widths, from input to output.
        activation: Builds the activation between layers.
        layer: Builds every layer but the last; use ``functools.partial`` for options such as
            ``partial(WHVILinear, posterior="low_rank")``.
        last_layer: Builds the last layer.
        transform: Of what ``layer`` builds; see :class:`whvi.WHVILinear`.
        batch_shape: ``(R,)`` for R independent networks in one.

    Returns:
        An ``nn.Sequential`` that maps ``(*batch_shape, *inner, in)`` to
        ``(*batch_shape, *inner, out)``.
    """
    if isinstance(hidden, int):
        raise ConfigError(f"hidden must be a sequence of widths such as ({hidden},), got {hidden}")
    if isinstance(activation, nn.Module) or not callable(activation):
        raise ConfigError(
            f"activation must build a module, such as the class torch.nn.ReLU, got {activation!r}"
        )
    if transform != "hadamard":
        layer = partial(layer, transform=transform)  # type: ignore[call-arg]  # others have none
    widths = [in_features, *hidden]
    for width in (*widths, out_features):
        check_positive_int("every width", width)
    modules: list[nn.Module] = []
    for before, after in pairwise(widths):
        modules.append(layer(before, after, batch_shape=batch_shape, device=device, dtype=dtype))
        modules.append(activation())
    modules.append(
        last_layer(widths[-1], out_features, batch_shape=batch_shape, device=device, dtype=dtype)
    )
    return nn.Sequential(*modules)
