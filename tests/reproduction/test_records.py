from __future__ import annotations

from pathlib import Path

import pytest

from reproduction.records import RecordStore
from whvi.errors import DataError


def record(split: int, **more: float) -> dict[str, object]:
    return {"method": "m", "dataset": "d", "split": split, "seed": 0, **more}


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    return RecordStore(tmp_path / "deep" / "records.jsonl")


def test_records_come_back(store: RecordStore) -> None:
    assert store.read() == {}
    assert store.append([record(0, rmse=0.1), record(1)]) == 2
    assert store.read() == {("m", "d", 0, 0): record(0, rmse=0.1), ("m", "d", 1, 0): record(1)}


def test_a_key_is_stored_once_and_the_first_value_stays(store: RecordStore) -> None:
    store.append([record(0, rmse=1.0)])
    assert store.append([record(0, rmse=2.0), record(1), record(1)]) == 1
    assert store.read()["m", "d", 0, 0]["rmse"] == 1.0
    assert store.path.read_bytes().count(b"\n") == 2


def test_a_torn_last_line_is_dropped(store: RecordStore) -> None:
    store.append([record(0)])
    whole = store.path.read_bytes()
    for cut in range(1, len(whole)):
        store.path.write_bytes(whole + whole[:cut].rstrip(b"\n"))
        assert list(store.read()) == [("m", "d", 0, 0)]
        assert store.append([record(1)]) == 1
        assert store.path.read_bytes().count(b"\n") == 2


def test_damage_inside_is_an_error_that_names_the_line(store: RecordStore) -> None:
    store.append([record(0), record(1)])
    store.path.write_bytes(store.path.read_bytes().replace(b'"split": 1', b'"spl'))
    with pytest.raises(DataError, match=r"records\.jsonl, line 2 is no record"):
        store.read()


def test_not_a_number_is_refused(store: RecordStore) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.append([record(0, rmse=float("nan"))])
    assert store.read() == {}
