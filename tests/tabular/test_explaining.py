"""Importances and contributions: closed forms, all coalitions, sums, bits, planted columns."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from tests.tabular.conftest import mixed_table, quick_classifier, quick_regressor
from whvi.errors import ConfigError, DataError
from whvi.tabular.explaining import (
    _orders,
    contributions,
    importances,
    permutation_importances,
    shapley_values,
)

# ---- contributions: the sum over walks ----------------------------------------------------------


def walked(values, row, background, owner, num_orders, seed=0):
    rng, d = np.random.default_rng(seed), owner.max() + 1
    orders = np.stack([_orders(d, num_orders, rng) for _ in background])
    return shapley_values(values, row, background, values(background), owner, orders)


def rough(rows):
    """Two values of a row, with interactions of up to four inputs."""
    a, b, c, *others = rows.T
    return np.stack([a * b * c + np.sin(a + 2 * b), np.exp(c / 2) * sum(others, a)], axis=-1)


def by_coalitions(values, row, background, owner):
    """Shapley's formula: over all sets of columns, with cells of the others from the background."""
    d = owner.max() + 1

    def worth(chosen):
        mixed = np.where(np.isin(owner, chosen), row, background)
        return values(mixed).mean(0)

    found = np.zeros((d, *values(background).shape[1:]))
    for j in range(d):
        others = [k for k in range(d) if k != j]
        for size in range(d):
            weight = math.factorial(size) * math.factorial(d - size - 1) / math.factorial(d)
            for chosen in itertools.combinations(others, size):
                found[j] += weight * (worth([*chosen, j]) - worth(chosen))
    return found


@pytest.mark.parametrize("owner", [[0, 1, 2], [0, 1, 2, 3], [0, 0, 1, 2, 2], [0, 1, 1, 1]])
def test_all_orders_are_shapleys_formula(owner):
    rng, owner = np.random.default_rng(0), np.array(owner)
    row, background = rng.normal(size=len(owner)), rng.normal(size=(5, len(owner)))
    found = walked(rough, row, background, owner, num_orders=24)
    np.testing.assert_allclose(found, by_coalitions(rough, row, background, owner), atol=1e-13)


def test_sampled_orders_come_near_it_and_always_add_up(monkeypatch):
    rng, owner = np.random.default_rng(0), np.arange(6)
    row, background = rng.normal(size=6), rng.normal(size=(400, 6))
    exact = by_coalitions(rough, row, background, owner)
    few, many = (walked(rough, row, background, owner, n) for n in (1, 20))
    total = rough(row[None])[0] - rough(background).mean(0)
    for found in (few, many):
        np.testing.assert_allclose(found.sum(0), total, atol=1e-12)
    assert np.abs(many - exact).max() < 0.05 < np.abs(exact).max()
    monkeypatch.setattr("whvi.tabular.explaining._VALUES_AT_ONCE", 100)
    pieces = walked(rough, row, background, owner, 1)
    np.testing.assert_allclose(pieces, few, atol=1e-12)


def test_a_linear_function_has_a_closed_form():
    """Whatever the orders: w_j times the distance from the mean of the background."""
    rng = np.random.default_rng(0)
    weight, row, background = rng.normal(size=7), rng.normal(size=7), rng.normal(size=(9, 7))
    found = walked(lambda rows: rows @ weight, row, background, np.arange(7), num_orders=2)
    np.testing.assert_allclose(found, weight * (row - background.mean(0)), atol=1e-14)


def test_one_column_gets_everything():
    rows = np.array([[1.0, 2.0], [3.0, 5.0]])
    found = walked(lambda rows: rows.sum(1), rows[0], rows[1:], np.array([0, 0]), 2)
    np.testing.assert_array_equal(found, [-5.0])


# ---- contributions of models --------------------------------------------------------------------

NEW = mixed_table(6, seed=1)[0]
FAR = NEW.assign(size=[0.0, 50.0, -40.0, 1.0, 8.0, 3.0])


@pytest.fixture(scope="module", params=["gaussian", "heteroscedastic", "student_t", "poisson"])
def regressor(request):
    table, y = mixed_table()
    y = y if request.param != "poisson" else np.round(np.exp(y / 2))
    return quick_regressor(likelihood=request.param, num_draws=6).fit(table, y)


def test_they_add_up_to_the_prediction(regressor):
    background = mixed_table(20)[0]
    found = contributions(regressor, FAR, background)
    assert found.columns == ("size", "count", "open", "colour")
    assert found.mean.shape == found.std.shape == (6, 4)
    assert regressor.far_share(FAR).max() > 0.1
    np.testing.assert_allclose(found.base, regressor.predict(background).mean(), rtol=1e-9)
    total = found.base + found.mean.sum(1)
    # a rate near zero is a difference of large ones
    np.testing.assert_allclose(total, regressor.predict(FAR), rtol=1e-9, atol=1e-9)


def test_probabilities_of_classes_add_up(fitted_classifier):
    background = mixed_table(20)[0]
    found = contributions(fitted_classifier, FAR, background)
    assert found.mean.shape == found.std.shape == (6, 4, 3)
    np.testing.assert_allclose(found.base, fitted_classifier.predict_proba(background).mean(0))
    total = found.base + found.mean.sum(1)
    np.testing.assert_allclose(total, fitted_classifier.predict_proba(FAR), atol=1e-12)
    np.testing.assert_allclose(found.mean.sum(-1), 0, atol=1e-12)  # what one gains, others lose


def test_two_classes_and_several_targets():
    table, y = mixed_table()
    both = quick_classifier(max_iter=5).fit(table, y > 1)
    assert contributions(both, NEW, table).mean.shape == (6, 4, 2)
    several = quick_regressor(max_iter=5).fit(table, np.stack([y, -y], axis=1))
    found = contributions(several, NEW, table, num_background=70)
    assert found.mean.shape == (6, 4, 2)
    np.testing.assert_allclose(found.base, several.predict(table).mean(0), rtol=1e-9)
    np.testing.assert_allclose(found.base + found.mean.sum(1), several.predict(NEW), rtol=1e-9)


def test_their_uncertainty_is_that_of_the_draws():
    """Against one background row that differs in one cell, all of it is the difference's."""
    table, y = mixed_table()
    model = quick_regressor(linearize=False).fit(table, y)
    row = NEW.iloc[:1]
    found = contributions(model, row, row.assign(size=row["size"] + 1))
    components = [
        model.predict_dist(x).gaussian_components()[0]
        for x in (row, row.assign(size=row["size"] + 1))
    ]
    difference = (components[0] - components[1])[:, 0]
    np.testing.assert_allclose(found.mean, [[difference.mean(), 0, 0, 0]], atol=1e-12)
    np.testing.assert_allclose(found.std, [[difference.std(correction=0), 0, 0, 0]], atol=1e-12)


@pytest.mark.parametrize("regressor", ["gaussian", "student_t"], indirect=True)
def test_far_from_the_training_rows_they_are_uncertain(regressor):
    """Nearly all that is uncertain there is what the column that is far contributes."""
    found = contributions(regressor, FAR, mixed_table(20)[0])
    epistemic = regressor.predict_dist(FAR).epistemic.numpy()
    far = regressor.far_share(FAR) > 0.99
    assert far.tolist() == [False, True, True, False, False, False]
    np.testing.assert_allclose(found.std[far, 0], epistemic[far], rtol=0.3)
    assert found.std[far, 0].min() > 20 * found.std[0, 0]


def test_a_row_has_its_contributions_whatever_stands_beside_it(fitted):
    holes = NEW.assign(size=[np.nan, *NEW["size"][1:]])  # in a column that was complete
    background = mixed_table(100)[0]
    whole = contributions(fitted, holes, background)
    for some in ([4], [5, 0], [3, 2, 1]):
        part = contributions(fitted, holes.iloc[some], background)
        np.testing.assert_array_equal(part.mean, whole.mean[some])
        np.testing.assert_array_equal(part.std, whole.std[some])
        assert part.base == whole.base


def test_a_column_that_is_no_input_contributes_nothing():
    table, y = mixed_table()
    table["empty"] = np.nan
    table["day"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(60), unit="D")
    model = quick_regressor(max_iter=5).fit(table, y)
    found = contributions(model, table[:3], table)
    assert found.columns[4:] == ("empty", "day")
    assert (found.mean[:, 4] == 0).all()
    assert (found.mean[:, 5] != 0).all()  # one number for its four inputs
    assert importances(model, table, y, num_repeats=1)["column"].tolist().count("day") == 1


# ---- importances --------------------------------------------------------------------------------

WEIGHT = np.array([3.0, 1.0, 0.0])


def of_a_line(seed, num_rows=200, *, of_mean=lambda loss: loss):
    """Importances of three columns, the first of two inputs, in a linear function with noise."""
    rng = np.random.default_rng(seed)
    x = np.repeat(rng.normal(size=(num_rows, 3)), [2, 1, 1], axis=1)
    x[:, 1] = rng.normal(size=num_rows)
    slopes = np.array([2.0, math.sqrt(5), 1.0, 0.0])  # 2² + 5 = 3²
    y = x @ slopes + 0.5 * rng.normal(size=num_rows)
    places = np.stack([rng.permutation(num_rows) for _ in range(5)])
    return permutation_importances(
        lambda rows: (y - rows @ slopes) ** 2,
        x, np.array([0, 0, 1, 2]), places, of_mean=of_mean, num_columns=3,
    )  # fmt: skip


def test_importances_of_a_line_and_their_errors():
    """The squared error of column j grows by 2 w_j²; errors are as large as they are said to be."""
    found = np.stack([of_a_line(seed) for seed in range(150)])
    error = found[..., 0] - 2 * WEIGHT**2
    assert np.all(np.abs(error.mean(0)) <= 4 * error.std(0) / math.sqrt(150) + 1e-15)
    ratio = error.std(0)[:2] / found[:, :2, 1].mean(0)
    assert np.all(np.abs(ratio - 1) < 0.2), ratio
    assert np.abs(found[:, 2]).max() < 1e-15


def test_root_mean_squares_have_errors_too():
    found = np.stack([of_a_line(seed, of_mean=np.sqrt) for seed in range(150)])
    exact = np.sqrt(2 * WEIGHT**2 + 0.25) - 0.5
    ratio = found[:, :2, 0].std(0) / found[:, :2, 1].mean(0)
    assert np.all(np.abs(ratio - 1) < 0.2), ratio
    np.testing.assert_allclose(found[..., 0].mean(0), exact, rtol=0.02, atol=1e-12)


def test_importances_of_a_model_agree_with_scikit_learn():
    from sklearn.inspection import permutation_importance

    table, y = mixed_table(200)
    model = quick_regressor(max_iter=300).fit(table, y)
    found = importances(model, table, y, score="rmse", num_repeats=20).set_index("column")
    assert found.index[0] == "size"
    other = permutation_importance(
        model, table, y, scoring="neg_root_mean_squared_error", n_repeats=20, random_state=0
    )
    theirs = pd.Series(other.importances_mean, table.columns)[found.index]
    np.testing.assert_allclose(found["importance"], theirs, rtol=0.05, atol=0.02)
    nats = importances(model, table, y).set_index("column")
    assert nats.index[0] == "size"
    assert nats["importance"].iloc[0] > 10 * nats["standard_error"].iloc[0] > 0


def test_importances_of_labels(fitted_classifier):
    table, y = mixed_table()
    labels = np.where(y > 1, "high", np.where(y < -1, "low", "middle"))
    found = importances(fitted_classifier, table, labels)
    assert found["column"][0] == "size"
    assert sorted(found["column"]) == ["colour", "count", "open", "size"]
    with pytest.raises(ConfigError, match="'mnll' for labels"):
        importances(fitted_classifier, table, labels, score="rmse")
    with pytest.raises(DataError, match="row 0 has the label 'huge'"):
        importances(fitted_classifier, table[:2], ["huge", "low"])


def test_wrong_calls(fitted):
    table, y = mixed_table()
    with pytest.raises(ConfigError, match="score must be 'mnll'"):
        importances(fitted, table, y, score="r2")
    with pytest.raises(ConfigError, match="num_repeats"):
        importances(fitted, table, y, num_repeats=0)
    with pytest.raises(ConfigError, match="num_background"):
        contributions(fitted, table, table, num_background=0)
    with pytest.raises(DataError, match="empty table"):
        contributions(fitted, table, table[:0])
    with pytest.raises(DataError, match="inconsistent numbers"):
        importances(fitted, table, y[:5])
