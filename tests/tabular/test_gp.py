"""The Gaussian process estimator: scikit-learn's checks, an exact process, promises and files."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("pandas")

from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.utils.estimator_checks import parametrize_with_checks

from whvi.errors import ConfigError, ModelFileError
from whvi.gp import RBF
from whvi.predictive import Predictive
from whvi.tabular.gp import WHVIGPRegressor
from whvi.tabular.modelfile import read_model_file, write_model_file


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
    samples = fitted.sample_y(x, num_draws=4000, random_state=1)
    assert samples.shape == (5, 4000)
    np.testing.assert_allclose(samples.mean(1), mean, atol=5 * std.max() / 60)
    np.testing.assert_allclose(samples.std(1), std, rtol=0.08)
    np.testing.assert_array_equal(samples, fitted.sample_y(x, num_draws=4000, random_state=1))


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
    with pytest.raises(ConfigError, match="n_components must be an integer of at least 1, got 0"):
        WHVIGPRegressor(0).fit(*table(20))
    with pytest.raises(ValueError, match="NaN"):
        WHVIGPRegressor().fit([[np.nan, 1.0], [0.0, 1.0]], [1.0, 2.0])


# ---- model files ------------------------------------------------------------------------------

KINDS = [
    {"kernel": "matern32", "projection": "orthogonal", "weights": "full"},
    {"kernel": "rbf", "projection": "quasi", "weights": "whvi"},
    {"kernel": "arccos1", "projection": "fastfood", "weights": "whvi", "covariance": "full"},
    {"kernel": "matern52", "projection": "structured", "weights": "mean-field"},
    {"kernel": "arccos0", "projection": "iid", "weights": "full"},
]


@pytest.mark.parametrize("options", KINDS, ids=lambda options: options["projection"])
def test_a_file_brings_back_the_same_bits(options, tmp_path):
    model = WHVIGPRegressor(40, max_iter=3, random_state=np.int64(3), **options).fit(*table(60))
    model.save(tmp_path / "model")
    again, (x, _) = WHVIGPRegressor.load(tmp_path / "model"), table(30, seed=1)
    assert again.get_params() == model.get_params()
    for call in (
        lambda m: m.predict(x, return_std=True),
        lambda m: m.sample_y(x, num_draws=3, random_state=1),
        lambda m: m.gradient(x),
        lambda m: m.lengthscale_,
        lambda m: (m.noise_std_, m.log_evidence_bound_, m.n_iter_, m.n_features_in_),
    ):
        np.testing.assert_array_equal(call(again), call(model))
    again.save(tmp_path / "again")
    before, after = read_model_file(tmp_path / "model"), read_model_file(tmp_path / "again")
    assert after.document == before.document
    assert all(torch.equal(after.tensors[name], t) for name, t in before.tensors.items())


def test_another_process_predicts_the_same_bits(fitted, tmp_path):
    x, _ = table(30, seed=1)
    fitted.save(tmp_path / "model")
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", fitted.predict(x))
    code = (
        "import sys, numpy as np; from whvi.tabular.gp import WHVIGPRegressor\n"
        "model, x, y = sys.argv[1:]\n"
        "found = WHVIGPRegressor.load(model).predict(np.load(x))\n"
        "assert np.array_equal(found, np.load(y))\n"
        "assert 'torch._dynamo' not in sys.modules  # a compiler, and seconds to import"
    )
    paths = [tmp_path / name for name in ("model", "x.npy", "y.npy")]
    subprocess.run([sys.executable, "-c", code, *paths], check=True)


def test_names_of_columns_are_kept(tmp_path):
    pandas = pytest.importorskip("pandas")
    x, y = table(40)
    frame = pandas.DataFrame(x, columns=["a", "b"])
    WHVIGPRegressor(16, max_iter=2).fit(frame, y).save(tmp_path / "model")
    model = WHVIGPRegressor.load(tmp_path / "model")
    assert model.feature_names_in_.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["b", "a"]])


def test_what_cannot_be_stored_is_refused(tmp_path):
    model = WHVIGPRegressor(16, max_iter=2)
    with pytest.raises(ValueError, match="not fitted"):
        model.save(tmp_path / "model")
    model.set_params(kernel=RBF()).fit(*table(20))
    with pytest.raises(ModelFileError, match="only kernels with a name"):
        model.save(tmp_path / "model")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("gp") / "model"
    WHVIGPRegressor(16, projection="fastfood", max_iter=2).fit(*table(20)).save(path)
    return read_model_file(path)


def check_refused(content, path):
    write_model_file(path, content.tensors, content.document)
    with pytest.raises(ModelFileError):
        WHVIGPRegressor.load(path)


WRONG_VALUES = {
    "another class": ("estimator", "subprocess.Popen"),
    "parameters are a list": ("parameters", [1]),
    "no model": ("model", None),
    "unknown field": ("model", "code", "import os"),
    "huge inputs": ("model", "in_features", 2**40),
    "other inputs": ("model", "in_features", 3),
    "negative inputs": ("model", "in_features", -1),
    "huge features": ("model", "num_features", 2**62),
    "other features": ("model", "num_features", 32),
    "features are text": ("model", "num_features", "16"),
    "unknown kernel": ("model", "kernel", "os.system"),
    "other kernel": ("model", "kernel", "arccos1"),
    "kernel is a list": ("model", "kernel", []),
    "unknown projection": ("model", "projection", "exec"),
    "other projection": ("model", "projection", "structured"),
    "unknown weights": ("model", "weights", "dense"),
    "other weights": ("model", "weights", "whvi"),
    "huge covariance": ("model", "num_features", 2**31),
    "seed is text": ("model", "seed", "x"),
    "too few names": ("feature_names", ["a"]),
    "names are numbers": ("feature_names", [1, 2]),
    "no training": ("training", None),
    "bound is text": ("training", "log_evidence_bound", "x"),
    "no iterations": ("training", "n_iter", 0),
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_inconsistent_descriptions_are_refused(stored, tmp_path, name):
    content, (*keys, last, value) = copy.deepcopy(stored), WRONG_VALUES[name]
    place = content.document
    for key in keys:
        place = place[key]
    place[last] = value
    check_refused(content, tmp_path / "wrong")


PROJECTION = "layer.basis.features.projection"
WRONG_TENSORS = {
    "missing": lambda t: t.pop("scaling.mean"),
    "unknown": lambda t: t.update({"code": torch.zeros(2)}),
    "other shape": lambda t: t.update({"scaling.mean": torch.zeros(3, dtype=torch.float64)}),
    "other type": lambda t: t.update({"scaling.mean": t["scaling.mean"].float()}),
    "NaN": lambda t: t["layer.posterior.loc"].fill_(torch.nan),
    "zero scale": lambda t: t["scaling.scale"].zero_(),
    "zero unit": lambda t: t["likelihood.target_scale"].zero_(),
    "infinite lengthscale": lambda t: t["layer.basis.features.log_lengthscale"].fill_(1e4),
    "index out of range": lambda t: t[f"{PROJECTION}.permutation"].add_(1),
    "no permutation": lambda t: t[f"{PROJECTION}.permutation"].zero_(),
}


@pytest.mark.parametrize("name", WRONG_TENSORS)
def test_inconsistent_tensors_are_refused(stored, tmp_path, name):
    content = copy.deepcopy(stored)
    WRONG_TENSORS[name](content.tensors)
    check_refused(content, tmp_path / "wrong")
