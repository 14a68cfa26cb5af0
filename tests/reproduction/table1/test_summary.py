from __future__ import annotations

from reproduction.table1.paper import DATASETS
from reproduction.table1.summary import own_table, rivals_table
from tests.reproduction.conftest import record

RECORDS = [
    record("whvi", "boston", 0, 2.0, -1.0),
    record("whvi", "boston", 1, 4.0, 3.0),
    record("whvi-ensemble", "yacht", 0, 1.0, 1.0),
    record("whvi-best", "boston", 1, 1.23456, -0.12345),
    record("mc-dropout", "boston", 1, 5.0, 2.5),
]


def test_our_methods_stand_beside_the_paper() -> None:
    lines = own_table(RECORDS).splitlines()
    assert lines[0].startswith("| data | WHVI, one model | ensemble of four | `whvi-best` | paper")
    cells = (
        "| boston | 3 / 1 | – | 1.235 / −0.123 (1 split) | 3.14 / 4.33 | 3.91 / 6.9 | 3.56 / 2.72 |"
    )
    assert lines[2] == cells
    assert lines[3].startswith("| concrete | – | – | – | 4.7 / 3.17 |")
    assert len(lines) == 2 + len(DATASETS)


def test_rivals_are_compared_on_shared_splits() -> None:
    lines = rivals_table(RECORDS).splitlines()
    assert lines[2] == "| boston | – | 1.25 / −0.50 (1) | – | – | – | – |"


def test_the_estimator_is_a_column_where_it_has_records() -> None:
    own = own_table([*RECORDS, record("WHVIRegressor", "boston", 0, 2.5, 1.0)]).splitlines()
    assert own[0].startswith(
        "| data | WHVI, one model | ensemble of four | `whvi-best` | `WHVIRegressor` | paper"
    )
    assert own[2].startswith(
        "| boston | 3 / 1 | – | 1.235 / −0.123 (1 split) | 2.5 / 1 (1 split) |"
    )
    assert "WHVIRegressor" not in rivals_table(RECORDS)
