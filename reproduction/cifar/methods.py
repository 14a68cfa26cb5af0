"""How a pretrained network is adapted to the JPEG images, and how it predicts.

A method that trains has two or three candidates; the one with the least negative log-likelihood of
5,000 held-out training images after one epoch is taken (seed 0, then for all seeds).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

import whvi
from reproduction.cifar.images import augment, normalise
from reproduction.cifar.networks import pretrained
from reproduction.methods import Settings
from whvi.sampling import WeightDraws, sampling
from whvi.training.config import seeded_generator

NUM_DRAWS = 8
DEPTHS = (20, 32, 44, 56)
_BATCH = 128
_ROWS_AT_ONCE = 500
_STATISTICS_ROWS = 10_000  # images for new statistics of batch norms

LogProbs = Callable[[Tensor], Tensor]
"""From images, bytes or numbers from 0 to 1, to log-probabilities ``(N, 10)``."""
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Adaptation:
    """A row of the table.

    Attributes:
        name: In records.
        candidates: Settings to choose from; one or none is no choice.
        fit: Gets settings, images, classes, seed and the data folder; returns networks.
    """

    name: str
    candidates: tuple[Settings, ...]
    fit: Callable[[Settings, Tensor, Tensor, int, str | None], Sequence[nn.Module]]


def _as_given(
    settings: Settings, x: Tensor, y: Tensor, seed: int, root: str | None
) -> list[nn.Module]:
    return [pretrained(20, root).requires_grad_(False)]


def _batch_norm(
    settings: Settings, x: Tensor, y: Tensor, seed: int, root: str | None
) -> list[nn.Module]:
    depths = DEPTHS if settings.get("ensemble") else (20,)
    models = [pretrained(depth, root).requires_grad_(False) for depth in depths]
    for model in models:
        _new_statistics(model, x, seed)
    return list(models)


@torch.no_grad()
def _new_statistics(model: nn.Module, x: Tensor, seed: int) -> None:
    """Replace the statistics of batch norms by those of a sample of the training images."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # a plain average
    model.train()
    rows = torch.randperm(len(x), generator=seeded_generator("statistics", seed))
    for part in rows[:_STATISTICS_ROWS].split(_ROWS_AT_ONCE):
        model(normalise(x[part]))
    model.eval()


def _fine_tuning(
    settings: Settings, x: Tensor, y: Tensor, seed: int, root: str | None
) -> list[nn.Module]:
    def loss(model: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
        return functional.cross_entropy(model(images), classes)

    return [_train(pretrained(20, root), loss, settings, x, y, seed)]


def _adapters(
    settings: Settings, x: Tensor, y: Tensor, seed: int, root: str | None
) -> list[nn.Module]:
    """Structured residuals on all convolutions and the head; batch norms are trained too."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = whvi.convert(
            pretrained(20, root),
            train=nn.BatchNorm2d,
            inplace=True,
            num_blocks=int(settings.get("num_blocks", 1)),
        )
    beta, generator = float(settings["beta"]), seeded_generator("weights", seed)

    def loss(model: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
        with sampling(WeightDraws(generator=generator)):  # one draw for the batch
            logits = model(images)
        return functional.cross_entropy(logits, classes) + beta * whvi.kl(model) / len(x)

    return [_train(model, loss, settings, x, y, seed)]


def _train(
    model: nn.Module, loss: Loss, settings: Settings, x: Tensor, y: Tensor, seed: int
) -> nn.Module:
    """Adam with a one-cycle schedule; batch norms learn the statistics on the way."""
    generator = seeded_generator("batches", seed)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    epochs, rate = int(settings["epochs"]), float(settings["lr"])
    total = epochs * -(-len(x) // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total, pct_start=0.2)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(_BATCH):
            images = normalise(augment(x[rows], generator))
            optimizer.zero_grad()
            loss(model, images, y[rows]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def predictive(models: Sequence[nn.Module], seed: int) -> LogProbs:
    """Pool networks, or draws of the weights of one that has a posterior."""

    @torch.no_grad()
    def draws(model: nn.Module, images: Tensor) -> Tensor:
        if not whvi.kl(model):
            logits: Tensor = model(images)
            return logits.unsqueeze(0)
        generator = seeded_generator("predict", seed)  # the same weights for all images
        return whvi.draw_functions(model, images, num_draws=NUM_DRAWS, generator=generator)

    def predict(x: Tensor) -> Tensor:
        parts = []
        for rows in x.split(_ROWS_AT_ONCE):
            logits = torch.cat([draws(model, normalise(rows)) for model in models])
            found: Tensor = logits.double().log_softmax(-1)
            parts.append(found.logsumexp(0) - torch.tensor(float(len(found))).log())
        return torch.cat(parts)

    return predict


_EPOCHS = 5
METHODS: dict[str, Adaptation] = {
    each.name: each
    for each in (
        Adaptation("as-given", ({},), _as_given),
        Adaptation("batch-norm", ({},), _batch_norm),
        Adaptation(
            "whvi",
            (
                {"lr": 5e-3, "beta": 0.1, "epochs": _EPOCHS},
                {"lr": 2e-2, "beta": 0.1, "epochs": _EPOCHS},
                {"lr": 5e-3, "beta": 0.1, "epochs": _EPOCHS, "num_blocks": 2},
            ),
            _adapters,
        ),
        Adaptation(
            "fine-tuning",
            tuple({"lr": rate, "epochs": _EPOCHS} for rate in (3e-4, 1e-3)),
            _fine_tuning,
        ),
        Adaptation("ensemble-of-four", ({"ensemble": True},), _batch_norm),
    )
}
