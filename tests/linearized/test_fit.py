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

    def variance(seed, num_rows=9):
        generator = torch.Generator().manual_seed(seed)
        q = linearize(model, likelihood, data, num_rows=num_rows, generator=generator)
        return q.function_moments(x).variance

    assert torch.equal(variance(0), variance(0))
    assert not torch.equal(variance(0), variance(1))
    whole = linearize(model, likelihood, data).function_moments(x).variance
    assert_close(variance(0, num_rows=100), whole)


@pytest.mark.parametrize("form", ["full", "low_rank"])
def test_rows_of_a_stream_are_drawn_in_one_pass_and_count_for_all(form):
    model, likelihood, data = problem()
    loader = DataLoader(TensorDataset(*data), batch_size=7)
    options = {"num_rows": 9, "form": form, "prior_precision": 1.0, "noise": "keep"}
    generator = torch.Generator().manual_seed(0)
    q = linearize(model, likelihood, loader, generator=generator, **options)
    again = torch.Generator().manual_seed(0)
    sizes = [7, 7, 7, 7, 7, 5]
    keys = torch.cat([torch.rand(n, dtype=torch.float64, generator=again) for n in sizes])
    chosen = keys.argsort()[:9].sort().values
    few = tuple(part[chosen] for part in data)
    repeated = tuple(part.repeat_interleave(40, 0) for part in few)
    ninth = linearize(model, likelihood, repeated, form=form, prior_precision=9.0, noise="keep")
    # forty times the rows with nine times the prior: a ninth of the covariance
    x = rows(5, seed=7)
    assert_close(
        q.function_moments(x).covariance, 9 * ninth.function_moments(x).covariance,
        rtol=1e-6, atol=1e-8,
    )  # fmt: skip


@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_a_rank_that_holds_all_rows_is_the_full_posterior(batch_shape):
    model, likelihood, data = problem(20, batch_shape)
    full = linearize(model, likelihood, data, form="full")
    low = linearize(model, likelihood, data, form="low_rank")
    x = rows(5, seed=7)
    assert_close(low.log_evidence, full.log_evidence, rtol=1e-7, atol=1e-7)
    assert_close(low.precision, full.precision, rtol=1e-5, atol=1e-7)
    assert_close(
        low.function_moments(x).covariance, full.function_moments(x).covariance,
        rtol=1e-5, atol=1e-8,
    )  # fmt: skip


def test_a_low_rank_is_close_to_the_full_posterior():
    model, likelihood, data = problem(200)
    full = linearize(model, likelihood, data)
    bytes_of_rank_40 = 2 * 40 * full.space.num_parameters * 8
    low = linearize(model, likelihood, data, form="low_rank", max_bytes=bytes_of_rank_40)
    assert "rank 40" in low.describe()
    assert low.covariance.rows.shape[-2] == 40 < full.space.num_parameters
    x = rows(50, seed=7)
    ratio = low.function_moments(x).variance / full.function_moments(x).variance
    assert 0.5 < ratio.log().mean().exp() < 2.0


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
    for max_bytes, form in ((40_000, "low_rank"), (10_000, "last_layer"), (500, "low_rank")):
        plan = plan_of(model, likelihood, num_data=40, max_bytes=max_bytes)
        small = linearize(model, likelihood, data, max_bytes=max_bytes)
        assert small.form == plan.form == form
        assert small.describe() == str(plan)


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
        ({"block_rows": 0}, "block_rows must be"),
        ({"prior_precision": 0.0}, "prior_precision must be finite and above 0"),
        ({"prior_precision": "auto"}, "prior_precision of 0.bias must be a number, .* got 'auto'"),
        ({"prior_precision": torch.ones(3)}, r"prior_precision of 0.bias .* of shape \(\)"),
        ({"prior_precision": {"a": 1.0}}, "prior_precision needs one value for each of 0.bias"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        linearize(*problem(), **options)


@pytest.mark.parametrize(
    ("data", "kinds"),
    [(None, "NoneType"), (torch.zeros(4, 2), "Tensor"), ([torch.zeros(4, 2)], "Tensor")],
)
def test_what_is_no_data_is_named(data, kinds):
    model, likelihood, _ = problem()
    with pytest.raises(DataError, match=rf"data must be tensors \(x, y\), .* got {kinds}$"):
        linearize(model, likelihood, data)
    with pytest.raises(ConfigError, match=r"model must be a torch\.nn\.Module, got str"):
        linearize("model", likelihood, [])


@pytest.mark.parametrize(("given", "name"), [(None, "NoneType"), (Gaussian, "the class Gaussian")])
def test_what_is_no_likelihood_is_named(given, name):
    model, _, data = problem()
    with pytest.raises(ConfigError, match=rf"likelihood must be one of .* got {name}$"):
        linearize(model, given, data)


def test_bad_rows_are_named():
    model, likelihood, (x, y) = problem()
    x = x.clone()
    x[3, 1] = torch.nan
    with pytest.raises(DataError, match=r"x holds 1 values that are not finite"):
        linearize(model, likelihood, (x, y))
    with pytest.raises(ShapeError, match="x must have shape"):
        linearize(model, likelihood, (x[0], y))
    with pytest.raises(DataError, match="no rows"):
        linearize(model, likelihood, [])
    with pytest.raises(DataError, match="no rows"):
        linearize(model, likelihood, [], num_rows=3)
