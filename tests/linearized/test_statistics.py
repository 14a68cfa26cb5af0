from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from tests.linearized.problems import likelihoods, network, rows, targets
from whvi.errors import DataError
from whvi.linearized.curvature import curvature_root, slope
from whvi.linearized.jacobians import jacobian
from whvi.linearized.parameters import parameter_space
from whvi.linearized.statistics import gram_of, stream, stream_low_rank

NAMES = list(likelihoods())


def problem(name="Gaussian", num=30, batch_shape=(), own_rows=False):
    likelihood = likelihoods(batch_shape)[name]
    model = network(batch_shape, out=likelihood.num_features)
    own = batch_shape if own_rows else ()
    return model, likelihood, rows(num, batch_shape=own), targets(likelihood, num, batch_shape=own)


@pytest.mark.parametrize("name", NAMES)
def test_sums_are_those_of_the_formulas(name):
    model, likelihood, x, y = problem(name)
    s = stream(model, likelihood, parameter_space(model), [(x, y)], block_rows=100)
    f, J = jacobian(model, x)
    log_prob, e = slope(likelihood, f, y)
    root = curvature_root(likelihood, f)
    gram = torch.einsum("nop,nok,nlk,nlq->pq", J, root, root, J)
    assert_close(s.full_gram(), gram, rtol=1e-10, atol=1e-10)
    assert_close(s.gradient, torch.einsum("nop,no->p", J, e), rtol=1e-10, atol=1e-10)
    assert_close(s.log_prob, log_prob.sum())
    assert s.count == 30 * likelihood.num_outputs
    v = torch.randn(s.gradient.shape, dtype=torch.float64)
    assert_close(s.gram_times(v), gram @ v, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("batch_shape", [(), (2,)])
@pytest.mark.parametrize("num", [20, 90])  # fewer and more outputs than parameters
@pytest.mark.parametrize("block_rows", [1, 7, 89])
def test_any_block_size_gives_the_same_sums(num, block_rows, batch_shape):
    model, likelihood, x, y = problem("Categorical", num, batch_shape)
    space = parameter_space(model)
    whole = stream(model, likelihood, space, [(x, y)], block_rows=10**6)
    parts = stream(model, likelihood, space, [(x, y)], block_rows=block_rows)
    assert (parts.rows is None) == (whole.rows is None) == (num * 3 >= space.num_parameters)
    for name in ("gradient", "log_prob", "squares"):
        assert_close(getattr(parts, name), getattr(whole, name), rtol=1e-10, atol=1e-10)
    assert_close(parts.full_gram(), whole.full_gram(), rtol=1e-10, atol=1e-10)
    assert parts.count == whole.count


def test_squares_are_residuals_over_the_noise():
    model, likelihood, x, y = problem()
    f = jacobian(model, x).values
    likelihood.set_target_scaling(y)
    s = stream(model, likelihood, parameter_space(model), [(x, y)], block_rows=8)
    z = (y - likelihood.target_mean) / likelihood.target_scale
    variance = likelihood.log_noise_variance.exp() + 1e-8
    assert_close(s.squares, ((z - f).square() / variance).sum().detach())


@pytest.mark.parametrize("own_rows", [True, False])
def test_replicas_are_separate(own_rows):
    model, likelihood, x, y = problem("Poisson", 15, (2,), own_rows)
    space = parameter_space(model)
    s = stream(model, likelihood, space, [(x, y)], block_rows=4)
    for r in range(2):
        alone, one, *_ = problem("Poisson", 15)
        tensors = zip(alone.parameters(), model.parameters(), strict=True)
        for single, replicas in tensors:
            single.data.copy_(replicas.data[r])
        data = (x[r], y[r]) if own_rows else (x, y)
        expected = stream(alone, one, parameter_space(alone), [data], block_rows=4)
        assert_close(s.replica((r,)).full_gram(), expected.full_gram())
        assert_close(s.replica((r,)).gradient, expected.gradient)
        assert_close(s.replica((r,)).log_prob, expected.log_prob)


def test_weights_scale_every_sum():
    model, likelihood, x, y = problem()
    s, thrice = (
        stream(model, likelihood, parameter_space(model), [(x, y)], block_rows=8) for _ in range(2)
    )
    thrice.scale(3.0)
    assert_close(thrice.full_gram(), 3 * s.full_gram())
    assert_close(thrice.gradient, 3 * s.gradient)
    assert_close(thrice.squares, 3 * s.squares)
    assert thrice.count == 3 * s.count


@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_a_sketch_is_at_most_the_sum_and_has_its_diagonal(batch_shape):
    model, likelihood, x, y = problem("Gaussian", 60, batch_shape)
    space = parameter_space(model)
    exact = stream(model, likelihood, space, [(x, y)], block_rows=100)
    sketches = [
        stream_low_rank(model, likelihood, space, [(x, y)], block_rows=block, rank=20)
        for block in (7, 100)
    ]
    low = sketches[0].rows.mT @ sketches[0].rows
    rest = exact.full_gram() - low
    scale = exact.full_gram().abs().amax()
    assert torch.linalg.eigvalsh(rest).min() > -1e-9 * scale
    assert_close(
        sketches[0].diagonal, rest.diagonal(dim1=-2, dim2=-1), rtol=1e-7, atol=float(1e-9 * scale)
    )
    assert_close(low, sketches[1].rows.mT @ sketches[1].rows, rtol=1e-7, atol=float(1e-9 * scale))
    assert_close(sketches[0].gradient, exact.gradient)
    assert_close(sketches[0].log_prob, exact.log_prob)


def test_tiles_of_a_gram_matrix():
    Z = torch.randn(2, 5, 700, dtype=torch.float64)
    assert_close(gram_of(Z), Z.mT @ Z)


def test_no_rows_is_an_error():
    model, likelihood, *_ = problem()
    with pytest.raises(DataError, match="no rows"):
        stream(model, likelihood, parameter_space(model), [], block_rows=8)
