"""Methods that fit replicas one after the other, as other packages do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from reproduction.methods import Grid, Settings
from whvi.predictive import Predictive


@final
@dataclass(frozen=True)
class SingleFits:
    """One model per replica, whose predictions are mixtures of Gaussians.

    Attributes:
        name: In records.
        grid: Its candidates.
        fit_one: Fits one model; gets settings, ``x (N, d)``, ``y (N,)``, seed and number of the
            replica.
        components: Returns means and standard deviations, ``(S, N)`` or ``(N,)``, of a model.
        count: Returns the number of parameters of a model.
        per_replica: Settings in which replicas may differ; any would do.
    """

    name: str
    grid: Grid
    fit_one: Callable[[Settings, Tensor, Tensor, int, int], Any]
    components: Callable[[Any, Tensor], tuple[Tensor, Tensor]]
    count: Callable[[Any], int]
    per_replica: frozenset[str] = frozenset()
    num_members: int = 1

    @property
    def family(self) -> str:
        """Shares scores with no other method."""
        return self.name

    def fit(
        self, settings: Sequence[Settings], x: Tensor, y: Tensor, *, seed: int
    ) -> FittedSingles:
        """Fit R models, one after the other."""
        rows = enumerate(zip(settings, x, y, strict=True))
        return FittedSingles(self, [self.fit_one(*each, seed, r) for r, each in rows])


@final
@dataclass(frozen=True)
class FittedSingles:
    """R fitted models."""

    method: SingleFits
    models: list[Any]

    @property
    def num_parameters(self) -> int:
        """Those of the first model."""
        return self.method.count(self.models[0])

    def predict(self, x: Tensor, *, num_draws: int) -> Predictive:
        """Return the mixture of every row, noise included; ``num_draws`` has no effect."""
        pairs = zip(self.models, x, strict=True)
        found = [self.method.components(model, rows) for model, rows in pairs]
        loc, scale = (torch.stack(part).double() for part in zip(*found, strict=True))
        shape = (len(x), -1, x.shape[1])
        return Predictive.gaussian(loc.reshape(shape), scale.reshape(shape), batch_dims=1)
