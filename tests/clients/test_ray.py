"""The reproduction on a Ray cluster of two workers, started on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reproduction.records import RecordStore
from reproduction.runner import Options, Unit, run_units
from tests.reproduction.remote_job import NotedWork

pytest.importorskip("ray", reason="ray is not installed: pip install 'whvi[ray]'")

ROOT = Path(__file__).parents[2]


@pytest.mark.filterwarnings("ignore")  # of Ray's sockets and processes
def test_a_worker_is_lost_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", paths)
    store, notes = (RecordStore(tmp_path / name) for name in ("r.jsonl", "n.jsonl"))
    units = [Unit("a", "d", (k,), 0) for k in range(6)]
    work = NotedWork(notes, str(tmp_path / "flag"), deadly=3, seconds=0.1)
    run_units(units, work, store, Options(output=tmp_path, backend="ray", jobs=2))
    assert (tmp_path / "flag").exists()
    records = list(store.read().values())
    assert sorted(record["split"] for record in records) == list(range(6))
    assert sorted(row["split"] for row in notes.read().values()) == list(range(6))
    assert os.getpid() not in {record["pid"] for record in records}
