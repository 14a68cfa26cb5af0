"""Which weights vary together: normalised covariances as images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whvi.errors import ShapeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
