from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reproduction.__main__ import main
from reproduction.data import CATALOGUE, load_uci
from reproduction.methods.selection import Choice, Known, choose
from reproduction.records import RecordStore
from reproduction.runner import Unit, plan_units
from reproduction.table1 import work as table1
from reproduction.table1.work import Table1Work, chunk_size, expected_cost

# yacht, split 0, 600 steps: a wide band around what was measured when it was stored
# (three seeds: RMSE 1.03 … 1.24, MNLL 1.69 … 1.71); the standard deviation of the target is 15.1
RMSE_BAND, MNLL_BAND = (0.4, 2.5), (1.0, 2.4)


def test_one_cell_stays_inside_its_band(uci_root: str, tmp_path: Path) -> None:
    options = ["table1", "--quick", "--methods", "whvi", "--data", "yacht", "--splits", "0"]
    options += ["--no-progress"]
    assert main([*options, "--data-dir", uci_root, "--output", str(tmp_path)]) == 0
    (row,) = json.loads((tmp_path / "summary.json").read_text())
    assert RMSE_BAND[0] < row["rmse_mean"] < RMSE_BAND[1]
    assert MNLL_BAND[0] < row["mnll_mean"] < MNLL_BAND[1]
    assert 0.8 <= row["coverage95_mean"] <= 1.0
    assert "A quick run" in (tmp_path / "README.md").read_text()
    records = (tmp_path / "records.jsonl").read_bytes()
    assert main([*options, "--data-dir", uci_root, "--output", str(tmp_path)]) == 0
    assert (tmp_path / "records.jsonl").read_bytes() == records


def test_choices_are_kept_for_a_restart(
    uci_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Table1Work(RecordStore(tmp_path / "choices.jsonl"), uci_root, quick=True)
    unit = Unit("hist-gradient-boosting", "yacht", (0, 1), 0)
    before = list(work(unit))

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("chosen already")

    monkeypatch.setattr(table1, "choose", refuse)
    again = list(work(unit))
    assert [r["rmse"] for r in again] == [r["rmse"] for r in before]
    assert [r["choice"] for r in again] == [r["choice"] for r in before]


def test_scores_are_shared_within_a_family_a_data_set_and_a_seed_only(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    named = [
        ("whvi", "yacht", 0),
        ("mean-field", "yacht", 0),
        ("whvi", "boston", 0),
        ("whvi", "yacht", 1),
    ]
    RecordStore(path).append(
        {"method": m, "dataset": d, "split": 2, "seed": k, "scores": {f"{m} {d} {k}": {}}}
        for m, d, k in named
    )
    work = Table1Work(RecordStore(path))
    known = work._scores_of_family(Unit("whvi-best", "yacht", (2,), 0))
    assert known == {2: {"whvi yacht 0": {}}}


def test_scores_of_an_earlier_grid_are_kept(tmp_path: Path) -> None:
    old, new = tmp_path / "old.jsonl", tmp_path / "choices.jsonl"
    name = {"dataset": "yacht", "split": 1, "seed": 0}
    RecordStore(old).append(
        [
            {**name, "method": "noisy-kfac", "scores": {"both": {"rmse": 1.0}, "gone": {}}},
            {**name, "method": "forgotten", "scores": {"other": {}}},
        ]
    )
    RecordStore(new).append([{**name, "method": "noisy-kfac", "scores": {"both": {"rmse": 2.0}}}])
    unit = Unit("noisy-kfac", "yacht", (1,), 0)
    known = Table1Work(RecordStore(new), scores=RecordStore(old))._scores_of_family(unit)
    assert known == {1: {"both": {"rmse": 2.0}, "gone": {}}}
    assert Table1Work(RecordStore(new))._scores_of_family(unit) == {1: {"both": {"rmse": 2.0}}}


def test_scores_of_other_splits_are_refused(
    uci_root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["table1", "--quick", "--methods", "hist-gradient-boosting", "--data", "yacht"]
    options += ["--data-dir", uci_root, "--splits", "0", "--no-progress"]
    first, second = tmp_path / "first", tmp_path / "second"
    assert main([*options, "--output", str(first), "--protocol", "random"]) == 0
    scores = str(first / "choices.jsonl")
    capsys.readouterr()
    assert main([*options, "--output", str(second), "--scores", scores]) == 2
    assert "by the protocol random, not literature" in capsys.readouterr().err
    assert not second.exists()


def test_kept_scores_are_not_computed_again(
    uci_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def spy(*args: Any, known: Known, **options: Any) -> list[Choice]:
        seen.append({split: set(scores) for split, scores in known.items()})
        return choose(*args, known=known, **options)

    monkeypatch.setattr(table1, "choose", spy)
    options = ["table1", "--quick", "--methods", "hist-gradient-boosting", "--data", "yacht"]
    options += ["--data-dir", uci_root, "--splits", "0", "--no-progress"]
    first, second = tmp_path / "first", tmp_path / "second"
    assert main([*options, "--output", str(first)]) == 0
    scores = str(first / "choices.jsonl")
    assert main([*options, "--output", str(second), "--scores", scores]) == 0
    assert seen[0] == {}
    assert len(seen[1][0]) == 1  # the one candidate of a quick run


def test_the_papers_protocol_draws_its_own_splits(uci_root: str, tmp_path: Path) -> None:
    unit = Unit("whvi", "yacht", (0,), 3)
    work = Table1Work(RecordStore(tmp_path / "choices.jsonl"), uci_root, protocol="random")
    dataset, given = work._dataset(unit), load_uci("yacht", uci_root)
    assert len(dataset.splits) == len(given.splits) == 20
    for split in dataset.splits:
        assert sorted([*split.train, *split.test]) == list(range(308))
        assert len(split.test) == len(given.splits[0].test)
    assert set(dataset.splits[0].test) != set(given.splits[0].test)
    other = work._dataset(unit._replace(seed=4))
    assert set(dataset.splits[0].test) != set(other.splits[0].test)


def test_the_longest_units_of_a_method_are_dealt_first() -> None:
    numbers = {name: range(entry.num_splits) for name, entry in CATALOGUE.items()}

    def order(method: str) -> list[tuple[str, int]]:
        units = plan_units([method], numbers, chunk=chunk_size, cost=expected_cost)
        return [(unit.dataset, len(unit.splits)) for unit in units]

    assert {name for name, _ in order("whvi")[:2]} == {"concrete", "energy"}
    assert order("whvi")[-2:] == [("protein", 3), ("protein", 2)]
    best = plan_units(["whvi-best"], numbers, chunk=chunk_size, cost=expected_cost)
    costs = [expected_cost(unit) for unit in best]
    assert costs == sorted(costs, reverse=True)
    narrow, wide = (
        expected_cost(Unit(method, "protein", (0, 1, 2), 0)) for method in ("whvi", "whvi-best")
    )
    assert wide > 5 * narrow  # 2,048 units, four members
    assert sum(count for _, count in order("extra-trees")) == 7 * 20 + 5


def test_the_estimator_makes_records_of_its_own(uci_root: str, tmp_path: Path) -> None:
    options = [
        "table1",
        "--quick",
        "--methods",
        "WHVIRegressor",
        "--data",
        "yacht",
        "--splits",
        "1",
    ]
    options += ["--data-dir", uci_root, "--no-progress", "-o", str(tmp_path)]
    assert main(options) == 0
    (record,) = RecordStore(tmp_path / "records.jsonl").read().values()
    assert (record["method"], record["split"], record["quick"]) == ("WHVIRegressor", 1, True)
    assert record["choice"].keys() == {"likelihood", "noise_factor"}
    assert not (tmp_path / "choices.jsonl").exists()
    (row,) = json.loads((tmp_path / "summary.json").read_text())
    assert (row["num_splits"], row["rmse_mean"]) == (1, record["rmse"])
    page = (tmp_path / "README.md").read_text()
    assert "| data | splits | WHVIRegressor |" in page
    svg = (tmp_path / "table1.svg").read_text()
    assert "WHVIRegressor" in svg
