from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from tests.tabular.conftest import mixed_table
from whvi.errors import DataError
from whvi.tabular.inputs import TableSchema


def learn(table, impute=False):
    return TableSchema.learn(table, named=True, target_names=["y"], impute=impute)


def test_columns_are_told_apart():
    table, _ = mixed_table()
    kinds = {column.name: column.kind for column in learn(table).columns}
    assert kinds == {
        "size": "numeric",
        "count": "numeric",
        "open": "boolean",
        "colour": "categorical",
    }


def test_encoding_is_one_hot_in_sorted_order():
    table = pd.DataFrame({"a": [1.5, 2.5], "b": ["y", "x"]})
    encoded = learn(table).encode(table)
    np.testing.assert_array_equal(encoded, [[1.5, 0, 1], [2.5, 1, 0]])


def test_an_unseen_text_is_none_of_the_known():
    schema = learn(pd.DataFrame({"b": ["y", "x"]}))
    new = pd.DataFrame({"b": ["z", "x"]})
    np.testing.assert_array_equal(schema.encode(new), [[0, 0], [1, 0]])
    assert schema.unseen(new) == {"b": ["z"]}


def test_missing_values_are_filled_if_asked_for():
    table = pd.DataFrame({"a": [1.0, np.nan, 4.0, 3.0], "b": ["x", None, "x", "z"]})
    schema = learn(table, impute=True)
    encoded = schema.encode(table)
    assert encoded[1, 0] == 3
    assert schema.columns[1].categories == ("missing", "x", "z")
    np.testing.assert_array_equal(encoded[1, 1:], [1, 0, 0])


@pytest.mark.parametrize("value", [np.nan, None])
def test_missing_values_are_refused_with_row_and_column(value):
    table = pd.DataFrame({"age": [1.0, value, value], "b": ["x", "x", "z"]})
    with pytest.raises(DataError, match=r"'age' holds 2 missing values .* first in row 1"):
        learn(table)


def test_a_schema_survives_plain_values():
    table, _ = mixed_table()
    schema = learn(table)
    assert TableSchema.from_dict(asdict(schema)) == schema
