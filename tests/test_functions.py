from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.test_elbo import Pooled
from tests.training.doubles import tiny_data, tiny_net
from whvi.elbo import elbo
from whvi.errors import ConfigError, ShapeError
from whvi.functions import draw_functions, mean_function
from whvi.layers import WHVILinear
from whvi.likelihoods import Categorical, Gaussian
from whvi.sampling import MeanWeights, WeightDraws, sampling
from whvi.training import FitConfig, fit

DOUBLE = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_a_draw_is_a_function_whatever_the_chunks(batch_shape):
    x, _ = tiny_data(11, dtype=DOUBLE)
    net = tiny_net(batch_shape=batch_shape, dtype=DOUBLE)
    whole = draw_functions(net, x, num_draws=4, generator=generator())
    assert whole.shape == (*batch_shape, 4, 11, 1)
    chunked = draw_functions(net, x, num_draws=4, generator=generator(), batch_size=3)
    # The same weights; sums of other lengths may round differently in the last bits.
    torch.testing.assert_close(chunked, whole, rtol=1e-13, atol=1e-14)
    flipped = draw_functions(net, x.flip(0), num_draws=4, generator=generator())
    torch.testing.assert_close(flipped.flip(-2), whole, rtol=1e-13, atol=1e-14)


def test_draws_differ_from_each_other():
    x, _ = tiny_data(3)
    draws = draw_functions(tiny_net(), x, num_draws=2, generator=generator())
    assert not torch.equal(draws[0], draws[1])


def test_images_draw_by_draw():
    x = torch.randn(7, 1, 4, 4, generator=generator())
    net = Pooled(0.5)
    whole = draw_functions(net, x, num_draws=3, generator=generator())
    chunked = draw_functions(net, x, num_draws=3, generator=generator(), batch_size=2)
    assert whole.shape == (3, 7, 1)
    torch.testing.assert_close(chunked, whole)


def test_rows_per_replica():
    x = torch.stack([tiny_data(5, seed=s)[0] for s in range(2)])
    net = tiny_net(batch_shape=(2,))
    draws = draw_functions(net, x, num_draws=3, generator=generator())
    for r in range(2):
        shared = draw_functions(net, x[r], num_draws=3, generator=generator())
        torch.testing.assert_close(draws[r], shared[r])


def test_mean_function_runs_at_the_posterior_mean():
    x, _ = tiny_data(5)
    net = tiny_net()
    with sampling(MeanWeights()):
        expected = net(x)
    assert torch.equal(mean_function(net, x), expected)
    torch.testing.assert_close(mean_function(net, x, batch_size=2), expected)
    assert mean_function(tiny_net(batch_shape=(2,)), x).shape == (2, 5, 1)


def test_no_gradients():
    x, _ = tiny_data(2)
    assert not draw_functions(tiny_net(), x, num_draws=1).requires_grad
    assert not mean_function(tiny_net(), x).requires_grad


def test_wrong_calls_are_refused():
    x, _ = tiny_data(2)
    with pytest.raises(ConfigError, match="num_draws"):
        draw_functions(tiny_net(), x, num_draws=0)
    with pytest.raises(ConfigError, match="batch_size"):
        draw_functions(tiny_net(), x, num_draws=1, batch_size=0)
    with pytest.raises(ShapeError, match="features"):
        mean_function(nn.Linear(3, 1), x[0])


# --- modules that take no leading axes -----------------------------------------------------------


class Rows(nn.Module):
    """Remembers the shapes it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, x):
        self.shapes.append(tuple(x.shape))
        return x


def normalised(width: int = 8, norm: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(width) if norm is None else norm
    return nn.Sequential(WHVILinear(3, width), norm, Rows(), nn.ReLU(), WHVILinear(width, 1))


@pytest.mark.parametrize("num_draws", [1, 3])
def test_batch_norm_sees_rows_and_features(num_draws):
    """Batch size and width are equal: with another axis it would normalise rows, and not fail."""
    net, x, y = normalised(), torch.randn(8, 3), torch.randn(8)
    elbo(net, Gaussian(), x, y, num_data=8, num_draws=num_draws).value.backward()
    f = draw_functions(net, x, num_draws=num_draws)
    assert f.shape == (num_draws, 8, 1)
    assert set(net[2].shapes) == {(8, 8)}
    assert len(net[2].shapes) == 2 * num_draws


def test_batch_norm_gives_what_torch_gives():
    net, x = normalised(), torch.randn(8, 3)
    values = draw_functions(net, x, num_draws=1, generator=generator())
    with sampling(WeightDraws(generator=generator())), torch.no_grad():
        assert torch.equal(values[0], net(x))


@pytest.mark.parametrize(
    "norm",
    [nn.GroupNorm(2, 8), nn.Softmax(dim=1), nn.PReLU(8), nn.Flatten(), nn.Dropout1d(), nn.Fold],
    ids=lambda norm: type(norm).__name__,
)
def test_modules_with_an_axis_of_their_own_are_looped_over(norm):
    norm = nn.Sequential() if norm is nn.Fold else norm
    net = normalised(norm=norm)
    draw_functions(net, torch.randn(8, 3), num_draws=2)
    looped = type(norm) is not nn.Sequential
    assert set(net[2].shapes) == {(8, 8) if looped else (2, 8, 8)}


def test_known_modules_take_all_draws_in_one_pass():
    pointwise = nn.Sequential(
        nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 8), nn.Softmax(-1), nn.PReLU()
    )
    net = normalised(norm=pointwise)
    draw_functions(net, torch.randn(8, 3), num_draws=2)
    assert net[2].shapes == [(2, 8, 8)]


def test_replicas_of_batch_norm_are_refused():
    net = nn.Sequential(WHVILinear(3, 8, batch_shape=(2,)), nn.BatchNorm1d(8))
    with pytest.raises(ConfigError, match="BatchNorm1d"):
        draw_functions(net, torch.randn(8, 3), num_draws=1)


def test_fit_with_batch_norm():
    net, x = normalised(16), torch.randn(64, 3)
    config = FitConfig(num_steps=30, batch_size=16, eval_every=10)
    history = fit(net, Gaussian(), (x, x[:, 0]), config=config, validation=(x, x[:, 0]))
    assert not history.compiled
    assert history.validation[-1] is not None
    assert net[1].num_batches_tracked == 30  # and not while validating


# --- any input, any output -----------------------------------------------------------------------


class Tokens(nn.Module):
    """Takes token ids and a mask, returns a record."""

    def __init__(self, record) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 8), WHVILinear(8, 2)
        self.record = record

    def forward(self, ids, mask=None):
        hidden = self.embedding(ids)
        if mask is not None:
            hidden = hidden * mask.unsqueeze(-1)
        return self.record(self.head(hidden.mean(-2)))


def plain(values):
    return values


def as_mapping(values):
    return {"loss": None, "logits": values}


def as_record(values):
    return SimpleNamespace(logits=values)


@pytest.mark.parametrize("record", [plain, as_mapping, as_record])
def test_token_ids_keywords_and_records(record):
    torch.manual_seed(0)
    net, ids = Tokens(record), torch.randint(10, (6, 4))
    mask, labels = torch.ones(6, 4), torch.randint(2, (6,))
    found = [
        draw_functions(net, x, num_draws=3, generator=generator(), batch_size=size)
        for x in (ids, (ids, mask), {"ids": ids, "mask": mask}, (ids,))
        for size in (None, 4)
    ]
    assert found[0].shape == (3, 6, 2)
    for other in found:
        torch.testing.assert_close(other, found[0])
    x = {"ids": ids, "mask": mask}
    elbo(net, Categorical(2), x, labels, num_data=6, num_draws=2).value.backward()
    assert all(p.grad is not None for p in net.parameters())
    assert mean_function(net, x, batch_size=4).shape == (6, 2)


def test_inputs_of_replicas_are_shared():
    net, x = WHVILinear(3, 2, batch_shape=(2,)), torch.randn(5, 3)
    mean = mean_function(net, (x,))
    assert torch.equal(mean, mean_function(net, x))


def test_fit_with_mappings_from_a_loader():
    torch.manual_seed(0)
    batch = {"ids": torch.randint(10, (6, 4)), "mask": torch.ones(6, 4)}, torch.randint(2, (6,))
    history = fit(
        Tokens(as_record), Categorical(2), [batch], config=FitConfig(num_steps=5), num_data=6
    )
    assert len(history.step) == 1


@pytest.mark.parametrize("x", [{}, (torch.zeros(3, 2), torch.zeros(4, 2)), (torch.zeros(()),)])
def test_inputs_without_common_rows_are_refused(x):
    with pytest.raises(ShapeError, match="N rows"):
        draw_functions(WHVILinear(2, 1), x, num_draws=1)


def test_outputs_without_values_are_refused():
    net = Tokens(lambda values: (values, values))
    with pytest.raises(ShapeError, match="logits"):
        draw_functions(net, torch.randint(10, (6, 4)), num_draws=1)
