"""Exact marginals in the clothes of a mixture: moments, density, quantiles and samples."""

from __future__ import annotations

import pytest
import torch

from whvi.gp.prediction import gaussian_marginals
from whvi.metrics import crps
from whvi.predictive import Predictive

MEAN = torch.tensor([0.0, 3.0, -1e3], dtype=torch.float64)
EPISTEMIC = torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
NOISE = torch.tensor(0.7, dtype=torch.float64)
TOTAL = (EPISTEMIC.square() + 0.49).sqrt()


@pytest.fixture
def predictive():
    return gaussian_marginals(MEAN, EPISTEMIC, NOISE)


def test_the_uncertainty_is_split_exactly(predictive):
    torch.testing.assert_close(predictive.mean, MEAN)
    torch.testing.assert_close(predictive.epistemic, EPISTEMIC)
    torch.testing.assert_close(predictive.aleatoric, NOISE.expand(3))
    torch.testing.assert_close(predictive.std, TOTAL)


def test_the_distribution_is_gaussian(predictive):
    exact = Predictive.gaussian(MEAN.unsqueeze(0), TOTAL.unsqueeze(0))
    y = torch.tensor([0.3, 5.0, -990.0], dtype=torch.float64)
    torch.testing.assert_close(predictive.log_prob(y), exact.log_prob(y))
    torch.testing.assert_close(predictive.cdf(y), exact.cdf(y))
    torch.testing.assert_close(predictive.quantile([0.05, 0.5]), exact.quantile([0.05, 0.5]))
    torch.testing.assert_close(predictive.interval(0.9), exact.interval(0.9))
    torch.testing.assert_close(crps(predictive, y), crps(exact, y), rtol=1e-3, atol=1e-4)


def test_samples_have_the_moments(predictive, generator):
    samples = predictive.sample(40_000, generator=generator)
    assert ((samples.mean(0) - MEAN).abs() < 5 * TOTAL / 200).all()
    torch.testing.assert_close(samples.std(0), TOTAL, rtol=0.02, atol=0)


def test_rows_can_be_chosen_and_joined(predictive):
    both = Predictive.cat([predictive[:1], predictive[1:]])
    torch.testing.assert_close(both.epistemic, EPISTEMIC)
    assert len(predictive[2]) == 1
