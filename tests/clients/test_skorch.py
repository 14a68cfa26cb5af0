"""skorch: the ELBO as the loss of a net that scikit-learn can search over."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.clients.task import network, table
from whvi import elbo
from whvi.likelihoods import Gaussian

skorch = pytest.importorskip("skorch", reason="skorch is not installed: make clients")
pytestmark = pytest.mark.filterwarnings("ignore")  # of skorch and what it imports


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.likelihood = network(), Gaussian()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).squeeze(-1)


class Net(skorch.NeuralNetRegressor):
    def train_step_single(self, batch: Any, **_: Any) -> dict[str, Tensor]:
        module = self.module_.train()
        loss = -elbo(module.net, module.likelihood, *batch, num_data=64).value / 64
        loss.backward()
        return {"loss": loss, "y_pred": module(batch[0])}


def test_grid_search() -> None:
    search = pytest.importorskip("sklearn.model_selection").GridSearchCV
    x, y = (t.numpy() for t in table())
    net = Net(Module, max_epochs=40, optimizer=torch.optim.Adam, train_split=None, verbose=0)
    found = search(net, {"lr": [0.02, 1e-5]}, cv=2, scoring="r2").fit(x, y)
    assert found.best_params_ == {"lr": 0.02}
    assert found.best_score_ > 0.5
