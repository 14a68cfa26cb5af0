"""One look for all pictures, and the door for values that are one per row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whvi.errors import ShapeError

DRAWS: dict[str, Any] = {"linewidth": 0.5, "alpha": 0.35}
TOTAL: dict[str, Any] = {"color": "C0", "alpha": 0.18, "linewidth": 0.0}
EPISTEMIC: dict[str, Any] = {"color": "C0", "alpha": 0.38, "linewidth": 0.0}
MEAN: dict[str, Any] = {"color": "C0", "linewidth": 1.6}
DATA: dict[str, Any] = {
    "color": "C3",
    "markersize": 4,
    "linestyle": "none",
    "marker": "o",
    "alpha": 0.8,
}
POINTS: dict[str, Any] = {
    "color": "C0",
    "markersize": 3.5,
    "linestyle": "none",
    "marker": "o",
    "alpha": 0.6,
    "markeredgewidth": 0.0,
}
BARS: dict[str, Any] = {"color": "C0", "alpha": 0.55}
REFERENCE: dict[str, Any] = {"color": "0.5", "linewidth": 1.0, "linestyle": "--"}
BY_CHANCE: dict[str, Any] = {"color": "0.5", "alpha": 0.18, "linewidth": 0.0}

_MANY_POINTS = 2000  # from here on points are drawn as pixels, also in vector formats


def row_of(name: str, values: Tensor, length: int | None = None) -> Tensor:
    """Return ``values`` flat and detached; refuse another number of them than ``length``."""
    flat = torch.as_tensor(values).detach().flatten()
    if length is not None and len(flat) != length:
        raise ShapeError(f"{name} must have one value for each of {length} rows, got {len(flat)}")
    if len(flat) == 0:
        raise ShapeError(f"{name} must have at least one row, got none")
    return flat


def is_rasterized(num_points: int) -> bool:
    """Tell whether so many points are better kept as an image within a vector graphic."""
    return num_points > _MANY_POINTS
