"""torchmetrics: scores of predictive means and probabilities."""

from __future__ import annotations

import pytest
import torch

from tests.clients.task import network, table
from whvi import draw_functions
from whvi.likelihoods import Categorical, Gaussian

torchmetrics = pytest.importorskip(
    "torchmetrics", reason="torchmetrics is not installed: make clients"
)


def test_regression_and_calibration() -> None:
    x, y = table()
    f = draw_functions(network(), x, num_draws=8)
    mean = Gaussian().predictive(f).mean
    score = torchmetrics.functional.mean_squared_error(mean, y.double())
    torch.testing.assert_close(score, (mean - y).square().mean())
    probabilities = Categorical(2).predictive(torch.cat([f, -f], -1)).probs
    error = torchmetrics.functional.calibration_error(
        probabilities, (y > 0).long(), task="multiclass", num_classes=2
    )
    assert 0 <= error <= 1


def test_the_metric_moves_with_the_model() -> None:
    metric = torchmetrics.MeanMetric()
    metric.update(torch.ones(3))
    assert metric.compute() == 1
