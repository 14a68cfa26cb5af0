from __future__ import annotations

import itertools
import math
import subprocess
import sys

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from whvi import metrics
from whvi.errors import ConfigError, DataError, ShapeError
from whvi.predictive import Predictive

RNG = np.random.default_rng(0)
N = 40
Y, MEAN = RNG.normal(size=N), RNG.normal(size=N)
LABELS = RNG.integers(0, 3, N)
PROBS = RNG.dirichlet([1, 1, 1], N)


def tensor(x: object) -> Tensor:
    return torch.as_tensor(x, dtype=torch.float64)


def test_rmse_equals_sklearns() -> None:
    expected = sklearn.metrics.root_mean_squared_error(Y, MEAN)
    np.testing.assert_allclose(metrics.rmse(tensor(MEAN), tensor(Y)), expected)


def test_mnll_is_the_mean_over_rows_of_the_log_of_the_mean_over_draws() -> None:
    loc = RNG.normal(0, 30, (5, N))
    with mpmath.workdps(40):
        rows = [
            mpmath.log(mpmath.fsum(mpmath.npdf(y, m, 0.1) for m in ms) / 5)
            for y, ms in zip(Y, loc.T, strict=True)
        ]
        expected = float(-mpmath.fsum(rows) / N)
    predictive = Predictive.gaussian(tensor(loc), tensor(0.1))
    np.testing.assert_allclose(metrics.mnll(predictive.log_prob(tensor(Y))), expected)


def interval() -> tuple[np.ndarray, np.ndarray]:
    return MEAN - 0.7, MEAN + RNG.uniform(0, 2, N)


def test_coverage_and_interval_score_equal_loops() -> None:
    lower, upper = interval()
    inside = [lo <= y <= up for lo, up, y in zip(lower, upper, Y, strict=True)]
    args = (tensor(lower), tensor(upper), tensor(Y))
    np.testing.assert_allclose(metrics.coverage(*args), np.mean(inside))
    scores = []
    for lo, up, y in zip(lower, upper, Y, strict=True):
        score = up - lo
        if y < lo:
            score += 2 / 0.1 * (lo - y)
        if y > up:
            score += 2 / 0.1 * (y - up)
        scores.append(score)
    np.testing.assert_allclose(metrics.interval_score(*args, level=0.9), np.mean(scores))


def test_interval_score_is_proper_and_twice_the_pinball_losses() -> None:
    lower, upper = interval()
    pinball = sum(
        sklearn.metrics.mean_pinball_loss(Y, end, alpha=q)
        for end, q in ((lower, 0.05), (upper, 0.95))
    )
    ours = metrics.interval_score(tensor(lower), tensor(upper), tensor(Y), level=0.9)
    np.testing.assert_allclose(ours, pinball * 2 / 0.1)


@settings(max_examples=50, deadline=None)
@given(pit=st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_calibration_error_is_the_area_between_the_curves(pit: list[float]) -> None:
    grid = (np.arange(20_000) + 0.5) / 20_000
    curve = (np.sort(pit)[:, None] <= grid).mean(0)
    expected = np.abs(curve - grid).mean()
    np.testing.assert_allclose(metrics.calibration_error(tensor(pit)), expected, atol=1e-4)


def test_calibration_error_of_right_and_wrong_noise() -> None:
    y = tensor(RNG.normal(size=5000))
    right = Predictive.gaussian(torch.zeros(1, 5000), torch.tensor(1.0))
    narrow = Predictive.gaussian(torch.zeros(1, 5000), torch.tensor(0.1))
    assert metrics.calibration_error(right.cdf(y)) < 0.02  # about 1/sqrt(N)
    assert metrics.calibration_error(narrow.cdf(y)) > 0.2


# CRPS


def crps_by_quadrature(predictive: Predictive, y: float, row: int) -> float:
    one = predictive[row]

    def square(x: float) -> float:
        return (float(one.cdf(x)[0]) - (y <= x)) ** 2

    center, reach = float(one.mean[0]), 200 * float(one.std[0])
    points = sorted({y, center, *(center + k * float(one.std[0]) for k in (-9, -3, 3, 9))})
    edges = [min(y, center) - reach, *points, max(y, center) + reach]
    return sum(
        scipy.integrate.quad(square, a, b, limit=200)[0] for a, b in itertools.pairwise(edges)
    )


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0])
def test_crps_of_gaussian_mixtures_equals_quadrature(spread: float) -> None:
    loc, scale = spread * RNG.normal(size=(5, 4)), RNG.uniform(0.5, 1.5, (5, 4))
    predictive, y = Predictive.gaussian(tensor(loc), tensor(scale)), np.array([0.0, 1, -4, 20])
    ours = metrics._crps_gaussian(tensor(loc), tensor(scale), tensor(y))
    expected = [crps_by_quadrature(predictive, y[n], n) for n in range(4)]
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
    np.testing.assert_allclose(metrics.crps(predictive, tensor(y)), np.mean(expected), rtol=1e-6)


def test_crps_of_one_gaussian_has_a_formula() -> None:
    m, s, y = 1.0, 2.0, 4.0
    t = (y - m) / s
    phi, cdf = scipy.stats.norm.pdf(t), scipy.stats.norm.cdf(t)
    expected = s * (t * (2 * cdf - 1) + 2 * phi - 1 / math.sqrt(math.pi))
    ours = metrics._crps_gaussian(tensor([[m]]), tensor([[s]]), tensor([y]))
    np.testing.assert_allclose(ours, [expected])


def test_crps_does_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    loc, scale, y = torch.randn(6, 9, 2), torch.rand(6, 9, 2) + 0.1, torch.randn(9, 2)
    whole = metrics._crps_gaussian(loc, scale, y)
    monkeypatch.setattr(metrics, "_PAIRS_AT_ONCE", 36 * 4)
    assert whole.shape == (9, 2)
    torch.testing.assert_close(metrics._crps_gaussian(loc, scale, y), whole)


def test_crps_of_student_t_mixtures_equals_quadrature() -> None:
    loc, scale = RNG.normal(size=(4, 5)), RNG.uniform(0.5, 1.5, (4, 5))
    df = RNG.uniform(2.2, 8, (4, 5))
    predictive = Predictive.student_t(tensor(loc), tensor(scale), tensor(df))
    y = np.array([0.0, 1.0, -4.0, 30.0, 1e4])
    expected = [crps_by_quadrature(predictive, y[n], n) for n in range(5)]
    ours = [metrics.crps(predictive[n], tensor(y[n : n + 1])).item() for n in range(5)]
    np.testing.assert_allclose(ours, expected, rtol=1e-4)


def test_crps_of_counts_equals_the_energy_form() -> None:
    rate = RNG.uniform(0.2, 30, (3, 6))
    y = np.array([0, 1, 5, 12, 40, 200])
    k = np.arange(400)
    expected = []
    for n in range(6):
        pmf = scipy.stats.poisson.pmf(k[:, None], rate[:, n]).mean(1)
        spread = pmf @ np.abs(k[:, None] - k) @ pmf
        expected.append(pmf @ np.abs(k - y[n]) - spread / 2)
    predictive = Predictive.poisson(tensor(rate))
    ours = [metrics.crps(predictive[n], tensor(y[n : n + 1])).item() for n in range(6)]
    np.testing.assert_allclose(ours, expected, rtol=1e-7)


@pytest.mark.parametrize("y", [0.0, 700.0, 30_000.0])
def test_crps_of_counts_in_panels_equals_the_sum_over_all(y: float) -> None:
    rate = np.array([[0.1, 2.0], [400.0, 0.5], [20_000.0, 9_000.0]])
    k = np.arange(31_000)
    expected = []
    for n in range(2):
        cdf = scipy.stats.poisson.cdf(k[:, None], rate[:, n]).mean(1)
        expected.append(((cdf - (k >= y)) ** 2).sum())
    ours = metrics.crps_values(Predictive.poisson(tensor(rate)), torch.full((2,), y).double())
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_crps_of_counts_takes_few_evaluations_however_long_the_tail_and_far_the_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rate = torch.full((3, 4), 2.0, dtype=torch.float64)
    rate[0, 1] = 1e7
    numbers: list[int] = []
    cdf = Predictive.cdf

    def counted(self: Predictive, y: torch.Tensor | float) -> torch.Tensor:
        numbers.append(self.num_rows)
        return cdf(self, y)

    monkeypatch.setattr(Predictive, "cdf", counted)
    ours = metrics.crps_values(Predictive.poisson(rate), tensor([1.0, 1.0, 1.0, 1e12]))
    assert sum(numbers) < 20_000
    np.testing.assert_allclose(ours[3], 1e12, rtol=1e-9)
    np.testing.assert_allclose(ours[1], 1e7 / 9, rtol=1e-3)


@pytest.mark.parametrize("length", [3, 12, 13, 40, 1001])
def test_the_rule_for_sums_is_exact_for_quintics(length: int) -> None:
    nodes, weights = metrics._sum_rule(length)
    k = np.arange(length) / length
    at = np.array(nodes) / length
    for power in range(6):
        np.testing.assert_allclose(np.dot(weights, at**power), (k**power).sum(), rtol=1e-12)


def test_crps_of_a_binary_label_is_the_binary_brier_score() -> None:
    logits, y = RNG.normal(size=(4, N)), RNG.integers(0, 2, N)
    predictive = Predictive.bernoulli(tensor(logits))
    expected = sklearn.metrics.brier_score_loss(y, predictive.mean)
    np.testing.assert_allclose(metrics.crps(predictive, tensor(y)), expected)


# Classification


def test_accuracy_equals_sklearns() -> None:
    predicted = PROBS.argmax(-1)
    ours = metrics.accuracy(torch.from_numpy(predicted), torch.from_numpy(LABELS))
    np.testing.assert_allclose(ours, sklearn.metrics.accuracy_score(LABELS, predicted))


def test_brier_equals_loops_and_sklearns() -> None:
    expected = np.mean(
        [sum((p[c] - (y == c)) ** 2 for c in range(3)) for p, y in zip(PROBS, LABELS, strict=True)]
    )
    np.testing.assert_allclose(metrics.brier(tensor(PROBS), torch.from_numpy(LABELS)), expected)
    p, y = PROBS[:, 0], LABELS == 0
    pair = tensor(np.stack([1 - p, p], -1))
    binary = sklearn.metrics.brier_score_loss(y, p)
    np.testing.assert_allclose(metrics.brier(pair, torch.from_numpy(y)), 2 * binary)


@pytest.mark.parametrize("num_bins", [1, 10, 15])
def test_ece_equals_loops(num_bins: int) -> None:
    # Too modest below 0.6 and too sure above, so that bins err on both sides.
    confidence, predicted = PROBS.max(-1), PROBS.argmax(-1)
    labels = np.where(confidence < 0.6, predicted, LABELS)
    right = predicted == labels
    expected = 0.0
    for b in range(num_bins):
        inside = (confidence > b / num_bins) & (confidence <= (b + 1) / num_bins)
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    ours = metrics.ece(tensor(PROBS), torch.from_numpy(labels), num_bins=num_bins)
    np.testing.assert_allclose(ours, expected)


def test_ece_of_certainty() -> None:
    sure = torch.eye(3)
    assert metrics.ece(sure, torch.arange(3)) == 0
    assert metrics.ece(sure, torch.tensor([1, 2, 0])) == 1


@settings(max_examples=50, deadline=None)
@given(scores=st.lists(st.integers(-3, 3), min_size=2, max_size=30), data=st.data())
def test_auroc_with_ties_equals_sklearns(scores: list[int], data: st.DataObject) -> None:
    num = len(scores)
    labels = data.draw(st.lists(st.integers(0, 1), min_size=num, max_size=num))
    if len(set(labels)) < 2:
        labels[0] = 1 - labels[-1]
    ours = metrics.auroc(tensor(scores), torch.tensor(labels))
    np.testing.assert_allclose(ours, sklearn.metrics.roc_auc_score(labels, scores))


# Input validation


def test_shapes_never_broadcast() -> None:
    column, row = torch.zeros(N, 1), torch.zeros(N)
    for call in (
        lambda: metrics.rmse(column, row),
        lambda: metrics.accuracy(column, row),
        lambda: metrics.coverage(column, column, row),
        lambda: metrics.interval_score(row, column, row, level=0.5),
        lambda: metrics.auroc(column, row),
        lambda: metrics.crps(Predictive.poisson(torch.ones(2, N)), torch.zeros(1, N)),
        lambda: metrics.rmse(row[:0], row[:0]),
    ):
        with pytest.raises(ShapeError, match="shape"):
            call()
    for call in (
        lambda: metrics.mnll(row[:0]),
        lambda: metrics.brier(row, row),
        lambda: metrics.ece(torch.ones(N, 2) / 2, column),
        lambda: metrics.crps(Predictive.poisson(torch.ones(3, 2, N), batch_dims=1), row),
    ):
        with pytest.raises(ShapeError):
            call()


def test_column_targets_score_like_rows() -> None:
    predictive, y = Predictive.poisson(torch.ones(2, N)), torch.arange(N) % 3
    assert metrics.crps(predictive, y[:, None]) == metrics.crps(predictive, y)


def test_nan_never_becomes_a_score() -> None:
    bad, good = torch.full((N,), math.nan), torch.zeros(N)
    assert metrics.rmse(bad, good).isnan()
    assert metrics.mnll(bad).isnan()
    gaussian = Predictive.gaussian(torch.zeros(2, N), torch.tensor(1.0))
    assert metrics.crps(gaussian, bad).isnan()
    student = Predictive.student_t(torch.zeros(2, N), torch.tensor(1.0), torch.tensor(3.0))
    assert metrics.crps(student, bad).isnan()
    half = torch.full((N, 2), 0.5)
    for call in (
        lambda: metrics.coverage(good, good, bad),
        lambda: metrics.coverage(bad, good, good),
        lambda: metrics.calibration_error(bad),
        lambda: metrics.auroc(bad, good),
        lambda: metrics.brier(half, bad),
        lambda: metrics.ece(half * math.nan, good),
        lambda: metrics.crps(Predictive.poisson(torch.ones(2, N)), bad),
    ):
        with pytest.raises(DataError, match="not finite"):
            call()


def test_unusable_values_are_refused() -> None:
    zero, one = torch.zeros(N), torch.ones(N)
    with pytest.raises(DataError, match="lower end above"):
        metrics.coverage(one, zero, zero)
    with pytest.raises(ConfigError, match="level"):
        metrics.interval_score(zero, one, zero, level=95)
    with pytest.raises(DataError, match=r"within \[0, 1\]"):
        metrics.calibration_error(2 * one)
    with pytest.raises(DataError, match="softmax, not logits"):
        metrics.ece(torch.randn(N, 3), zero)
    with pytest.raises(DataError, match="from 0 to 1"):
        metrics.brier(torch.full((N, 2), 0.5), 2 * one)
    with pytest.raises(DataError, match="at least one of each; got 40 ones and 0 zeros"):
        metrics.auroc(zero, one)
    with pytest.raises(ConfigError, match="a categorical predictive has no mean"):
        metrics.crps(Predictive.categorical(torch.zeros(2, N, 3)), zero)


def test_metrics_need_torch_and_numpy_only() -> None:
    program = "import sys, torch; old = set(sys.modules); import whvi.metrics; "
    program += "print(*set(sys.modules) - old)"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name for name in found if name.startswith("whvi")} == {
        *("whvi", "whvi._checks", "whvi.errors", "whvi.metrics"),
    }
    assert not {"scipy", "sklearn", "pandas"} & set(found)
