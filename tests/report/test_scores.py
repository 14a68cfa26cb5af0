from __future__ import annotations

import json
import math

import pytest
import torch

from whvi.errors import ShapeError
from whvi.metrics import crps
from whvi.predictive import Predictive
from whvi.report.scores import judge_blocks, judge_probs, pit_values, score_labels, score_regression


@pytest.fixture
def predictive(generator):
    loc = torch.randn(30, 200, generator=generator)
    return Predictive.gaussian(loc, torch.full_like(loc, 0.7))


@pytest.fixture
def y(generator):
    return torch.randn(200, generator=generator, dtype=torch.float64)


def test_scores_of_a_regression(predictive, y):
    scores = score_regression(predictive, y, levels=[0.9])
    error = predictive.mean - y
    assert scores.rmse == pytest.approx(error.square().mean().sqrt().item())
    assert scores.r2 == pytest.approx(1 - (error.square().mean() / y.var(correction=0)).item())
    assert scores.mnll == pytest.approx(-predictive.log_prob(y).mean().item())
    assert scores.crps == pytest.approx(crps(predictive, y).item())
    share = (predictive.epistemic.square().mean() / predictive.variance.mean()).item()
    assert scores.epistemic_share == pytest.approx(share)
    assert [each.level for each in scores.intervals] == [0.9]
    assert json.loads(json.dumps(scores.as_dict()))["num_rows"] == 200


def test_a_constant_target_has_no_variance_to_explain(predictive):
    assert math.isnan(score_regression(predictive, torch.zeros(200)).r2)


def test_several_outputs_are_refused():
    loc = torch.zeros(3, 5, 2)
    with pytest.raises(ShapeError, match="one target per row"):
        score_regression(Predictive.gaussian(loc, torch.ones_like(loc)), torch.zeros(5, 2))


def test_counts_are_placed_in_the_middle_of_their_step():
    predictive = Predictive.poisson(torch.full((4, 3), 2.0))
    y = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64)
    expected = (predictive.cdf(y) + predictive.cdf(y - 1)) / 2
    assert pit_values(predictive, y).tolist() == expected.tolist()
    assert pit_values(predictive, y)[0] == pytest.approx(math.exp(-2) / 2)


@pytest.mark.parametrize("num_classes", [2, 4])
def test_scores_of_labels(num_classes, generator):
    logits = torch.randn(20, 100, num_classes, generator=generator)
    predictive = Predictive.categorical(logits)
    labels = torch.randint(num_classes, (100,), generator=generator)
    scores = score_labels(predictive, labels)
    assert scores.accuracy == (predictive.mode == labels).double().mean()
    assert scores.log_loss == pytest.approx(-predictive.log_prob(labels).mean().item())
    assert (scores.auroc is None) == (num_classes > 2)
    assert scores.accuracy_of_most_frequent == labels.bincount().max() / 100


def test_one_class_in_the_table_has_no_ranking():
    predictive = Predictive.categorical(torch.zeros(2, 5, 2))
    assert score_labels(predictive, torch.zeros(5)).auroc is None


def test_blocks_of_rows_have_the_scores_of_all(generator):
    loc = torch.randn(5, 300, dtype=torch.float64, generator=generator)
    y = torch.randn(300, dtype=torch.float64, generator=generator)
    together = score_regression(Predictive.gaussian(loc, torch.ones_like(loc)), y).as_dict()
    parts = [slice(k, k + 70) for k in range(0, 300, 70)]
    blocks = ((Predictive.gaussian(loc[:, p], torch.ones_like(loc[:, p])), y[p]) for p in parts)
    found = judge_blocks(blocks)[0].as_dict()
    assert found.pop("intervals") == together.pop("intervals")
    assert found == pytest.approx(together, rel=1e-12)  # sums in another order


def test_scores_are_means_over_rows(predictive, y, generator):
    scores, rows = judge_blocks([(predictive, y)])
    for name, values in rows.items():
        assert values.mean().item() == pytest.approx(getattr(scores, name)), name
    probs = torch.rand(50, 3, dtype=torch.float64, generator=generator).softmax(-1)
    found, by_row = judge_probs(probs, torch.randint(3, (50,), generator=generator))
    for name, values in by_row.items():
        assert values.mean().item() == pytest.approx(getattr(found, name)), name


def test_a_probability_is_never_above_one():
    """The weights of a mixture may sum to 1 + eps, and a target above all components is there."""
    loc = torch.zeros(1, 1000, dtype=torch.float64)
    parts = [Predictive.gaussian(loc, loc + 1)] * 2
    share = (1 + torch.finfo(torch.float64).eps) / 2
    predictive = Predictive.mix(parts, [share, share])
    y = torch.full((1000,), 1e3, dtype=torch.float64)
    assert predictive.cdf(y).max() > 1
    assert pit_values(predictive, y).max() == 1
    score_regression(predictive, y)
