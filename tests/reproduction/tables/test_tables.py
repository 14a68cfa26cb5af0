from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from reproduction.__main__ import main
from reproduction.data import data_folder
from reproduction.tables.data import NUM_FOLDS, Table, load_table, table_names
from reproduction.tables.methods import METHODS, missing_package
from reproduction.tables.report import markdown, summarise
from reproduction.tables.work import UNFINISHED, log_mass, scores, within
from whvi.errors import DataError
from whvi.predictive import Predictive


@pytest.fixture
def table_root() -> str:
    try:
        return str(data_folder("tables").parent)
    except DataError as error:
        pytest.skip(str(error))


def small_table(task: str, num_rows: int = 60) -> Table:
    rng = np.random.default_rng(0)
    x = pd.DataFrame(
        {
            "number": rng.normal(size=num_rows),
            "holes": np.where(rng.random(num_rows) < 0.2, np.nan, rng.normal(size=num_rows)),
            "text": rng.choice(["a", "b", "c"], num_rows).astype(object),
        }
    )
    x.loc[3, "text"] = np.nan
    y = {"regression": x["number"] * 2, "count": rng.poisson(2, num_rows)}.get(
        task, rng.integers(0, 3, num_rows)
    )
    classes = 3 if task == "classification" else 0
    return Table("small", task, x, np.array(y, dtype=np.float64), classes, "0")


def test_all_tables_are_there_and_folds_part_their_rows(table_root: str) -> None:
    assert len(table_names(table_root)) == 26
    for name, rows, task in (
        ("machine", 209, "regression"),
        ("letter", 10_000, "classification"),
        ("credit", 4454, "classification"),
    ):
        table = load_table(name, table_root)
        assert (len(table.y), table.task) == (rows, task)
        tests = [table.fold(k)[1] for k in range(NUM_FOLDS)]
        assert sorted(np.concatenate(tests)) == list(range(rows))
        train, test = table.fold(0)
        assert not set(train) & set(test)
    with pytest.raises(DataError, match="there is no table 'iris'"):
        load_table("iris", table_root)


@pytest.mark.filterwarnings("ignore")  # of the rivals
@pytest.mark.parametrize("task", ["regression", "count", "classification"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_texts_and_holes(name: str, task: str) -> None:
    method = METHODS[name]
    if missing_package(name) or task not in method.tasks:
        pytest.skip(f"{name} is not there, or not for {task}")
    table = small_table(task)
    train, test = table.rows(np.arange(50)), table.rows(np.arange(50, 60))
    test.x.loc[0, "text"] = "new"
    ticks: list[None] = []
    predict = method.fit(train, 0, True, lambda: ticks.append(None))
    found = scores(predict(test.x), test, 1.0)
    assert ticks
    assert found.keys() == ({"accuracy", "mnll"} if task == "classification" else {"rmse", "mnll"})
    assert np.isfinite(list(found.values())).all()


def test_the_mass_of_a_count() -> None:
    counts = torch.arange(60.0)
    wide = Predictive.gaussian(torch.full((1, 60), 3.0), torch.full((1, 60), 2.0))
    mass = log_mass(wide, counts).exp()
    torch.testing.assert_close(mass.sum(), torch.ones_like(mass[0]), rtol=0, atol=1e-6)
    assert bool(log_mass(wide, counts).isfinite().all())
    poisson = Predictive.poisson(torch.full((1, 60), 3.0))
    assert torch.equal(log_mass(poisson, counts), poisson.log_prob(counts))


def test_scores_are_in_units_of_the_target() -> None:
    table = small_table("regression")
    y = torch.as_tensor(table.y)
    exact = Predictive.gaussian((y + 0.5).unsqueeze(0), torch.ones(1, len(y)).double())
    found = scores(exact, table, 2.0)
    assert found["rmse"] == pytest.approx(0.25)
    in_units = Predictive.gaussian(((y + 0.5) / 2).unsqueeze(0), torch.full((1, len(y)), 0.5))
    assert found["mnll"] == pytest.approx(-float(in_units.log_prob(y / 2).mean()))


def test_a_fit_that_takes_too_long_and_one_that_fails() -> None:
    def slow(tick):
        for _ in range(3):
            time.sleep(0.2)
            tick()
        time.sleep(60)

    begun = time.perf_counter()
    assert within(2.0, slow) == {"outcome": UNFINISHED}
    assert 2.0 < time.perf_counter() - begun < 20
    assert within(30.0, lambda tick: {"a": tick()}) == {"a": None}
    failed = within(30.0, lambda tick: {"a": 1 / 0})
    assert failed == {"outcome": "failed: ZeroDivisionError: division by zero"}


def record(method: str, fold: int, outcome: str = "done", **values: float) -> dict:
    return {
        "method": method,
        "dataset": "small",
        "split": fold,
        "seed": 0,
        "task": "regression",
        "outcome": outcome,
        "quick": False,
        "commit": "abc",
        **({"fit_seconds": 1.0, "predict_seconds": 1.0} if outcome == "done" else {}),
        **values,
    }


def test_the_page() -> None:
    records = [
        record("whvi", 0, rmse=0.4, mnll=0.1),
        record("whvi", 1, rmse=0.6, mnll=0.3),
        record("catboost", 0, rmse=1.0, mnll=0.5),
        record("extra-trees", 0, rmse=0.1, mnll=0.1),
        record("extra-trees", 1, UNFINISHED),
    ]
    rows = {row["method"]: row for row in summarise(records)}
    assert rows["whvi"]["rmse"] == pytest.approx(0.5)
    assert "rmse" not in rows["extra-trees"]
    page = markdown(records)
    assert (
        "| small | 0.500 | 1.000 (1 of 2) |" in page
    )  # nothing is best where nothing is beside it
    assert "| small | **0.500** | 1.000 |" in markdown(
        [*records, record("catboost", 1, rmse=1.0, mnll=1)]
    )
    assert UNFINISHED not in page.split("## Mean")[0] or "| did not finish |" in page
    # compared on fold 0, which catboost has as well
    assert "| whvi | 0.400 (1 tables) | 0.400 (small) | – (0 tables) | 1 of 1 |" in page


@pytest.mark.filterwarnings("ignore")  # of forking with threads
def test_a_quick_run_writes_records_and_resumes(table_root: str, tmp_path: Path) -> None:
    call = ["tables", "--quick", "--no-progress", "-o", str(tmp_path), "--data", "machine",
            "--methods", "hist-gradient-boosting", "extra-trees"]  # fmt: skip
    assert main(call) == 0
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["outcome"] for line in lines] == ["done", "done"]
    assert main([*call, "--folds", "0-1"]) == 0
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 4
    assert (tmp_path / "README.md").exists()


def test_folds_that_are_not_there_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tables", "--folds", "0-5"])
    assert "folds are 0 to 4" in capsys.readouterr().err
