from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import joblib
import pytest

from reproduction.records import RecordStore
from reproduction.runner import Options, Unit, missing_units, plan_units, run_units
from tests.reproduction.grid_job import METHODS, SPLITS, work
from whvi.errors import DataError

JOB = Path(__file__).with_name("grid_job.py")
ALL_KEYS = sorted([m, d, s, 0] for m in METHODS for d, numbers in SPLITS.items() for s in numbers)


def keys_of(path: Path) -> list[list[str | int]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted([row["method"], row["dataset"], row["split"], row["seed"]] for row in rows)


def test_a_grid_is_cut_into_units() -> None:
    units = plan_units(["a"], {"d": range(5)}, seeds=(0, 1), chunk=lambda name: 3)
    assert units[:2] == [Unit("a", "d", (0, 1, 2), 0), Unit("a", "d", (3, 4), 0)]
    assert [unit.seed for unit in units] == [0, 0, 1, 1]


def test_units_of_a_method_come_with_the_longest_first() -> None:
    splits = {"short": range(1), "long": range(9), "middle": range(2)}
    units = plan_units(["b", "a"], splits, chunk=lambda name: 5, cost=lambda unit: len(unit.splits))
    lengths = [(unit.method, unit.dataset, len(unit.splits)) for unit in units]
    own = [("long", 5), ("long", 4), ("middle", 2), ("short", 1)]
    assert lengths == [(method, *each) for method in ("b", "a") for each in own]


def test_a_unit_goes_on_with_the_missing_splits(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "records.jsonl")
    unit = Unit("a", "d", (0, 1, 2), 0)
    store.append(work(unit._replace(splits=(1,))))
    assert missing_units([unit], store) == [unit._replace(splits=(0, 2))]
    run_units([unit], work, store, Options(output=tmp_path))
    assert missing_units([unit], store) == []
    assert keys_of(store.path) == [["a", "d", k, 0] for k in range(3)]


def test_shards_are_a_partition(tmp_path: Path) -> None:
    units = plan_units(METHODS, SPLITS, chunk=lambda name: 5)
    store = RecordStore(tmp_path / "records.jsonl")
    for i in (1, 2, 3):
        before = len(store.read())
        run_units(units, work, store, Options(output=tmp_path, shard=(i, 3)))
        assert len(store.read()) == before + 40
    assert keys_of(store.path) == ALL_KEYS


def test_joblib_spreads_the_units_with_any_backend(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "records.jsonl")
    units = plan_units(METHODS, SPLITS, chunk=lambda name: 5)
    with joblib.parallel_config(backend="threading"):
        run_units(units, work, store, Options(output=tmp_path, jobs=2))
    assert keys_of(store.path) == ALL_KEYS


def test_all_cores(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "records.jsonl")
    units = plan_units(METHODS, SPLITS, chunk=lambda name: 20)
    with joblib.parallel_config(backend="threading"):
        run_units(units, work, store, Options(output=tmp_path, jobs=-1))
    assert keys_of(store.path) == ALL_KEYS


def test_records_that_were_not_made_are_an_error(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "records.jsonl")

    def lazy(unit: Unit) -> list[dict[str, object]]:
        return list(work(unit))[1:]

    with pytest.raises(DataError, match="2 of 4 records were not made"):
        run_units(
            [Unit("a", "d", (0, 1), 0), Unit("b", "d", (0, 1), 0)],
            lazy,
            store,
            Options(output=tmp_path),
        )


def test_the_progress_bar_leaves_stdout_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = RecordStore(tmp_path / "records.jsonl")
    unit = Unit("a", "d", (0, 1), 0)
    run_units([unit], work, store, Options(output=tmp_path, progress=True))
    out, err = capsys.readouterr()
    assert out == ""
    assert "a on d done" in err


def test_a_report_alone_computes_nothing(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "records.jsonl")
    options = Options(output=tmp_path, report_only=True)
    run_units([Unit("a", "d", (0, 1), 0)], work, store, options)
    assert store.read() == {}


@pytest.mark.parametrize(
    "times", [3, pytest.param(20, marks=pytest.mark.nightly)], ids="killed {}".format
)
def test_every_cell_exactly_once_however_often_killed(tmp_path: Path, times: int) -> None:
    path = tmp_path / "records.jsonl"
    subprocess.run([sys.executable, JOB, path, str(times)], check=True)
    assert keys_of(path) == ALL_KEYS
