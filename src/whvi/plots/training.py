"""A fit: ELBO, KL and noise over the steps, and covariances of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from whvi.errors import ShapeError
from whvi.plots.figures import MEAN, MEMBER, with_margin
from whvi.training.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_elbo(ax: Axes, history: History) -> None:
    """Plot the objective in nats, ``E[log p] − β KL``, of every replica and their mean.

    The label says ELBO if ``β`` is 1. The first tenth of the records, where the bound is far below
    its final value, does not set the limits of the axis.
    """
    log_lik, kl = _replicas(history.expected_log_lik), _replicas(history.kl)
    values = log_lik - np.asarray(history.beta)[:, np.newaxis] * kl
    _lines(ax, history, values)
    name = "ELBO" if history.beta[-1] == 1 else f"E[log p] − {history.beta[-1]:g} KL"
    settled = torch.from_numpy(values[len(values) // 10 :])
    ax.set(ylim=with_margin(settled, 0.08), ylabel=f"{name} (nats)")


def plot_kl(ax: Axes, history: History) -> None:
    """Plot the KL in nats over the steps, of the model and of each layer."""
    _lines(ax, history, _replicas(history.kl), label="all layers")
    for number, name in enumerate(next(iter(history.layer_kl), {}), start=1):
        values = _replicas([layers[name] for layers in history.layer_kl])
        _lines(ax, history, values, color=f"C{number}", label=name)
    ax.set_ylabel("KL (nats)")
    ax.legend(fontsize=8)


def plot_noise(ax: Axes, history: History) -> None:
    """Plot the noise parameters of the likelihood over the steps, on their own (log) scale."""
    if not len(history) or not history.noise[0]:
        raise ShapeError("the history holds no noise parameters to plot")
    for number in range(len(history.noise[0])):
        values = _replicas([record[number] for record in history.noise])
        _lines(ax, history, values, color=f"C{number}")
    ax.set_ylabel("log noise variance")


def _lines(
    ax: Axes, history: History, values: np.ndarray, *, color: str = "C0", **options: Any
) -> None:
    if values.shape[1] > 1:
        ax.plot(history.step, values, **MEMBER | {"color": color})
    ax.plot(history.step, values.mean(1), **MEAN | {"color": color}, **options)
    ax.set_xlabel("step")


def _replicas(values: Sequence[Any]) -> np.ndarray:
    """Return shape ``(records, replicas)``."""
    if not values:
        raise ShapeError("the history holds no records to plot")
    return np.asarray(values, dtype=np.float64).reshape(len(values), -1)


def plot_covariance(ax: Axes, covariance: Tensor, title: str) -> None:
    """Plot the :func:`correlation` of ``covariance`` as an image (Figure 1 of the paper)."""
    values = correlation(covariance).numpy()
    image = ax.imshow(values, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    ax.set(title=title, xticks=[], yticks=[])
    ax.figure.colorbar(image, ax=ax, shrink=0.8, ticks=[-1, 0, 1])


def correlation(covariance: Tensor) -> Tensor:
    """Return ``Σ_ij / √(Σ_ii Σ_jj)`` for ``Σ (n, n)``, zero for an entry without variance."""
    if covariance.dim() != 2 or covariance.shape[0] != covariance.shape[1]:
        raise ShapeError(f"a covariance has shape (n, n), got {tuple(covariance.shape)}")
    covariance = covariance.detach().double()
    scale = covariance.diagonal().sqrt()
    inverse = torch.where(scale > 0, 1 / scale, 0.0)
    return (covariance * inverse * inverse.unsqueeze(-1)).clamp(-1, 1)
