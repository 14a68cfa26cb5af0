"""Rows as they come: what is no pair is named, and rows of several tensors are rows like others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tests.linearized.problems import likelihoods, network, rows, targets
from whvi.errors import ConfigError, DataError, ShapeError
from whvi.linearized import linearize
from whvi.linearized.rows import blocks, count_all, pairs_of

X, Y = torch.zeros(4, 2), torch.zeros(4, 1)


@pytest.mark.parametrize(
    ("data", "kinds"),
    [
        ({"x": X, "y": Y}, "dict"),
        ("xy", "str"),
        ((X, Y.numpy()), "Tensor, ndarray"),
        ([(X.numpy(), Y.numpy())], "ndarray, ndarray"),
        (iter([X, Y]), "Tensor"),
        (iter([(X, Y, Y)]), "Tensor, Tensor, Tensor"),
    ],
)
def test_what_is_no_pair_is_named(data, kinds):
    with pytest.raises(DataError, match=rf"data must be tensors .* got {kinds}$"):
        list(pairs_of(data))


def test_pairs_that_are_there_are_counted():
    assert count_all(pairs_of((X, Y)), ()) == 4
    assert count_all(pairs_of([(X, Y), (X[:3], Y[:3])]), ()) == 7
    assert count_all(pairs_of(({"a": X, "b": X}, Y)), ()) == 4
    assert count_all(pairs_of(iter([(X, Y)])), ()) is None


def test_blocks_cut_every_tensor():
    x = {"a": rows(5), "b": rows(5, 2)}
    cut = [*blocks([(x, Y.new_zeros(5))], (), 2)]
    assert [len(y) for _, y in cut] == [2, 2, 1]
    for name, column in x.items():
        assert torch.equal(torch.cat([part[name] for part, _ in cut]), column)


@pytest.mark.parametrize("num_targets", [20, 5])
@pytest.mark.parametrize("batch_shape", [(), (3,)])
def test_targets_of_another_number_of_rows_are_refused(batch_shape, num_targets):
    model, likelihood = network(batch_shape, out=2), likelihoods(batch_shape)["Gaussian"]
    x, y = rows(10), targets(likelihood, num_targets)
    given = [(x, y), [(x, y)], iter([(x, y)])]
    for data in given:
        with pytest.raises(ShapeError, match="for N = 10 rows of x"):
            linearize(model, likelihood, data)
    with pytest.raises(ShapeError, match="for N = 10 rows of x"):
        linearize(model, likelihood, (x, y), num_rows=3)
    posterior = linearize(model, likelihood, (x, targets(likelihood, 10)))
    with pytest.raises(ShapeError, match="for N = 10 rows of x"):
        posterior.update(x, y)


class OfTwo(nn.Module):
    """A network whose rows are two tensors, and whose values are ``logits`` of a record."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"logits": self.inner(torch.cat([a, b], -1))}


@pytest.mark.parametrize("batch_shape", [(), (3,)])
@pytest.mark.parametrize("kind", ["mapping", "tuple"])
def test_rows_of_several_tensors(kind, batch_shape):
    def split(x):
        a, b = x[..., :1], x[..., 1:]
        return {"b": b, "a": a} if kind == "mapping" else (a, b)

    inner, likelihood = network(batch_shape, out=2), likelihoods(batch_shape)["Gaussian"]
    x, y, new = rows(12), targets(likelihood, 12), rows(5, seed=7)
    expected = linearize(inner, likelihood, (x, y))
    model = OfTwo(inner)
    found = linearize(model, likelihood, (split(x), y))
    streamed = linearize(model, likelihood, iter([(split(x[:7]), y[:7]), (split(x[7:]), y[7:])]))
    for each in (found, streamed):
        assert_close(each.log_evidence, expected.log_evidence)
        moments = each.function_moments(split(new))
        assert_close(moments.covariance, expected.function_moments(new).covariance)
    generator = torch.Generator().manual_seed(0)
    draws = found.draw_functions(3, generator=generator)(split(new))
    assert_close(draws, expected.draw_functions(3, generator=generator.manual_seed(0))(new))
    with pytest.raises(ConfigError, match="num_rows draws rows of one tensor"):
        linearize(model, likelihood, (split(x), y), num_rows=3)
