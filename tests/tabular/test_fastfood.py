"""The transformer: scikit-learn's own checks, the kernel, and pipelines."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

sklearn = pytest.importorskip("sklearn")
pytest.importorskip("pandas")

from sklearn.base import clone  # noqa: E402 - after the check that it is there
from sklearn.kernel_ridge import KernelRidge  # noqa: E402
from sklearn.linear_model import Ridge  # noqa: E402
from sklearn.metrics.pairwise import rbf_kernel  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402

from whvi.errors import ConfigError  # noqa: E402
from whvi.gp.features import KERNELS  # noqa: E402
from whvi.gp.projections import PROJECTIONS  # noqa: E402
from whvi.tabular.fastfood import FastfoodFeatures  # noqa: E402


@parametrize_with_checks([FastfoodFeatures(16), FastfoodFeatures(16, kernel="arccos1")])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


def rows(num=40, d=5, seed=0):
    return np.random.default_rng(seed).standard_normal((num, d))


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_inner_products_are_the_kernel(projection):
    x = rows()
    phi = FastfoodFeatures(
        8192, lengthscale=2.0, projection=projection, random_state=0
    ).fit_transform(x)
    error = phi @ phi.T - rbf_kernel(x, gamma=1 / 8)
    assert np.sqrt(np.mean(error**2)) < 2.5 / np.sqrt(4096)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_and_one_lengthscale_per_input(kernel):
    x, lengths = rows(d=3), np.array([0.5, 1.0, 3.0])
    scaled = FastfoodFeatures(64, kernel=kernel, random_state=0).fit_transform(x / lengths)
    given = FastfoodFeatures(64, kernel=kernel, lengthscale=lengths, random_state=0).fit_transform(
        x
    )
    np.testing.assert_allclose(given, scaled, atol=1e-12)


def test_ridge_on_features_is_kernel_ridge():
    x = rows(200, 2)
    y = np.sin(x[:, 0]) * x[:, 1]
    features = make_pipeline(
        FastfoodFeatures(4096, random_state=0), Ridge(alpha=0.1, fit_intercept=False)
    ).fit(x, y)
    exact = KernelRidge(alpha=0.1, kernel="rbf", gamma=0.5).fit(x, y)
    test = rows(50, 2, seed=1)
    np.testing.assert_allclose(features.predict(test), exact.predict(test), atol=0.1)


def test_copies_names_and_types():
    first = FastfoodFeatures(8, random_state=3).fit(rows())
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(first)).transform(rows()), first.transform(rows())
    )
    np.testing.assert_array_equal(clone(first).fit_transform(rows()), first.transform(rows()))
    assert list(first.get_feature_names_out())[:2] == ["fastfoodfeatures0", "fastfoodfeatures1"]
    assert first.transform(rows().astype(np.float32)).dtype == np.float32


def test_bad_options_are_refused_when_fitted():
    with pytest.raises(ConfigError, match="above 0, or 5 of them, one per input, got"):
        FastfoodFeatures(8, lengthscale=[1.0, 2.0]).fit(rows())
    with pytest.raises(ConfigError, match="above 0"):
        FastfoodFeatures(8, lengthscale=-1.0).fit(rows())
    with pytest.raises(ConfigError, match="num_features must be an integer"):
        FastfoodFeatures(0).fit(rows())
    with pytest.raises(ConfigError, match="kernel must be one of"):
        FastfoodFeatures(8, kernel="cosine").fit(rows())
