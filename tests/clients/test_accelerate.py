"""accelerate: a prepared model, optimizer and loader, in bfloat16."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.clients.task import network, table
from whvi import elbo
from whvi.likelihoods import Gaussian

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed: make clients")
pytestmark = pytest.mark.filterwarnings("ignore")  # of accelerate and what it imports


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_training_lowers_the_loss(precision: str) -> None:
    accelerate.state.AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision)
    likelihood = Gaussian()
    model, losses = network(), []
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.02)
    loader = DataLoader(TensorDataset(*table()), batch_size=16)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(30):
        for x, y in loader:
            loss = -elbo(model, likelihood, x, y, num_data=64).value / 64
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert sum(losses[-8:]) < sum(losses[:8]) - 1
