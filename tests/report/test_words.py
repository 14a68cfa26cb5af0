"""Sentences say what the numbers say."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from whvi.predictive import Predictive
from whvi.report.scores import IntervalScore, score_labels, score_regression
from whvi.report.words import (
    count,
    interval_sentence,
    label_sentences,
    level,
    number,
    regression_sentences,
    share,
)


def test_the_sentence_of_coverage():
    told = interval_sentence(IntervalScore(0.9, 0.887, 12.5), 1024)
    assert told.startswith("90 % intervals cover 88.7 % of 1,024 test rows (consistent with")
    assert "88.2 % to 91.8 %" in told
    assert "median width is 12.50" in told


@pytest.mark.parametrize(
    ("covered", "verdict"), [(0.7, "too narrow"), (0.9, "consistent"), (0.99, "wider than")]
)
def test_the_verdict_on_coverage(covered, verdict):
    assert verdict in interval_sentence(IntervalScore(0.9, covered, 1.0), 1000)


def test_chance_explains_more_in_a_small_table():
    assert "too narrow" in interval_sentence(IntervalScore(0.9, 0.85, 1.0), 2000)
    assert "consistent" in interval_sentence(IntervalScore(0.9, 0.85, 1.0), 40)


def told(scale, generator, num_rows=400):
    """The reading of predictions whose deviation is ``scale`` times the true one."""
    std = 0.1 + torch.rand(num_rows, generator=generator, dtype=torch.float64)
    y = std * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    predictive = Predictive.gaussian(torch.zeros(1, num_rows), scale * std.unsqueeze(0))
    return regression_sentences(score_regression(predictive, y), predictive, y), y


def test_a_constant_prediction_is_called_one(generator):
    sentences, _ = told(1.0, generator)
    assert "The model predicts no better here than a constant would." in sentences
    assert any("least uncertainty, the root mean squared error is" in each for each in sentences)


def test_too_sure_and_too_careful(generator):
    assert sum("too narrow" in each for each in told(0.3, generator)[0]) == 4
    assert sum("wider than necessary" in each for each in told(5.0, generator)[0]) == 4


def test_equal_doubt_cannot_sort():
    predictive = Predictive.gaussian(torch.zeros(2, 50), torch.ones(2, 50))
    y = torch.linspace(-1, 1, 50, dtype=torch.float64)
    sentences = regression_sentences(score_regression(predictive, y), predictive, y)
    assert any("it cannot rank them" in each for each in sentences)


def test_useless_doubt_is_called_so():
    std = torch.linspace(1, 2, 50, dtype=torch.float64)
    y = std.flip(0)  # the most certain rows have the largest errors
    predictive = Predictive.gaussian(torch.zeros(1, 50), std.unsqueeze(0))
    sentences = regression_sentences(score_regression(predictive, y), predictive, y)
    assert any("does not tell good predictions from bad" in each for each in sentences)


def test_few_rows_are_told(generator):
    assert "10 rows is a small test set" in told(1.0, generator, num_rows=10)[0][-1]


def test_labels(generator):
    logits = 3 * torch.randn(1, 500, 3, generator=generator, dtype=torch.float64)
    predictive = Predictive.categorical(logits)
    labels = torch.multinomial(logits[0].softmax(-1), 1, generator=generator).squeeze(-1)
    scores = score_labels(predictive, labels)
    sentences = label_sentences(scores, predictive, labels)
    assert f"correct for {share(scores.accuracy)} of 500 test rows" in sentences[0]
    assert "consistent with the accuracy" in sentences[1]
    sure = dataclasses.replace(scores, mean_confidence=0.999)
    assert "overconfident" in label_sentences(sure, predictive, labels)[1]


def test_numbers_as_a_reader_likes_them():
    shown = [number(v) for v in (0, 3, 1234567, 1234.5678, 0.012345, 2.5e-9, -3.14159)]
    assert shown == ["0", "3", "1,234,567", "1,235", "0.0123", "2.5e-09", "-3.142"]
    assert number(float("nan")) == "–"
    assert (share(0.8871), level(0.995), count(1, "row"), count(1024, "row")) == (
        *("88.7 %", "99.5 %", "1 row", "1,024 rows"),
    )
