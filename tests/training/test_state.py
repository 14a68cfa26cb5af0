from __future__ import annotations

import pytest
import torch
from torch import nn

from whvi.errors import ConfigError
from whvi.training.state import BestWeights, WeightAverage, check_replicated


def test_average_against_a_loop():
    generator = torch.Generator().manual_seed(0)
    parameter = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    average = WeightAverage({"w": parameter}, decay=0.9)
    expected = torch.zeros(4, dtype=torch.float64)
    for step in range(1, 40):
        parameter.data = torch.randn(4, generator=generator, dtype=torch.float64)
        average.update(step)
        decay = min(0.9, (step - 1) / step)
        expected = decay * expected + (1 - decay) * parameter.detach()
        torch.testing.assert_close(average.copies.values["w"], expected)


def test_early_average_is_the_plain_mean():
    parameter = nn.Parameter(torch.full((1,), 1e6))
    average = WeightAverage({"w": parameter}, decay=0.999)
    for step, value in enumerate((1.0, 2.0, 6.0), start=1):
        parameter.data.fill_(value)
        average.update(step)
    assert average.copies.values["w"].item() == pytest.approx(3.0)


def test_swapping_twice_changes_nothing():
    parameter = nn.Parameter(torch.tensor([1.0]))
    average = WeightAverage({"w": parameter}, decay=0.5)
    parameter.data.fill_(2.0)
    average.swap()
    assert (parameter.item(), average.copies.values["w"].item()) == (1.0, 2.0)
    average.swap()
    assert (parameter.item(), average.copies.values["w"].item()) == (2.0, 1.0)


def test_best_weights_are_kept_per_replica():
    weight = torch.zeros(2, 3)
    best = BestWeights({"w": weight}, (2,), patience=2)
    for value, score in [(1, (0.0, 0.0)), (2, (1.0, -1.0)), (3, (0.5, -2.0)), (4, (0.4, 9.0))]:
        weight.fill_(value)
        best.update(torch.tensor(score))
    assert best.finished.tolist() == [True, True]
    best.copies.restore()
    # Replica 1 was finished after the third evaluation: its late 9.0 no longer counts.
    assert weight[:, 0].tolist() == [2.0, 1.0]


def test_patience_counts_evaluations_without_improvement():
    weight = torch.zeros(1)
    best = BestWeights({"w": weight}, (), patience=2)
    for score, finished in [(0.0, False), (-1.0, False), (1.0, False), (1.0, False), (0.0, True)]:
        best.update(torch.tensor(score))
        assert bool(best.finished) is finished


def test_parameters_shared_by_replicas_are_refused():
    with pytest.raises(ConfigError, match=r"patience .* model\.w of shape \(3,\)"):
        check_replicated("patience", {"model.w": nn.Parameter(torch.zeros(3))}, (2,))
