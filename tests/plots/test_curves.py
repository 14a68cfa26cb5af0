from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whvi.errors import ConfigError, DataError, ShapeError
from whvi.metrics import ece, rmse
from whvi.plots.curves import (
    calibration_curve,
    chance_band,
    coverage_by_level,
    error_by_std,
    reliability,
    risk_coverage,
)
from whvi.predictive import Predictive


@pytest.fixture
def predictive(generator):
    loc = torch.randn(20, 300, generator=generator)
    return Predictive.gaussian(loc, 0.3 + torch.rand(20, 300, generator=generator))


@pytest.fixture
def y(generator):
    return 1.5 * torch.randn(300, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9, 0.99])
def test_coverage_is_that_of_the_intervals(predictive, y, level):
    lower, upper = predictive.interval(level)
    inside = ((lower <= y) & (y <= upper)).double().mean()
    assert coverage_by_level(predictive.cdf(y), [level]) == inside


@pytest.mark.parametrize("probability", [0.05, 0.5, 0.8])
def test_calibration_counts_targets_below_their_quantile(predictive, y, probability):
    below = (y <= predictive.quantile(probability)).double().mean()
    assert calibration_curve(predictive.cdf(y), [probability]) == below


def test_uniform_values_are_calibrated():
    pit = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    levels = torch.linspace(0, 1, 11, dtype=torch.float64)
    torch.testing.assert_close(calibration_curve(pit, levels), levels, atol=1e-12, rtol=0)
    torch.testing.assert_close(coverage_by_level(pit, levels), levels, atol=1e-3, rtol=0)


def test_chance_holds_its_share(generator):
    # 4000 data sets of 200 rows: the normal approximation is right within a percent or two
    shares = (torch.rand(4000, 200, generator=generator) < 0.9).double().mean(1)
    low, high = chance_band(torch.tensor([0.9]), 200)
    inside = ((shares >= low) & (shares <= high)).double().mean()
    assert abs(inside - 0.95) < 0.03


@pytest.mark.parametrize("pit", [torch.tensor([0.5, 1.2]), torch.tensor([float("nan")])])
def test_probabilities_are_probabilities(pit):
    with pytest.raises(DataError, match=r"within \[0, 1\]|not finite"):
        coverage_by_level(pit, [0.5])


def test_error_bins_hold_all_rows_and_agree_with_the_whole(predictive, y):
    error, std = predictive.mean - y, predictive.std
    bins = error_by_std(error, std, num_bins=7)
    assert bins.num_rows.sum() == 300
    assert (bins.std.diff() > 0).all()
    total = (bins.num_rows * bins.rmse.square()).sum() / 300
    torch.testing.assert_close(total.sqrt(), rmse(predictive.mean, y))


def test_few_rows_are_one_bin():
    bins = error_by_std(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 7.0]))
    assert bins.rmse.tolist() == pytest.approx([12.5**0.5])
    assert bins.std.tolist() == [5.0]


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 4)), min_size=1, max_size=30))
def test_risk_is_the_mean_over_the_surest_rows(rows):
    loss, doubt = (torch.tensor(part, dtype=torch.float64) for part in zip(*rows, strict=True))
    kept, risk = risk_coverage(loss, doubt)
    assert kept[-1] == 1
    for share, mean in zip(kept, risk, strict=True):
        threshold = doubt.sort().values[round(share.item() * len(doubt)) - 1]
        torch.testing.assert_close(mean, loss[doubt <= threshold].mean())


def test_a_row_for_every_row():
    with pytest.raises(ShapeError, match="one value for each of 2 rows, got 3"):
        risk_coverage(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ShapeError, match="at least one row"):
        risk_coverage(torch.zeros(0), torch.zeros(0))


def test_reliability_gives_the_calibration_error(generator):
    probs = torch.softmax(2 * torch.randn(500, 4, generator=generator), -1)
    labels = torch.randint(4, (500,), generator=generator)
    bins = reliability(probs, labels, num_bins=15)
    gap = (bins.num_rows * (bins.accuracy - bins.confidence).abs()).sum() / 500
    torch.testing.assert_close(gap, ece(probs, labels))


def test_reliability_refuses_other_shapes():
    with pytest.raises(ShapeError, match=r"probs \(N, C\)"):
        reliability(torch.ones(3), torch.zeros(3))
    with pytest.raises(ConfigError):
        reliability(torch.ones(3, 1), torch.zeros(3), num_bins=0)
