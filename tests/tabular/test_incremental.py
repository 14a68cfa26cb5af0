"""Fitted estimators with further rows: bits, files, all kinds of models, clear words."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError

from tests.tabular.conftest import mixed_table, quick_classifier, quick_regressor
from whvi.errors import ConfigError, DataError, ModelFileError
from whvi.tabular import WHVIClassifier, WHVIRegressor
from whvi.tabular.modelfile import read_model_file

TABLE, PRICE = mixed_table()
NEW, NEW_PRICE = mixed_table(20, seed=1)


def bits(model, table=TABLE):
    mean, std = model.predict(table, return_std=True)
    return mean.tobytes() + std.tobytes()


# ---- bits and files -----------------------------------------------------------------------------


def test_updates_are_a_function_of_rows_and_seed(fitted, tmp_path):
    fitted.save(tmp_path / "first.whvi")
    loaded = WHVIRegressor.load(tmp_path / "first.whvi")
    state = torch.get_rng_state()
    one = copy.deepcopy(fitted).update(NEW, NEW_PRICE)
    assert torch.equal(torch.get_rng_state(), state)
    other = loaded.update(NEW, NEW_PRICE)
    assert bits(one) == bits(other) != bits(fitted)
    one.save(tmp_path / "second.whvi")
    again = WHVIRegressor.load(tmp_path / "second.whvi")
    assert bits(again) == bits(one)
    assert bits(again.update(NEW, NEW_PRICE)) == bits(one.update(NEW, NEW_PRICE))
    assert one.training_summary_["num_rows"] == len(TABLE) + 2 * len(NEW)
    assert one._memory.weight.sum() == pytest.approx(one.training_summary_["num_rows"])


def test_partial_fit_is_fit_and_then_update(fitted):
    model = quick_regressor().partial_fit(TABLE, PRICE)
    assert bits(model) == bits(fitted)
    assert bits(model.partial_fit(NEW, NEW_PRICE)) == bits(
        copy.deepcopy(fitted).update(NEW, NEW_PRICE)
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("weight", torch.zeros(60, dtype=torch.float64), "above zero"),
        ("weight", torch.ones(59, dtype=torch.float64), "memory.encoded"),
        ("encoded", torch.ones(60, 2, dtype=torch.float64), "memory.encoded"),
        ("encoded", None, "memory.encoded"),
    ],
)
def test_a_file_whose_memory_does_not_fit_is_refused(fitted, tmp_path, name, value, words):
    fitted.save(tmp_path / "model.whvi")
    content = read_model_file(tmp_path / "model.whvi")
    content.tensors.pop(f"memory.{name}")
    if value is not None:
        content.tensors[f"memory.{name}"] = value
    with pytest.raises(ModelFileError, match=words):
        WHVIRegressor.from_content(content)


# ---- what is learned ----------------------------------------------------------------------------


def curve(x, rng):
    return np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=len(x))


def two_regions(num_rows, seed=0):
    rng = np.random.default_rng(seed)
    left, right = rng.uniform(-2, 0, (num_rows, 1)), rng.uniform(0, 2, (num_rows, 1))
    return (left, curve(left, rng)), (right, curve(right, rng))


def rmse(model, rows):
    return float(np.sqrt(np.square(model.predict(rows[0]) - rows[1]).mean()))


@pytest.mark.nightly
def test_new_rows_are_learned_and_old_ones_are_not_forgotten():
    (old, new), test = two_regions(150), two_regions(100, seed=1)
    first = quick_regressor(hidden_layer_sizes=(32, 32), max_iter=1000).fit(*old)
    before = [rmse(first, rows) for rows in test]
    widths = [np.subtract(*first.predict_interval(rows[0])[::-1]).mean() for rows in test]
    model = copy.deepcopy(first)
    for k in (0, 75):
        model.update(new[0][k : k + 75], new[1][k : k + 75])
    after = [rmse(model, rows) for rows in test]
    assert before[1] > 0.5
    assert after[1] < 0.2
    assert after[0] < before[0] + 0.03
    lower, upper = model.predict_interval(test[1][0])
    assert (upper - lower).mean() < widths[1]
    assert ((lower <= test[1][1]) & (test[1][1] <= upper)).mean() > 0.8


def test_one_row_of_many_changes_little():
    (old, new), test = two_regions(200), two_regions(100, seed=1)
    first = quick_regressor(max_iter=200).fit(*old)
    moved = copy.deepcopy(first).update(new[0][:1], new[1][:1]).predict(test[0][0])
    assert np.abs(moved - first.predict(test[0][0])).mean() < 0.1


@pytest.mark.nightly
def test_updates_are_about_as_good_as_a_fit_of_all_rows():
    (old, new), test = two_regions(150, seed=2), two_regions(300, seed=3)
    options = {"hidden_layer_sizes": (32, 32), "max_iter": 1500, "n_members": 4}
    model = quick_regressor(**options).fit(*old)
    joint = quick_regressor(**options).fit(*map(np.concatenate, zip(old, new, strict=True)))
    for k in (0, 50, 100):
        model.update(new[0][k : k + 50], new[1][k : k + 50])
    for rows in test:
        targets = torch.as_tensor(rows[1])
        scores = [-m.predict_dist(rows[0]).log_prob(targets).mean() for m in (model, joint)]
        assert rmse(model, rows) < 1.15 * rmse(joint, rows)
        assert scores[0] < scores[1] + 0.15
        lower, upper = model.predict_interval(rows[0])
        assert 0.83 < ((lower <= rows[1]) & (rows[1] <= upper)).mean() < 0.98


CASES = {
    "heteroscedastic": {"likelihood": "heteroscedastic"},
    "student_t": {"likelihood": "student_t"},
    "full": {"posterior": "full"},
    "low_rank": {"posterior": "low_rank"},
    "flow": {"posterior": "flow"},
    "point": {"posterior": "point"},
    "not linearised": {"linearize": False},
    "nothing held out": {"validation_fraction": 0},
    "one member": {"n_members": 1},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_every_kind_of_regression_goes_on(options, tmp_path):
    model = quick_regressor(max_iter=20, **options).fit(TABLE, PRICE)
    before = model.predict(NEW)
    model.update(NEW, NEW_PRICE)
    assert np.isfinite(model.predict(NEW)).all()
    assert not np.array_equal(model.predict(NEW), before)
    model.save(tmp_path / "model.whvi")
    assert bits(WHVIRegressor.load(tmp_path / "model.whvi")) == bits(model)


def test_several_targets_and_counts_go_on():
    both = np.column_stack([PRICE, -PRICE])
    model = quick_regressor(max_iter=20).fit(TABLE, both)
    assert model.update(NEW, np.column_stack([NEW_PRICE, -NEW_PRICE])).predict(NEW).shape == (20, 2)
    with pytest.raises(DataError, match="y has 1 columns, but the model has 2"):
        model.update(NEW, NEW_PRICE)
    counts = quick_regressor(max_iter=20, likelihood="poisson").fit(TABLE, TABLE["count"])
    counts.update(NEW, NEW["count"] + 5)
    with pytest.raises(DataError, match="counts 0, 1, 2"):
        counts.update(NEW, NEW["count"] + 0.5)
    counts.likelihood = "auto"  # as if it had been chosen
    with pytest.raises(DataError, match=r"counts 0, 1, 2, .*holds -1"):
        counts.update(NEW, -1 - NEW["count"])


def test_holes_and_unknown_texts_are_as_in_a_prediction(fitted, tmp_path):
    odd = NEW.copy()
    odd.loc[3, "size"], odd.loc[4, "colour"] = np.nan, "mauve"
    model = copy.deepcopy(fitted).update(odd, NEW_PRICE)
    assert np.isfinite(model.predict(odd)).all()
    model.save(tmp_path / "model.whvi")
    assert bits(WHVIRegressor.load(tmp_path / "model.whvi")) == bits(model)


def test_one_row_is_enough(fitted):
    model = copy.deepcopy(fitted).update(NEW[:1], NEW_PRICE[:1])
    assert model.training_summary_["num_rows"] == len(TABLE) + 1


# ---- labels -------------------------------------------------------------------------------------


def labels_of(price):
    return np.where(price > 1, "high", np.where(price < -1, "low", "middle"))


def test_labels_go_on(fitted_classifier, tmp_path):
    some = NEW_PRICE > -1  # an update need not hold every class
    model = copy.deepcopy(fitted_classifier).update(NEW[some], labels_of(NEW_PRICE[some]))
    assert model.classes_.tolist() == ["high", "low", "middle"]
    model.save(tmp_path / "model.whvi")
    again = WHVIClassifier.load(tmp_path / "model.whvi")
    np.testing.assert_array_equal(again.predict_proba(NEW), model.predict_proba(NEW))
    with pytest.raises(DataError, match=r"not among the 3 classes of the model: 'vast'"):
        model.update(NEW[:2], ["high", "vast"])


def test_classes_may_come_later():
    few = labels_of(PRICE) != "low"
    model = quick_classifier(max_iter=20)
    model.partial_fit(TABLE[few], labels_of(PRICE[few]), classes=["low", "middle", "high"])
    assert model.predict_proba(TABLE).shape == (60, 3)
    model.partial_fit(TABLE[~few], labels_of(PRICE[~few]), classes=["high", "low", "middle"])
    with pytest.raises(ConfigError, match="not what the model was fitted with"):
        model.partial_fit(TABLE, labels_of(PRICE), classes=["high", "low"])
    with pytest.raises(DataError, match=r"not among the 2 classes .*'middle'"):
        quick_classifier().partial_fit(TABLE, labels_of(PRICE), classes=["high", "low"])
    binary = quick_classifier(max_iter=20).partial_fit(TABLE, PRICE > 0)
    assert binary.partial_fit(NEW, NEW_PRICE > 0).predict_proba(NEW).shape == (20, 2)


# ---- clear words --------------------------------------------------------------------------------


def test_ill_rows_are_refused_and_change_nothing(fitted):
    model = copy.deepcopy(fitted)
    missing = NEW_PRICE.copy()
    missing[7] = np.nan
    with pytest.raises(DataError, match=r"missing or infinite .*row 7"):
        model.update(NEW, missing)
    with pytest.raises(DataError, match="empty table: 0 sample"):
        model.update(NEW[:0], NEW_PRICE[:0])
    with pytest.raises(DataError, match="inconsistent numbers"):
        model.update(NEW, NEW_PRICE[:5])
    with pytest.raises(ValueError, match="feature names"):
        model.update(NEW.rename(columns={"size": "length"}), NEW_PRICE)
    with pytest.raises(ValueError, match="missing"):
        model.update(NEW[["size", "count"]], NEW_PRICE)
    assert bits(model) == bits(fitted)
    with pytest.raises(NotFittedError):
        quick_regressor().update(NEW, NEW_PRICE)


# ---- warm start ---------------------------------------------------------------------------------


def test_a_warm_start_goes_on_from_the_networks_there_are(fitted, tmp_path):
    both = pd.concat([TABLE, NEW], ignore_index=True), pd.concat([PRICE, NEW_PRICE])
    model = copy.deepcopy(fitted).set_params(warm_start=True, max_iter=1)
    near = np.abs(model.fit(*both).predict(NEW) - fitted.predict(NEW)).mean()
    afresh = quick_regressor(max_iter=1).fit(*both)
    far = np.abs(afresh.predict(NEW) - fitted.predict(NEW)).mean()
    assert near < 0.2 * far
    assert (model.n_iter_, model.training_summary_["num_rows"]) == (1, 80)
    model.save(tmp_path / "model.whvi")
    assert bits(WHVIRegressor.load(tmp_path / "model.whvi")) == bits(model)
    model.update(NEW, NEW_PRICE)


def test_a_warm_start_of_something_unfitted_is_a_fit(fitted):
    assert bits(quick_regressor(warm_start=True).fit(TABLE, PRICE)) == bits(fitted)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("hidden_layer_sizes", (8, 8)),
        ("n_members", 3),
        ("posterior", "full"),
        ("likelihood", "student_t"),
    ],
)
def test_a_warm_start_names_the_option_that_changed(fitted, option, value):
    model = copy.deepcopy(fitted).set_params(warm_start=True, **{option: value})
    with pytest.raises(ConfigError, match=rf"{option}=.* but {option} is now .*warm_start=False"):
        model.fit(TABLE, PRICE)


def test_a_warm_start_takes_texts_of_many_values():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"town": rng.choice([f"t{k}" for k in range(15)], 60), "a": TABLE["size"]})
    model = quick_regressor(max_iter=20, warm_start=True).fit(table, PRICE)
    assert np.isfinite(model.fit(table, PRICE + 1).predict(table)).all()
    assert np.isfinite(model.update(table[:5], PRICE[:5]).predict(table)).all()


# ---- weights ------------------------------------------------------------------------------------


def test_new_rows_have_weights(fitted):
    weights = np.arange(len(NEW)) % 2
    kept = weights > 0
    one = copy.deepcopy(fitted).update(NEW, NEW_PRICE, sample_weight=weights)
    other = copy.deepcopy(fitted).update(NEW[kept], NEW_PRICE[kept])
    assert bits(one) == bits(other)
    heavy = copy.deepcopy(fitted).update(NEW, NEW_PRICE, sample_weight=np.full(len(NEW), 3.0))
    assert bits(heavy) != bits(copy.deepcopy(fitted).update(NEW, NEW_PRICE))
    assert heavy._memory.weight.sum() == pytest.approx(len(TABLE) + 3 * len(NEW))
    with pytest.raises(DataError, match=r"sample_weight must have shape \(20,\)"):
        copy.deepcopy(fitted).update(NEW, NEW_PRICE, sample_weight=[1.0])


def test_a_warm_start_has_weights_and_sets_no_rows_apart(fitted):
    model = copy.deepcopy(fitted).set_params(warm_start=True)
    weights = np.where(np.arange(len(TABLE)) < 30, 0.0, 2.0)
    one = copy.deepcopy(model).fit(TABLE, PRICE, weights)
    other = copy.deepcopy(model).fit(TABLE[30:], PRICE[30:], weights[30:])
    assert bits(one) == bits(other) != bits(copy.deepcopy(model).fit(TABLE[30:], PRICE[30:]))
    with pytest.raises(ConfigError, match="rows apart that earlier fits have seen"):
        model.set_params(conformal_fraction=0.25).fit(TABLE, PRICE)


# ---- what a cold reading found ------------------------------------------------------------------


def test_a_warm_start_leaves_out_the_same_rows(fitted):
    model = copy.deepcopy(fitted).set_params(warm_start=True, max_iter=1)
    again = model.fit(TABLE, PRICE)
    assert 0.5 < again.noise_factor_ / fitted.noise_factor_ < 2
    assert again.candidates_ == []
    assert again.training_summary_["validation_mnll"] is not None


def test_each_warm_start_has_a_checkpoint_of_its_own(fitted, tmp_path):
    model = copy.deepcopy(fitted).set_params(warm_start=True)
    seen = {bits(model.fit(TABLE, PRICE, checkpoint=tmp_path)) for _ in range(3)}
    assert len(seen) == 3


def test_a_fit_that_fails_changes_nothing(fitted):
    model, before = copy.deepcopy(fitted), bits(fitted)
    with pytest.raises(DataError):
        model.fit(TABLE.iloc[:, ::-1], np.full(len(TABLE), np.nan))
    assert bits(model) == before
    assert model.n_features_in_ == fitted.n_features_in_

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(TABLE.iloc[:, :2], PRICE, callbacks=[stop])
    assert bits(model) == before


def test_a_loaded_model_with_a_full_covariance_goes_on(tmp_path):
    model = quick_regressor(posterior="full", hidden_layer_sizes=8).fit(TABLE, PRICE)
    model.save(tmp_path / "model.whvi")
    loaded = WHVIRegressor.load(tmp_path / "model.whvi").update(NEW, NEW_PRICE)
    assert bits(loaded) == bits(model.update(NEW, NEW_PRICE))


def test_balanced_classes_are_not_those_of_the_new_rows_alone(fitted_classifier):
    model = copy.deepcopy(fitted_classifier).set_params(class_weight="balanced")
    with pytest.raises(ConfigError, match="a mapping from labels to weights"):
        model.update(TABLE[:5], model.predict(TABLE[:5]))
    one = model.classes_[0]
    model.set_params(class_weight={model.classes_[-1]: 2.0})
    model.update(TABLE[:5], np.full(5, one))  # none of them has the label that is named
