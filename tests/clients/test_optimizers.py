"""Optimizers of other packages, and torch's own that are unlike Adam."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.clients.task import network, table
from whvi import elbo, parameter_groups
from whvi.likelihoods import Gaussian


def ivon(parameters: Any) -> torch.optim.Optimizer:
    return pytest.importorskip("ivon", reason="ivon-opt is not installed: make clients").IVON(
        parameters, lr=0.1, ess=64
    )


def schedule_free(parameters: Any) -> torch.optim.Optimizer:
    package = pytest.importorskip(
        "schedulefree", reason="schedulefree is not installed: make clients"
    )
    return package.AdamWScheduleFree(parameters, lr=0.05)


@pytest.mark.parametrize(
    "make",
    [
        ivon,
        schedule_free,
        lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=2),
        lambda parameters: torch.optim.Adafactor(parameters, lr=0.05),
        lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
    ],
    ids=["ivon", "schedule_free", "lbfgs", "adafactor", "sgd"],
)
def test_steps_lower_the_loss(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    model, likelihood, (x, y) = network(), Gaussian(), table()
    optimizer = make([*model.parameters(), *likelihood.parameters()])
    if hasattr(optimizer, "train"):
        optimizer.train()
    losses: list[float] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(0)
        # IVON perturbs the parameters for a gradient
        perturbed = getattr(optimizer, "sampled_params", lambda train: contextlib.nullcontext())
        with perturbed(train=True):
            loss = -elbo(model, likelihood, x, y, num_data=64, generator=generator).value / 64
            loss.backward()
        losses.append(loss.item())
        return loss

    for _ in range(60):
        optimizer.step(closure)
    assert min(losses[-5:]) < losses[0] - 0.5


def test_weight_decay_leaves_scales_alone() -> None:
    model = network()
    optimizer = torch.optim.AdamW(parameter_groups(model, weight_decay=0.5), lr=0.1)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(20):
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]), name
