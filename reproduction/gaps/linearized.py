"""The network of ``whvi``, linearised: :func:`whvi.linearize` instead of draws of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

import whvi
from reproduction.methods import Grid, Settings
from reproduction.methods.networks import NetworkMethod
from whvi.linearized import LinearizedPosterior
from whvi.predictive import Predictive


@final
@dataclass(frozen=True)
class LinearizedMethod:
    """A Gaussian posterior over all parameters of the networks that another method trains.

    Attributes:
        name: In records.
        base: Trains the networks; its choice of settings is taken over.
    """

    name: str
    base: NetworkMethod
    num_members: int = 1

    @property
    def family(self) -> str:
        """That of the networks."""
        return self.base.family

    @property
    def per_replica(self) -> frozenset[str]:
        """Those of the networks."""
        return self.base.per_replica

    @property
    def grid(self) -> Grid:
        """The candidates of the networks."""
        return self.base.grid

    def fit(
        self, settings: Sequence[Settings], x: Tensor, y: Tensor, *, seed: int
    ) -> FittedLinearized:
        """Train R networks in one pass and linearise each of them."""
        networks = self.base.fit(settings, x, y, seed=seed)
        data = (x, y)
        return FittedLinearized(
            whvi.linearize(networks.model, networks.likelihood, data, form="full")
        )


@final
class FittedLinearized:
    """R linearised posteriors."""

    def __init__(self, posterior: LinearizedPosterior) -> None:
        self._posterior = posterior

    @property
    def num_parameters(self) -> int:
        """Random parameters of one network."""
        return self._posterior.space.num_parameters

    @torch.no_grad()
    def predict(self, x: Tensor, *, num_draws: int) -> Predictive:
        """Return one Gaussian per row, noise included; ``num_draws`` has no effect."""
        return self._posterior.predictive(x)
