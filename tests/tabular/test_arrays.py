"""Whatever holds the same numbers gives the same fit; what makes no sense is refused."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from tests.tabular.conftest import mixed_table, quick_classifier, quick_regressor
from whvi.errors import ConfigError, DataError
from whvi.tabular import WHVIGPRegressor, arrays
from whvi.tabular.arrays import Rows, plain, row_weights


def holey(num_rows=40):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, 3)) * (rng.random((num_rows, 3)) < 0.5)
    return x, x[:, 0] - 0.3 * x[:, 2]


def sparse_frame(x):
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    return frame.astype({"a": pd.SparseDtype(float, 0.0), "c": pd.SparseDtype(float, 0.0)})


@pytest.mark.parametrize("kind", [quick_regressor, WHVIGPRegressor])
def test_targets_that_are_no_numbers(kind):
    x, _ = holey()
    days = pd.Series(pd.date_range("2020-01-01", periods=len(x)))
    for wrong in (days, days - days[0]):
        with pytest.raises(DataError, match="but are dates or durations"):
            kind().fit(x, wrong)
    with pytest.raises(DataError, match="targets must be numbers, but could not convert"):
        kind().fit(x, ["a"] * len(x))
    with pytest.raises(ValueError, match="NaN"):
        kind().fit(x, pd.array([1, None] * (len(x) // 2), dtype="Int64"))


SAME = {
    "csr": sparse.csr_array,
    "coo": sparse.coo_matrix,
    "csc": sparse.csc_matrix,
    "tensor": torch.tensor,
    "gradients": lambda x: torch.tensor(x, requires_grad=True),
    "sparse tensor": lambda x: torch.tensor(x).to_sparse(),
    "list": np.ndarray.tolist,
}


@pytest.mark.parametrize("name", SAME)
def test_containers_of_the_same_numbers_give_the_same_predictions(name):
    x, y = holey()
    expected = quick_regressor().fit(x, y).predict(x)
    of = SAME[name]
    targets = torch.tensor(y, requires_grad=True) if "tensor" in name else y
    model = quick_regressor().fit(of(x), targets)
    np.testing.assert_array_equal(model.predict(of(x)), expected)
    np.testing.assert_array_equal(model.predict(x), expected)


def test_sparse_columns_of_a_frame():
    x, y = holey()
    frame = sparse_frame(x)
    model = quick_regressor().fit(frame, y)
    dense = pd.DataFrame(x, columns=["a", "b", "c"])
    np.testing.assert_array_equal(model.predict(frame), model.predict(dense))
    np.testing.assert_array_equal(
        model.predict(frame), quick_regressor().fit(dense, y).predict(dense)
    )
    assert [*model.feature_names_in_] == ["a", "b", "c"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32, torch.bool])
def test_tensors_of_any_type(dtype):
    x = torch.tensor(holey()[0]).to(dtype)
    np.testing.assert_array_equal(plain(x), x.to(torch.float64).numpy())
    labels = (x[:, 0] > 0).to(dtype)
    model = quick_classifier(max_iter=5).fit(x, labels)
    assert model.predict(x).shape == (40,)


def test_labels_in_a_tensor_are_scored():
    x, y = holey()
    model = quick_classifier().fit(torch.tensor(x), torch.tensor(y > 0))
    assert model.score(torch.tensor(x), torch.tensor(y > 0)) > 0.6


@pytest.mark.filterwarnings("ignore:The Dataframe Interchange Protocol:Warning")
@pytest.mark.parametrize("module", ["polars", "pyarrow", "interchange"])
def test_frames_that_are_not_of_pandas(fitted, module):
    table, _ = mixed_table(20)
    if module == "interchange":
        other = Interchange(table)
    elif module == "polars":
        other = pytest.importorskip("polars").from_pandas(table)
    else:
        other = pytest.importorskip("pyarrow").Table.from_pandas(table)
    np.testing.assert_array_equal(fitted.predict(other), fitted.predict(table))


class Interchange:
    def __init__(self, frame):
        self.frame = frame

    def __dataframe__(self, **options):
        return self.frame.__dataframe__(**options)


def test_a_sparse_table_that_would_not_fit_in_memory(monkeypatch):
    x, y = holey()
    large = sparse.csr_array((1_000_000, 20_000))
    model = quick_regressor(max_iter=5).fit(x, y)
    with pytest.raises(
        DataError, match=r"1,000,000 x 20,000 cells takes 149\.0 GiB .* most is 1 G"
    ):
        model.predict(large)
    with pytest.raises(DataError, match="TruncatedSVD"):
        model.fit(large, np.zeros(1_000_000))
    monkeypatch.setattr(arrays, "MOST_DENSE_BYTES", 8 * 79)
    with pytest.raises(DataError, match="40 x 2 cells"):
        plain(sparse_frame(x))
    with pytest.raises(DataError, match="40 x 3 cells"):
        plain(torch.tensor(x).to_sparse())


def test_a_gaussian_process_takes_them_too_and_no_weights():
    x, y = holey()
    options = {"n_components": 16, "max_iter": 3, "random_state": 0}
    expected = WHVIGPRegressor(**options).fit(x, y).predict(x)
    model = WHVIGPRegressor(**options).fit(sparse.csr_array(x), torch.tensor(y))
    np.testing.assert_array_equal(model.predict(torch.tensor(x)), expected)
    with pytest.raises(ConfigError, match="got sample_weight; a WHVIRegressor"):
        model.fit(x, y, sample_weight=np.ones(40))


# ---- weights ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        ([1.0, -2.0, 1.0, 1.0], r"1 values .* \(first: -2\.0 in row 1\)"),
        ([1.0, 1.0, np.nan, 1.0], "first: nan in row 2"),
        ([np.inf, 1.0, 1.0, 1.0], "first: inf in row 0"),
        ([1.0] * 3, r"shape \(4,\), one for every row of X, got \(3,\)"),
        (np.ones((4, 1)), r"got \(4, 1\)"),
        (2.0, r"got \(\)"),
        (["a"] * 4, "must be numbers"),
    ],
)
def test_weights_that_make_no_sense(weights, match):
    with pytest.raises(DataError, match=match):
        row_weights(weights, 4)


def test_weights_of_one_are_none():
    assert row_weights(torch.ones(3), 3) is None
    assert row_weights(pd.Series([1, 2, 1]), 3).tolist() == [1, 2, 1]


@pytest.mark.parametrize("of", [list, np.array, pd.Series, lambda y: pd.DataFrame({"y": y})])
def test_rows_of_weight_zero_are_left_out(of):
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0]}, index=["x", "x", "z"])
    rows = Rows(table, of([5, 6, 7]))
    kept, y, weights = rows.weighted(np.array([1.0, 0.0, 2.0]))
    assert kept["a"].tolist() == [1, 3]
    assert np.ravel(y).tolist() == [5, 7]
    assert weights.tolist() == [1, 2]
    assert rows.weighted(np.array([1.0, 0.0, 1.0])).weights is None
    with pytest.raises(DataError, match="all 3 weights are zero"):
        rows.weighted(np.zeros(3))


def test_errors_name_rows_as_they_came():
    x, y = holey()
    x[7, 1] = np.inf
    with pytest.raises(DataError, match="first in row 7"):
        quick_regressor().fit(x, y, np.r_[np.zeros(3), np.ones(37)])
    with pytest.raises(DataError, match="X has 40 rows, y has 39"):
        quick_regressor().fit(x, y[1:], np.r_[np.zeros(3), np.ones(37)])
