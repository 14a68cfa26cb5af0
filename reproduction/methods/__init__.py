"""What a method is: it fits replicas with given settings, and predicts mixtures.

Replicas carry everything that is trained side by side: splits, grid candidates, ensemble members.
Data come standardised, ``x (R, N, d)`` and ``y (R, N)``, and predictions are in the same units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from whvi.predictive import Predictive

Setting = float | int | str
Settings = Mapping[str, Setting]
"""Hyper-parameters of one fit as plain values, ready for JSON."""


class DataSize(NamedTuple):
    """What a grid may depend on: the size of the training part, nothing of its content."""

    num_rows: int
    num_columns: int


Grid = Callable[[DataSize], tuple[Settings, ...]]
"""Returns the candidates for data of a size; the first is the default."""


class Fitted(Protocol):
    """R trained models."""

    @property
    def num_parameters(self) -> int:
        """Parameters of one model."""

    def predict(self, x: Tensor, *, num_draws: int) -> Predictive:
        """Return the mixture of every row of ``x (R, N, d)``, with ``batch_shape (R,)``."""


class Method(Protocol):
    """A column of the table."""

    @property
    def name(self) -> str:
        """Its name in records."""

    @property
    def family(self) -> str:
        """Methods of one family train the same single models, so they share validation scores."""

    @property
    def num_members(self) -> int:
        """Models whose predictions are pooled; 1 unless the method is an ensemble."""

    @property
    def per_replica(self) -> frozenset[str]:
        """Settings in which replicas of one pass may differ."""

    @property
    def grid(self) -> Grid:
        """Its candidates."""

    def fit(self, settings: Sequence[Settings], x: Tensor, y: Tensor, *, seed: int) -> Fitted:
        """Train R models, the r-th with ``settings[r]`` on ``x[r], y[r]``."""
