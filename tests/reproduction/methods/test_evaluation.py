from __future__ import annotations

import json
import math

import pytest
import torch

from reproduction.data import UCIDataset
from reproduction.methods import DataSize, Method
from reproduction.methods.evaluation import evaluate, scores, scores_per_draw
from reproduction.methods.grids import METHODS
from reproduction.methods.selection import Choice, candidates, choose
from whvi.predictive import Predictive

SCORES = ("rmse", "mnll", "crps", "coverage95", "rmse_per_draw", "mnll_per_draw", "mnll_unscaled")


def test_scores_of_one_gaussian() -> None:
    y = torch.tensor([0.0, 2.0]).double()
    predictive = Predictive.gaussian(torch.zeros(1, 2), torch.ones(1, 2))
    found = scores(predictive, y) | scores_per_draw(predictive, y)
    constant = 0.5 * math.log(2 * math.pi)
    assert found["rmse"] == found["rmse_per_draw"] == pytest.approx(math.sqrt(2))
    assert found["mnll"] == found["mnll_per_draw"] == pytest.approx(1 + constant)
    assert found["coverage95"] == 0.5


def test_per_draw_scores_are_never_better_than_those_of_the_mixture(
    generator: torch.Generator,
) -> None:
    y = torch.randn(50, generator=generator).double()
    loc = torch.randn(20, 50, generator=generator)
    predictive = Predictive.gaussian(loc, torch.ones_like(loc))
    found = scores(predictive, y) | scores_per_draw(predictive, y)
    assert found["rmse_per_draw"] > found["rmse"]
    assert found["mnll_per_draw"] > found["mnll"]


def test_replicas_together_or_alone_give_the_same_units(
    toy: UCIDataset, tiny_method: Method
) -> None:
    choices = choose(tiny_method, toy, [0, 2], seed=0)
    records = list(evaluate(tiny_method, toy, [0, 2], choices, seed=0))
    assert sorted(record["split"] for record in records) == [0, 2]
    for record in records:
        json.dumps(record, allow_nan=False)
        assert record["dataset"] == "toy"
        assert record["data_sha256"] == "0" * 64
        assert 1 < record["rmse"] < 30  # units of the target, whose standard deviation is 7
        assert record["num_test"] == 8
        assert {"whvi", "torch", "numpy", "python"} <= set(record["versions"])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_through(name: str, toy: UCIDataset) -> None:
    method = METHODS[name]
    options = dict(candidates(method, DataSize(72, 3), quick=True)[0])
    short = {"steps": 30, "n_estimators": 5, "max_iter": 5}
    options |= {key: value for key, value in short.items() if key in options}
    choices = [Choice(options, 1.0, (), 0.0)] * 2
    records = list(evaluate(method, toy, [0, 1], choices, seed=0))
    assert all(math.isfinite(record[score]) for record in records for score in SCORES)
    assert records[0]["method"] == name
    assert records[0]["num_parameters"] > 0
