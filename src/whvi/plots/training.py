"""How a fit went: ELBO, KL and noise over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from whvi.errors import ShapeError
from whvi.plots.style import MEAN
from whvi.training.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MEMBER: dict[str, Any] = {"color": "C0", "linewidth": 0.8, "alpha": 0.45}


def plot_elbo(ax: Axes, history: History) -> None:
    """Draw the objective in nats, ``E[log p] − β KL``, of every replica and their mean.

    It is an ELBO, and called so, where ``β`` is 1.
    The axis leaves out the first tenth of the records, where the bound is far below its end.
    """
    log_lik, kl = _replicas(history.expected_log_lik), _replicas(history.kl)
    values = log_lik - np.asarray(history.beta)[:, np.newaxis] * kl
    _lines(ax, history, values)
    settled = values[len(values) // 10 :]
    low, high = settled.min(), settled.max()
    margin = 0.08 * (high - low) or 1.0
    name = "ELBO" if history.beta[-1] == 1 else f"E[log p] − {history.beta[-1]:g} KL"
    ax.set(ylim=(low - margin, high + margin), ylabel=f"{name} (nats)")


def plot_kl(ax: Axes, history: History) -> None:
    """Draw the KL in nats over the steps: of the model, and of each layer by its name."""
    _lines(ax, history, _replicas(history.kl), label="all layers")
    for number, name in enumerate(next(iter(history.layer_kl), {}), start=1):
        values = _replicas([layers[name] for layers in history.layer_kl])
        _lines(ax, history, values, color=f"C{number}", label=name)
    ax.set_ylabel("KL (nats)")
    ax.legend(fontsize=8)


def plot_noise(ax: Axes, history: History) -> None:
    """Draw the likelihood's noise parameters (on their own, logarithmic scale) over the steps."""
    count = len(history.noise[0]) if len(history) else 0
    if not count:
        raise ShapeError("this fit has no noise parameters to draw")
    for number in range(count):
        values = _replicas([record[number] for record in history.noise])
        _lines(ax, history, values, color=f"C{number}")
    ax.set_ylabel("log noise variance")


def _lines(
    ax: Axes, history: History, values: np.ndarray, *, color: str = "C0", **options: Any
) -> None:
    if values.shape[1] > 1:
        ax.plot(history.step, values, **_MEMBER | {"color": color})
    ax.plot(history.step, values.mean(1), **MEAN | {"color": color}, **options)
    ax.set_xlabel("step")


def _replicas(values: Sequence[Any]) -> np.ndarray:
    """Return shape ``(records, replicas)``."""
    if not values:
        raise ShapeError("the history is empty: it holds no records to draw")
    return np.asarray(values, dtype=np.float64).reshape(len(values), -1)
