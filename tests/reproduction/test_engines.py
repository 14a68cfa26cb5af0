"""Units on a cluster, with threads of this process as the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reproduction import engines, runner
from reproduction.engines import Engine, compute, run_on_engine
from reproduction.records import CarriedRecords, Record, RecordStore
from reproduction.runner import Options, Unit, run_units
from tests.reproduction.remote_job import NotedWork
from whvi.errors import ConfigError, DataError, MissingDependencyError

UNITS = [Unit("a", "d", (2 * k, 2 * k + 1), 0) for k in range(6)]


@pytest.fixture
def engine() -> Iterator[Engine]:
    with ThreadPoolExecutor(2) as pool:
        yield Engine(pool.submit, lambda: 2, (ConnectionError,))


def stores(folder: Path) -> tuple[RecordStore, RecordStore]:
    return RecordStore(folder / "records.jsonl"), RecordStore(folder / "notes.jsonl")


def test_what_a_worker_adds_comes_back(tmp_path: Path) -> None:
    """It writes nothing itself."""
    store, notes = stores(tmp_path)
    notes.append([{"method": "z", "dataset": "d", "split": 0, "seed": 0}])
    found = compute(UNITS[0], NotedWork(CarriedRecords(notes)))
    assert [record["split"] for record in found.records] == [0, 1]
    assert [record["known"] for record in found.records] == [1, 1]
    assert [row["split"] for row in found.added["notes"]] == [0, 1]
    assert len(notes.read()) == 1
    assert not store.path.exists()


def test_carried_records_are_those_of_the_store(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "r.jsonl", ("a", "b"))
    store.append([{"a": 1, "b": 2, "c": 3}])
    carried = CarriedRecords(store)
    assert carried.read() == store.read()
    assert carried.append([{"a": 1, "b": 2, "c": 4}, {"a": 2, "b": 2}]) == 1
    assert carried.added == [{"a": 2, "b": 2}]
    assert list(carried.read()) == [(1, 2), (2, 2)]


@pytest.mark.parametrize("jobs", [1, 2, -1])
def test_later_units_see_what_earlier_ones_found(tmp_path: Path, engine: Engine, jobs: int) -> None:
    store, notes = stores(tmp_path)
    done = list(run_on_engine(engine, UNITS, NotedWork(notes), store, jobs=jobs))
    assert sorted(done) == UNITS
    known = {record["split"]: record["known"] for record in store.read().values()}
    assert len(known) == len(notes.read()) == 12
    # when a unit starts, at most so many others are under way: the rest is known
    slots = 2 if jobs == -1 else jobs
    assert all(known[2 * k] >= 2 * (k - slots + 1) for k in range(6))
    if jobs == 1:
        assert [known[2 * k] for k in range(6)] == [0, 2, 4, 6, 8, 10]


class FailingWork:
    """Fails with an exception."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, unit: Unit) -> list[Record]:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ModuleNotFoundError("no", name="reproduction"), ConfigError, "no module 'reproduction'"),
        (ConnectionError("gone"), ConfigError, "lost its workers too often: gone"),
        (DataError("no such table"), DataError, "no such table"),
    ],
)
def test_errors_of_workers(
    tmp_path: Path, engine: Engine, error: Exception, kind: type[Exception], message: str
) -> None:
    store, _ = stores(tmp_path)
    with pytest.raises(kind, match=message):
        list(run_on_engine(engine, UNITS, FailingWork(error), store, jobs=-1))


def test_a_cluster_that_sends_nothing_back_is_an_error(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Connection:
        def __enter__(self) -> Engine:
            return engine

        def __exit__(self, *error: object) -> None: ...

    def connected(backend: str, address: str | None) -> Connection:
        assert (backend, address) == ("dask", "tcp://a:1")
        return Connection()

    monkeypatch.setattr(runner, "connected", connected)
    store, _ = stores(tmp_path)
    options = Options(output=tmp_path, backend="dask", scheduler="tcp://a:1")
    with pytest.raises(DataError, match="12 of 12 records were not made"):
        run_units(UNITS, lambda unit: [], store, options)


@pytest.mark.parametrize(("backend", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_an_absent_package_is_named(
    monkeypatch: pytest.MonkeyPatch, backend: str, package: str
) -> None:
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        MissingDependencyError, match=rf"{package}: pip install 'whvi\[{backend}\]'"
    ):
        engines.connected(backend, None)
