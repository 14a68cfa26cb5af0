"""No leakage: what is trained and chosen depends on the split's own training rows only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from reproduction.data import UCIDataset
from reproduction.methods import DataSize, Settings
from reproduction.methods.evaluation import evaluate
from reproduction.methods.grids import METHODS
from reproduction.methods.networks import FittedNetwork, NetworkMethod
from reproduction.methods.selection import (
    VALIDATION_FRACTION,
    Choice,
    choose,
    groups,
    inner_split,
    key,
)


@dataclass
class Spy:
    """A method that remembers every weight it trained."""

    inner: NetworkMethod
    weights: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name, self.num_members = self.inner.name, self.inner.num_members
        self.per_replica, self.family = self.inner.per_replica, self.inner.family

    def grid(self, size: DataSize) -> tuple[Settings, ...]:
        return self.inner.grid(size)

    def fit(
        self, settings: Sequence[Settings], x: Tensor, y: Tensor, *, seed: int
    ) -> FittedNetwork:
        fitted = self.inner.fit(settings, x, y, seed=seed)
        state = fitted.model.state_dict()
        self.weights += [tensor.detach().clone() for tensor in state.values()]
        return fitted


def run(method: NetworkMethod, dataset: UCIDataset) -> tuple[Spy, Choice, dict[str, object]]:
    spy = Spy(method)
    choices = choose(spy, dataset, [1], seed=0)
    (record,) = evaluate(spy, dataset, [1], choices, seed=0)
    return spy, choices[0], record


def test_test_rows_change_no_weight_and_no_choice(
    toy: UCIDataset, tiny_method: NetworkMethod
) -> None:
    spy, choice, record = run(tiny_method, toy)
    x, y = toy.x.copy(), toy.y.copy()
    x[toy.splits[1].test] += 100.0
    y[toy.splits[1].test] -= 1000.0
    other_spy, other_choice, other = run(tiny_method, replace(toy, x=x, y=y))
    assert len(spy.weights) == len(other_spy.weights) > 0
    assert all(
        torch.equal(ours, theirs)
        for ours, theirs in zip(spy.weights, other_spy.weights, strict=True)
    )
    assert replace(choice, seconds=0.0) == replace(other_choice, seconds=0.0)
    assert record["choice"] == choice.in_short()
    assert record["rmse"] != other["rmse"]


def test_the_alarm_rings(toy: UCIDataset, tiny_method: NetworkMethod) -> None:
    spy, *_ = run(tiny_method, toy)
    y = toy.y.copy()
    y[toy.splits[1].train[0]] += 1.0
    other_spy, *_ = run(tiny_method, replace(toy, y=y))
    assert not all(
        torch.equal(ours, theirs)
        for ours, theirs in zip(spy.weights, other_spy.weights, strict=True)
    )


def test_inner_parts_divide_the_training_rows(toy: UCIDataset) -> None:
    outer = toy.splits[0]
    inner = inner_split(outer, seed=0, split=0, repeat=0)
    assert sorted([*inner.train, *inner.test]) == sorted(outer.train)
    assert len(inner.test) == round(VALIDATION_FRACTION * len(outer.train))
    others = [inner_split(outer, seed=s, split=k, repeat=r) for s, k, r in np.eye(3, dtype=int)]
    assert all(set(inner.test) != set(other.test) for other in others)


def test_every_split_chooses_alone(toy: UCIDataset, tiny_method: NetworkMethod) -> None:
    """Rows that only another split trains on do not move the scores of this one."""
    alone = choose(tiny_method, toy, [1], seed=0)[0]
    assert len(alone.scores) == 3
    assert alone.settings in tiny_method.grid(DataSize(72, 3))
    grid = tiny_method.grid(DataSize(72, 3))
    assert list(alone.scores) == [key(candidate) for candidate in grid]
    objective = [np.log(s["rmse"]) + s["mnll"] for s in alone.scores.values()]
    assert alone.settings == grid[int(np.argmin(objective))]


def test_known_scores_are_not_computed_again(toy: UCIDataset, tiny_method: NetworkMethod) -> None:
    """An ensemble takes the scores of its family, and fits only its own noise factor."""
    lone = replace(tiny_method, num_members=1)
    single = choose(lone, toy, [1, 2], seed=0)
    known = {k: choice.scores for k, choice in zip([1, 2], single, strict=True)}
    spy = Spy(lone)
    assert [c.settings for c in choose(spy, toy, [1, 2], seed=0, known=known)] == [
        c.settings for c in single
    ]
    assert spy.weights == []
    ensemble = choose(replace(tiny_method, num_members=3), toy, [1, 2], seed=0, known=known)
    for ours, theirs in zip(ensemble, single, strict=True):
        assert ours.settings == theirs.settings
        assert ours.scores == theirs.scores
    assert [c.noise_factor for c in ensemble] != [c.noise_factor for c in single]


def test_a_partly_known_grid_is_completed(toy: UCIDataset, tiny_method: NetworkMethod) -> None:
    grid = [key(candidate) for candidate in tiny_method.grid(DataSize(72, 3))]
    best = {"rmse": 1e-9, "mnll": -99.0, "noise_factor": 1.0}
    (choice,) = choose(tiny_method, toy, [1], seed=0, known={1: {grid[1]: best}})
    assert key(choice.settings) == grid[1]
    assert list(choice.scores) == grid
    assert choice.scores[grid[1]] == best


def test_groups_share_a_structure_and_cover_all(tiny_method: NetworkMethod) -> None:
    settings = list(tiny_method.grid(DataSize(72, 3))) * 2
    found = list(groups(tiny_method, settings, members=2))
    assert found == [[0, 1, 3, 4], [2, 5]]
    wide = [{**settings[0], "width": 4096}] * 5
    assert list(groups(tiny_method, wide, members=2)) == [[0, 1], [2, 3], [4]]


def test_all_grids_are_of_one_size_and_keep_the_papers_network() -> None:
    for rows in (400, 8000, 40_000):
        for name, method in METHODS.items():
            grid = method.grid(DataSize(rows, 8))
            assert len(grid) == 6, name
            assert len({repr(sorted(each.items())) for each in grid}) == 6, name
            if "width" in grid[0] and name != "whvi-best":
                assert {(each["width"], each["depth"]) for each in grid} == {(128, 2)}, name
