"""The records in ``reproduction/results/gaps`` come from the splits and grids of today's code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reproduction.data import CATALOGUE, load_uci
from reproduction.gaps.methods import BEFORE, METHODS, ROWS
from reproduction.gaps.report import markdown, read_parts
from reproduction.gaps.splits import FEW, MOST_OTHERS
from reproduction.gaps.summary import summarise
from reproduction.gaps.toy_fits import read_toy
from reproduction.gaps.work import FILES, split_dataset
from reproduction.methods import DataSize
from reproduction.methods.selection import key

FOLDER = Path(__file__).parents[3] / "reproduction" / "results" / "gaps"


def lines(part: str) -> list[dict[str, Any]]:
    path = FOLDER / FILES[part]
    text = path.read_text() if path.exists() else ""  # a part that has not been run
    found = [json.loads(line) for line in text.splitlines()]
    names = [(r["method"], r["dataset"], r["split"], r["seed"]) for r in found]
    assert len(set(names)) == len(names), "a split is there twice"
    return found


RECORDS = {part: lines(part) for part in FILES}


def test_they_are_of_known_methods_and_of_no_quick_run() -> None:
    assert RECORDS["gaps"]
    for records in RECORDS.values():
        assert {r["method"] for r in records} <= set(ROWS)
        assert not any(r["quick"] for r in records)


def test_on_gaps_the_estimator_before_names_one_commit() -> None:
    commits = {r["commit"] for r in RECORDS["gaps"] if r["method"] == BEFORE}
    assert len(commits) == 1
    assert all(commits)
    assert not any(str(commit).endswith("dirty") for commit in commits)


@pytest.mark.parametrize("method", METHODS)
def test_the_choices_are_candidates_of_the_grid(method: str) -> None:
    for record in RECORDS["gaps"]:
        if record["method"] == method:
            size = DataSize(record["num_train"], CATALOGUE[record["dataset"]].num_columns)
            grid = [key(candidate) for candidate in METHODS[method].grid(size)]
            assert key(record["choice"]["settings"]) in grid


@pytest.mark.parametrize("name", ["boston", "concrete", "energy", "yacht"])
@pytest.mark.parametrize("part", FILES)
def test_the_splits_are_those_of_the_data(uci_root: str, part: str, name: str) -> None:
    dataset = load_uci(name, uci_root)
    splits = split_dataset(dataset, part, seed=0).splits
    for record in RECORDS[part]:
        if record["dataset"] == name:
            sizes = tuple(len(rows) for rows in splits[record["split"]])
            assert sizes == (record["num_train"], record["num_test"])
            assert record["data_sha256"] == dataset.sha256


def test_few_rows_are_twenty() -> None:
    assert {r["num_train"] for r in RECORDS["few"]} <= {FEW}
    assert all(r["num_test"] <= MOST_OTHERS for r in RECORDS["few"])


def test_summary_and_page_are_those_of_the_records() -> None:
    summary = json.loads((FOLDER / "summary.json").read_text())
    parts = read_parts(FOLDER)
    for part, records in parts.items():
        assert summary[part] == summarise(records)
    assert (FOLDER / "README.md").read_text() == markdown(parts, read_toy(FOLDER))
