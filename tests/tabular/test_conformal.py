"""Conformal intervals and sets: exact quantiles, coverage on 200 tables, rows nobody has seen."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils import check_random_state

from tests.tabular.conftest import mixed_table, quick_classifier, quick_regressor
from whvi.errors import ConfigError, DataError, ModelFileError
from whvi.tabular import load_model
from whvi.tabular.arrays import Rows
from whvi.tabular.conformal import quantile, set_apart
from whvi.tabular.modelfile import read_model_file, write_model_file

NUM_TABLES, NUM_APART, NUM_NEW, LEVEL = 200, 39, 300, 0.8


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.floats(0.02, 0.98))
def test_the_quantile_is_the_smallest_with_enough_scores_below(scores, level):
    scores = np.sort(scores)
    needed = (len(scores) + 1) * level - 1e-9
    enough = [s for s in scores if (scores <= s).sum() >= needed]
    if enough:
        assert quantile(scores[:, None], level) == enough[0]
    else:
        with pytest.raises(ConfigError, match=f"there are {len(scores)}: raise"):
            quantile(scores[:, None], level)


@pytest.mark.parametrize("level", [0.07, 0.14, 0.28, 0.55, 0.56, 0.9])
def test_rounding_does_not_move_the_place(level):
    """100 · level is a whole number, which floating point misses from above for most of these."""
    scores = np.arange(1.0, 100.0)[:, None]
    assert quantile(scores, level) == round(100 * level)


def assert_covers(shares, num_apart, level):
    """Between 1 - α and 1 - α + 1 / (n + 1), within 3 standard errors of the mean over tables."""
    mean, error = np.mean(shares), np.std(shares, ddof=1) / len(shares) ** 0.5
    assert level - 3 * error <= mean <= level + 1 / (num_apart + 1) + 3 * error, (mean, error)


def test_coverage_on_200_tables_whatever_the_model():
    """A model that is wrong in its mean and its deviation, of skewed targets."""
    rng, shares = np.random.default_rng(0), []
    for _ in range(NUM_TABLES):
        x = rng.normal(size=NUM_APART + NUM_NEW)
        y = np.sin(3 * x) + np.exp(rng.normal(size=len(x)) * (1 + x**2) ** 0.5)
        scores = np.abs(y - 0.5 * x) / (0.1 + np.abs(x))
        most = quantile(np.sort(scores[:NUM_APART])[:, None], LEVEL)
        shares.append(np.mean(scores[NUM_APART:] <= most))
    assert_covers(shares, NUM_APART, LEVEL)


def simulated(num_rows, rng):
    x = rng.normal(size=(num_rows, 3))
    return x, x[:, 0] * x[:, 1] + np.exp(rng.normal(size=num_rows) * (0.2 + (x[:, 2] > 0)))


def share_inside(seed, num_rows=60 + NUM_APART):
    rng = np.random.default_rng(seed)
    (x, y), (x_new, y_new) = simulated(num_rows, rng), simulated(NUM_NEW, rng)
    options = {"conformal_fraction": NUM_APART / num_rows, "max_iter": 20, "random_state": seed}
    model = quick_regressor(hidden_layer_sizes=(8,), **options).fit(x, y)
    assert len(model.conformal_scores_) == NUM_APART
    lower, upper = model.predict_interval(x_new, LEVEL, interval="conformal")
    return np.mean((lower <= y_new) & (y_new <= upper))


def test_coverage_of_a_few_fits():
    assert_covers([share_inside(seed) for seed in range(6)], NUM_APART, LEVEL)


@pytest.mark.nightly
def test_coverage_on_200_tables():
    assert_covers([share_inside(seed) for seed in range(NUM_TABLES)], NUM_APART, LEVEL)


# ---- rows that nobody has seen ------------------------------------------------------------------


@pytest.fixture(scope="module")
def table():
    return mixed_table(90)


@pytest.fixture(scope="module")
def model(table):
    return quick_regressor(conformal_fraction=0.3).fit(*table)


def test_nothing_in_the_fit_has_seen_the_rows(table, model):
    """Whatever they hold, the model is the same; only the scores are others."""
    x, y = copy.deepcopy(table)
    seed = check_random_state(0).randint(2**31 - 1)
    rows = set_apart(Rows(x, y), 0.3, seed)[1].table.index
    assert len(rows) == len(model.conformal_scores_) == 27
    x.loc[rows, "size"] *= 1e6
    x.loc[rows[:5], "colour"] = "violet"
    y.loc[rows] = 1e9
    other = quick_regressor(conformal_fraction=0.3).fit(x, y)
    new = mixed_table(40, seed=1)[0]
    assert other.schema_ == model.schema_
    np.testing.assert_array_equal(other.predict(new), model.predict(new))
    np.testing.assert_array_equal(other.predict_interval(new)[0], model.predict_interval(new)[0])
    assert (other.conformal_scores_ != model.conformal_scores_).any()
    assert model.training_summary_["num_rows"] == 63


def test_scores_are_of_the_rows_set_apart(table, model):
    seed = check_random_state(0).randint(2**31 - 1)
    apart = set_apart(Rows(*table), 0.3, seed)[1]
    again = copy.deepcopy(model).conformalize(apart.table, apart.y)
    np.testing.assert_array_equal(again.conformal_scores_, model.conformal_scores_)
    lower, upper = model.predict_interval(apart.table, 0.5, interval="conformal")
    rounding = 1e-12 * (upper - lower)  # one row stands on an end of its interval
    inside = (lower - rounding <= apart.y) & (apart.y <= upper + rounding)
    assert inside.sum() == 14  # ⌈28 · 0.5⌉


def test_a_row_has_its_interval_whatever_stands_beside_it(model):
    new = mixed_table(70, seed=1)[0]
    whole = model.predict_interval(new, interval="conformal")
    some = [5, 69, 0, 33]
    part = model.predict_interval(new.iloc[some], interval="conformal")
    np.testing.assert_array_equal(np.array(whole)[:, some], np.array(part))
    wider = model.predict_interval(new, 0.95, interval="conformal")
    assert (wider.lower < whole.lower).all()
    assert (wider.upper > whole.upper).all()


def test_several_outputs_have_quantiles_of_their_own():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3))
    y = np.stack([x[:, 0] + rng.normal(size=80), x[:, 1] + rng.standard_cauchy(80)], axis=1)
    model = quick_regressor(max_iter=20).fit(x[:40], y[:40]).conformalize(x[40:], y[40:])
    mean, std = model.predict(x, return_std=True)
    scores = np.sort(np.abs(y[40:] - mean[40:]) / std[40:], axis=0)
    lower, upper = model.predict_interval(x, 0.9, interval="conformal")
    np.testing.assert_allclose(upper - mean, scores[36] * std)  # the 37th of 40
    np.testing.assert_allclose(mean - lower, scores[36] * std)


def test_intervals_of_counts_begin_at_zero():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 2)), rng.poisson(0.5, size=60)
    model = quick_regressor(likelihood="poisson", conformal_fraction=0.4).fit(x, y)
    assert (model.predict_interval(x, interval="conformal").lower == 0).any()


# ---- sets of labels -----------------------------------------------------------------------------


def test_sets_cover_and_are_of_the_probable_classes():
    rng, shares = np.random.default_rng(0), []
    x = rng.normal(size=(60, 2))
    model = quick_classifier(max_iter=20).fit(x, np.digitize(x[:, 0], [-0.5, 0.5]))
    for _ in range(60):
        x = rng.normal(size=(NUM_APART + 200, 2))
        y = np.digitize(x[:, 0] + 0.5 * rng.normal(size=len(x)), [-0.5, 0.5])
        model.conformalize(x[:NUM_APART], y[:NUM_APART])
        sets = model.predict_set(x[NUM_APART:], LEVEL)
        shares.append(sets[np.arange(200), y[NUM_APART:]].mean())
    assert_covers(shares, NUM_APART, LEVEL)
    probs = model.predict_proba(x[NUM_APART:])
    assert probs[sets].min() > probs[~sets].max()


def test_a_label_only_among_the_rows_set_apart_is_in_no_set():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = np.where(x[:, 0] > 0, "high", "low").astype(object)
    seed = check_random_state(0).randint(2**31 - 1)
    y[set_apart(Rows(pd.DataFrame(x), y), 0.3, seed)[1].table.index[:3]] = "middle"
    model = quick_classifier(conformal_fraction=0.3).fit(x, y)
    assert model.classes_.tolist() == ["high", "low"]
    assert model.conformal_scores_[-3:].tolist() == [[1.0]] * 3
    assert model.predict_set(x, 0.9).all()  # 3 of 18 had no chance


# ---- files, wrong calls -------------------------------------------------------------------------


def test_a_file_answers_every_level(model, tmp_path):
    new = mixed_table(20, seed=1)[0]
    model.save(tmp_path / "model.whvi")
    loaded = load_model(tmp_path / "model.whvi")
    assert loaded.conformal_fraction == 0.3
    for level in (0.5, 0.9, 0.95):
        np.testing.assert_array_equal(
            model.predict_interval(new, level, interval="conformal"),
            loaded.predict_interval(new, level, interval="conformal"),
        )


def test_untrue_scores_are_refused(model, tmp_path):
    path = tmp_path / "model.whvi"
    model.save(path)
    tensors, document = read_model_file(path)
    scores = tensors["conformal.scores"]
    for wrong in (scores.flip(0), -scores, scores[:0], scores.float(), scores[:, 0], scores / 0):
        write_model_file(path, {**tensors, "conformal.scores": wrong}, document)
        with pytest.raises(ModelFileError):
            load_model(path)
    write_model_file(path, {**tensors, "conformal.more": scores}, document)
    with pytest.raises(ModelFileError, match="one matrix"):
        load_model(path)


def test_wrong_calls_say_what_to_do(fitted, fitted_classifier, model):
    new = mixed_table(5)[0]
    with pytest.raises(ConfigError, match="fit with conformal_fraction"):
        fitted.predict_interval(new, interval="conformal")
    with pytest.raises(ConfigError, match="fit with conformal_fraction"):
        fitted_classifier.predict_set(new)
    again = quick_regressor(max_iter=5).fit(*mixed_table(20)).conformalize(*mixed_table(20, 1))
    assert len(again.conformal_scores_) == 20
    assert again.fit(*mixed_table(20)).conformal_scores_ is None  # of other networks
    with pytest.raises(ConfigError, match=r"level 0.99 needs at least 99 rows .* there are 27"):
        model.predict_interval(new, 0.99, interval="conformal")
    with pytest.raises(ConfigError, match="'predictive' or 'conformal', got 'jackknife'"):
        model.predict_interval(new, interval="jackknife")
    with pytest.raises(ConfigError, match="strictly between"):
        model.predict_interval(new, 1.0, interval="conformal")
    for wrong in (1.0, -0.1, True, "0.2"):
        with pytest.raises(ConfigError, match=r"lie in \[0, 1\)"):
            quick_regressor(conformal_fraction=wrong).fit(*mixed_table(20))
    with pytest.raises(DataError, match="leaves none of 2 rows"):
        quick_regressor(conformal_fraction=0.9).fit([[0.0], [1.0]], [0.0, 1.0])


def test_what_is_wrong_with_a_row_set_apart_is_told_before_the_fit(table):
    seed = check_random_state(0).randint(2**31 - 1)
    for part in (0, 1):  # rows to fit, rows set apart
        x, y = copy.deepcopy(table)
        row = set_apart(Rows(x, y), 0.3, seed)[part].table.index[4]
        x.loc[row, "size"] = np.inf
        with pytest.raises(DataError, match=f"first in row {row}"):
            quick_regressor(conformal_fraction=0.3, max_iter=10**9).fit(x, y)


def test_labels_are_the_same_as_numbers_or_truth_values():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = (x[:, 0] > 0).astype(int)
    model = quick_classifier(conformal_fraction=0.3).fit(x, y)
    for labels in (y.astype(bool), torch.as_tensor(y)):
        again = copy.deepcopy(model).conformalize(x, labels)
        assert again.conformal_scores_.min() < 0.5
    with pytest.raises(DataError, match="not among the 2 classes"):
        model.conformalize(x, y.astype(str))
