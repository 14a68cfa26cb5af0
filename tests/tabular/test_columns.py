import json
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from tests.tabular.conftest import mixed_table
from whvi.errors import DataError
from whvi.tabular.inputs import TableSchema


def learn(table):
    return TableSchema.learn(table, named=True, target_names=("y",))


def test_columns_are_told_apart():
    table, _ = mixed_table()
    kinds = {column.name: column.kind for column in learn(table).columns}
    assert kinds == {
        "size": "numeric",
        "count": "numeric",
        "open": "boolean",
        "colour": "categorical",
    }


@pytest.mark.parametrize(
    ("values", "is_told"),
    [
        ([2**53 + 1, 2**60], True),
        ([float(2**60), None], True),
        ([2**53, 5], False),
        ([2.0**60, 0.5], False),
        ([1e30, 2e30], False),
    ],
)
def test_whole_numbers_beyond_a_float_are_told(values, is_told):
    table = pd.DataFrame({"a": [0.5, 2.0], "id": values})
    told = learn(table).rounded(table)
    assert ["column 'id' holds whole numbers up to" in note for note in told] == [True] * is_told


def test_encoding_is_one_hot_in_sorted_order():
    table = pd.DataFrame({"a": [1.5, 2.5], "b": ["y", "x"]})
    encoded = learn(table).encode(table)
    np.testing.assert_array_equal(encoded, [[1.5, 0, 1], [2.5, 1, 0]])


def test_an_unseen_text_is_none_of_the_known():
    schema = learn(pd.DataFrame({"b": ["y", "x"]}))
    new = pd.DataFrame({"b": ["z", "x"]})
    np.testing.assert_array_equal(schema.encode(new), [[0, 0], [1, 0]])
    assert schema.unseen(new) == {"b": ["z"]}


def test_missing_values_are_filled_and_marked():
    table = pd.DataFrame({"a": [1.0, np.nan, 4.0, 3.0], "b": ["x", None, "x", "z"]})
    schema = learn(table)
    encoded = schema.encode(table)
    assert schema.columns[1].categories == ("missing", "x", "z")
    np.testing.assert_array_equal(encoded[:, :2], [[1, 0], [3, 1], [4, 0], [3, 0]])
    np.testing.assert_array_equal(encoded[1, 2:], [1, 0, 0])


@pytest.mark.parametrize("hole", [np.nan, None, pd.NA])
def test_complete_columns_take_holes_later(hole):
    schema = learn(pd.DataFrame({"a": [1.0, 2.0, 6.0], "b": ["x", "x", "z"], "c": [True] * 3}))
    new = pd.DataFrame({"a": [hole], "b": [hole], "c": [hole]}, dtype=object)
    np.testing.assert_array_equal(schema.encode(new), [[np.nan, 0, 0, np.nan]])


def test_a_column_without_values_is_no_input():
    table = pd.DataFrame({"a": [1.0, 2.0], "none": [None, None]})
    schema = learn(table)
    assert [column.width for column in schema.columns] == [1, 0]
    np.testing.assert_array_equal(schema.encode(table.assign(none=[5, 6])), [[1], [2]])
    with pytest.raises(DataError, match="no column holds a value"):
        learn(table[["none"]])


def test_dates_become_days_years_months_and_weekdays():
    days = pd.to_datetime(["1970-01-02 12:00", None, "2020-02-29 00:00"])
    table = pd.DataFrame({"day": days})
    schema = learn(table)
    assert schema.columns[0].kind == "date"
    expected = [[1.5, 1970, 1, 4, 0], [None, 1995, 1, 2, 1], [18321, 2020, 2, 5, 0]]
    expected[1][0] = (1.5 + 18321) / 2
    found = schema.encode(table)
    np.testing.assert_array_equal(found[[0, 2]], np.array(expected, dtype=float)[[0, 2]])
    assert found[1, 0] == expected[1][0]
    assert found[1, 4] == 1
    with pytest.raises(DataError, match="holds numbers, which it did not hold"):
        schema.encode(pd.DataFrame({"day": [1.0]}))


def test_categories_are_bounded():
    """One-hot columns of 9,000 texts took 6.5 GB; the rare ones are as unknown ones."""
    texts = [f"t{k}" for k in range(3000)] + ["often"] * 5
    schema = learn(pd.DataFrame({"a": texts}))
    assert schema.columns[0].width == 256
    assert "often" in schema.columns[0].categories


@pytest.mark.parametrize("code", [1, 1.0, np.float32(1), "1"])
def test_a_category_is_a_text_whatever_the_type_of_the_column(code):
    schema = learn(pd.DataFrame({"a": ["1", "x"]}))
    np.testing.assert_array_equal(schema.encode(pd.DataFrame({"a": [code]})), [[1, 0]])


def test_a_schema_survives_plain_values():
    table, _ = mixed_table()
    schema = learn(table)
    assert TableSchema.from_dict(json.loads(json.dumps(asdict(schema)))) == schema
