"""GPyTorch: a deep kernel whose features are Bayesian."""

from __future__ import annotations

import pytest
import torch

from tests.clients.task import table
from whvi import MeanWeights, WHVILinear, kl, sampling

gpytorch = pytest.importorskip("gpytorch", reason="gpytorch is not installed: make clients")
pytestmark = pytest.mark.filterwarnings("ignore")  # of gpytorch and what it imports


class DeepKernel(gpytorch.models.ExactGP):
    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.features = WHVILinear(4, 2)
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x: torch.Tensor) -> object:
        features = self.features(x)
        return gpytorch.distributions.MultivariateNormal(self.mean(features), self.kernel(features))


def test_training_lowers_the_loss() -> None:
    torch.manual_seed(0)
    x, y = table(40)
    model = DeepKernel(x, y)
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.05), []
    for _ in range(40):
        optimizer.zero_grad()
        loss = -objective(model(x), y) + kl(model) / 40
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.3
    model.eval()
    with torch.no_grad(), sampling(MeanWeights()):
        assert model(table(5, seed=1)[0]).mean.shape == (5,)
