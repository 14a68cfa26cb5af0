"""Figures without pyplot, reproducible files, and the style shared by all plots."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whvi.errors import MissingDependencyError, ShapeError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Style = dict[str, Any]  # keyword arguments of a matplotlib artist

DRAWS: Style = {"linewidth": 0.5, "alpha": 0.35}
TOTAL: Style = {"color": "C0", "alpha": 0.18, "linewidth": 0.0}
EPISTEMIC: Style = {"color": "C0", "alpha": 0.38, "linewidth": 0.0}
MEAN: Style = {"color": "C0", "linewidth": 1.6}
MEMBER: Style = {"color": "C0", "linewidth": 0.8, "alpha": 0.45}
DATA: Style = {"color": "C3", "markersize": 4, "linestyle": "none", "marker": "o", "alpha": 0.8}
POINTS: Style = DATA | {"color": "C0", "markersize": 3.5, "alpha": 0.6, "markeredgewidth": 0.0}
BARS: Style = {"color": "C0", "alpha": 0.55}
REFERENCE: Style = {"color": "0.5", "linewidth": 1.0, "linestyle": "--"}

_DOTS_PER_INCH = 120


def new_figure(columns: int = 1, *, width: float = 7.0, height: float = 4.0) -> Figure:
    """Make a figure with ``columns`` axes side by side, without pyplot; sizes in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("plots need matplotlib: pip install 'whvi[plots]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.subplots(1, columns)
    return figure


def save_figure(figure: Figure, path: Path, *, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Write ``figure`` in each format and return the paths; equal figures give equal files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    targets = [path.with_suffix(f".{suffix}") for suffix in formats]
    for suffix, target in zip(formats, targets, strict=True):
        _save(figure, target, suffix, salt="whvi")
    return targets


def svg_text(figure: Figure, *, name: str) -> str:
    """Return ``figure`` as an SVG element for an HTML page, without a background.

    ``name`` is the prefix of every id, so that one page can hold several figures.
    """
    stream = io.StringIO()
    _save(figure, stream, "svg", salt=name, transparent=True)
    text = stream.getvalue()
    text = text[text.index("<svg") :]  # without the XML declaration
    for before in (' id="', "url(#", 'href="#'):
        text = text.replace(before, f"{before}{name}-")
    return text


def _save(figure: Figure, target: Any, suffix: str, *, salt: str, **options: Any) -> None:
    import matplotlib as mpl

    metadata = {"Date": None} if suffix == "svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        figure.savefig(target, format=suffix, dpi=_DOTS_PER_INCH, metadata=metadata, **options)


def shortened(text: str, most: int = 20) -> str:
    """Cut ``text`` to at most ``most`` characters, so that it leaves space for the plot."""
    return text if len(text) <= most else text[: most - 1] + "…"


def with_margin(values: Tensor, share: float, lowest: float = -math.inf) -> tuple[float, float]:
    """Return the range of ``values`` and a ``share`` of it at either end, from ``lowest`` on."""
    low, high = values.min().item(), values.max().item()
    margin = share * (high - low) or share * abs(high) or share
    return max(lowest, low - margin), high + margin


def flat_rows(name: str, values: Tensor, length: int | None = None) -> Tensor:
    """Return ``values`` flattened and detached; raise unless there are ``length`` of them."""
    flat = torch.as_tensor(values).detach().flatten()
    if length is not None and len(flat) != length:
        raise ShapeError(f"{name} must have one value for each of {length} rows, got {len(flat)}")
    if len(flat) == 0:
        raise ShapeError(f"{name} must have at least one row, got none")
    return flat
