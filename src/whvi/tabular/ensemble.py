"""An ensemble of networks as replicas of one: how it is trained, and how it predicts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whvi.errors import NumericalError
from whvi.functions import draw_functions
from whvi.layers.linear import RandomLinear
from whvi.likelihoods import BalancedGradients, HeteroscedasticGaussian, Likelihood
from whvi.predictive import Predictive
from whvi.tabular.folds import Folds, common_fold, rotating_folds
from whvi.tabular.networks import reset_network
from whvi.tabular.plan import Plan
from whvi.training import fit
from whvi.training.config import seeded_generator
from whvi.training.history import History, StepRecord

_VALUES_AT_ONCE = 1 << 19  # of a hidden layer in prediction: they stay in the cache
_BLOCK = 1 << 23  # function values per pass over the rows: bounds the memory of a prediction
_LEARNING_RATE_FACTORS = (1.0, 0.3, 0.1)  # tried in turn if training leaves the finite numbers


class Session(NamedTuple):
    """What a fit may do besides fitting: go on from checkpoints, call back, show its progress."""

    checkpoint: Path | None = None
    callbacks: Sequence[Callable[[StepRecord], None]] = ()
    progress: bool = False

    def within(self, name: str) -> Session:
        """Return the same with the checkpoints in a subfolder."""
        return self if self.checkpoint is None else self._replace(checkpoint=self.checkpoint / name)


@final
class Ensemble:
    """R networks with their likelihood, and the weight draws that all predictions share.

    Args:
        model: Maps ``(R, S, N, in)`` to ``(R, S, N, num_features)``, float32.
        likelihood: Of R replicas; after training in float64 and in the user's units.
        num_draws: Weight draws over all members; each member has at least one.
        seed: Of these draws: every prediction sees the same functions.
    """

    def __init__(
        self, model: nn.Sequential, likelihood: Likelihood, *, num_draws: int, seed: int
    ) -> None:
        self.model, self.likelihood, self.seed = model, likelihood, seed
        self.num_members = likelihood.batch_shape[0]
        self.draws_per_member = -(-num_draws // self.num_members)
        layers = (layer for layer in model if isinstance(layer, RandomLinear))
        widest = max(layer.out_features for layer in layers)
        draws = self.num_members * self.draws_per_member
        self._rows_at_once = min(64, max(8, _VALUES_AT_ONCE // (draws * widest)))
        self._block_rows = max(self._rows_at_once, _BLOCK // (draws * likelihood.num_features))

    def function_values(self, x: Tensor) -> Tensor:
        """Evaluate the draws at ``x (N, in)`` or ``(R, N, in)``: ``(R, S, N, num_features)``.

        All passes have the same number of rows, the last one filled up with zeros: matrix
        products of another size may round differently, and a prediction must not depend on the
        rows beside it. In memory the draws of a row lie side by side, so sums over draws are
        formed in the same order whatever the number of rows.
        """
        num_rows = x.shape[-2]
        filled = F.pad(x, (0, 0, 0, -num_rows % self._rows_at_once))
        f = draw_functions(
            self.model,
            filled,
            num_draws=self.draws_per_member,
            generator=seeded_generator("predict", self.seed, device=x.device),
            batch_size=self._rows_at_once,
        )
        by_row = f[..., :num_rows, :].permute(2, 0, 1, 3).contiguous()
        return by_row.permute(1, 2, 0, 3)

    @torch.no_grad()
    def predictive(self, x: Tensor) -> Predictive:
        """Return the mixture over members and draws at ``x (N, in)``, in the user's units."""
        return by_row(self.likelihood.predictive(self.function_values(x)).pool())

    def blocks(self, x: Tensor) -> list[Tensor]:
        """Cut rows into parts whose predictions fit in memory side by side."""
        return list(torch.split(x, self._block_rows))

    @property
    def num_parameters(self) -> int:
        """Trained numbers of all members."""
        modules = (self.model, self.likelihood)
        return sum(p.numel() for module in modules for p in module.parameters())


def by_row(predictive: Predictive) -> Predictive:
    """Lay the draws of a row side by side in memory, where they are Gaussians.

    Sums over draws are then formed in the same order whatever the number of rows.
    """
    found = predictive.gaussian_components()
    if found is None:
        return predictive
    loc, scale = (part.movedim(0, -1).contiguous().movedim(-1, 0) for part in found)
    return Predictive.gaussian(loc, scale)


class Trained(NamedTuple):
    """A trained ensemble, the record of its training, and which rows it left out."""

    ensemble: Ensemble
    history: History
    folds: Folds


def folds_of(plan: Plan, num_rows: int, seed: int) -> Folds:
    """Choose the rows that members leave out."""
    if plan.rotate:
        return rotating_folds(num_rows, plan.members, plan.validation_fraction, seed)
    return common_fold(num_rows, plan.validation_fraction, seed)


def train_ensemble(
    build: Callable[[], tuple[nn.Sequential, Likelihood]],
    x: Tensor,
    y: Tensor,
    plan: Plan,
    *,
    num_draws: int,
    seed: int,
    session: Session,
) -> Trained:
    """Train the networks that ``build`` makes on ``x (N, in)`` and ``y (N, out)``.

    Should the objective leave the finite numbers, training begins again with a smaller rate.
    """
    folds = folds_of(plan, len(x), seed)
    for attempt, factor in enumerate(_LEARNING_RATE_FACTORS):
        model, likelihood = build()
        reset_network(model, seeded_generator("start", seed))
        trained_by = likelihood
        if isinstance(likelihood, HeteroscedasticGaussian):
            trained_by = BalancedGradients(likelihood)
        folder = session.within(f"attempt-{attempt}").checkpoint
        try:
            history = fit(
                model,
                trained_by,
                (x[folds.train], y[folds.train]),
                config=plan.fit_config(seed, factor=factor),
                validation=None
                if folds.held_out is None
                else (x[folds.held_out], y[folds.held_out]),
                callbacks=session.callbacks,
                checkpoint=None if folder is None else os.fspath(folder),
                progress=session.progress,
            )
        except NumericalError:
            if factor == _LEARNING_RATE_FACTORS[-1]:
                raise
            continue
        ensemble = Ensemble(model, likelihood, num_draws=num_draws, seed=seed)
        return Trained(ensemble, history, folds)
    raise AssertionError("unreachable")
