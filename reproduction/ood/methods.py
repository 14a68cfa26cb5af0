"""The methods of the experiment with images: how each trains, and how it predicts mixtures.

Every method has four candidates; the one with the least negative log-likelihood of held-out
training images is taken (seed 0, then for all seeds).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import whvi
from reproduction.methods import Settings
from reproduction.ood.networks import NUM_CLASSES, train
from whvi.layers.protocol import bayesian_layers
from whvi.likelihoods import Categorical
from whvi.predictive import Predictive
from whvi.training.config import seeded_generator

NUM_DRAWS = 64
_ROWS_AT_ONCE = 500
_COMMON: Settings = {"epochs": 5, "batch": 128}

Predict = Callable[[Tensor], Predictive]


@dataclass(frozen=True)
class ImageMethod:
    """A row of the table.

    Attributes:
        name: In records.
        layers: Key of :data:`reproduction.ood.networks.LAYERS`.
        candidates: Settings to choose from.
        finish: Makes the predictive of trained networks; gets networks, training images and seed.
        num_members: Networks that are trained.
    """

    name: str
    layers: str
    candidates: tuple[Settings, ...]
    finish: Callable[[Sequence[nn.Module], tuple[Tensor, Tensor], int], Predict]
    num_members: int = 1

    def fit(self, settings: Settings, x: Tensor, y: Tensor, *, seed: int) -> tuple[Predict, int]:
        """Train on images ``x`` of classes ``y``; return the predictive and the parameters."""
        seeds = range(self.num_members * seed, self.num_members * (seed + 1))
        models = [train(settings, x, y, layers=self.layers, seed=k) for k in seeds]
        parameters = sum(p.numel() for model in models for p in model.parameters())
        return self.finish(models, (x, y), seed), parameters


def mixture(
    models: Sequence[nn.Module],
    data: tuple[Tensor, Tensor] | None,
    seed: int,
    num_draws: int = NUM_DRAWS,
) -> Predict:
    """Pool draws of all networks; a network without random layers has one."""
    likelihood = Categorical(NUM_CLASSES)
    num_draws = num_draws if bayesian_layers(models[0]) else 1

    def predict(x: Tensor) -> Predictive:
        generator = seeded_generator("predict", seed)
        draws = [
            whvi.draw_functions(
                model, x, num_draws=num_draws, generator=generator, batch_size=_ROWS_AT_ONCE
            )
            for model in models
        ]
        return likelihood.predictive(torch.cat(draws))

    return predict


def last_layer_linearized(
    models: Sequence[nn.Module], data: tuple[Tensor, Tensor], seed: int
) -> Predict:
    """Linearise the last layer by :func:`whvi.linearize`; draws of the logits are the mixture."""
    posterior = whvi.linearize(models[0], Categorical(NUM_CLASSES), data, form="last_layer")

    def predict(x: Tensor) -> Predictive:
        generator = seeded_generator("predict", seed)
        return posterior.predictive(x, num_draws=NUM_DRAWS, generator=generator)

    return predict


def last_layer_laplace(
    models: Sequence[nn.Module], data: tuple[Tensor, Tensor], seed: int
) -> Predict:
    """Put laplace-torch on the last layer: full covariance, prior precision by the evidence.

    The mixture is over draws of the logits from the linearised posterior.
    """
    from laplace import Laplace

    posterior: Any = Laplace(models[0], "classification", "last_layer", "full")
    posterior.fit(DataLoader(TensorDataset(*data), batch_size=_ROWS_AT_ONCE))
    posterior.optimize_prior_precision(method="marglik")

    @torch.no_grad()
    def predict(x: Tensor) -> Predictive:
        generator = seeded_generator("predict", seed)
        draws = []
        for rows in x.split(_ROWS_AT_ONCE):
            mean, covariance = posterior._glm_predictive_distribution(rows)
            root = torch.linalg.cholesky(covariance.double() + 1e-9 * torch.eye(NUM_CLASSES))
            noise = torch.randn(NUM_DRAWS, *mean.shape, 1, generator=generator, dtype=torch.float64)
            draws.append(mean.double() + (root @ noise).squeeze(-1))
        return Categorical(NUM_CLASSES).predictive(torch.cat(draws, dim=1))

    return predict


def _grid(**choices: Sequence[float]) -> tuple[Settings, ...]:
    """Return all combinations of the choices, each with the common settings."""
    return tuple(
        {**_COMMON, **dict(zip(choices, values, strict=True))}
        for values in product(*choices.values())
    )


_STRUCTURED = _grid(lr=(5e-3, 1e-2), beta=(1.0, 0.1))
_PLAIN = _grid(lr=(5e-4, 1e-3, 2e-3, 4e-3))
METHODS: dict[str, ImageMethod] = {
    method.name: method
    for method in (
        ImageMethod("whvi", "structured", _STRUCTURED, mixture),
        ImageMethod("whvi-linearized", "structured", _STRUCTURED, last_layer_linearized),
        ImageMethod("mean-field", "mean-field", _grid(lr=(2e-3, 5e-3), beta=(1.0, 0.1)), mixture),
        ImageMethod("mc-dropout", "plain", _grid(lr=(1e-3, 3e-3), dropout=(0.1, 0.3)), mixture),
        ImageMethod("deep-ensemble", "plain", _PLAIN, mixture, num_members=5),
        ImageMethod("laplace", "plain", _PLAIN, last_layer_laplace),
    )
}


def missing_package(method: str) -> str | None:
    """Return the package that a method needs and that is not installed."""
    return "laplace" if method == "laplace" and find_spec("laplace") is None else None
