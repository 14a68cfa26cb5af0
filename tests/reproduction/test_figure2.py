from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import reproduction
from reproduction.__main__ import main
from reproduction.data import SIMULATORS
from reproduction.figure2 import KEY_FIELDS, SEEDS, plan_figure2
from reproduction.figure2.cells import CELLS, DATASETS, METHODS, Cell
from reproduction.figure2.report import geometric_means, markdown, summarise
from reproduction.figure2.work import effort
from reproduction.records import RecordStore

ROW_FIELDS = {
    *("dataset", "method", "covariance", "count_inducing", "num_parameters"),
    *("rmse_mean", "mnll_mean", "seconds", "num_seeds"),
}


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
@pytest.mark.parametrize("side", [8, 16])
def test_every_model_has_at_least_the_budget_and_no_smaller_one_has(cell: Cell, side: int) -> None:
    budget = {"diagonal": 4 * side, "full": 3 * side + side * (side + 1) // 2}[cell.covariance]
    basis = cell.build(8, side)
    count = cell.count(basis)
    size = basis.num_coefficients
    posterior = 2 * size if cell.covariance == "diagonal" else size + size * (size + 1) // 2
    extra = {
        "whvi": 2 * side,
        "fourier": 0,
        "sparse-spectrum": 8 * size // 2,
        "sparse-gp": 8 * size,
    }
    assert count == posterior + (extra[cell.method] if cell.count_inducing else 0)
    assert count >= budget
    if cell.method == "whvi":
        assert count == budget
    else:
        step = 1 if cell.method == "sparse-gp" else 2
        assert size == 2 or cell.count(cell._of_size(8, size - step)) < budget


def test_both_accountings_are_there() -> None:
    counted, uncounted = (Cell("sparse-gp", "diagonal", flag) for flag in (True, False))
    assert counted in CELLS
    assert uncounted in CELLS
    assert counted.build(8, 16).num_coefficients == 7  # 7 · (2 + 8) = 70 ≥ 64
    assert uncounted.build(8, 16).num_coefficients == 32  # 32 · 2 = 64
    for cell in CELLS:
        assert Cell.of_name(cell.name) == cell


def test_the_plan_has_every_cell_once_and_small_models_first() -> None:
    units = plan_figure2(("whvi", "sparse-gp"), DATASETS, (0, 1))
    assert len(set(units)) == len(units) == 2 * 5 * (3 * 5 + 3 * 4)
    assert [unit.splits for unit in units] == sorted(unit.splits for unit in units)


def record(cell: Cell, dataset: str, side: int, seed: int, rmse: float) -> dict[str, object]:
    return {
        "cell": cell.name,
        "method": cell.method,
        "covariance": cell.covariance,
        "count_inducing": cell.count_inducing,
        "dataset": dataset,
        "side": side,
        "seed": seed,
        "num_parameters": 4 * side,
        "rmse": rmse,
        "mnll": math.log(rmse),
        "seconds": 1.0,
        "target_std": 2.0,
        "quick": False,
    }


def test_the_report_averages_seeds_and_says_who_wins() -> None:
    ours, theirs = Cell("whvi", "diagonal"), Cell("sparse-gp", "diagonal", count_inducing=False)
    records = [
        *(record(ours, "borehole", 8, seed, rmse) for seed, rmse in enumerate((0.1, 0.3))),
        record(ours, "piston", 8, 0, 0.2),
        record(theirs, "borehole", 8, 0, 0.4),
        record(theirs, "piston", 8, 0, 0.1),
    ]
    rows = summarise(records)
    assert rows[0]["rmse_mean"] == pytest.approx(0.2)
    assert rows[0]["num_seeds"] == 2
    assert all(row.keys() >= ROW_FIELDS for row in rows)
    means = geometric_means(rows)
    assert means["diagonal", 8, "WHVI"] == pytest.approx(0.2)
    assert means["diagonal", 8, "sparse GP, locations not counted"] == pytest.approx(0.2)
    part = summarise([*records, record(Cell("fourier", "diagonal"), "piston", 8, 0, 0.1)])
    assert ("diagonal", 8, "Fourier features") not in geometric_means(part)  # one set is missing
    page = markdown(rows, quick=False)
    assert "WHVI on borehole; sparse GP, locations not counted on piston" in page


def test_a_quick_run_writes_records_once(tmp_path: Path) -> None:
    options = ["figure2", "--quick", "--data", "friedman", "--no-progress", "-o", str(tmp_path)]
    assert main([*options, "--methods", "whvi", "fourier"]) == 0
    rows = json.loads((tmp_path / "summary.json").read_text())
    assert {(row["method"], row["covariance"]) for row in rows} == {
        (m, c) for m in ("whvi", "fourier") for c in ("diagonal", "full")
    }
    by_size = {
        row["num_parameters"]: row["rmse_mean"]
        for row in rows
        if (row["method"], row["covariance"]) == ("whvi", "diagonal")
    }
    # a wide band: 0.050 and 0.011 when it was stored
    assert by_size[64] < by_size[32] < 0.15
    assert by_size[64] < 0.04
    assert "A quick run" in (tmp_path / "README.md").read_text()
    for name in ("figure2.png", "figure2.svg", "figure2-time.png", "figure2-time.svg"):
        assert (tmp_path / name).stat().st_size > 1000
    records = (tmp_path / "records.jsonl").read_bytes()
    assert main([*options, "--methods", "whvi"]) == 0
    assert (tmp_path / "records.jsonl").read_bytes() == records


# The committed records ---------------------------------------------------------------------------

FOLDER = Path(reproduction.__file__).parent / "results" / "figure2"
RECORDS = RecordStore(FOLDER / "records.jsonl", KEY_FIELDS).read()


def test_committed_records_are_of_the_grid_of_today() -> None:
    assert len(RECORDS) == len((FOLDER / "records.jsonl").read_text().splitlines())
    planned = {
        (unit.method, unit.dataset, *unit.splits, unit.seed)
        for unit in plan_figure2(METHODS, DATASETS, SEEDS)
    }
    assert RECORDS.keys() <= planned
    for key, record in RECORDS.items():
        cell = Cell.of_name(record["cell"])
        training = effort(cell.method, record["side"], quick=False)
        assert (record["starts"], record["iterations"]) == (training.starts, training.iterations)
        assert not record["quick"], key


def test_committed_records_have_the_parameters_of_the_models_of_today() -> None:
    counts = {(r["cell"], r["dataset"], r["side"]): r["num_parameters"] for r in RECORDS.values()}
    for (name, dataset, side), count in counts.items():
        cell = Cell.of_name(name)
        assert cell.count(cell.build(SIMULATORS[dataset].num_inputs, side)) == count


def test_the_committed_summary_is_that_of_the_records() -> None:
    assert json.loads((FOLDER / "summary.json").read_text()) == summarise(RECORDS.values())
