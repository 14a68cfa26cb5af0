"""Transforms by name, and the other values of ``transform=``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from whvi.errors import ConfigError
from whvi.transforms.butterfly import Butterfly
from whvi.transforms.fourier import Circulant, Dct, Hartley
from whvi.transforms.mixing import Given, Hadamard, Mixing, Transform

TransformLike = str | Butterfly | Mixing | Transform | Callable[[int], Transform]
"""A name, a :class:`Butterfly`, your own object, or a function that makes one for a size."""

_FIXED: dict[str, type[Hadamard | Dct | Hartley | Circulant]] = {
    kind.name: kind for kind in (Hadamard, Dct, Hartley, Circulant)
}
_LEARNED = {"butterfly": Butterfly(), "butterfly-random": Butterfly("random")}
NAMES = (*_FIXED, *_LEARNED)


def make_mixing(
    transform: TransformLike,
    size: int,
    *,
    batch_shape: tuple[int, ...] = (),
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Mixing:
    """Make the mixing of the smallest ``D ≥ size`` that the transform takes.

    Args:
        transform: ``"hadamard"``, ``"dct"``, ``"hartley"``, ``"circulant"``, ``"butterfly"``,
            ``"butterfly-random"``, a :class:`Butterfly`, an object with ``size``, ``forward`` and
            ``transpose`` (:class:`whvi.transforms.mixing.Transform`), or a function that makes
            such an object for a size.
        size: Entries that have to fit in.
        batch_shape: Replicas, each with its own learned angles.
    """
    given: Any = transform
    if isinstance(given, str):
        if given in _FIXED:
            kind = _FIXED[given]
            return kind(kind.round_up(size))
        if given not in _LEARNED:
            raise ConfigError(f"transform must be one of {', '.join(NAMES)}, got {given!r}")
        given = _LEARNED[given]
    if isinstance(given, Butterfly):
        rounded = given.round_up(size)
        return given(rounded, batch_shape=batch_shape, device=device, dtype=dtype)
    if not isinstance(given, Mixing):
        given = Given(_object_of(given, size))
    if given.size < size:
        raise ConfigError(
            f"the transform {given.name} has size {given.size}, but {size} entries have to fit in"
        )
    return given  # type: ignore[no-any-return]  # a Mixing by now


def _object_of(given: Any, size: int) -> Any:
    parts = ("size", "forward", "transpose")
    is_maker = callable(given) and not isinstance(given, nn.Module)
    if is_maker and not all(hasattr(given, part) for part in parts):
        given = given(size)
    missing = [part for part in parts if not hasattr(given, part)]
    if missing:
        raise ConfigError(
            f"transform must be one of {', '.join(NAMES)}, or have size, forward and transpose; "
            f"{given!r} lacks {', '.join(missing)}"
        )
    return given
