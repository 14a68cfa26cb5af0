"""The reproduction on a Dask cluster: a scheduler and two workers, each a process elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reproduction import engines
from reproduction.__main__ import main
from reproduction.records import RecordStore
from reproduction.runner import Options, Unit, run_units
from tests.reproduction.remote_job import NotedWork

distributed = pytest.importorskip(
    "distributed", reason="distributed is not installed: make clients"
)

ROOT = Path(__file__).parents[2]
UNITS = [Unit("a", "d", (k,), 0) for k in range(8)]


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[str]:
    """Address of a scheduler with two workers of one thread, in folders of their own."""
    address_file = tmp_path / "scheduler.json"
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    quiet = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    file = ("--scheduler-file", str(address_file))
    options = ("--host", "127.0.0.1", "--no-dashboard")
    tool = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", *file, *options]
    processes = [subprocess.Popen(tool, cwd=tmp_path, **quiet)]
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        tool = [sys.executable, "-m", "distributed.cli.dask_worker", *file, *options]
        tool += ["--nthreads", "1", "--no-nanny", "--name", name]
        processes.append(subprocess.Popen(tool, cwd=folder, **quiet))
    try:
        address = f"tcp://127.0.0.1:{_port(address_file)}"
        with distributed.Client(address) as client:
            client.wait_for_workers(2, timeout=60)
        yield address
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def _port(file: Path) -> str:
    """Wait for the scheduler to write its address."""
    for _ in range(600):
        if file.exists() and (text := file.read_text()).rstrip().endswith("}"):
            return text.split("tcp://127.0.0.1:")[1].split('"')[0]
        time.sleep(0.05)
    raise TimeoutError("the scheduler did not start")


@pytest.mark.filterwarnings("ignore")  # of distributed's sockets, when workers are killed
def test_a_worker_is_lost_in_the_middle(scheduler: str, tmp_path: Path) -> None:
    """Every record is made once, on both workers, and written here; notes come back as well."""
    store, notes = (RecordStore(tmp_path / "here" / name) for name in ("r.jsonl", "n.jsonl"))
    work = NotedWork(notes, str(tmp_path / "flag"), deadly=4, seconds=0.3)
    options = Options(output=tmp_path / "here", backend="dask", scheduler=scheduler, jobs=-1)
    run_units(UNITS, work, store, options)
    assert (tmp_path / "flag").exists()
    records = list(store.read().values())
    assert sorted(record["split"] for record in records) == list(range(8))
    assert sorted(row["split"] for row in notes.read().values()) == list(range(8))
    workers = {record["folder"]: record["pid"] for record in records}
    assert workers.keys() == {str(tmp_path / "one"), str(tmp_path / "two")}
    assert len({r["pid"] for r in records if r["split"] >= 6}) == 1  # the other one is gone
    assert not [p for name in ("one", "two") for p in (tmp_path / name).rglob("*.jsonl")]


@pytest.mark.filterwarnings("ignore")  # of the sockets of distributed
def test_a_cell_of_the_table_from_the_shell(
    scheduler: str,
    uci_root: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a relative folder: the same scores as here, and choices beside the records."""
    monkeypatch.chdir(tmp_path)
    words = "table1 --quick --methods hist-gradient-boosting --data yacht --splits 0 --no-progress"
    command = [*words.split(), "--data-dir", uci_root]
    cluster = ["--backend", "dask", "--scheduler", scheduler, "-o", "there"]
    assert main([*command, *cluster]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'there' / 'README.md'}\n"
    assert main([*command, "-o", "here"]) == 0
    found = [RecordStore(tmp_path / name / "records.jsonl").read() for name in ("there", "here")]
    (one,), (other,) = (rows.values() for rows in found)
    assert one["rmse"] == other["rmse"]
    assert (tmp_path / "there" / "choices.jsonl").exists() == (
        tmp_path / "here" / "choices.jsonl"
    ).exists()


def test_a_cluster_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "figure2 --quick --no-progress --backend dask --scheduler tcp://127.0.0.1:1"
    monkeypatch.setattr(engines, "_SECONDS_TO_CONNECT", 1)
    assert main([*words.split(), "-o", str(tmp_path)]) == 2
    assert "127.0.0.1:1" in capsys.readouterr().err
