"""Pictures of predictions and covariances, each drawn on axes that the caller provides.

Needs matplotlib. No function here opens a window or touches matplotlib's global state; figures
made by :func:`new_figure` are freed like any other object.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from whvi.errors import ConfigError, MissingDependencyError, ShapeError
from whvi.predictive import Predictive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DRAWS: dict[str, Any] = {"color": "black", "linewidth": 0.5, "alpha": 0.35}
_TOTAL: dict[str, Any] = {"color": "C0", "alpha": 0.18, "linewidth": 0.0}
_EPISTEMIC: dict[str, Any] = {"color": "C0", "alpha": 0.38, "linewidth": 0.0}
_MEAN: dict[str, Any] = {"color": "C0", "linewidth": 1.6}
_DATA: dict[str, Any] = {
    "color": "C3",
    "markersize": 4,
    "linestyle": "none",
    "marker": "o",
    "alpha": 0.8,
}


class Band(NamedTuple):
    """Two curves with something between them, each of shape ``(N,)``."""

    lower: Tensor
    upper: Tensor


def plot_bands(
    ax: Axes,
    x: Tensor,
    predictive: Predictive,
    draws: Tensor | None = None,
    data: tuple[Tensor, Tensor] | None = None,
    level: float = 0.95,
) -> None:
    """Draw a predictive distribution over one input: mean, epistemic band and total band.

    Args:
        ax: Where to draw.
        x: The input of every row of ``predictive``, shape ``(N,)`` or ``(N, 1)``, ascending.
        predictive: One output, no replicas (``.pool()`` makes an ensemble one predictive).
        draws: Functions to draw as lines, shape ``(S, N)`` or ``(S, N, 1)``, in the units of ``y``.
        data: Points ``(x, y)`` to draw.
        level: Probability inside each band.
    """
    line = _row("x", x, len(predictive))
    mean = predictive.mean
    if mean.shape != line.shape:
        raise ShapeError(
            f"plot_bands draws one output without replicas, got a mean of shape "
            f"{tuple(mean.shape)} for {len(line)} rows"
        )
    total = predictive.interval(level)
    epistemic = epistemic_band(predictive, level)
    ax.fill_between(line, total.lower, total.upper, label=f"total, {level:.0%}", **_TOTAL)
    ax.fill_between(line, epistemic.lower, epistemic.upper, label="epistemic", **_EPISTEMIC)
    if draws is not None:
        for number, draw in enumerate(draws.reshape(draws.shape[0], -1)):
            label = "draws" if number == 0 else None
            ax.plot(line, _row("draws", draw, len(line)), label=label, **_DRAWS)
    ax.plot(line, mean, label="mean", **_MEAN)
    if data is not None:
        ax.plot(*(values.detach().flatten() for values in data), label="data", **_DATA)


def epistemic_band(predictive: Predictive, level: float) -> Band:
    """Return where the functions' values lie with probability ``level``, noise left out.

    For Gaussian components these are quantiles over the draws; for others the mean and as many
    epistemic standard deviations as a normal distribution needs.
    """
    if not 0 < level < 1:
        raise ConfigError(f"level must lie strictly between 0 and 1, got {level!r}")
    components = predictive.gaussian_components()
    if components is not None:
        ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=components[0].dtype)
        lower, upper = torch.quantile(components[0], ends, dim=-2)
        return Band(lower, upper)
    reach = NormalDist().inv_cdf((1 + level) / 2) * predictive.epistemic
    return Band(predictive.mean - reach, predictive.mean + reach)


def plot_covariance(ax: Axes, covariance: Tensor, title: str) -> None:
    """Draw the normalised covariance ``Σ_ij / √(Σ_ii Σ_jj)`` as an image (Figure 1 of the paper).

    Args:
        ax: Where to draw.
        covariance: Shape ``(n, n)``.
        title: Above the image.
    """
    image = ax.imshow(
        normalised_covariance(covariance).numpy(),
        cmap="RdBu_r",
        vmin=-1,
        vmax=1,
        interpolation="nearest",
    )
    ax.set_title(title)
    ax.set_xticks([])
    ax.set_yticks([])
    figure = ax.figure
    figure.colorbar(image, ax=ax, shrink=0.8, ticks=[-1, 0, 1])


def normalised_covariance(covariance: Tensor) -> Tensor:
    """Return correlations ``Σ_ij / √(Σ_ii Σ_jj)``; an entry without variance has none (zero)."""
    if covariance.dim() != 2 or covariance.shape[0] != covariance.shape[1]:
        raise ShapeError(f"a covariance has shape (n, n), got {tuple(covariance.shape)}")
    covariance = covariance.detach().double()
    scale = covariance.diagonal().sqrt()
    inverse = torch.where(scale > 0, 1 / scale, 0.0)
    return (covariance * inverse * inverse.unsqueeze(-1)).clamp(-1, 1)


def new_figure(columns: int = 1, *, width: float = 7.0, height: float = 4.0) -> Figure:
    """Make a figure of ``columns`` axes side by side, outside of pyplot; sizes in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("plots need matplotlib: pip install 'whvi[plots]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.subplots(1, columns)
    return figure


def save_figure(figure: Figure, path: Path, *, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Write ``figure`` as ``path`` with each ending in turn; the same figure gives the same files.

    Returns:
        The files written.
    """
    import matplotlib as mpl

    path.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for ending in formats:
        target = path.with_suffix(f".{ending}")
        metadata = {"Date": None} if ending == "svg" else {"Software": None}
        with mpl.rc_context({"svg.hashsalt": "whvi", "svg.fonttype": "none"}):
            figure.savefig(target, dpi=120, metadata=metadata)
        written.append(target)
    return written


def _row(name: str, values: Tensor, length: int) -> Tensor:
    values = values.detach().flatten()
    if len(values) != length:
        raise ShapeError(f"{name} must have one value for each of {length} rows, got {len(values)}")
    return values
