"""The Gaussian process estimator: scikit-learn's checks, an exact process, and its promises."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("pandas")

from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.utils.estimator_checks import parametrize_with_checks

from whvi.errors import ConfigError
from whvi.predictive import Predictive
from whvi.tabular.gp import WHVIGPRegressor


@parametrize_with_checks(
    [
        WHVIGPRegressor(n_components=32, max_iter=10),
        WHVIGPRegressor(n_components=16, max_iter=3, weights="whvi"),
    ]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


def table(num=150, seed=0, noise=0.1):
    generator = np.random.default_rng(seed)
    x = generator.uniform(-2, 2, (num, 2)) * [1.0, 100.0] + [5.0, 0.0]
    clean = 30 + 10 * (np.sin(2 * (x[:, 0] - 5)) + 0.004 * x[:, 1])
    return x, clean + 10 * noise * generator.standard_normal(num)


@pytest.fixture(scope="module")
def fitted():
    return WHVIGPRegressor(384, random_state=0, max_iter=40).fit(*table())


def test_it_agrees_with_an_exact_process(fitted):
    x, y = table()
    kernel = ConstantKernel() * Matern([1.0, 1.0], nu=1.5, length_scale_bounds=(1e-2, 1e3))
    scale = x.std(0)
    exact = GaussianProcessRegressor(kernel + WhiteKernel(0.01), normalize_y=True, random_state=0)
    exact.fit(x / scale, y)
    test, _ = table(100, seed=1)
    mean, std = fitted.predict(test, return_std=True)
    exact_mean, exact_std = exact.predict(test / scale, return_std=True)
    assert np.sqrt(np.mean((mean - exact_mean) ** 2)) < 0.5 * exact_std.mean()
    np.testing.assert_allclose(std.mean(), exact_std.mean(), rtol=0.15)


def test_defaults_search_with_few_features_and_end_with_many():
    model = WHVIGPRegressor(random_state=0, max_iter=3).fit(*table(40))
    assert model.model_.layer.features.num_features == 1024
    assert (
        WHVIGPRegressor(weights="whvi", max_iter=3)
        .fit(*table(40))
        .model_.layer.basis.num_coefficients
        == 64
    )


def test_error_bars_are_honest(fitted):
    test, y = table(1000, seed=2)
    lower, upper = fitted.predict_interval(test, level=0.9)
    assert 0.84 < np.mean((y > lower) & (y < upper)) < 0.95
    assert fitted.score(test, y) > 0.97
    assert 0.8 < fitted.noise_std_ < 1.25
    assert np.isfinite(fitted.log_evidence_bound_)


def test_lengthscales_are_in_the_units_of_the_inputs(fitted):
    assert fitted.lengthscale_.shape == (2,)
    assert fitted.lengthscale_[0] < 5
    assert fitted.lengthscale_[1] > 100


def test_the_distribution_and_samples(fitted):
    x, _ = table(5, seed=3)
    predictive = fitted.predict_dist(x)
    assert isinstance(predictive, Predictive)
    mean, std = fitted.predict(x, return_std=True)
    np.testing.assert_array_equal(fitted.predict(x), mean)
    np.testing.assert_allclose(predictive.mean, mean, rtol=1e-14)
    np.testing.assert_allclose(predictive.std, std, rtol=1e-14)
    samples = fitted.sample_y(x, n_samples=4000, random_state=1)
    assert samples.shape == (5, 4000)
    np.testing.assert_allclose(samples.mean(1), mean, atol=5 * std.max() / 60)
    np.testing.assert_allclose(samples.std(1), std, rtol=0.08)
    np.testing.assert_array_equal(samples, fitted.sample_y(x, n_samples=4000, random_state=1))


def test_gradients_are_in_the_users_units(fitted):
    x, _ = table(4, seed=3)
    slope = 10 * 2 * np.cos(2 * (x[:, 0] - 5))
    gradient = fitted.gradient(x)
    np.testing.assert_allclose(gradient[:, 0], slope, atol=6)
    np.testing.assert_allclose(gradient[:, 1], 0.04, atol=0.04)


def test_copies_give_the_same_numbers(fitted):
    x, _ = table(20, seed=4)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(x), fitted.predict(x))
    again = clone(fitted).fit(*table())
    np.testing.assert_array_equal(again.predict(x), fitted.predict(x))


def test_rows_do_not_influence_each_other(fitted):
    x, _ = table(300, seed=4)
    order = np.random.default_rng(0).permutation(300)
    np.testing.assert_array_equal(fitted.predict(x[order]), fitted.predict(x)[order])
    np.testing.assert_array_equal(fitted.predict(x[7:9]), fitted.predict(x)[7:9])


@pytest.mark.parametrize("options", [{"weights": "whvi"}, {"weights": "mean-field"}])
def test_other_posteriors(options):
    model = WHVIGPRegressor(256, kernel="rbf", max_iter=40, random_state=0, **options)
    test, y = table(300, seed=2)
    assert model.fit(*table(400)).score(test, y) > 0.95


def test_bad_options_are_refused_when_fitted():
    with pytest.raises(ConfigError, match="weights must be one of"):
        WHVIGPRegressor(weights="dense").fit(*table(20))
    with pytest.raises(ConfigError, match="n_restarts must be an integer of at least 1"):
        WHVIGPRegressor(n_restarts=0).fit(*table(20))
    with pytest.raises(ValueError, match="NaN"):
        WHVIGPRegressor().fit([[np.nan, 1.0], [0.0, 1.0]], [1.0, 2.0])
