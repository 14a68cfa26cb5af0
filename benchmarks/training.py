"""A training step of the paper's regression network ``in → width → width → 1``, batch 64.

A step is objective, backward pass, Adam (``fused=True`` for everyone) and cleared gradients. The
objective is the negative ELBO per datum for Bayesian networks and the Gaussian negative log
likelihood with a learned variance for the network of ``nn.Linear``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.records import Cell, timed_cell
from benchmarks.rivals import optional
from benchmarks.timing import Effort, Rival

TITLE = "Training step"
NUM_REPLICAS = 20
_WIDTHS = [128, 1024]
_IN_FEATURES, _BATCH, _NUM_DATA = 13, 64, 500

Layer = Callable[[int, int], nn.Module]


def cells(effort: Effort, quick: bool) -> Iterator[Cell]:
    """Networks of two widths, then replicas in one pass beside one alone."""
    for width in _WIDTHS:
        yield timed_cell({"width": width, "replicas": 1}, _rivals(width), effort)
    for width in _WIDTHS:
        rivals = {"one alone": _fit_step(width), "one of 20": _fit_step(width, (NUM_REPLICAS,))}
        yield timed_cell({"width": width, "replicas": NUM_REPLICAS}, rivals, effort)


def missing() -> str:
    """Say what the section lacks, or nothing."""
    for name in ("whvi.layers.linear", "whvi.likelihoods", "whvi.elbo"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            return f"cannot import {name}: {error}"
    return ""


def _rivals(width: int) -> dict[str, Rival | str]:
    return {
        "whvi.fit": _fit_step(width),
        "whvi.elbo": _whvi(width),
        "nn.Linear": _point_estimate(width),
        "mean field (whvi)": _mean_field(width),
        "bayesian-torch": _bayesian_torch(width),
        "torch-uncertainty": _torch_uncertainty(width),
    }


def _network(hidden: Layer, last: Layer, width: int) -> nn.Sequential:
    return nn.Sequential(
        hidden(_IN_FEATURES, width), nn.ReLU(), hidden(width, width), nn.ReLU(), last(width, 1)
    )


def _step(loss: Callable[[], Tensor], parameters: list[nn.Parameter], parts: int = 1) -> Rival:
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)

    def call() -> None:
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return Rival(call, parts=parts)


def _whvi(width: int, batch_shape: tuple[int, ...] = ()) -> Rival:
    """Build the same network in a user's own loop: elbo, backward, Adam."""
    from whvi.layers.linear import MeanFieldLinear, WHVILinear

    hidden = partial(WHVILinear, batch_shape=batch_shape)
    last = partial(MeanFieldLinear, batch_shape=batch_shape)
    return _elbo_step(_network(hidden, last, width), batch_shape)


def _fit_step(width: int, batch_shape: tuple[int, ...] = ()) -> Rival:
    """Build one step of ``whvi.fit``: objective, backward pass, guards and Adam."""
    import whvi
    from whvi.likelihoods import Gaussian
    from whvi.training.distributed import current_ranks
    from whvi.training.state import TrainingState
    from whvi.training.step import Stepper

    model = whvi.mlp(_IN_FEATURES, (width, width), 1, batch_shape=batch_shape)
    likelihood = Gaussian(1, batch_shape=batch_shape)
    config = whvi.FitConfig(num_steps=1_000_000, batch_size=_BATCH, noise_hold_steps=0)
    stepper = Stepper(TrainingState(model, likelihood, config, current_ranks()), _NUM_DATA)
    x, y = torch.randn(*batch_shape, _BATCH, _IN_FEATURES), torch.randn(*batch_shape, _BATCH)

    def call() -> None:
        _, gradients, _ = stepper.evaluate(x, y)
        stepper.descend(gradients)

    return Rival(call, parts=batch_shape[0] if batch_shape else 1)


def _mean_field(width: int) -> Rival:
    from whvi.layers.linear import MeanFieldLinear

    return _elbo_step(_network(MeanFieldLinear, MeanFieldLinear, width), ())


def _elbo_step(model: nn.Module, batch_shape: tuple[int, ...]) -> Rival:
    from whvi.elbo import elbo
    from whvi.likelihoods import Gaussian

    likelihood = Gaussian(1, batch_shape=batch_shape)
    x, y = torch.randn(*batch_shape, _BATCH, _IN_FEATURES), torch.randn(*batch_shape, _BATCH, 1)
    generator = torch.Generator().manual_seed(1)

    def loss() -> Tensor:
        bound = elbo(model, likelihood, x, y, num_data=_NUM_DATA, generator=generator)
        return bound.value.sum() * (-1 / _NUM_DATA)

    parameters = [*model.parameters(), *likelihood.parameters()]
    return _step(loss, parameters, parts=batch_shape[0] if batch_shape else 1)


def _gaussian_nll(f: Tensor, y: Tensor, log_variance: Tensor) -> Tensor:
    return 0.5 * (log_variance + (f - y).square() * (-log_variance).exp()).mean()


def _rows() -> tuple[Tensor, Tensor]:
    return torch.randn(_BATCH, _IN_FEATURES), torch.randn(_BATCH, 1)


def _point_estimate(width: int) -> Rival:
    model = _network(nn.Linear, nn.Linear, width)
    (x, y), log_variance = _rows(), nn.Parameter(torch.zeros(1))
    parameters = [*model.parameters(), log_variance]
    return _step(lambda: _gaussian_nll(model(x), y, log_variance), parameters)


def _peer(model: nn.Module, forward: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Rival:
    """Build a step of another package; ``forward`` gives function values and the KL in nats."""
    (x, y), log_variance = _rows(), nn.Parameter(torch.zeros(1))

    def loss() -> Tensor:
        f, kl = forward(x)
        return _gaussian_nll(f, y, log_variance) + kl / _NUM_DATA

    return _step(loss, [*model.parameters(), log_variance])


def _bayesian_torch(width: int) -> Rival | str:
    package = optional("bayesian_torch")
    if isinstance(package, str):
        return package
    from bayesian_torch.layers import LinearReparameterization as Linear

    model = _network(Linear, Linear, width)

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros(())
        for layer in model:
            if isinstance(layer, Linear):  # returns its KL beside the output
                x, kl = layer(x)
                total = total + kl
            else:
                x = layer(x)
        return x, total

    return _peer(model, forward)


def _torch_uncertainty(width: int) -> Rival | str:
    package = optional("torch_uncertainty")
    if isinstance(package, str):
        return package
    from torch_uncertainty.layers.bayesian import BayesLinear

    model = _network(BayesLinear, BayesLinear, width)
    layers = [layer for layer in model if isinstance(layer, BayesLinear)]

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        f = model(x)  # leaves both terms of a one-sample KL on the layers
        return f, sum(layer.log_variational_posterior - layer.log_prior for layer in layers)

    return _peer(model, forward)
