"""The images, with one hidden layer: permuted MNIST, rotated digits on noise, Fashion-MNIST.

Split ``k`` trains on the ``k``-th part of the training images and is scored on all test images. The
candidate is chosen on the last images of that part.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

import whvi
from reproduction.choices import least_nll
from reproduction.methods import Settings
from reproduction.ood.images import Images, load_images
from reproduction.ood.methods import mixture
from reproduction.records import Record, software_versions
from reproduction.runner import Unit
from reproduction.transforms.variants import VARIANTS, Variant, build, reset
from whvi.likelihoods import Categorical
from whvi.metrics import accuracy, mnll
from whvi.training.config import seeded_generator

HIDDEN = (512,)
NUM_TRAIN, NUM_HELD_OUT = 20_000, 2_000
STEPS, BATCH = 800, 128
CANDIDATES: tuple[Settings, ...] = ({"lr": 1e-2, "beta": 0.1}, {"lr": 1e-2, "beta": 1.0})
QUICK_ROWS, QUICK_STEPS = 300, 5
_NUM_CLASSES, _NUM_DRAWS, _SIDE = 10, 16, 28
_SEED = 2020  # of the permutation, the angles and the noise


def permuted(images: Tensor, part: str) -> Tensor:
    """Put the pixels in one random order, the same for all images."""
    order = torch.randperm(_SIDE**2, generator=seeded_generator("permutation", _SEED))
    return images.flatten(1)[:, order]


def rotated_on_noise(images: Tensor, part: str) -> Tensor:
    """Rotate every digit by a uniform angle and put it on uniform noise: the larger is seen."""
    generator = seeded_generator(f"rotation {part}", _SEED)
    angle = torch.rand(len(images), generator=generator) * 2 * math.pi
    c, s, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    turn = torch.stack([torch.stack([c, -s, zero], -1), torch.stack([s, c, zero], -1)], -2)
    where = functional.affine_grid(turn, list(images.shape), align_corners=False)
    digits = functional.grid_sample(images, where, align_corners=False).flatten(1)
    return torch.maximum(digits, torch.rand(digits.shape, generator=generator))


def plain(images: Tensor, part: str) -> Tensor:
    """Leave the images as they are."""
    return images.flatten(1)


TASKS: dict[str, tuple[str, Callable[[Tensor, str], Tensor]]] = {
    "mnist-permuted": ("mnist", permuted),
    "mnist-rotated-noise": ("mnist", rotated_on_noise),
    "fashion-mnist": ("fashion-mnist", plain),
}
"""Names of the tasks, the files they are made of, and how."""


@lru_cache(maxsize=1)
def load(task: str, data_dir: str | None) -> tuple[Images, Images]:
    """Return training and test images, flat and standardised by the training images."""
    name, change = TASKS[task]
    train, test = (load_images(name, part, data_dir) for part in ("train", "test"))
    made = [change(each.x, part) for each, part in ((train, "train"), (test, "test"))]
    mean, scale = made[0].mean(), made[0].std()
    x, test_x = ((each - mean) / scale for each in made)
    return train._replace(x=x), test._replace(x=test_x)


def train_network(
    variant: Variant, settings: Settings, x: Tensor, y: Tensor, *, seed: int, steps: int
) -> nn.Sequential:
    """Maximise the tempered ELBO."""
    model = build(variant, x.shape[-1], HIDDEN, _NUM_CLASSES)
    reset(model, seeded_generator("start", seed))
    config = whvi.FitConfig(
        num_steps=steps,
        batch_size=BATCH,
        learning_rate=float(settings["lr"]),
        beta=float(settings["beta"]),
        warmup_steps=steps // 10,
        seed=seed,
    )
    whvi.fit(model, Categorical(_NUM_CLASSES), (x, y), config=config)
    return model


def image_records(unit: Unit, data_dir: str | None, *, quick: bool) -> Iterator[Record]:
    """Yield the record of every split."""
    train, test = load(unit.dataset, data_dir)
    variant, steps = VARIANTS[unit.method], QUICK_STEPS if quick else STEPS
    size = QUICK_ROWS if quick else NUM_TRAIN
    test_rows = QUICK_ROWS if quick else None
    for split in unit.splits:
        start, seed = time.process_time(), unit.seed + split
        x, y = (t[split * size : (split + 1) * size] for t in (train.x, train.y))
        settings, scores = (CANDIDATES[0], []) if quick else _choose(variant, x, y, seed=seed)
        model = train_network(variant, settings, x, y, seed=seed, steps=steps)
        predictive = mixture([model], None, seed, _NUM_DRAWS)(test.x[:test_rows])
        labels = test.y[:test_rows]
        yield {
            **unit.key(split),
            "accuracy": float(accuracy(predictive.mode, labels)),
            "nll": float(mnll(predictive.log_prob(labels))),
            "num_parameters": sum(p.numel() for p in model.parameters()),
            "cpu_seconds": time.process_time() - start,
            "settings": dict(settings),
            "held_out_nll": scores,
            "num_train": len(y),
            "num_steps": steps,
            "data_sha256": f"{train.sha256[:16]}+{test.sha256[:16]}",
            "versions": software_versions(),
            "quick": quick,
        }


def _choose(variant: Variant, x: Tensor, y: Tensor, *, seed: int) -> tuple[Settings, list[float]]:
    """Return the candidate with the least NLL of held-out training images, and all of these."""
    held_x, held_y = x[-NUM_HELD_OUT:], y[-NUM_HELD_OUT:]
    part = (x[:-NUM_HELD_OUT], y[:-NUM_HELD_OUT])

    def score(settings: Settings) -> Tensor:
        model = train_network(variant, settings, *part, seed=seed, steps=STEPS)
        return mnll(mixture([model], None, seed, _NUM_DRAWS)(held_x).log_prob(held_y))

    return least_nll(CANDIDATES, score)
