"""The other models of the demonstration: each returns predictions with error bars of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from reproduction.data.splits import train_validation_split
from whvi.functions import draw_functions
from whvi.layers import MCDropout
from whvi.likelihoods import Gaussian
from whvi.predictive import Predictive
from whvi.training import FitConfig, fit

_WIDTH = 128
_DROPOUT = 0.05
_NUM_DRAWS = 64


class Numbers(NamedTuple):
    """Inputs scaled by the training rows, float32, and the training targets."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor


def linear_model(data: Numbers, *, quick: bool) -> Predictive:
    """Fit least squares; the noise is what its residuals say."""
    from sklearn.linear_model import LinearRegression

    x, y = data.x_train.numpy(), data.y_train.numpy()
    model = LinearRegression().fit(x, y)
    residuals = y - model.predict(x)
    noise = np.sqrt(np.square(residuals).sum() / (len(y) - x.shape[1] - 1))
    return _constant_noise(model.predict(data.x_test.numpy()), noise)


def random_forest(data: Numbers, *, quick: bool) -> Predictive:
    """Fit a forest; the noise is the error on rows that a tree has not seen."""
    from sklearn.ensemble import RandomForestRegressor

    x, y = data.x_train.numpy(), data.y_train.numpy()
    size = 60 if quick else 300
    model = RandomForestRegressor(size, min_samples_leaf=2, oob_score=True, random_state=0)
    model.fit(x, y)
    noise = np.sqrt(np.square(y - model.oob_prediction_).mean())
    return _constant_noise(model.predict(data.x_test.numpy()), noise)


def plain_network(data: Numbers, *, quick: bool) -> Predictive:
    """Train a network by maximum likelihood, stopped early on held-out rows."""
    return _network(data, dropout=0.0, quick=quick)


def dropout_network(data: Numbers, *, quick: bool) -> Predictive:
    """Train the same network with dropout, and keep dropping when it predicts."""
    return _network(data, dropout=_DROPOUT, quick=quick)


RIVALS: dict[str, Callable[..., Predictive]] = {
    "plain network": plain_network,
    "MC dropout": dropout_network,
    "random forest": random_forest,
    "linear model": linear_model,
}


def _constant_noise(mean: np.ndarray, noise: float) -> Predictive:
    loc = torch.from_numpy(np.asarray(mean, dtype=np.float64)).unsqueeze(0)
    return Predictive.gaussian(loc, torch.full_like(loc, float(noise)))


def _network(data: Numbers, *, dropout: float, quick: bool) -> Predictive:
    num_inputs = data.x_train.shape[1]
    with torch.random.fork_rng():
        torch.manual_seed(0)  # torch.nn draws its starting point from the global generator
        layers: list[nn.Module] = []
        for width in (num_inputs, _WIDTH):
            layers += [nn.Linear(width, _WIDTH), nn.ReLU()]
            layers += [MCDropout(dropout)] if dropout else []
        model = nn.Sequential(*layers, nn.Linear(_WIDTH, 1))
    train, held_out = train_validation_split(len(data.y_train), 0.2, seed=0)
    likelihood = Gaussian()
    likelihood.set_target_scaling(data.y_train[train])
    config = FitConfig(
        num_steps=60 if quick else 2500, learning_rate=2e-3, eval_every=50, patience=10
    )
    rows = (data.x_train[train], data.y_train[train])
    validation = (data.x_train[held_out], data.y_train[held_out])
    fit(model, likelihood, rows, config=config, validation=validation)
    if not dropout:
        with torch.no_grad():
            return likelihood.predictive(model(data.x_test).unsqueeze(0))
    generator = torch.Generator().manual_seed(0)
    f = draw_functions(model, data.x_test, num_draws=_NUM_DRAWS, generator=generator)
    return likelihood.predictive(f)
