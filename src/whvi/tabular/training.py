"""How an ensemble is trained: rows that are left out, and learning rates that are tried in turn."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from whvi.errors import NumericalError
from whvi.likelihoods import BalancedGradients, HeteroscedasticGaussian, Likelihood
from whvi.tabular.ensemble import Ensemble
from whvi.tabular.networks import reset_network
from whvi.tabular.plan import Plan
from whvi.training import fit
from whvi.training.history import History, StepRecord
from whvi.training.seeds import seeded_generator

T = TypeVar("T")

_RATE_FACTORS = (1.0, 0.3, 0.1)  # on the learning rate, tried in turn
_FEWEST_ROWS = 10  # with fewer, nothing is left out: two rows cannot judge eight


def train_finite(train: Callable[[float], T]) -> T:
    """Call ``train(factor)`` with smaller factors on its learning rate until it stays finite.

    Raises:
        NumericalError: Not even a tenth of the rate is small enough.
    """
    for factor in _RATE_FACTORS[:-1]:
        try:
            return train(factor)
        except NumericalError:
            continue
    return train(_RATE_FACTORS[-1])


class Session(NamedTuple):
    """What a fit may do besides fitting: resume from checkpoints, call back, show its progress."""

    checkpoint: Path | None = None
    callbacks: Sequence[Callable[[StepRecord], None]] = ()
    progress: bool = False

    def within(self, name: str) -> Session:
        """Return the same with the checkpoints in a subfolder."""
        return self if self.checkpoint is None else self._replace(checkpoint=self.checkpoint / name)


class Folds(NamedTuple):
    """Row numbers: ``(T,)`` and ``(V,)`` shared by all members, or ``(R, T)`` and ``(R, V)``.

    Drawn from a seed of our own by torch: scikit-learn's ``KFold`` has no such rotation, and its
    ``train_test_split`` would draw other rows.

    Attributes:
        train, held_out: What members train on and what they leave out.
        sharing: Neighbouring members that leave out the same rows; all of them if 0.
    """

    train: Tensor
    held_out: Tensor | None
    sharing: int = 0


class Trained(NamedTuple):
    """A trained ensemble, the record of its training, and which rows it left out."""

    ensemble: Ensemble
    history: History
    folds: Folds


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

    Should the objective leave the finite numbers, training starts again with a smaller rate.
    """
    if plan.rotate:
        folds = rotating_folds(len(x), plan.members, plan.validation_fraction, seed)
    else:
        folds = common_fold(len(x), plan.validation_fraction, seed)
    held_out = None if folds.held_out is None else (x[folds.held_out], y[folds.held_out])

    def train(factor: float) -> Trained:
        model, likelihood = build()
        reset_network(model, seeded_generator("start", seed))
        trained_by = likelihood
        if isinstance(likelihood, HeteroscedasticGaussian):
            trained_by = BalancedGradients(likelihood)
        folder = session.within(f"rate-{factor:g}").checkpoint
        history = fit(
            model,
            trained_by,
            (x[folds.train], y[folds.train]),
            config=plan.fit_config(seed, factor=factor),
            validation=held_out,
            callbacks=session.callbacks,
            checkpoint=None if folder is None else os.fspath(folder),
            progress=session.progress,
        )
        ensemble = Ensemble(model, likelihood, num_draws=num_draws, seed=seed)
        return Trained(ensemble, history, folds)

    return train_finite(train)


def common_fold(num_rows: int, fraction: float, seed: int) -> Folds:
    """Leave out the same random ``fraction`` of the rows for all members."""
    num_held_out = _num_held_out(num_rows, fraction)
    order = torch.randperm(num_rows, generator=seeded_generator("folds", seed))
    held_out = order[:num_held_out] if num_held_out else None
    return Folds(order[num_held_out:], held_out)


def rotating_folds(num_rows: int, num_members: int, fraction: float, seed: int) -> Folds:
    """Let every pair of members leave out the rows that follow those of the pair before it.

    The rows stand in random order on a circle. As a whole the ensemble has seen them all, and
    what a pair says about the rows it left out is an honest prediction: of a small ensemble,
    whose errors are nearer to those of the whole than the errors of one member are.
    """
    sharing = 2 if num_members % 2 == 0 else 1
    num_held_out = _num_held_out(num_rows, fraction)
    order = torch.randperm(num_rows, generator=seeded_generator("folds", seed))
    starts = torch.arange(num_members).unsqueeze(-1) // sharing * num_held_out
    circle = order[(starts + torch.arange(num_rows)) % num_rows]
    held_out = circle[:, :num_held_out] if num_held_out else None
    return Folds(circle[:, num_held_out:], held_out, sharing)


def _num_held_out(num_rows: int, fraction: float) -> int:
    if num_rows < _FEWEST_ROWS or fraction == 0:
        return 0
    return min(max(round(fraction * num_rows), 1), num_rows - 1)
