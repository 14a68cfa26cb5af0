"""Weights of rows and classes: 3 is about the row three times, 0 is no row, 1 changes no bit."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.multioutput import MultiOutputClassifier

from tests.tabular.conftest import mixed_table, quick_classifier, quick_regressor
from whvi.errors import ConfigError, DataError
from whvi.tabular import load_model


def two_minds(num_rows=60):
    """Rows whose targets are +1 and -1 at every ``x``, and weights of 3 and 1."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(num_rows, 2))
    sign = np.tile([1.0, -1.0], num_rows // 2)
    return x, sign, np.where(sign > 0, 3, 1)


# ---- no bit changes -----------------------------------------------------------------------------


@pytest.mark.parametrize("make", [quick_regressor, quick_classifier])
def test_weights_of_one_and_rows_of_weight_zero_change_no_bit(make):
    table, y = mixed_table()
    y = (y > 0).astype(int) if make is quick_classifier else y
    extra, _ = mixed_table(9, seed=5)
    more = pd.concat([extra[:5], table, extra[5:]], ignore_index=True)
    targets = np.r_[[7] * 5, y, [9] * 4]
    counts = np.r_[[0] * 5, [1] * 60, [0] * 4]
    expected = make().fit(table, np.asarray(y)).predict_dist(table).mean
    ones = make().fit(table, np.asarray(y), np.ones(60)).predict_dist(table).mean
    assert torch.equal(ones, expected)
    assert torch.equal(make().fit(more, targets, counts).predict_dist(table).mean, expected)


def test_a_class_of_weight_zero_does_not_exist():
    x, sign, _ = two_minds()
    labels = np.where(np.arange(60) < 6, "none", np.where(sign > 0, "yes", "no"))
    model = quick_classifier(class_weight={"none": 0, "yes": 1, "no": 1}).fit(x, labels)
    expected = quick_classifier().fit(x[6:], labels[6:])
    assert model.classes_.tolist() == ["no", "yes"]
    np.testing.assert_array_equal(model.predict_proba(x), expected.predict_proba(x))


def test_balanced_classes_change_no_bit():
    x, sign, _ = two_minds()
    expected = quick_classifier().fit(x, sign).predict_proba(x)
    balanced = quick_classifier(class_weight="balanced").fit(x, sign).predict_proba(x)
    np.testing.assert_array_equal(balanced, expected)


def test_a_checkpoint_is_of_its_weights(tmp_path):
    x, sign, weights = two_minds()
    first = quick_regressor().fit(x, sign, weights, checkpoint=tmp_path)
    for other in (None, weights + 1):
        with pytest.raises(ConfigError, match="another fit: data"):
            quick_regressor().fit(x, sign, other, checkpoint=tmp_path)
    again = quick_regressor().fit(x, sign, weights, checkpoint=tmp_path)
    np.testing.assert_array_equal(again.predict(x), first.predict(x))


# ---- three times the row ------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic"])
def test_weights_of_three_are_like_rows_three_times(likelihood):
    x, sign, weights = two_minds()
    options = {"likelihood": likelihood, "max_iter": 250, "n_members": 4}
    weighted = quick_regressor(**options).fit(x, sign, weights)
    repeated = quick_regressor(**options).fit(x.repeat(weights, axis=0), sign.repeat(weights))
    found = [np.mean(model.predict(x, return_std=True), axis=1) for model in (weighted, repeated)]
    # ±1 with probabilities 3/4 and 1/4 has mean 1/2 and standard deviation √3/2
    np.testing.assert_allclose(found[0], [0.5, 0.866], atol=0.15)
    np.testing.assert_allclose(found[0], found[1], atol=0.15)


def test_weighted_counts():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 1))
    y = np.tile([2, 10], 40)
    model = quick_regressor(likelihood="poisson", max_iter=250).fit(x, y, np.tile([3.0, 1.0], 40))
    assert model.predict(x).mean() == pytest.approx(4, abs=0.6)


@pytest.mark.parametrize("by", ["sample_weight", "class_weight", "both"])
def test_weights_of_labels_are_like_rows_three_times(by):
    x, sign, weights = two_minds()
    options = {"max_iter": 250, "n_members": 4}
    if by == "class_weight":
        model = quick_classifier(class_weight={1.0: 3, -1.0: 1}, **options).fit(x, sign)
    elif by == "sample_weight":
        model = quick_classifier(**options).fit(x, sign, weights)
    else:
        half = np.where(sign > 0, 1.5, 1.0)
        model = quick_classifier(class_weight={1.0: 2, -1.0: 1}, **options).fit(x, sign, half)
    repeated = quick_classifier(**options).fit(x.repeat(weights, 0), sign.repeat(weights))
    assert model.predict_proba(x)[:, 1].mean() == pytest.approx(0.75, abs=0.1)
    assert repeated.predict_proba(x)[:, 1].mean() == pytest.approx(0.75, abs=0.1)


def test_balanced_counts_weights():
    x, sign, weights = two_minds()
    model = quick_classifier(class_weight="balanced", max_iter=250).fit(x, sign, weights)
    assert model.predict_proba(x)[:, 1].mean() == pytest.approx(0.5, abs=0.1)


def test_the_scale_of_weights_is_the_number_of_rows():
    """More data make the function more certain."""
    x, y = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40) % 5.0
    options = {"max_iter": 250, "beta": 1.0, "linearize": False}
    few, many = (quick_regressor(**options).fit(x, y, np.full(40, w)) for w in (0.5, 50.0))
    assert many.predict_dist(x).epistemic.mean() < 0.7 * few.predict_dist(x).epistemic.mean()


@pytest.mark.parametrize(
    ("option", "match"),
    [
        ("equal", "'balanced'"),
        ({0: -1, 1: 1}, "at least 0"),
        ({0: "much", 1: 1}, "could not convert"),
        ({7: 1}, r"names \[7\], which are not among"),
        ([1, 2], "a mapping, got"),
    ],
)
def test_class_weights_that_make_no_sense(option, match):
    with pytest.raises(ConfigError, match=match):
        quick_classifier(class_weight=option).fit(np.eye(4), [0, 1, 0, 1])


@pytest.mark.parametrize("option", [None, "balanced", {"no": 1, "yes": 2.5}, {0: 1, 1: 2}])
def test_class_weights_are_kept_in_the_file(option, tmp_path):
    labels = np.array(["no", "yes"] if isinstance(option, dict) and "no" in option else [0, 1])
    model = quick_classifier(class_weight=option, max_iter=5).fit(np.eye(4), labels[[0, 1, 0, 1]])
    model.save(tmp_path / "m")
    assert load_model(tmp_path / "m").class_weight == option


# ---- several labels, logarithms, generators -----------------------------------------------------

SEVERAL = {
    "indicators": np.ones((4, 3), dtype=int),
    "frame": pd.DataFrame({"a": [0, 1, 0, 1], "b": [1, 1, 0, 0]}),
    "tensor": torch.ones(4, 2),
    "lists": [[1, 2]] * 4,
    "ragged lists": [[1], [1, 2], [], [3]],
}


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_several_labels_per_row_are_refused_with_a_way_out(name, class_weight):
    with pytest.raises(DataError, match=r"y has shape \(4, .*MultiOutputClassifier\(WHVICl"):
        quick_classifier(class_weight=class_weight).fit(np.eye(4), SEVERAL[name])


def test_the_way_out_is_one():
    x, _, weights = two_minds()
    labels = np.stack([x[:, 0] > 0, x[:, 1] > 0.3], axis=1)
    model = MultiOutputClassifier(quick_classifier(max_iter=300)).fit(x, labels, weights)
    assert (model.predict(x) == labels).mean() > 0.85
    alone = quick_classifier(max_iter=300).fit(x, labels[:, 1], weights)
    np.testing.assert_array_equal(model.predict(x)[:, 1], alone.predict(x))


@pytest.mark.parametrize("num_classes", [1, 2, 3])
def test_logarithms_of_probabilities(num_classes):
    x, *_ = two_minds()
    model = quick_classifier().fit(x, np.arange(60) % num_classes)
    log = model.predict_log_proba(x)
    np.testing.assert_allclose(log, np.log(model.predict_proba(x)), atol=1e-12)
    np.testing.assert_array_equal(model.predict_log_proba(x[:7]), log[:7])


@pytest.mark.parametrize("num_classes", [2, 3])
def test_logarithms_of_probabilities_that_are_too_small_for_numbers(num_classes):
    x, *_ = two_minds()
    model = quick_classifier(linearize=False).fit(x, np.arange(60) % num_classes)
    bias = model._predictor.functions.layers[-1].bias
    bias.zero_()[:, -1] = 3000.0
    assert model.predict_proba(x)[:, 0].max() == 0
    log = model.predict_log_proba(x)
    assert np.isfinite(log).all()
    np.testing.assert_allclose(log[:, 0], -3000, atol=100)


@pytest.mark.parametrize("make", [quick_regressor, quick_classifier])
def test_global_generators_are_left_alone(make):
    x, sign, weights = two_minds()
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()
    model = make(max_iter=5).fit(x, sign, weights)
    model.predict(x)
    model.predict_dist(x)
    model.far_share(x)
    if make is quick_regressor:
        model.sample_y(x, 2, random_state=0)
    else:
        model.predict_log_proba(x)
    assert torch.equal(torch.get_rng_state(), torch_before)
    numpy_after = np.random.get_state()
    assert numpy_after[2] == numpy_before[2]
    np.testing.assert_array_equal(numpy_after[1], numpy_before[1])


def test_weights_that_cancel_are_no_weights():
    x = np.random.default_rng(0).normal(size=(40, 2))
    y = np.tile(["a", "b"], 20)
    weights = np.where(y == "a", 2.0, 1.0)
    one = quick_classifier(class_weight={"a": 0.5}).fit(x, y, weights)
    np.testing.assert_array_equal(
        one.predict_proba(x), quick_classifier().fit(x, y).predict_proba(x)
    )
