"""One unit: train on Fashion-MNIST, then predict its test images and those of MNIST, once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from reproduction.choices import chosen
from reproduction.methods import Settings
from reproduction.ood.images import load_images
from reproduction.ood.methods import METHODS, ImageMethod, mixture
from reproduction.records import Record, Records, origin
from reproduction.runner import Unit
from whvi.metrics import accuracy, auroc, ece, mnll
from whvi.predictive import Predictive

DATASET = "fashion-mnist"
_HELD_OUT = 5_000  # training images on which settings are chosen
_QUICK_ROWS = 600


class Data(NamedTuple):
    """Standardised by the training images of Fashion-MNIST."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    outsiders: Tensor  # test images of MNIST
    sha256: str


@lru_cache(maxsize=1)
def load(data_dir: str | None, quick: bool) -> Data:
    """Read both sets; a quick run takes the first images of each."""
    train, test = (load_images(DATASET, part, data_dir) for part in ("train", "test"))
    outside = load_images("mnist", "test", data_dir)
    mean, scale = train.x.mean(), train.x.std()
    rows = _QUICK_ROWS if quick else None
    x, test_x, outsiders = (((images.x - mean) / scale)[:rows] for images in (train, test, outside))
    hashes = "+".join(images.sha256[:16] for images in (train, test, outside))
    return Data(x, train.y[:rows], test_x, test.y[:rows], outsiders, hashes)


@dataclass(frozen=True)
class OodWork:
    """Computes the record of a unit: choose, train, predict, score.

    Attributes:
        choices: File of what every method has chosen.
        data_dir: Folder that holds ``images``.
        quick: Few images, one epoch, no choice: a test of the machinery.
    """

    choices: Records
    data_dir: str | None = None
    quick: bool = False

    def __call__(self, unit: Unit) -> Iterator[Record]:
        """Yield the record of ``unit``."""
        method, data = METHODS[unit.method], load(self.data_dir, self.quick)
        settings = self._settings(method, data)
        start = time.process_time()
        predict, num_parameters = method.fit(settings, data.x, data.y, seed=unit.seed)
        inside, outside = predict(data.test_x), predict(data.outsiders)
        yield {
            **unit.key(unit.splits[0]),
            **scores(inside, data.test_y, outside),
            "num_components": inside.num_components,
            "num_parameters": num_parameters,
            "num_train": len(data.y),
            "settings": settings,
            "cpu_seconds": time.process_time() - start,
            **origin(data.sha256, quick=self.quick),
        }

    def _settings(self, method: ImageMethod, data: Data) -> Settings:
        """Score single networks of all candidates on the last training images, once.

        Methods that train the same networks share the choice.
        """
        x, y = data.x[:-_HELD_OUT], data.y[:-_HELD_OUT]
        held_x, held_y = data.x[-_HELD_OUT:], data.y[-_HELD_OUT:]
        single = ImageMethod(method.name, method.layers, method.candidates, mixture)

        def score(settings: Settings) -> Tensor:
            predict, _ = single.fit(settings, x, y, seed=0)
            return mnll(predict(held_x).log_prob(held_y))

        key = {"candidates": f"{method.layers}: {list(map(dict, method.candidates))}"}
        return chosen(self.choices, key, method.candidates, score, quick=self.quick)


def scores(inside: Predictive, labels: Tensor, outside: Predictive) -> dict[str, float]:
    """Score the classes of insiders, and how well mutual information tells outsiders."""
    information = [each.mutual_information() for each in (inside, outside)]
    is_outside = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))])
    probs = inside.probs
    return {
        "auroc": float(auroc(torch.cat(information), is_outside)),
        "accuracy": float(accuracy(inside.mode, labels)),
        "nll": float(mnll(inside.log_prob(labels))),
        "ece": float(ece(probs, labels)),
        "information_inside": float(information[0].mean()),
        "information_outside": float(information[1].mean()),
    }
