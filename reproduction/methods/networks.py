"""Every method that trains a network by :func:`whvi.fit`: they differ in layers and members.

| method | hidden layers | last layer | members |
|---|---|---|---|
| whvi, whvi-ensemble, whvi-best | structured | mean-field | 1, 4, 4 |
| mean-field | mean-field | mean-field | 1 |
| mc-dropout | plain, dropout | plain | 1 |
| deep-ensemble | plain | plain | 5 |

Networks, starting points, the learning-rate ladder and the ranks of the inputs are those of
:mod:`whvi.tabular`, which the estimators use too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from reproduction.methods import Grid, Settings
from whvi.functions import draw_functions
from whvi.layers import MCDropout, MeanFieldLinear, WHVILinear
from whvi.layers.protocol import BayesianLayer
from whvi.likelihoods import (
    BalancedGradients,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    TemperedLikelihood,
)
from whvi.models.mlp import LayerFactory
from whvi.predictive import Predictive
from whvi.tabular.networks import build_network, reset_network
from whvi.tabular.ranks import NormalScores
from whvi.tabular.training import train_finite
from whvi.training import FitConfig, fit
from whvi.training.config import seeded_generator

_BALANCE = 0.5  # of the gradients where the noise is a function of the input
_VALUES_AT_ONCE = 1 << 23  # of the widest hidden layer in prediction: 32 MB


@final
@dataclass(frozen=True)
class NetworkMethod:
    """A network with posterior ``layers``, and the candidates it may choose from.

    Attributes:
        name: In records.
        layers: ``"structured"``, ``"mean-field"`` or ``"plain"``.
        grid: The candidates as a function of the size of the data.
        num_members: Networks whose predictions are pooled.
    """

    name: str
    layers: str
    grid: Grid
    num_members: int = 1
    per_replica: frozenset[str] = frozenset({"beta", "dropout"})

    @property
    def family(self) -> str:
        """Networks of the same layers differ in settings only."""
        return self.layers

    def fit(
        self, settings: Sequence[Settings], x: Tensor, y: Tensor, *, seed: int
    ) -> FittedNetwork:
        """Train R networks in one pass; ``settings`` differ in ``per_replica`` only."""
        return train_finite(lambda factor: self._fit(settings, x, y, seed=seed, factor=factor))

    def _fit(
        self, settings: Sequence[Settings], x: Tensor, y: Tensor, *, seed: int, factor: float
    ) -> FittedNetwork:
        common = settings[0]
        scores = NormalScores(x) if common.get("inputs") == "normal scores" else None
        if scores:
            x = scores(x)
        noise, trained = make_noise(common, len(settings), balance=_BALANCE)
        features = str(common.get("features", "relu"))
        hidden, last = _LAYERS[self.layers]
        rates = torch.tensor([float(each.get("dropout", 0.0)) for each in settings])
        model = build_network(
            x.shape[-1],
            [int(common["width"])] * int(common["depth"]),
            noise.num_features,
            features=features,
            layer=hidden,
            last_layer=last,
            dropout=rates if rates.any() else None,
            batch_shape=(len(settings),),
        )
        reset_network(model, seeded_generator("start", seed), features=features)
        betas = torch.tensor([float(s["beta"]) for s in settings])
        config = fit_config(common, seed, factor)
        fit(model, TemperedLikelihood(trained, betas), (x, y), config=config)
        return FittedNetwork(model, noise, seed, scores)


@final
class FittedNetwork:
    """R trained networks, their noise, and how they want their inputs."""

    def __init__(
        self, model: nn.Module, likelihood: Likelihood, seed: int, scores: NormalScores | None
    ) -> None:
        self.model, self.likelihood, self._seed = model, likelihood, seed
        self._scores = scores

    @property
    def num_parameters(self) -> int:
        """Parameters of one network, its noise included."""
        modules = (self.model, self.likelihood)
        total = sum(p.numel() for module in modules for p in module.parameters())
        return total // self.likelihood.batch_shape[0]

    def predict(self, x: Tensor, *, num_draws: int) -> Predictive:
        """Return the mixture over ``num_draws`` weight draws."""
        generator = seeded_generator("predict", self._seed)
        num_draws = num_draws if _is_random(self.model) else 1
        x = self._scores(x) if self._scores else x
        f = draw_functions(
            self.model,
            x,
            num_draws=num_draws,
            generator=generator,
            batch_size=max(1, _VALUES_AT_ONCE // (len(x) * num_draws * _widest(self.model))),
        )
        with torch.no_grad():
            return self.likelihood.predictive(f)


def make_noise(
    settings: Settings, num_replicas: int, *, balance: float
) -> tuple[Likelihood, Likelihood]:
    """Return the likelihood of R networks, and the one whose gradients train them.

    They differ where the noise is a function of the input: the weights of
    :class:`whvi.likelihoods.BalancedGradients`.

    Args:
        settings: ``noise`` is ``"constant"`` or ``"heteroscedastic"``.
        num_replicas: R.
        balance: Of the gradients, if ``settings`` does not have it.
    """
    replicas = (num_replicas,)
    if settings["noise"] != "heteroscedastic":
        constant = Gaussian(batch_shape=replicas)
        return constant, constant
    varying = HeteroscedasticGaussian(batch_shape=replicas)
    return varying, BalancedGradients(varying, balance=float(settings.get("balance", balance)))


def fit_config(settings: Settings, seed: int, factor: float) -> FitConfig:
    """Return how networks train, with ``factor`` times the rate of the settings."""
    steps = int(settings["steps"])
    return FitConfig(
        num_steps=steps,
        batch_size=int(settings["batch"]),
        learning_rate=factor * float(settings["lr"]),
        warmup_steps=min(200, steps // 4),
        noise_hold_steps=min(500, steps // 4),
        record_every=max(1, steps // 10),
        seed=seed,
    )


def _is_random(model: nn.Module) -> bool:
    """Tell whether two draws of the network differ."""
    kinds = (WHVILinear, MeanFieldLinear, MCDropout)
    return any(isinstance(module, kinds) for module in model.modules())


def _widest(model: nn.Module) -> int:
    layers = (m for m in model.modules() if isinstance(m, WHVILinear | MeanFieldLinear))
    plain = (m.weight.shape[-1] for m in model.modules() if isinstance(m, PointLinear))
    return max([*(layer.out_features for layer in layers), *plain])


@final
class PointLinear(BayesianLayer):
    r"""A dense layer with plain weights, for R replicas: ``y = W x + b``.

    ``kl()`` is the negative log density of ``W`` under ``N(0, I)`` without its constant,
    ``½ ‖W‖²``: in the objective it is weight decay.

    Args:
        in_features, out_features: Shape of ``W``.
        batch_shape: Replicas.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        batch_shape: tuple[int, ...] = (),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.batch_shape = tuple(batch_shape)
        place: Any = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(*batch_shape, in_features, out_features, **place))
        self.bias = nn.Parameter(torch.empty(*batch_shape, out_features, **place))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Draw weights from ``N(0, 2 / in_features)`` (He); biases start at zero."""
        self.weight.normal_(0, math.sqrt(2 / self.weight.shape[-2]), generator=generator)
        self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(*batch_shape, *inner, in)`` to ``(*batch_shape, *inner, out)``."""
        rows = x.flatten(len(self.batch_shape), -2)
        if self.batch_shape:
            y = torch.baddbmm(self.bias.unsqueeze(-2), rows, self.weight)
        else:
            y = torch.addmm(self.bias, rows, self.weight)
        return y.reshape(*x.shape[:-1], -1)

    def kl(self) -> Tensor:
        """Return ``½ ‖W‖²``, shape ``batch_shape``."""
        weight = self.weight.flatten(-2)
        # its gradient is W, as that of ½ ‖W‖²
        square: Tensor = torch.linalg.vecdot(weight, weight.detach())
        return square - 0.5 * square.detach()


_LAYERS: dict[str, tuple[LayerFactory, LayerFactory]] = {
    "structured": (WHVILinear, MeanFieldLinear),
    "mean-field": (MeanFieldLinear, MeanFieldLinear),
    "plain": (PointLinear, PointLinear),
}
