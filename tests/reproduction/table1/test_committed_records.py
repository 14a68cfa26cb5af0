"""The records in ``reproduction/results/table1`` come from the grids that the code has today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reproduction.data import CATALOGUE
from reproduction.methods import DataSize, estimator
from reproduction.methods.grids import METHODS
from reproduction.methods.selection import key
from reproduction.table1.rerun import RERUN_FILE, compare
from reproduction.table1.summary import summarise

RESULTS = Path(__file__).parents[3] / "reproduction" / "results"
FOLDER = RESULTS / "table1"


def lines(name: str) -> dict[tuple[str, str, int, int], dict[str, Any]]:
    found = [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]
    by_key = {(r["method"], r["dataset"], r["split"], r["seed"]): r for r in found}
    assert len(by_key) == len(found), "a split is there twice"
    return by_key


RECORDS, CHOICES = lines("records.jsonl"), lines("choices.jsonl")


def grid_of(record: dict[str, Any]) -> list[str]:
    size = DataSize(record["num_train"], CATALOGUE[record["dataset"]].num_columns)
    return [key(candidate) for candidate in METHODS[record["method"]].grid(size)]


def test_every_record_has_its_choice() -> None:
    for each, record in RECORDS.items():
        if record["method"] == estimator.NAME:  # chooses by itself
            assert record["choice"].keys() == {"likelihood", "noise_factor"}, each
            assert each not in CHOICES
        else:
            assert record["choice"]["settings"] == CHOICES[each]["settings"], each
            assert record["choice"]["noise_factor"] == CHOICES[each]["noise_factor"], each


@pytest.mark.parametrize("method", METHODS)
def test_the_candidates_are_those_of_the_grid(method: str) -> None:
    """Records of a grid that has changed must be run again, not mixed with new ones."""
    chosen = [(k, record) for k, record in RECORDS.items() if k[0] == method]
    assert chosen
    for each, record in chosen:
        grid = grid_of(record)
        assert key(record["choice"]["settings"]) in grid, each
        assert set(CHOICES[each]["scores"]) == set(grid), each


def test_none_is_of_a_quick_run() -> None:
    assert not any(record["quick"] for record in RECORDS.values())
    assert {record.get("protocol", "literature") for record in RECORDS.values()} == {"literature"}


def test_the_summary_is_that_of_the_records() -> None:
    assert json.loads((FOLDER / "summary.json").read_text()) == summarise(RECORDS.values())


def test_splits_that_were_run_again_agree() -> None:
    if not (FOLDER / RERUN_FILE).exists():
        pytest.skip("no split was run again")
    assert all(each.agrees for each in compare(RECORDS.values(), lines(RERUN_FILE).values()))


@pytest.mark.parametrize("name", ["table1", "figure1", "figure2", "deep_gp"])
def test_every_experiment_has_a_summary(name: str) -> None:
    assert json.loads((RESULTS / name / "summary.json").read_text())
