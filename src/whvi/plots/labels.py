"""Pictures of classification: reliability and confusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whvi.errors import ShapeError
from whvi.plots.curves import reliability
from whvi.plots.style import BARS, MEAN, REFERENCE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_CLASSES_WITH_NUMBERS = 12


def plot_reliability(ax: Axes, probs: Tensor, labels: Tensor, *, num_bins: int = 10) -> None:
    """Draw the share of right labels against the confidence in them; bars show shares of rows.

    Args:
        ax: Where to draw.
        probs: Shape ``(N, C)``.
        labels: Whole numbers 0, …, C − 1, shape ``(N,)``.
        num_bins: Equal bins of the confidence.
    """
    bins = reliability(probs, labels, num_bins=num_bins)
    share = bins.num_rows / bins.num_rows.sum()
    ax.bar(bins.confidence.numpy(), share.numpy(), 0.6 / num_bins, label="share of rows", **BARS)
    ax.plot([0, 1], [0, 1], label="calibrated", **REFERENCE)
    ax.plot(bins.confidence, bins.accuracy, "o", label="observed", **MEAN)
    ax.set(xlim=(0, 1.02), ylim=(0, 1.02), aspect="equal")
    ax.set(xlabel="confidence in the predicted label", ylabel="share of right labels")
    ax.legend(loc="upper left", fontsize=8)


def plot_confusion(ax: Axes, predicted: Tensor, labels: Tensor, names: Sequence[str]) -> None:
    """Draw how many rows of every true class were given every label.

    Args:
        ax: Where to draw.
        predicted, labels: Whole numbers 0, …, C − 1, shape ``(N,)``.
        names: Of the C classes.
    """
    if predicted.shape != labels.shape or labels.dim() != 1 or len(labels) == 0:
        raise ShapeError(
            f"predicted {tuple(predicted.shape)} and labels {tuple(labels.shape)} must both have "
            f"shape (N,)"
        )
    size = len(names)
    counts = torch.bincount(labels.long() * size + predicted.long(), minlength=size**2)
    if len(counts) > size**2:
        raise ShapeError(f"labels reach beyond the {size} names given")
    counts = counts.reshape(size, size)
    share = counts / counts.sum(1, keepdim=True).clamp_min(1)
    ax.imshow(share.numpy(), cmap="Blues", vmin=0, vmax=1)
    ax.set_xticks(range(size), names, rotation=45 if size > 4 else 0)
    ax.set_yticks(range(size), names)
    ax.set(xlabel="predicted", ylabel="true")
    if size > _MOST_CLASSES_WITH_NUMBERS:
        return
    for i in range(size):
        for j in range(size):
            color = "white" if share[i, j] > 0.5 else "black"
            ax.text(j, i, str(int(counts[i, j])), ha="center", va="center", color=color)
