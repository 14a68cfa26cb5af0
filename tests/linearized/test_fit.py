from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from tests.linearized.problems import likelihoods, network, rows, targets
from whvi.errors import ConfigError, DataError, ShapeError
from whvi.likelihoods import Gaussian
from whvi.linearized import linearize, plan_of


def problem(num=40, batch_shape=()):
    likelihood = likelihoods(batch_shape)["Gaussian"]
    model = network(batch_shape, out=2)
    return model, likelihood, (rows(num), targets(likelihood, num))


def assert_same(one, other):
    assert_close(one.log_evidence, other.log_evidence, rtol=1e-10, atol=1e-10)
    assert_close(one.precision, other.precision, rtol=1e-8, atol=1e-10)
    x = rows(5, seed=7)
    for a, b in zip(one.function_moments(x), other.function_moments(x), strict=True):
        assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("num", [15, 60])
@pytest.mark.parametrize("block_rows", [1, 13])
def test_streaming_is_all_at_once(num, block_rows):
    model, likelihood, data = problem(num)
    whole = linearize(model, likelihood, data, block_rows=10**6)
    assert_same(linearize(model, likelihood, data, block_rows=block_rows), whole)
    loader = DataLoader(TensorDataset(*data), batch_size=7)
    assert_same(linearize(model, likelihood, loader), whole)


def test_any_module_takes_part():
    class Wave(nn.Module):
        def __init__(self):
            super().__init__()
            self.phase, self.scale = (nn.Parameter(torch.randn(3).double()) for _ in range(2))

        def forward(self, x):
            return (self.scale * torch.sin(x + self.phase)).sum(-1, keepdim=True)

    model, likelihood = Wave(), Gaussian(dtype=torch.float64)
    q = linearize(model, likelihood, (rows(20), targets(likelihood, 20)))
    assert q.space.names == ("phase", "scale")
    assert q.function_moments(rows(4)).variance.shape == (4, 1)


def test_rows_of_the_same_generator_are_the_same():
    model, likelihood, data = problem()
    x = rows(5, seed=7)

    def variance(seed):
        generator = torch.Generator().manual_seed(seed)
        q = linearize(model, likelihood, data, form="rows", num_rows=9, generator=generator)
        assert q.support.x.shape == (9, 3)
        assert_close(q.support.weight, torch.full((9,), 40 / 9).double())
        return q.function_moments(x).variance

    assert torch.equal(variance(0), variance(0))
    assert not torch.equal(variance(0), variance(1))


@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_all_rows_are_the_full_posterior(batch_shape):
    model, likelihood, data = problem(20, batch_shape)
    full = linearize(model, likelihood, data, form="full")
    by_rows = linearize(model, likelihood, data, form="rows", num_rows=20)
    x = rows(5, seed=7)
    assert_close(by_rows.log_evidence, full.log_evidence)
    assert_close(by_rows.precision, full.precision)
    assert_close(
        by_rows.function_moments(x).covariance, full.function_moments(x).covariance,
        rtol=1e-7, atol=1e-9,
    )  # fmt: skip


def test_rows_of_a_stream_are_drawn_in_one_pass():
    model, likelihood, data = problem()
    loader = DataLoader(TensorDataset(*data), batch_size=7)
    generator = torch.Generator().manual_seed(0)
    q = linearize(model, likelihood, loader, form="rows", num_rows=9, generator=generator)
    assert_close(q.support.weight, torch.full((9,), 40 / 9).double())
    assert all((row == data[0]).all(-1).any() for row in q.support.x)


def test_given_precisions():
    model, likelihood, data = problem(batch_shape=(2,))
    q = linearize(model, likelihood, data, prior_precision=3.0)
    assert (q.precision == 3.0).all()
    each = {name: float(k + 1) for k, name in enumerate(q.space.names)}
    q = linearize(model, likelihood, data, prior_precision=each)
    assert {name: float(value[1]) for name, value in q.prior_precision.items()} == each
    found = linearize(model, likelihood, data)
    again = linearize(model, likelihood, data, prior_precision=found.prior_precision)
    assert_close(again.precision, found.precision)


def test_a_step_has_the_precisions_of_the_mode_and_the_mean_of_the_linear_model():
    model, likelihood, data = problem(batch_shape=(2,))
    mode = linearize(model, likelihood, data)
    step = linearize(model, likelihood, data, mean="step")
    given = mode.prior_precision
    assert_same(step, linearize(model, likelihood, data, mean="linear", prior_precision=given))
    assert not mode.shift.any()
    assert step.shift.all()


def test_the_budget_decides_the_form():
    model, likelihood, data = problem()
    assert linearize(model, likelihood, data).form == "full"
    plan = plan_of(model, likelihood, num_data=40, max_bytes=20_000)
    assert plan.form in ("rows", "last_layer")
    small = linearize(model, likelihood, data, max_bytes=20_000)
    assert small.describe() == str(plan)
    assert small.covariance.num_bytes <= 20_000


def test_a_float32_model_has_a_float32_root():
    torch.manual_seed(0)
    model, likelihood = network().float(), Gaussian()
    x, y = rows(30).float(), targets(likelihood, 30).float()
    q = linearize(model, likelihood, (x, y))
    double = linearize(network(), Gaussian(dtype=torch.float64), (x.double(), y.double()))
    assert q.covariance.root.dtype is torch.float32
    new = rows(5, seed=7)
    one, other = q.function_moments(new), double.function_moments(new)
    assert_close(one.variance, other.variance, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": "learn"}, "noise must be 'evidence' or 'keep', got 'learn'"),
        ({"mean": "map"}, "mean must be 'mode' or 'step' or 'linear', got 'map'"),
        ({"form": "kfac"}, "form must be 'auto'"),
        ({"max_bytes": 0}, "max_bytes must be"),
        ({"num_rows": 0}, "num_rows must be"),
        ({"prior_precision": 0.0}, "prior_precision must be finite and above 0"),
        ({"prior_precision": {"a": 1.0}}, "prior_precision needs one value for each of 0.bias"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        linearize(*problem(), **options)


def test_bad_rows_are_named():
    model, likelihood, (x, y) = problem()
    x = x.clone()
    x[3, 1] = torch.nan
    with pytest.raises(DataError, match=r"x holds 1 values that are not finite"):
        linearize(model, likelihood, (x, y))
    with pytest.raises(ShapeError, match="x must have shape"):
        linearize(model, likelihood, (x[0], y))
    with pytest.raises(DataError, match="no rows"):
        linearize(model, likelihood, [], form="rows")
