from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from reproduction.data import random_splits, stack_replicas, standardize_replicas
from whvi.errors import ConfigError, DataError, ShapeError
from whvi.tabular.ranks import NormalScores
from whvi.tabular.scaling import Standardizer, learn_embedding

EPS = np.finfo(np.float64).eps


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)) * [1, 10, 1e-3, 1e5] + [0, 5, 1, -1e5]
    x[:, 2] = 0.998  # constant, as two columns of naval
    return x, rng.normal(size=60) * 7 + 30


def test_agrees_with_the_textbook(table):
    x, _ = table
    scaler = Standardizer.fit(x)
    varying = [0, 1, 3]
    np.testing.assert_allclose(scaler.mean[0, varying], x.mean(0)[varying], rtol=8 * EPS)
    np.testing.assert_allclose(scaler.scale[0, varying], x.std(0)[varying], rtol=8 * EPS)


def test_constant_columns_have_scale_one_and_become_zero(table):
    x, _ = table
    scaler = Standardizer.fit(x)
    assert scaler.scale[0, 2] == 1.0
    assert (scaler.transform(x)[:, 2] == 0.0).all()


def test_a_column_of_rounding_errors_counts_as_constant():
    x = np.where(np.arange(20) % 2, 0.3, 0.1 + 0.2)[:, None]
    assert np.ptp(x) > 0
    assert Standardizer.fit(x).scale.item() == 1.0


@pytest.mark.parametrize("factor", [1e-300, 1e-30, 1.0, 1e30, 1e200, 1e300])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_scales_from_tiny_to_huge(factor, offset):
    base = np.random.default_rng(1).normal(size=(50, 2)) + offset
    x = base * factor
    scaler = Standardizer.fit(x)
    z = scaler.transform(x)
    np.testing.assert_allclose(z.mean(0), 0, atol=50 * EPS)
    np.testing.assert_allclose(z.std(0), 1, rtol=50 * EPS)
    np.testing.assert_allclose(scaler.inverse(z), x, rtol=50 * EPS, atol=50 * EPS * factor)


finite_tables = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 8), st.integers(1, 3)),
    elements=st.floats(-1e300, 1e300),
)


@settings(max_examples=200, deadline=None)
@given(finite_tables)
def test_any_finite_table_gives_finite_results_and_comes_back(x):
    scaler = Standardizer.fit(x)
    assert (scaler.scale > 0).all()
    assert np.isfinite(scaler.mean).all()
    z = scaler.transform(x)
    assert np.isfinite(z).all()
    back = scaler.inverse(z)
    # one rounding each in the difference, quotient, product and sum, relative to the column
    np.testing.assert_allclose(back, x, atol=8 * EPS * np.abs(x).max(initial=1e-300), rtol=0)


def test_subnormal_spread_is_not_divided_by_zero():
    x = np.array([[0.0], [5e-324]])
    assert np.isfinite(Standardizer.fit(x).transform(x)).all()


def test_leading_axes_are_scaled_one_by_one():
    x = np.random.default_rng(0).normal(size=(3, 2, 20, 4)) * np.arange(1, 4)[:, None, None, None]
    stacked = Standardizer.fit(x)
    assert stacked.mean.shape == (3, 2, 1, 4)
    for index in np.ndindex(3, 2):
        alone = Standardizer.fit(x[index])
        np.testing.assert_array_equal(stacked.mean[index], alone.mean)
        np.testing.assert_array_equal(stacked.scale[index], alone.scale)


def test_float32_and_integers_are_scaled_in_float64():
    for dtype in (np.float32, np.int32):
        scaler = Standardizer.fit(np.arange(6, dtype=dtype).reshape(3, 2))
        assert scaler.mean.dtype == scaler.transform(np.ones((1, 2), dtype)).dtype == np.float64


def test_targets_take_the_last_axis():
    y = np.random.default_rng(0).normal(size=(5, 30))
    scaler = Standardizer.fit(y, axis=-1)
    assert scaler.mean.shape == (5, 1)
    np.testing.assert_allclose(scaler.transform(y).std(-1), 1, rtol=20 * EPS)


def test_unreplicated_scaling_serves_any_leading_axes(table):
    x, y = table
    scaler = Standardizer.fit(x)
    draws = np.stack([x, x])
    np.testing.assert_array_equal(scaler.transform(draws)[1], scaler.transform(x))
    target = Standardizer.fit(y, axis=-1)
    assert target.inverse(np.zeros((7, 3))).shape == (7, 3)


@pytest.mark.parametrize(
    ("fitted", "axis", "given_shape"),
    [
        ((10, 3), -2, (10, 1)),  # numpy would stretch it
        ((10, 1), -2, (10, 3)),  # likewise
        ((10, 3), -2, (3,)),
        ((2, 10, 3), -2, (10, 3)),
        ((2, 10, 3), -2, (3, 10, 3)),
        ((2, 10), -1, (5, 2, 10)),  # draws before replicas: would be paired wrongly
        ((2, 10), -1, (2, 2, 10)),  # the same with sizes that happen to fit
        ((2, 10), -1, (10,)),
    ],
)
def test_other_shapes_are_refused(fitted, axis, given_shape):
    x = np.random.default_rng(0).normal(size=fitted)
    scaler = Standardizer.fit(x, axis=axis)
    for call in (scaler.transform, scaler.inverse):
        with pytest.raises(ShapeError, match="as in fit"):
            call(np.ones(given_shape))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_fit_refuses_values_that_are_not_finite(bad):
    x = np.ones((4, 3))
    x[2, 1] = bad
    with pytest.raises(DataError, match=r"at index \(2, 1\)"):
        Standardizer.fit(x)


def test_fit_refuses_no_rows_and_axes_from_the_front():
    with pytest.raises(ShapeError, match="at least one row"):
        Standardizer.fit(np.empty((0, 3)))
    with pytest.raises(ShapeError, match="at least one row"):
        Standardizer.fit(np.ones(3))
    with pytest.raises(ConfigError, match="from the end"):
        Standardizer.fit(np.ones((3, 3)), axis=0)


def test_one_row_becomes_zero():
    assert (Standardizer.fit([[3.0, -2.0]]).transform([[3.0, -2.0]]) == 0).all()


def test_nothing_of_the_test_rows_reaches_the_training_arrays(table):
    """A leaked scaling would show: the test rows are changed wildly, the training part is not."""
    x, y = table
    for split in random_splits(60, 4, 0):
        original = standardize_replicas(stack_replicas(x, y, [split]))
        wild_x, wild_y = x.copy(), y.copy()
        wild_x[split.test] = wild_x[split.test] * 1e6 + 1e9
        wild_y[split.test] = -1e12
        changed = standardize_replicas(stack_replicas(wild_x, wild_y, [split]))
        np.testing.assert_array_equal(changed.data.x_train, original.data.x_train)
        np.testing.assert_array_equal(changed.data.y_train, original.data.y_train)
        np.testing.assert_array_equal(changed.y.scale, original.y.scale)
        assert (changed.data.y_test != original.data.y_test).all()


def test_replicas_are_scaled_by_their_own_training_rows(table):
    x, y = table
    raw = stack_replicas(x, y, random_splits(60, 3, 0))
    scaled = standardize_replicas(raw)
    np.testing.assert_allclose(scaled.data.x_train.mean(1), 0, atol=100 * EPS)
    np.testing.assert_allclose(scaled.data.y_train.std(1), 1, rtol=20 * EPS)
    assert (np.abs(scaled.data.y_test.mean(1)) > 1e-6).all()
    np.testing.assert_allclose(scaled.y.inverse(scaled.data.y_test), raw.y_test, rtol=20 * EPS)
    np.testing.assert_allclose(scaled.x.inverse(scaled.data.x_test), raw.x_test, rtol=1e-12)


def test_normal_scores_are_the_quantiles_of_middle_ranks(generator):
    x = torch.randn(2, 50, 3, generator=generator).mul(4).round()  # with ties
    x[1] = x[1].exp()
    scores = NormalScores(x)
    found = scores(x)
    for r, j in ((0, 0), (0, 2), (1, 1)):
        rank = torch.as_tensor(scipy.stats.rankdata(x[r, :, j]))  # equal values: middle rank
        expected = torch.as_tensor(scipy.stats.norm.ppf((rank - 0.5) / 50))
        assert torch.allclose(found[r, :, j].double(), expected, atol=1e-6)
    far = scores(torch.full((2, 1, 3), 1e30))
    assert torch.allclose(far, torch.tensor(scipy.stats.norm.ppf(0.99)).float())
    assert torch.equal(scores(-torch.full((2, 1, 3), 1e30)), -far)


def test_network_inputs_are_cut_far_away():
    embedding = learn_embedding(np.array([[0.0], [2.0]]))
    found = embedding(np.array([[3.0], [1e30], [-1e300]]), "cpu")
    assert found.x.dtype == torch.float32
    assert found.x.flatten().tolist() == [2.0, 1e6, -1e6]
    assert found.stretch.tolist() == [[1], [1], [1]]  # networks see it
