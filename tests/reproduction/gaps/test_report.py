"""The page and the summary come from the records, which resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from reproduction.__main__ import main
from reproduction.gaps.methods import BEFORE
from reproduction.gaps.report import markdown
from reproduction.gaps.summary import summarise
from reproduction.gaps.work import with_before
from reproduction.methods.evaluation import scores
from whvi.predictive import Predictive


def record(method: str, split: int, mnll: float, *, dataset: str = "yacht") -> dict[str, object]:
    name = {"method": method, "dataset": dataset, "split": split, "seed": 0}
    covers = {"coverage50": 0.5, "width50": 1.0, "coverage90": 0.9, "width90": 2.0}
    sizes = {"num_distinct": 7, "num_train": 205, "num_test": 103, "num_parameters": 9}
    about = {"seconds": 2.0, "quick": False, "commit": "abc"}
    return {**name, "rmse": 1.0, "mnll": mnll, "crps": 0.5, **covers, **sizes, **about}


RECORDS = [record("whvi", 0, 1.0), record("whvi", 1, 3.0), record("exact-gp", 0, 0.5)]


def test_the_summary_has_mean_and_worst_column() -> None:
    whvi, gp = summarise(RECORDS)
    assert (whvi["mnll_mean"], whvi["mnll_worst"], whvi["worst_split"]) == (2.0, 3.0, 1)
    assert (whvi["num_splits"], gp["num_splits"], whvi["seconds"]) == (2, 1, 4.0)


def test_a_cell_with_fewer_columns_is_marked_and_never_bold() -> None:
    page = markdown({"gaps": RECORDS, "literature": [], "few": []}, {})
    assert "| yacht | 2 | **2.00 (3.00)** | 0.50 (0.50) [1] |" in page
    assert "| yacht | 1 | 7 | 205 | 103 | 3.00 |  |" in page
    assert "A quick run" not in page


def test_before_are_the_weight_draws_of_the_same_fit_unless_it_was_recorded() -> None:
    fits = [{**record("WHVIRegressor", k, 1.0), "near": {"mnll": 9.0}} for k in (0, 1)]
    recorded = record(BEFORE, 0, 5.0)
    found = {(r["method"], r["split"]): r["mnll"] for r in with_before([*fits, recorded])}
    assert found[BEFORE, 0] == 5.0
    assert found[BEFORE, 1] == 9.0
    assert found["WHVIRegressor", 1] == 1.0
    assert len(found) == 4


def test_scores_of_a_known_normal() -> None:
    y = torch.tensor([-3.0, -1.0, 0.0, 0.1], dtype=torch.float64)
    loc = torch.zeros(1, 4, dtype=torch.float64)
    found = scores(Predictive.gaussian(loc, torch.ones_like(loc)), y)
    assert (found["coverage50"], found["coverage90"]) == (0.5, 0.75)
    assert found["width50"] == pytest.approx(2 * 0.6744897502)
    assert found["width90"] == pytest.approx(2 * 1.6448536270)
    assert found["mnll"] == pytest.approx(0.9189385332 + 0.5 * 10.01 / 4)


def test_a_quick_run_resumes(uci_root: str, tmp_path: Path) -> None:
    words = "gaps --quick --data yacht --methods whvi WHVIRegressor --no-progress --parts gaps few"
    options = [*words.split(), "--data-dir", uci_root, "-o", str(tmp_path)]
    assert main([*options, "--splits", "0"]) == 0
    first = (tmp_path / "records.jsonl").read_bytes()
    assert main(options) == 0
    records = (tmp_path / "records.jsonl").read_bytes()
    assert records.startswith(first)
    assert len(records.splitlines()) == 4
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [row["num_splits"] for row in summary["gaps"]] == [2, 2, 2]
    assert [row["method"] for row in summary["few"]] == [BEFORE, "WHVIRegressor"]  # of one fit
    page = (tmp_path / "README.md").read_text()
    assert "A quick run" in page
    assert (tmp_path / "gaps.svg").exists()
    assert main([*options, "--report-only"]) == 0
    assert (tmp_path / "records.jsonl").read_bytes() == records
    assert (tmp_path / "README.md").read_text() == page
