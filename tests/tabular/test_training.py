from dataclasses import replace

import pytest
import torch

from whvi.errors import NumericalError
from whvi.tabular.predictor import Architecture
from whvi.tabular.training import (
    Session,
    common_fold,
    plan_for,
    rotating_folds,
    train_ensemble,
    train_finite,
)


@pytest.mark.parametrize(("largest", "tried"), [(1, [1]), (0.5, [1, 0.3]), (0.2, [1, 0.3, 0.1])])
def test_training_that_is_not_finite_starts_again_with_a_smaller_rate(largest, tried):
    seen = []

    def train(factor):
        seen.append(factor)
        if factor > largest:
            raise NumericalError("too fast")
        return factor

    assert train_finite(train) == tried[-1]
    assert seen == tried


def test_training_that_is_never_finite_says_so():
    def train(factor):
        raise NumericalError(f"not finite at {factor}")

    with pytest.raises(NumericalError, match=r"0\.1"):
        train_finite(train)


def test_rotating_folds_leave_out_every_row_if_they_go_round():
    folds = rotating_folds(40, 8, 0.25, seed=3)
    assert folds.train.shape == (8, 30)
    assert folds.held_out.shape == (8, 10)
    assert torch.equal(folds.held_out[::2], folds.held_out[1::2])  # pairs leave out the same
    assert folds.sharing == 2
    assert sorted(folds.held_out[::2].flatten().tolist()) == list(range(40))
    for train, held_out in zip(folds.train, folds.held_out, strict=True):
        assert sorted([*train.tolist(), *held_out.tolist()]) == list(range(40))


def test_an_odd_number_of_members_has_no_pairs():
    folds = rotating_folds(40, 5, 0.2, seed=3)
    assert folds.sharing == 1
    assert sorted(folds.held_out.flatten().tolist()) == list(range(40))


def test_a_common_fold_partitions_the_rows():
    train, held_out, _ = common_fold(30, 0.1, seed=0)
    assert sorted([*train.tolist(), *held_out.tolist()]) == list(range(30))
    assert len(held_out) == 3


def test_few_rows_are_all_trained_on():
    assert common_fold(9, 0.1, seed=0).held_out is None
    assert rotating_folds(9, 3, 0.1, seed=0).train.shape == (3, 9)
    assert common_fold(50, 0.0, seed=0).held_out is None


def test_folds_are_a_function_of_the_seed():
    assert torch.equal(common_fold(30, 0.1, 5).train, common_fold(30, 0.1, 5).train)
    assert not torch.equal(common_fold(30, 0.1, 5).train, common_fold(30, 0.1, 6).train)


def test_rows_left_out_are_bounded():
    """A tenth of a million rows, evaluated twenty times, left no time for training."""
    for num_rows, left_out in ((50_000, 5_000), (100_000, 10_000), (1_000_000, 10_000)):
        assert len(common_fold(num_rows, 0.1, seed=0).held_out) == left_out


def test_early_stopping_looks_at_a_part_of_the_rows_left_out(monkeypatch):
    plan = plan_for(50_000, members=2, hidden=8, max_iter=2)
    seen = []
    monkeypatch.setattr(
        "whvi.tabular.training.fit",
        lambda *args, validation, **options: seen.append(validation),
    )
    x = torch.arange(50_000.0).unsqueeze(-1)
    found = train_ensemble(small("gaussian"), x, x, plan, seed=0, session=Session())
    assert len(found.folds.held_out) == 5_000
    assert torch.equal(seen[0][0], x[found.folds.held_out[:1024]])


def test_networks_with_another_noise_go_on_where_others_are(monkeypatch):
    """What both have is taken over: all but the second output, and the noise if its name agrees."""
    plan = plan_for(40, members=2, hidden=8, max_iter=30)
    x = torch.linspace(-1, 1, 40).unsqueeze(-1)
    start = train_ensemble(small("gaussian"), x, x, plan, seed=0, session=Session())
    monkeypatch.setattr("whvi.tabular.training.fit", lambda *args, **options: None)
    fresh, found = (
        train_ensemble(small("heteroscedastic"), x, x, plan, seed=0, session=Session(), start=each)
        for each in (None, start)
    )
    own, common = fresh.model.state_dict(), start.model.state_dict()
    for name, tensor in found.model.state_dict().items():
        if tensor.shape == common[name].shape:
            assert torch.equal(tensor, common[name])
        else:
            first = common[name].shape[1]  # of the weights of the first output, which lead
            assert torch.equal(tensor[:, :first], common[name])
            assert torch.equal(tensor[:, first:], own[name][:, first:])
    noise = found.likelihood.noise_parameters()[0], start.likelihood.noise_parameters()[0]
    assert torch.equal(*noise)


def small(likelihood):
    return Architecture(
        in_features=1, hidden=(8,), features="relu", members=2, posterior="diagonal",
        likelihood=likelihood, num_outputs=1,
    )  # fmt: skip


@pytest.mark.parametrize("rotate", [True, False])
def test_weights_follow_their_rows(rotate, monkeypatch):
    plan = replace(plan_for(40, members=2, hidden=8, max_iter=2), rotate=rotate)
    seen = []
    monkeypatch.setattr(
        "whvi.tabular.training.fit",
        lambda *args, validation, **options: seen.append((args[2], validation)),
    )
    x = torch.arange(40.0).unsqueeze(-1)
    train_ensemble(
        small("gaussian"), x, 2 * x, plan, seed=0, session=Session(), weights=3 * x[:, 0]
    )
    for rows, targets, weights in seen[0]:
        assert weights.shape == ((2, len(rows[0])) if rotate else (len(rows),))
        assert torch.equal(targets, 2 * rows)
        assert torch.equal(weights, 3 * rows[..., 0])
