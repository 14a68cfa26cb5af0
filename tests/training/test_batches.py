from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.training.doubles import gaussian, tiny_config, tiny_data, tiny_net
from whvi.errors import ConfigError, DataError, ShapeError
from whvi.training.batches import LoaderBatches, TensorBatches, batch_source, epoch_order
from whvi.training.distributed import Ranks
from whvi.training.state import TrainingState

CPU = torch.device("cpu")


def take(source, count, start=0):
    return list(itertools.islice(source.batches(start), count))


def rows(num_rows=12):
    x = torch.arange(float(num_rows)).unsqueeze(-1)
    return x, x[:, 0] * 10


def test_order_is_a_pure_function_of_seed_and_epoch():
    assert torch.equal(epoch_order(50, 3, 2), epoch_order(50, 3, 2))
    assert not torch.equal(epoch_order(50, 3, 2), epoch_order(50, 3, 1))
    assert not torch.equal(epoch_order(50, 3, 2), epoch_order(50, 2, 3))


def test_an_epoch_sees_every_row_once_and_pairs_stay_together():
    x, y = rows()
    batches = take(TensorBatches(x, y, (), 4, 0, Ranks()), 6)
    for epoch in (batches[:3], batches[3:]):
        seen = torch.cat([xb[:, 0] for xb, _ in epoch])
        assert sorted(seen.tolist()) == list(range(12))
    for xb, yb in batches:
        assert torch.equal(yb, xb[:, 0] * 10)


@pytest.mark.parametrize("start", [0, 1, 2, 3, 7])
def test_entering_at_any_step_gives_the_same_batches(start):
    x, y = rows(11)
    source = TensorBatches(x, y, (), 4, 0, Ranks())
    for (a, _), (b, _) in zip(take(source, 9)[start:], take(source, 9 - start, start), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("x_own", [False, True])
@pytest.mark.parametrize("y_own", [False, True])
def test_replica_r_sees_the_batches_of_seed_plus_r(x_own, y_own):
    x, y = rows(10)
    x_all = torch.stack([x + 100 * r for r in range(3)]) if x_own else x
    y_all = torch.stack([y + 1000 * r for r in range(3)]) if y_own else y
    together = take(TensorBatches(x_all, y_all, (3,), 4, seed=5, ranks=Ranks()), 5)
    for r in range(3):
        alone = take(TensorBatches(x, y, (), 4, seed=5 + r, ranks=Ranks()), 5)
        for (xs, ys), (xa, ya) in zip(together, alone, strict=True):
            assert xs.shape == (3, 4, 1)
            assert ys.shape == (3, 4)
            assert torch.equal(xs[r], xa + 100 * r * x_own)
            assert torch.equal(ys[r], ya + 1000 * r * y_own)


def test_ranks_split_each_batch():
    x, y = rows()
    whole = take(TensorBatches(x, y, (), 4, 0, Ranks()), 3)
    shares = [take(TensorBatches(x, y, (), 4, 0, Ranks(r, 2)), 3) for r in range(2)]
    for i in range(3):
        assert torch.equal(torch.cat([shares[0][i][0], shares[1][i][0]]), whole[i][0])
    with pytest.raises(ConfigError, match="3 processes"):
        TensorBatches(x, y, (), 4, 0, Ranks(0, 3))


def test_a_small_data_set_is_one_batch():
    x, y = rows(3)
    (batch, _), *_ = take(TensorBatches(x, y, (), 64, 0, Ranks()), 2)
    assert sorted(batch[:, 0].tolist()) == [0, 1, 2]


# ---- weights -------------------------------------------------------------------------------------

WEIGHTS = torch.tensor([0.0, 1.0, 2.5, 0.25, 4.0, 1.0, 0.0, 3.0, 0.5, 0.0])


def counts(source, epochs):
    """How often each of ten rows occurs in every epoch, ``(epochs, 10)``."""
    seen = [batch[:, 0].long().bincount(minlength=10) for batch, _ in take(source, epochs * 2)]
    return torch.stack(seen).view(epochs, 2, 10).sum(1)


def test_rows_occur_in_proportion_to_their_weights():
    epochs, expected = 400, WEIGHTS / WEIGHTS.mean()
    found = counts(TensorBatches(*rows(10), (), 5, 0, Ranks(), WEIGHTS), epochs)
    assert (found.sum(1) == 10).all()
    assert (found >= expected.floor()).all()
    assert (found <= expected.ceil()).all()
    # a count is one of two neighbours, so its standard deviation is at most a half
    assert ((found.double().mean(0) - expected).abs() < 4 * 0.5 / epochs**0.5).all()


def test_the_number_of_data_is_the_sum_of_the_weights():
    own = torch.stack([WEIGHTS, 2 * WEIGHTS])
    assert TensorBatches(*rows(10), (), 5, 0, Ranks(), WEIGHTS).num_data == WEIGHTS.sum()
    source = TensorBatches(*rows(10), (2,), 5, 0, Ranks(), own)
    assert torch.equal(source.num_data, own.double().sum(-1))


@pytest.mark.parametrize("weight", [1.0, 3.0, 0.1])
def test_equal_weights_leave_the_order(weight):
    plain = take(TensorBatches(*rows(), (), 4, 0, Ranks()), 6)
    weighted = take(TensorBatches(*rows(), (), 4, 0, Ranks(), torch.full((12,), weight)), 6)
    for (a, _), (b, _) in zip(plain, weighted, strict=True):
        assert torch.equal(a, b)


def test_replicas_may_have_weights_of_their_own():
    own = torch.stack([WEIGHTS, WEIGHTS.flip(0)])
    together = take(TensorBatches(*rows(10), (2,), 5, 7, Ranks(), own), 6)
    for r in range(2):
        alone = take(TensorBatches(*rows(10), (), 5, 7 + r, Ranks(), own[r]), 6)
        for (xs, ys), (xa, ya) in zip(together, alone, strict=True):
            assert torch.equal(xs[r], xa)
            assert torch.equal(ys[r], ya)


def test_weighted_batches_can_be_entered_at_any_step():
    source = TensorBatches(*rows(10), (), 3, 0, Ranks(), WEIGHTS)
    for (a, _), (b, _) in zip(take(source, 9)[4:], take(source, 5, 4), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("start", [0, 2, 5])
def test_a_loader_can_be_entered_at_any_step(start):
    x, y = rows(10)
    for loader in (DataLoader(TensorDataset(x, y), batch_size=4), _Lengthless(x, y)):
        source = LoaderBatches(loader, 10, CPU)
        expected = take(source, 7)[start:]
        for (a, _), (b, _) in zip(expected, take(source, 7 - start, start), strict=True):
            assert torch.equal(a, b)


class _Lengthless:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        return iter([(self.x[:6], self.y[:6]), (self.x[6:], self.y[6:])])


def test_a_sampler_is_told_the_epoch():
    x, y = rows(8)
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, num_replicas=1, rank=0, shuffle=True)
    source = LoaderBatches(DataLoader(data, batch_size=4, sampler=sampler), 8, CPU)
    batches = take(source, 4)
    assert torch.equal(take(source, 1, start=3)[0][0], batches[3][0])
    assert not torch.equal(batches[0][0], batches[2][0])


def test_a_spent_generator_is_refused():
    x, y = rows(4)
    source = LoaderBatches(iter([(x, y)]), 4, CPU)
    with pytest.raises(DataError, match="iterated again"):
        take(source, 2)


def test_an_empty_batch_is_named():
    (x, y), end = tiny_data(4), slice(0, 0)
    source = LoaderBatches([(x, y), (x[end], y[end])], 4, CPU)
    with pytest.raises(DataError, match="batch 2 of epoch 0 has no rows"):
        take(source, 2)


class TestChecks:
    def source(self, data, num_data=None):
        state = TrainingState(tiny_net(), gaussian(), tiny_config(), Ranks())
        return batch_source(data, state, num_data)

    def test_an_iterable_needs_num_data(self):
        with pytest.raises(ConfigError, match="num_data"):
            self.source([tiny_data(4)])

    def test_num_data_must_be_true(self):
        with pytest.raises(ConfigError, match="num_data is 9"):
            self.source(tiny_data(4), num_data=9)

    def test_values_that_are_not_finite_are_named(self):
        x, y = tiny_data(4)
        y[2] = float("nan")
        with pytest.raises(DataError, match=r"training y.*index \(2,\)"):
            self.source((x, y))

    def test_rows_must_agree(self):
        x, y = tiny_data(4)
        with pytest.raises(ShapeError, match="4 rows of x"):
            self.source((x, y[:3]))
        with pytest.raises(ShapeError, match="features"):
            self.source((x[:, 0], y))

    def test_no_rows(self):
        x, y = tiny_data(4)
        with pytest.raises(DataError, match="no rows"):
            self.source((x[:0], y[:0]))

    @pytest.mark.parametrize(
        ("weights", "error", "match"),
        [
            ([1.0, -2.0, 1.0, 1.0], DataError, "the least is -2"),
            ([0.0] * 4, DataError, "sums are 0 to 0"),
            ([1e308] * 4, DataError, "sums are inf to inf"),
            ([1.0, float("nan"), 1.0, 1.0], DataError, r"training weights.*index \(1,\)"),
            ([1.0] * 3, ShapeError, r"shape \(4,\) .* got \(3,\)"),
        ],
    )
    def test_weights_that_make_no_sense(self, weights, error, match):
        with pytest.raises(error, match=match):
            self.source((*tiny_data(4), torch.tensor(weights, dtype=torch.float64)))
