"""What both estimators promise: scikit-learn's rules, bits, files, clear words on ill input."""

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import whvi
from tests.tabular.conftest import mixed_table, quick_classifier, quick_regressor
from whvi.errors import ConfigError, DataError, ModelFileError
from whvi.tabular import WHVIClassifier, WHVIRegressor, load_model

EXACT_WEIGHTS = {  # tests/tabular/test_weights.py has statistical ones
    f"check_sample_weight_equivalence_on_{kind}_data": "minibatches are drawn by weight"
    for kind in ("dense", "sparse")
}


LEARNED = {  # checks of what was learned; the others need no training
    *("check_classifiers_train", "check_classifiers_classes", "check_regressors_train"),
}


@parametrize_with_checks(
    [quick_regressor(), quick_classifier()],
    expected_failed_checks=lambda estimator: EXACT_WEIGHTS,
)
def test_scikit_learn_accepts_it(estimator, check):
    learns = getattr(check, "func", check).__name__ in LEARNED
    check(estimator if learns else clone(estimator).set_params(max_iter=5))


# ---- within scikit-learn ------------------------------------------------------------------------


def test_pipeline_grid_search_and_clone():
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40.0)
    model = make_pipeline(StandardScaler(), quick_regressor(max_iter=5))
    search = GridSearchCV(model, {"whviregressor__n_members": [1, 2]}, cv=2).fit(x, y)
    assert search.predict(x).shape == (40,)
    assert clone(quick_regressor(beta=0.5)).beta == 0.5


@pytest.mark.nightly
def test_two_jobs_find_what_one_finds():
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40.0)
    one, two = (
        cross_val_score(quick_regressor(max_iter=5), x, y, cv=2, n_jobs=jobs) for jobs in (1, 2)
    )
    np.testing.assert_array_equal(one, two)


def test_the_front_door_is_lazy():
    assert whvi.WHVIRegressor is WHVIRegressor
    assert {"WHVIRegressor", "WHVIClassifier"} <= {*whvi.__all__} & {*dir(whvi)}


# ---- bits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_rows", [1, 7, 33, 64])
def test_a_prediction_does_not_depend_on_the_rows_beside_it(fitted, fitted_classifier, num_rows):
    table, _ = mixed_table(150, seed=1)
    mean, std = fitted.predict(table, return_std=True)
    part = fitted.predict(table[:num_rows], return_std=True)
    np.testing.assert_array_equal(part, (mean[:num_rows], std[:num_rows]))
    order = np.random.default_rng(0).permutation(150)
    np.testing.assert_array_equal(fitted.predict(table.iloc[order]), mean[order])
    proba = fitted_classifier.predict_proba(table)
    np.testing.assert_array_equal(
        fitted_classifier.predict_proba(table[:num_rows]), proba[:num_rows]
    )
    np.testing.assert_array_equal(fitted_classifier.predict_proba(table.iloc[order]), proba[order])


def test_blocks_of_rows_change_nothing(fitted, monkeypatch):
    table, _ = mixed_table(200, seed=1)
    whole = fitted.predict_dist(table)
    monkeypatch.setattr(fitted._predictor.functions, "block_rows", 50)
    assert torch.equal(fitted.predict_dist(table).mean, whole.mean)
    np.testing.assert_array_equal(fitted.predict(table), whole.mean.numpy())


def test_the_same_seed_gives_the_same_fit():
    table, y = mixed_table()
    first, second = (quick_regressor(max_iter=10).fit(table, y).predict(table) for _ in "ab")
    np.testing.assert_array_equal(first, second)
    other = quick_regressor(max_iter=10, random_state=1).fit(table, y).predict(table)
    assert not np.array_equal(first, other)


STOPPED_FIT = """
import signal, sys
from tests.tabular.conftest import mixed_table, quick_regressor

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

def stop(record):
    if record.step >= 30:
        signal.raise_signal(signal.SIGINT)

quick_regressor().fit(*mixed_table(), checkpoint=sys.argv[1], callbacks=[stop])
"""


def test_a_stopped_fit_goes_on_where_it_was(tmp_path):
    """In a process of its own: only a main thread can be interrupted."""
    stopped = subprocess.run(
        [sys.executable, "-c", STOPPED_FIT, str(tmp_path)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    assert "KeyboardInterrupt" in stopped.stderr
    assert any(path.is_file() for path in tmp_path.rglob("*"))
    table, y = mixed_table()
    resumed = quick_regressor().fit(table, y, checkpoint=tmp_path)
    whole = quick_regressor().fit(table, y)
    np.testing.assert_array_equal(resumed.predict(table), whole.predict(table))


# ---- results ------------------------------------------------------------------------------------


def test_it_learns_and_knows_what_it_does_not_know():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    y = 100 + 10 * (x[:, 0] + 0.5 * rng.normal(size=300))
    model = quick_regressor(max_iter=600, hidden_layer_sizes=(32, 32)).fit(x[:250], y[:250])
    mean, std = model.predict(x[250:], return_std=True)
    assert np.sqrt(np.mean((mean - y[250:]) ** 2)) < 7
    assert 4 < np.median(std) < 8
    lower, upper = model.predict_interval(x[250:], level=0.9)
    assert 0.75 < np.mean((lower <= y[250:]) & (y[250:] <= upper)) <= 1
    quantiles = model.predict_quantiles(x[250:], [0.05, 0.5, 0.95])
    np.testing.assert_allclose(quantiles[:, 0], lower)
    np.testing.assert_allclose(quantiles[:, 2], upper)
    assert model.sample_y(x[:4], 3, random_state=0).shape == (4, 3)


@pytest.mark.parametrize("likelihood", ["heteroscedastic", "student_t", "poisson", "auto"])
def test_every_likelihood_fits(likelihood):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = rng.poisson(np.exp(x[:, 0] + 3)).astype(float)
    model = quick_regressor(likelihood=likelihood, max_iter=150).fit(x, y)
    assert model.score(x, y) > 0
    assert model.likelihood_ in ("gaussian", "heteroscedastic", "student_t", "poisson")
    asked = {"gaussian", "heteroscedastic", "poisson"}
    tried = asked if likelihood == "auto" else {likelihood}
    assert {entry["likelihood"] for entry in model.candidates_} == tried


@pytest.mark.parametrize("posterior", ["diagonal", "low_rank", "full", "flow", "point"])
def test_every_documented_posterior_fits_and_is_saved(posterior, tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 2))
    model = quick_regressor(posterior=posterior, max_iter=150).fit(x, x[:, 0])
    assert model.score(x, x[:, 0]) > 0
    model.save(tmp_path / "m")
    again = WHVIRegressor.load(tmp_path / "m")
    assert again.posterior == posterior
    np.testing.assert_array_equal(again.predict(x), model.predict(x))


@pytest.mark.parametrize("make", [quick_regressor, quick_classifier])
def test_beta_is_the_weight_of_the_kl(make):
    x = np.random.default_rng(0).normal(size=(60, 2))
    y = (x[:, 0] > 0).astype(float)
    default, given, other = (make(beta=beta, max_iter=20).fit(x, y) for beta in (None, 0.3, 3.0))
    assert default.training_summary_["beta"] == 0.3  # of few rows
    np.testing.assert_array_equal(default.predict_dist(x).mean, given.predict_dist(x).mean)
    assert other.history_.beta[-1] == 3.0
    assert not torch.equal(other.predict_dist(x).mean, given.predict_dist(x).mean)


@pytest.mark.parametrize("ends_well", [True, False])
def test_small_work_uses_one_thread_and_restores_the_caller_s(ends_well):
    x = np.random.default_rng(0).normal(size=(60, 2))
    seen, before = [], torch.get_num_threads()

    def look(record):
        seen.append(torch.get_num_threads())
        if not ends_well:
            raise KeyboardInterrupt

    torch.set_num_threads(2)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            model = quick_regressor(max_iter=5).fit(x, x[:, 0], callbacks=[look])
            model.predict(x)
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_large_work_uses_the_threads_there_are(fitted, monkeypatch):
    seen, before = [], torch.get_num_threads()
    table, _ = mixed_table(20)
    torch.set_num_threads(2)
    try:
        monkeypatch.setattr("whvi.tabular.predictor._WORTH_THREADS", 100)
        fitted._predictor.map(table, lambda f: seen.append(torch.get_num_threads()) or f[0, 0])
        assert seen == [2]
    finally:
        torch.set_num_threads(before)


def test_several_targets_have_names_and_shapes(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3))
    y = pd.DataFrame({"a": x[:, 0] * 1e6, "b": x[:, 1] * 1e-6})
    model = quick_regressor(max_iter=300).fit(x, y)
    assert model.predict(x).shape == (50, 2)
    assert model.predict_interval(x).lower.shape == (50, 2)
    assert model.predict_quantiles(x, [0.1, 0.9]).shape == (50, 2, 2)
    assert model.sample_y(x, 4).shape == (50, 2, 4)
    assert model.score(x, y) > 0.5
    assert model.schema_.target_names == ("a", "b")
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(load_model(tmp_path / "m").predict(x), model.predict(x))


@pytest.mark.parametrize("labels", [["no", "yes"], [0, 1, 5], [False, True], [1.0, 2.0]])
def test_labels_of_any_kind(labels, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = np.array(labels)[np.digitize(x[:, 0], np.linspace(-0.5, 0.5, len(labels) - 1))]
    model = quick_classifier(max_iter=300).fit(x, y)
    assert model.score(x, y) > 0.8
    np.testing.assert_allclose(model.predict_proba(x).sum(1), 1)
    np.testing.assert_allclose(model.predict_dist(x).probs, model.predict_proba(x))
    model.save(tmp_path / "m")
    again = load_model(tmp_path / "m")
    assert again.classes_.dtype == model.classes_.dtype
    np.testing.assert_array_equal(again.predict(x), model.predict(x))


def test_unseen_categories_are_predicted(fitted):
    table, _ = mixed_table(5)
    table["colour"] = "violet"
    assert np.isfinite(fitted.predict(table)).all()


# ---- ill input ----------------------------------------------------------------------------------


def with_value(value, dtype=float):
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(dtype)
    x[3, 1] = value
    return x


def columns(*values):
    return np.stack([np.asarray(v, dtype=float) for v in values], axis=1)


NORMAL = np.random.default_rng(1).normal(size=20)
DATES = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=20)})
WORKS = None

# What comes, what fit says of it, and what predict of a model fitted on two plain columns says.
# ``WORKS``: finite predictions. A text: an error that matches it.
ILL = {
    "NaN": (with_value(np.nan), WORKS, WORKS),
    "inf": (with_value(np.inf), r"'x1' holds 1 infinite .* row 3", r"'x1' .* infinite .* row 3"),
    "-inf": (with_value(-np.inf), r"'x1' holds 1 infinite .* row 3", r"'x1' .* infinite"),
    "None": (with_value(None, object), WORKS, WORKS),
    "empty": (np.empty((0, 2)), "0 sample", "0 sample"),
    "header only": (pd.DataFrame({"a": [], "b": []}), "0 sample", "0 sample"),
    "no columns": (np.empty((20, 0)), "0 feature", "0 feature"),
    "one row": (columns(NORMAL, NORMAL)[:1], WORKS, WORKS),
    "two rows": (columns(NORMAL, -NORMAL)[:2], WORKS, WORKS),
    "one column": (columns(NORMAL), WORKS, "1 features.* expecting 2"),
    "constant column": (columns(NORMAL, 0 * NORMAL), WORKS, WORKS),
    "all constant": (np.ones((20, 2)), WORKS, WORKS),
    "duplicated column": (columns(NORMAL, NORMAL), WORKS, WORKS),
    "duplicated rows": (np.tile(columns(NORMAL, NORMAL)[:2], (10, 1)), WORKS, WORKS),
    "1e30": (columns(1e30 * NORMAL, NORMAL), WORKS, WORKS),
    "1e-30": (columns(1e-30 * NORMAL, NORMAL), WORKS, WORKS),
    "mixed scales": (columns(1e30 * NORMAL, 1e-30 * NORMAL[::-1]), WORKS, WORKS),
    "strings": (
        np.array([["a", "1"]] * 20),
        WORKS,
        r"'x0' holds 'a' \(first in row 0\), which is not a number",
    ),
    "dates": (DATES.assign(b=1.0), WORKS, "'x0' holds dates"),
    "booleans": (columns(NORMAL > 0, NORMAL < 1).astype(bool), WORKS, WORKS),
    "object": (columns(NORMAL, NORMAL).astype(object), WORKS, WORKS),
    "mixed object": (with_value({}, object), r"'x1', row 3: an argument must be a string", "row 3"),
    "sparse": (sparse.csr_matrix(np.eye(20)[:, :2]), WORKS, WORKS),
    "other width": (columns(NORMAL, NORMAL, NORMAL), WORKS, "3 features.* expecting 2"),
    "1-d": (NORMAL, "1D array", "1D array"),
    "complex": (columns(NORMAL, NORMAL) * 1j, "Complex", "Complex"),
}


@pytest.fixture(scope="session")
def plain():
    x = np.random.default_rng(2).normal(size=(30, 2))
    return quick_regressor().fit(x, x[:, 0])


@pytest.mark.parametrize("name", ILL)
def test_fit_of_ill_input(name):
    x, expected, _ = ILL[name]
    y = np.arange(float(x.shape[0]))
    model = quick_regressor(max_iter=5)
    if expected is WORKS:
        assert np.isfinite(model.fit(x, y).predict(x)).all()
    else:
        with pytest.raises((ValueError, TypeError), match=expected):
            model.fit(x, y)


@pytest.mark.parametrize("name", ILL)
@pytest.mark.filterwarnings("ignore:X has feature names:UserWarning")
def test_prediction_of_ill_input(plain, name):
    x, _, expected = ILL[name]
    if expected is WORKS:
        mean, std = plain.predict(x, return_std=True)
        assert np.isfinite(mean).all()
        assert np.isfinite(std).all()
    else:
        with pytest.raises((ValueError, TypeError), match=expected):
            plain.predict(x)


# Targets: what comes, and what fit says.
ILL_TARGETS = {
    "NaN": (np.r_[NORMAL[:19], np.nan], "target 'y' holds 1 values .* NaN in row 19"),
    "inf": (np.r_[np.inf, NORMAL[:19]], "target 'y' holds 1 values .* infinity in row 0"),
    "tiny": (1e-300 * NORMAL[:20], "target 'y' varies by .*; change the unit"),
    "None": ([None, *NORMAL[:19]], "target 'y' holds 1 .* row 0"),
    "texts": (["a"] * 20, "targets must be numbers"),
    "too few": (NORMAL[:19], "X has 20 rows, y has 19"),
    "constant": (np.full(20, 7.0), WORKS),
    "1e30": (1e30 * NORMAL, WORKS),
    "1e-30": (1e-30 * NORMAL, WORKS),
    "integers": (np.arange(20), WORKS),
}


@pytest.mark.parametrize("name", ILL_TARGETS)
def test_fit_of_ill_targets(name):
    y, expected = ILL_TARGETS[name]
    x = columns(NORMAL, NORMAL**2)
    if expected is not WORKS:
        with pytest.raises(DataError, match=expected):
            quick_regressor(max_iter=5).fit(x, y)
        return
    mean, std = quick_regressor(max_iter=200).fit(x, y).predict(x, return_std=True)
    unit = np.std(y) or 1.0
    assert np.all(np.abs(mean - y) < 4 * unit)
    assert np.all((std > 0) & (std < 4 * unit))


def test_counts_must_be_counts():
    with pytest.raises(DataError, match=r"row 1 holds 0\.5"):
        quick_regressor(likelihood="poisson").fit(np.eye(3), [1, 0.5, 2])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_one_class_and_few_rows(count):
    x = np.arange(count, dtype=float)[:, None]
    model = quick_classifier(max_iter=5).fit(x, ["only"] * count)
    assert model.predict(x).tolist() == ["only"] * count
    assert model.predict_proba(x).tolist() == [[1.0]] * count


def test_missing_labels_are_refused():
    with pytest.raises(DataError, match="first in row 1"):
        quick_classifier().fit(np.eye(3), ["a", None, "b"])


def test_other_names_or_order_are_refused(fitted):
    table, _ = mixed_table(5)
    with pytest.raises(ValueError, match="order"):
        fitted.predict(table[table.columns[::-1]])
    with pytest.raises(ValueError, match="unseen at fit time"):
        fitted.predict(table.rename(columns={"size": "weight"}))


@pytest.mark.parametrize(
    "options",
    [
        {"likelihood": "cauchy"},
        {"posterior": "gaussian"},
        {"num_draws": 0},
        {"n_members": 0},
        {"device": "abacus"},
        pytest.param(
            {"device": "cuda"},
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
    ],
)
def test_options_that_do_not_exist(options):
    with pytest.raises(ConfigError):
        quick_regressor(**options).fit(np.eye(4), np.arange(4.0))


def test_options_may_be_numbers_of_numpy(tmp_path):
    """As the grids of a search are, such as ``np.arange``."""
    options = {"n_members": 2, "max_iter": 5, "num_draws": 4, "hidden_layer_sizes": 8}
    x, y = np.random.default_rng(0).normal(size=(2, 20, 2))
    model = quick_regressor(**options).fit(x, y[:, 0])
    other = quick_regressor(**{name: np.int64(v) for name, v in options.items()}).fit(x, y[:, 0])
    other.save(tmp_path / "m")
    assert WHVIRegressor.load(tmp_path / "m").predict(x).tolist() == model.predict(x).tolist()


def test_unfitted_estimators_say_so(tmp_path):
    with pytest.raises(NotFittedError):
        WHVIRegressor().predict(np.eye(2))
    with pytest.raises(NotFittedError):
        WHVIClassifier().save(tmp_path / "m")


def test_load_names_both_classes(fitted, tmp_path):
    fitted.save(tmp_path / "m")
    with pytest.raises(ModelFileError, match=r"WHVIRegressor.* not a WHVIClassifier"):
        WHVIClassifier.load(tmp_path / "m")
