from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.test_elbo import Pooled
from tests.training.doubles import tiny_data, tiny_net
from whvi.errors import ConfigError, ShapeError
from whvi.functions import draw_functions, mean_function
from whvi.sampling import MeanWeights, sampling

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
