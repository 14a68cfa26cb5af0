"""One unit: adapt on the JPEG training images, then predict everything that is tested, once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from reproduction.choices import chosen
from reproduction.cifar.images import (
    CORRUPTIONS,
    NUM_STRENGTHS,
    Cifar,
    corrupted,
    load_cifar,
    outsiders,
)
from reproduction.cifar.methods import METHODS, Adaptation, LogProbs, predictive
from reproduction.methods import Settings
from reproduction.records import Record, Records, origin
from reproduction.report import mean
from reproduction.runner import Unit
from whvi.metrics import accuracy, auroc, ece

DATASET = "cifar10-jpeg"
NUM_CORRUPTED = 2_000  # test images that are corrupted
_HELD_OUT = 5_000  # training images on which settings are chosen
_QUICK_ROWS = 200


@dataclass(frozen=True)
class CifarWork:
    """Computes the record of a unit.

    Attributes:
        choices: File of what every method has chosen.
        data_dir: Folder that holds ``images`` and ``weights``.
        quick: Few images, one epoch, no choice: a test of the machinery.
    """

    choices: Records
    data_dir: str | None = None
    quick: bool = False

    def __call__(self, unit: Unit) -> Iterator[Record]:
        """Yield the record of ``unit``."""
        method, data = METHODS[unit.method], self._load()
        settings = self._settings(method, data)
        start = time.process_time()
        models = method.fit(settings, data.x, data.y, unit.seed, self.data_dir)
        training = time.process_time() - start
        strange = outsiders(self.data_dir)[: len(data.test_x)]
        yield {
            **unit.key(unit.splits[0]),
            **scores(predictive(models, unit.seed), data, strange),
            "num_parameters": sum(_trained(model) for model in models),
            "num_train": len(data.x),
            "num_corrupted": min(NUM_CORRUPTED, len(data.test_x)),
            "settings": dict(settings),
            "cpu_seconds": training,
            **origin(data.sha256, quick=self.quick),
        }

    def _load(self) -> Cifar:
        data = load_cifar(self.data_dir)
        if not self.quick:
            return data
        x, y, test_x, test_y = (part[:_QUICK_ROWS] for part in data[:4])
        return Cifar(x, y, test_x, test_y, data.sha256)

    def _settings(self, method: Adaptation, data: Cifar) -> Settings:
        """Score all candidates on the last training images after one epoch each, once."""
        x, y = data.x[:-_HELD_OUT], data.y[:-_HELD_OUT]
        held_x, held_y = data.x[-_HELD_OUT:], data.y[-_HELD_OUT:]

        def score(settings: Settings) -> float:
            models = method.fit({**settings, "epochs": 1}, x, y, 0, self.data_dir)
            return _nll(predictive(models, 0)(held_x), held_y)

        key = {"method": method.name}
        return chosen(self.choices, key, method.candidates, score, quick=self.quick)


def scores(predict: LogProbs, data: Cifar, strange: Tensor) -> Record:
    """Score test images, their corruptions, and how well entropy tells Fashion-MNIST."""
    inside, outside = predict(data.test_x), predict(strange)
    is_outside = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))])
    x, y = data.test_x[:NUM_CORRUPTED], data.test_y[:NUM_CORRUPTED]
    shifted = [
        {"corruption": name, "strength": k, **_of_classes(predict(corrupted(x, name, k)), y)}
        for name, k in product(CORRUPTIONS, range(1, NUM_STRENGTHS + 1))
    ]
    return {
        **_of_classes(inside, data.test_y),
        "auroc": float(auroc(torch.cat([_entropy(inside), _entropy(outside)]), is_outside)),
        **{f"corrupted_{s}": mean(shifted, s) for s in ("accuracy", "nll", "ece")},
        "corruptions": shifted,
    }


def _of_classes(log_probs: Tensor, y: Tensor) -> dict[str, float]:
    return {
        "accuracy": float(accuracy(log_probs.argmax(-1), y)),
        "nll": _nll(log_probs, y),
        "ece": float(ece(log_probs.softmax(-1), y)),
    }


def _nll(log_probs: Tensor, y: Tensor) -> float:
    return float(-log_probs.gather(1, y[:, None]).mean())


def _entropy(log_probs: Tensor) -> Tensor:
    return -(log_probs.exp() * log_probs).sum(-1)


def _trained(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
