"""The estimators as rows of the tables: their weight draws alone, whatever noise they chose."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from reproduction.data import UCIDataset
from reproduction.methods import estimator
from reproduction.methods.estimator import evaluate_estimator
from reproduction.methods.evaluation import scores
from reproduction.runner import Unit
from whvi import WHVIRegressor


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t"])
@pytest.mark.parametrize("linearize", [False, True])
def test_weight_draws_alone(
    likelihood: str, linearize: bool, toy: UCIDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"likelihood": likelihood, "linearize": linearize, "n_members": 2, "num_draws": 8}
    made = partial(WHVIRegressor, hidden_layer_sizes=(16,), **options)
    monkeypatch.setitem(estimator.ESTIMATORS, estimator.NAME, made)
    unit = Unit(estimator.NAME, "toy", (0,), 0)
    (record,) = evaluate_estimator(unit, toy, quick=True)
    assert record["choice"]["likelihood"] == likelihood
    whole = {name: record[name] for name in record["near"]}
    if linearize:
        assert record["near"] != pytest.approx(whole)
    else:  # there is nothing else
        assert record["near"] == pytest.approx(whole)
    train, test = toy.splits[0]
    model = made(random_state=0, max_iter=60).set_params(linearize=False)
    near = model.fit(toy.x[train], toy.y[train]).predict_dist(toy.x[test])
    assert record["near"] == pytest.approx(scores(near, torch.as_tensor(toy.y[test])))
