"""One unit: train on the intents, then predict the test queries and those of no intent, once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from reproduction.clinc.methods import ENSEMBLES, TRAININGS, Fitted, Training, missing_package
from reproduction.clinc.queries import Clinc, load_clinc
from reproduction.methods import Settings
from reproduction.records import Record, RecordStore, origin
from reproduction.runner import Unit
from whvi.errors import DataError
from whvi.metrics import accuracy, auroc, brier, ece

_QUICK_ROWS = 75

LogProbs = tuple[Tensor, Tensor]
"""Of test queries and of outsiders."""


@lru_cache(maxsize=1)
def load(data_dir: str | None, quick: bool) -> Clinc:
    """Read the queries; a quick run takes a few of each part."""
    return load_clinc(data_dir, rows=_QUICK_ROWS if quick else None)


@dataclass(frozen=True)
class ClincWork:
    """Computes the records of a unit: choose, train, predict, score.

    Attributes:
        folder: Of ``choices.jsonl`` and of the predictions that ensembles are made of.
        data_dir: Folder that holds ``text``.
        quick: Few queries, one epoch, no choice: a test of the machinery.
    """

    folder: str
    data_dir: str | None = None
    quick: bool = False

    def __call__(self, unit: Unit) -> Iterator[Record]:
        """Yield the records of ``unit``: one per method of a training, or that of an ensemble."""
        data = load(self.data_dir, self.quick)
        made = self._ensemble(unit) if unit.method in ENSEMBLES else self._trained(unit, data)
        for name, found, about in made:
            yield {
                **unit._replace(method=name).key(unit.splits[0]),
                **scores(*found, data.test.y),
                **about,
                "num_train": len(data.train),
                **origin(data.sha256, quick=self.quick),
            }

    def _trained(self, unit: Unit, data: Clinc) -> Iterator[tuple[str, LogProbs, Record]]:
        training = TRAININGS[unit.method]
        start = time.process_time()
        settings, fitted = self._choose(training, data)
        if fitted is None or fitted.seed != unit.seed:
            start = time.process_time()
            fitted = training.fit(settings, data.train, unit.seed)
        for name, method in training.methods.items():
            if missing_package(name) is not None:
                continue
            predict = method(fitted, data.val)
            found = predict(data.test), predict(data.outsiders)
            self._keep(name, unit.seed, found)
            about = {
                "num_parameters": fitted.num_trained,
                "num_bytes": fitted.num_bytes,
                "settings": dict(settings),
                "cpu_seconds": time.process_time() - start,
            }
            yield name, found, about

    def _choose(self, training: Training, data: Clinc) -> tuple[Settings, Fitted | None]:
        """Return the settings, and the classifier of seed 0 if it was trained now."""
        if self.quick:
            return {**training.candidates[0], "epochs": 1}, None
        store = RecordStore(Path(self.folder) / "choices.jsonl", ("training", "candidate"))
        best, found = None, []
        for settings in training.candidates:
            name = ", ".join(f"{key}={value}" for key, value in sorted(settings.items()))
            kept, fitted = store.read().get((training.name, name)), None
            if kept is None:
                fitted = training.fit(settings, data.train, 0)
                log_probs = training.methods[training.name](fitted, data.val)(data.val)
                nll = float(-log_probs.gather(1, data.val.y[:, None]).mean())
                kept = {"training": training.name, "candidate": name, "validation_nll": nll}
                store.append([kept])
            found.append(kept["validation_nll"])
            best = fitted if found[-1] == min(found) else best
        return training.candidates[int(np.argmin(found))], best

    def _file(self, method: str, seed: int) -> Path:
        return Path(self.folder) / "predictions" / f"{method}-{seed}.npz"

    def _keep(self, method: str, seed: int, found: LogProbs) -> None:
        if method in ENSEMBLES.values():
            path = self._file(method, seed)
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(path, test=found[0].numpy(), outsiders=found[1].numpy())

    def _ensemble(self, unit: Unit) -> Iterator[tuple[str, LogProbs, Record]]:
        """Average the probabilities of all seeds of a training whose predictions are there."""
        member = ENSEMBLES[unit.method]
        files = sorted((Path(self.folder) / "predictions").glob(f"{member}-*.npz"))
        if len(files) < 2:
            raise DataError(f"{unit.method} needs the predictions of two seeds of {member}")
        parts = [np.load(file) for file in files]
        test, outsiders = (
            torch.stack([torch.from_numpy(part[key]) for part in parts]).logsumexp(0)
            - torch.tensor(float(len(parts))).log()
            for key in ("test", "outsiders")
        )
        records = RecordStore(Path(self.folder) / "records.jsonl").read().values()
        members = [r for r in records if r["method"] == member]
        total = {
            key: sum(r[key] for r in members)
            for key in ("num_parameters", "num_bytes", "cpu_seconds")
        }
        yield unit.method, (test, outsiders), {**total, "settings": {"members": len(parts)}}


def scores(inside: Tensor, outside: Tensor, y: Tensor) -> dict[str, float]:
    """Score the intents of insiders, and how well the entropy of the predictive tells outsiders."""
    probs = inside.double().softmax(-1)
    doubt = torch.cat([_entropy(inside), _entropy(outside)])
    is_outside = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))])
    return {
        "accuracy": float(accuracy(inside.argmax(-1), y)),
        "nll": float(-inside.gather(1, y[:, None]).double().mean()),
        "ece": float(ece(probs, y)),
        "brier": float(brier(probs, y)),
        "auroc": float(auroc(doubt, is_outside)),
        "aupr": float(average_precision_score(is_outside.numpy(), doubt.numpy())),
    }


def _entropy(log_probs: Tensor) -> Tensor:
    normal = log_probs.double().log_softmax(-1)
    return -(normal.exp() * normal).sum(-1)
