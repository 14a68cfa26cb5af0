"""The tables: Table 1's data, splits, network and choice of hyper-parameters, in a shorter run.

Every variant has the same three candidates. As in Table 1, every split chooses on a part of its own
training rows, by ``log RMSE + MNLL``, and recalibrates its noise there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reproduction.data import load_uci
from reproduction.methods import DataSize, Grid, Settings
from reproduction.methods.evaluation import evaluate
from reproduction.methods.networks import FittedNetwork, fit_config, make_noise
from reproduction.methods.selection import choose
from reproduction.records import Record
from reproduction.runner import Unit
from reproduction.transforms.variants import VARIANTS, Variant, build, reset
from whvi.likelihoods import TemperedLikelihood
from whvi.tabular.training import train_finite
from whvi.training import fit
from whvi.training.config import seeded_generator

HIDDEN = (128, 128)
BETAS = (0.3, 0.1, 0.6)
STEPS = 1500
QUICK_STEPS = 60
_INNER_PARTS = 1


def grid(size: DataSize) -> tuple[Settings, ...]:
    """Return the candidates: how much the KL counts."""
    batch = 128 if size.num_rows >= 5000 else 64 if size.num_rows >= 600 else 32
    common: Settings = {"steps": STEPS, "batch": batch, "lr": 1.5e-2, "noise": "constant"}
    return tuple({**common, "beta": beta} for beta in BETAS)


@dataclass(frozen=True)
class TransformMethod:
    """A variant as a method of :mod:`reproduction.methods`; trains R networks in one pass."""

    variant: Variant
    max_steps: int = STEPS
    grid: Grid = grid
    num_members: int = 1
    per_replica: frozenset[str] = frozenset({"beta"})

    @property
    def name(self) -> str:
        """That of the variant."""
        return self.variant.name

    @property
    def family(self) -> str:
        """Variants share nothing."""
        return self.variant.name

    def fit(
        self, settings: Sequence[Settings], x: Tensor, y: Tensor, *, seed: int
    ) -> FittedNetwork:
        """Train R networks on ``x (R, N, d)`` and ``y (R, N)``."""
        return train_finite(lambda factor: self._fit(settings, x, y, seed, factor))

    def _fit(
        self, settings: Sequence[Settings], x: Tensor, y: Tensor, seed: int, factor: float
    ) -> FittedNetwork:
        common, replicas = settings[0], (len(settings),)
        noise, trained = make_noise(common, len(settings), balance=0.5)
        model = build(self.variant, x.shape[-1], HIDDEN, noise.num_features, batch_shape=replicas)
        reset(model, seeded_generator("start", seed))
        steps = min(int(common["steps"]), self.max_steps)
        config = fit_config({**common, "steps": steps}, seed, factor)
        betas = torch.tensor([float(each["beta"]) for each in settings])
        fit(model, TemperedLikelihood(trained, betas), (x, y), config=config)
        return FittedNetwork(model, noise, seed, None)


def table_records(unit: Unit, data_dir: str | None, *, quick: bool) -> Iterator[Record]:
    """Choose, train, predict the test rows once and score; yield one record for every split."""
    dataset = load_uci(unit.dataset, data_dir)
    method = TransformMethod(VARIANTS[unit.method], QUICK_STEPS if quick else STEPS)
    start = time.process_time()
    chosen = choose(method, dataset, unit.splits, seed=unit.seed, quick=quick, repeats=_INNER_PARTS)
    records = list(evaluate(method, dataset, unit.splits, chosen, seed=unit.seed))
    seconds = (time.process_time() - start) / len(records)
    for record in records:
        yield {**record, "cpu_seconds": seconds, "num_steps": method.max_steps, "quick": quick}
