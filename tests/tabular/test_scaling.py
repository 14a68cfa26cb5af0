"""What is learned from training rows: heavy tails, bins, effects of texts; odd targets."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import torch

from tests.tabular.conftest import quick_classifier, quick_regressor
from whvi.errors import DataError
from whvi.tabular import load_model
from whvi.tabular.inputs import Column, TableSchema
from whvi.tabular.scaling import Standardizer, learn_effects, learn_embedding


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


# ---- tails --------------------------------------------------------------------------------------


def test_ordinary_columns_are_standardised_and_nothing_else(rng):
    x = np.column_stack([rng.normal(3, 5, 200), rng.random(200) < 0.3, np.ones(200)])
    found = learn_embedding(x)(x, "cpu")
    np.testing.assert_array_equal(found.x, Standardizer.fit(x).transform(x).astype(np.float32))
    assert not learn_embedding(x).heavy.any()
    assert bool((found.stretch == 1).all())


def test_outliers_cannot_explode_and_leave_the_others_their_place(rng):
    x = rng.normal(size=(200, 1))
    x[0] = 1e12
    found = learn_embedding(x)(x, "cpu").x
    assert float(found.abs().max()) < 10
    assert float(found[1:].std()) > 0.5  # by mean and standard deviation they would all be equal
    order = np.argsort(x[:, 0])
    assert bool((found[order].diff(dim=0) > 0).all())  # no two are confused


def test_many_zeros_have_a_unit(rng):
    x = np.where(rng.random(300) < 0.9, 0.0, rng.lognormal(3, 2, 300))[:, None]
    embedding = learn_embedding(x, num_bins=16)
    assert embedding.heavy.all()
    assert bool(embedding(x, "cpu").x.isfinite().all())


def test_what_tails_hide_is_told_by_the_distance():
    x = np.array([[float(k), 2.0**k] for k in range(20)])
    embedding = learn_embedding(x)
    assert embedding.heavy.tolist() == [False, True]
    far = np.array([[100.0, 1.0], [0.0, 2.0**19], [0.0, 2.0**25], [0.0, 2.0**30]])
    bent, stretch, _ = embedding(far, "cpu")
    assert stretch[:2].flatten().tolist() == [1, 1]  # the first is far, and networks see it
    assert 1 < stretch[2] < stretch[3]
    assert float((bent[3] - bent[2]).abs().max()) < 0.1


def test_a_row_far_along_a_bent_column_is_far(rng):
    x = np.column_stack([rng.normal(size=80), rng.lognormal(0, 3, 80)])
    model = quick_regressor(n_members=2, max_iter=200).fit(x, x[:, 0] + np.log(x[:, 1]))
    assert model._predictor.embedding.heavy.tolist() == [False, True]
    far = np.array([[0.0, x[:, 1].max()], [0.0, 1e5], [0.0, 1e6]])
    near, farther, farthest = model.far_share(far)
    assert near <= farther <= farthest
    assert farthest > 0.9
    std = model.predict(far, return_std=True)[1]
    assert std[0] < std[1] < std[2]


# ---- bins ---------------------------------------------------------------------------------------


def test_bins_of_many_rows_are_standardised_without_holding_them_all(rng):
    x = rng.standard_t(2, size=(20_000, 20))
    tracemalloc.start()
    embedding = learn_embedding(x, num_bins=16)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 8 * x.nbytes  # all bins take 16 times the columns
    inputs = embedding(x, "cpu").x.double()
    assert inputs.shape[1] == 20 + 20 * 16
    torch.testing.assert_close(inputs.mean(0), torch.zeros(340).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        inputs.std(0, correction=0), torch.ones(340).double(), rtol=1e-6, atol=0
    )


def test_bins_lie_between_quantiles_and_fill_up(rng):
    x = np.column_stack([rng.random(400), rng.random(400) < 0.5])
    embedding = learn_embedding(x, num_bins=4)
    assert embedding.column.tolist() == [0] * 4  # two values need none
    z = (x - embedding.middle) / embedding.unit
    edges = np.quantile(z[:, 0], [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose([*embedding.left, embedding.right[-1]], edges)
    bins = embedding.features(z)[:, 2:]
    np.testing.assert_allclose(bins.sum(1), np.interp(z[:, 0], edges, range(5)), atol=1e-12)
    np.testing.assert_allclose(embedding(x, "cpu").x.mean(0), np.zeros(6), atol=1e-5)


def test_equal_quantiles_make_one_edge():
    x = np.array([[0.0]] * 90 + [[1.0]] * 5 + [[2.0]] * 5)
    embedding = learn_embedding(x, num_bins=16)
    assert len(embedding.column) == 2
    assert (embedding.left < embedding.right).all()


def test_steps_have_bins_and_smooth_functions_have_none(rng):
    x = rng.uniform(-1, 1, size=(400, 2))
    steps = np.sign(np.sin(9 * x[:, 0])) + (x[:, 1] > 0.3)
    options = {"hidden_layer_sizes": (32, 32), "n_members": 4, "max_iter": 600}
    rough = quick_regressor(**options).fit(x, steps)
    assert len(rough._predictor.embedding.column) == 32
    smooth = quick_regressor(**options).fit(x, x[:, 0] - 2 * x[:, 1])
    assert len(smooth._predictor.embedding.column) == 0
    assert {entry["bins"] for entry in smooth.candidates_} == {False, True}


def test_bins_come_back_from_a_file(rng, tmp_path):
    x = rng.uniform(-1, 1, size=(200, 2))
    model = quick_regressor(max_iter=300).fit(x, np.sign(np.sin(9 * x[:, 0])))
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert len(again._predictor.embedding.column) == len(model._predictor.embedding.column) > 0
    np.testing.assert_array_equal(again.predict(x), model.predict(x))


# ---- texts of many values -----------------------------------------------------------------------


def towns(rng, num_rows=300, num_towns=30):
    town = rng.integers(0, num_towns, num_rows)
    table = pd.DataFrame(
        {"town": [f"t{k:02}" for k in town], "kind": rng.choice(["a", "b"], num_rows)}
    )
    return table, town


def learn(table):
    return TableSchema.learn(table, named=True, target_names=("y",))


def test_effects_are_smoothed_means_and_the_log_share(rng):
    table, town = towns(rng)
    y = rng.normal(size=(300, 1)) + 5
    schema, _ = learn_effects(learn(table), table, y, 0)
    assert schema.columns[1].effects is None  # few texts
    effects = np.array(schema.columns[0].effects)
    mine = town == 7
    expected = (y[mine, 0] - y.mean()).sum() / (mine.sum() + 10)
    np.testing.assert_allclose(effects[7], [expected, np.log((mine.sum() + 0.5) / 300)])
    encoded = schema.encode(pd.DataFrame({"town": ["t07", "unheard of", None], "kind": ["a"] * 3}))
    np.testing.assert_allclose(encoded[0, 30:32], effects[7])
    np.testing.assert_allclose(encoded[1:, 30], [0, 0])  # no effect, and no town
    assert not encoded[1:, :30].any()


def test_weights_are_rows_several_times(rng):
    table, _ = towns(rng, num_rows=100)
    x, times = rng.normal(size=(100, 2)) + 3, np.arange(100) % 3
    found, repeated = Standardizer.fit(x, weights=times), Standardizer.fit(x.repeat(times, axis=0))
    np.testing.assert_allclose(found.mean, repeated.mean)
    np.testing.assert_allclose(found.scale, repeated.scale)
    schema, more = learn(table), table.loc[table.index.repeat(times)]
    weighted, encoded = learn_effects(schema, table, x, 0, times.astype(float))
    of_repeated, _ = learn_effects(schema, more, x.repeat(times, axis=0), 0)
    np.testing.assert_allclose(weighted.columns[0].effects, of_repeated.columns[0].effects)
    assert not np.allclose(encoded, learn_effects(schema, table, x, 0)[1])


def test_no_training_row_is_told_its_own_target(rng):
    table, _ = towns(rng, num_rows=60)
    y = rng.normal(size=(60, 1))
    other = y.copy()
    other[11] += 1000
    first, second = (
        learn_effects(learn(table), table, each - each.mean(), 0)[1] for each in (y, other)
    )
    changed = np.abs(first - second).max(1)
    assert changed[11] < 100  # it sees the mean of the others move, and not its own value
    assert changed.max() > 0


def test_noise_on_texts_that_occur_once_is_not_learned(rng):
    table = pd.DataFrame({"name": [f"n{k}" for k in range(200)]})
    y = rng.normal(size=(200, 1))
    encoded = learn_effects(learn(table), table, y, 0)[1]
    assert not encoded[:, -2].any()


def test_a_schema_with_effects_is_plain_json_and_lies_are_refused(rng):
    table, _ = towns(rng)
    schema, _ = learn_effects(learn(table), table, rng.normal(size=(300, 2)), 0)
    document = json.loads(json.dumps(asdict(schema)))
    assert TableSchema.from_dict(document) == schema
    assert schema.columns[0].width == 30 + 3
    with pytest.raises(DataError, match="effects of other categories"):
        Column(name="a", kind="categorical", dtype="str", categories=("x",), effects=((0.0,),))


@pytest.mark.parametrize("make", [quick_regressor, quick_classifier])
def test_towns_that_matter_are_learned_and_new_ones_are_predicted(make, rng, tmp_path):
    table, town = towns(rng, num_rows=400)
    y = (town % 3).astype(float)
    model = make(max_iter=300).fit(table, y)
    assert model.score(table, y) > 0.8
    new = table.assign(town="new")
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load_model(tmp_path / "model").predict(new), model.predict(new))


# ---- targets ------------------------------------------------------------------------------------


def test_one_typo_in_the_target_does_not_ruin_the_fit(rng):
    x = rng.normal(size=(300, 2))
    y = 3 * x[:, 0] + 0.1 * rng.normal(size=300)
    wrong = y.copy()
    wrong[17] = 1e12
    model = quick_regressor(max_iter=400).fit(x, wrong)
    assert np.sqrt(np.mean((model.predict(x) - y) ** 2)) < 0.6
    assert len(model.notes_) == 1
    assert "1e+12 in row 17" in model.notes_[0]
    assert not quick_regressor(max_iter=5).fit(x, y).notes_


def test_heavy_tails_that_are_meant_are_kept(rng):
    y = rng.standard_t(1.5, size=400)
    model = quick_regressor(max_iter=5, likelihood="auto").fit(rng.normal(size=(400, 1)), y)
    assert not model.notes_
    assert "student_t" in {entry["likelihood"] for entry in model.candidates_}


@pytest.mark.parametrize(
    ("draw", "tried"),
    [
        (lambda rng: rng.poisson(2, 200), {"poisson"}),
        (lambda rng: rng.normal(size=200), set()),
        (lambda rng: rng.integers(1990, 2020, 200), set()),
    ],
    ids=["counts", "normal", "years"],
)
def test_only_what_the_targets_ask_for_is_tried(draw, tried, rng):
    x = rng.normal(size=(200, 2))
    model = quick_regressor(likelihood="auto", max_iter=5).fit(x, draw(rng))
    found = {entry["likelihood"] for entry in model.candidates_}
    assert found == {"gaussian", "heteroscedastic"} | tried


def test_counts_are_taken_for_counts(rng):
    x = rng.normal(size=(400, 1))
    y = rng.poisson(np.exp(0.5 + 0.8 * x[:, 0]))
    model = quick_regressor(likelihood="auto", max_iter=200, linearize=False).fit(x, y)
    assert model.likelihood_ == "poisson"
    assert model.predict_dist(x).discrete
    mean = model.predict(x)
    assert np.abs(mean / np.exp(0.5 + 0.8 * x[:, 0]) - 1).mean() < 0.3


def test_outliers_are_taken_for_outliers(rng):
    x = rng.normal(size=(400, 1))
    y = x[:, 0] + 0.3 * rng.standard_t(1.2, size=400)
    model = quick_regressor(likelihood="auto", max_iter=200, linearize=False).fit(x, y)
    assert model.likelihood_ == "student_t"


# ---- holes that were never there ----------------------------------------------------------------


def test_a_hole_in_a_complete_column_widens_the_interval(rng):
    x = rng.normal(size=(300, 3))
    model = quick_regressor(n_members=4, max_iter=400).fit(x, 3 * x[:, 0] + 0.1 * x[:, 1])
    rows = np.zeros((3, 3))
    rows[0, 0] = rows[1, 2] = np.nan
    mean, std = model.predict(rows, return_std=True)
    assert std[0] > 1.5  # what decides is not known: about 3
    assert std[1] < 0.5 > std[2]  # what does not matter may be missing
    assert abs(mean[0]) < 1.5


def test_a_row_with_holes_changes_no_other_row(rng):
    x = rng.normal(size=(150, 3))
    model = quick_regressor(n_members=4, max_iter=60).fit(x, x[:, 0])
    holes = x.copy()
    holes[5, 1] = np.nan
    others = np.arange(150) != 5
    np.testing.assert_array_equal(model.predict(holes)[others], model.predict(x)[others])
    alone = model.predict(holes[5:6])
    np.testing.assert_array_equal(model.predict(holes)[5:6], alone)
    assert torch.is_tensor(model.predict_dist(holes).mean)


# ---- small tables and rare classes --------------------------------------------------------------


@pytest.mark.parametrize("num_rows", [20, 40])
def test_very_small_tables_beat_the_mean(num_rows, rng):
    x = rng.normal(size=(num_rows + 100, 3))
    y = x[:, 0] - x[:, 1] + 0.1 * rng.normal(size=num_rows + 100)
    model = quick_regressor(n_members=8, max_iter=400).fit(x[:num_rows], y[:num_rows])
    assert model.score(x[num_rows:], y[num_rows:]) > 0.5


def test_a_rare_class_keeps_its_share(rng):
    x = rng.normal(size=(1000, 2))
    rare = rng.random(1000) < 0.005
    rare[0] = True
    model = quick_classifier(n_members=4, max_iter=300).fit(x, rare)
    probs = model.predict_proba(x)[:, 1]
    assert probs.min() > 0
    assert probs.mean() == pytest.approx(rare.mean(), abs=0.01)
