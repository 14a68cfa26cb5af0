"""One unit: train the members of a method on a set, bound the likelihood, score outsiders."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from reproduction.records import Record, origin
from reproduction.runner import Unit
from reproduction.vae.data import BINARISATION_SEED, Data, load
from reproduction.vae.methods import METHODS, Trainer
from reproduction.vae.scores import Sizes, bounds, detection, log_weight_draws
from whvi.models import Vae


@dataclass(frozen=True)
class VaeWork:
    """Computes the record of a unit.

    Attributes:
        folder: Where models and records go.
        sizes: How much is computed.
        data_dir: Folder that holds ``images``.
        quick: A few images: a test of the machinery.
    """

    folder: str
    sizes: Sizes
    data_dir: str | None = None
    quick: bool = False

    def __call__(self, unit: Unit) -> Iterator[Record]:
        """Yield the record of ``unit``."""
        method, data = METHODS[unit.method], load(unit.dataset, self.data_dir, self.quick)
        start = time.process_time()
        trainer = Trainer(self.folder, self.sizes.epochs)
        models = trainer.members(method, unit.dataset, data.train, unit.seed)
        training = trainer.training(method, unit.dataset, unit.seed)
        yield {
            **unit.key(unit.splits[0]),
            **{name: training[name] for name in training if name not in ("method", "dataset")},
            **self._scores(models, data, unit.seed),
            "num_parameters": sum(p.numel() for model in models for p in model.parameters()),
            "num_train": len(data.train),
            "binarisation_seed": BINARISATION_SEED,
            "sizes": asdict(self.sizes),
            "cpu_seconds": time.process_time() - start,
            **origin(data.sha256, quick=self.quick),
        }

    def _scores(self, models: list[Vae], data: Data, seed: int) -> Record:
        """Return bounds of a single model, and AUROCs where there are outsiders."""
        found: Record = {}
        sizes = self.sizes
        if len(models) == 1:
            # the largest is for the floor on MNIST
            rows = {k: n for k, n in sizes.rows.items() if k < 5_000 or not data.outsiders}
            found |= bounds(models[0], data.test, rows, seed)
        sets = {"inside": data.test, **data.outsiders} if data.outsiders else {}
        values = {
            name: log_weight_draws(models, x[: sizes.rows_ood], sizes.num_draws, seed)
            for name, x in sets.items()
        }
        for name in data.outsiders:
            found[f"auroc_{name}"] = detection(values["inside"], values[name])
        return found
