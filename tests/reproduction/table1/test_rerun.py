from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from reproduction.__main__ import main
from reproduction.table1.paper import DATASETS
from reproduction.table1.rerun import (
    MEAN_TOLERANCE,
    TOLERANCE,
    Change,
    Comparison,
    compare,
    comparison_table,
)
from tests.reproduction.conftest import record


def test_every_data_set_has_a_limit() -> None:
    assert set(TOLERANCE) == set(DATASETS)


def test_cells_are_compared_and_the_mean_of_the_row_follows() -> None:
    old = [record("whvi", "kin8nm", 0, 1.0, 2.0), record("whvi", "naval", 0, 1.0, 2.0)]
    new = [
        record("whvi", "kin8nm", 0, math.exp(0.06), 2.05),
        record("whvi", "naval", 0, math.exp(0.2), 1.85),
        record("whvi", "naval", 1, 9.0, 9.0),  # not recorded: nothing to compare with
    ]
    first, second, mean = compare(old, new)
    assert first == ("whvi", "kin8nm", pytest.approx((0.06, 0.05)), TOLERANCE["kin8nm"])
    assert second.change == pytest.approx((0.2, -0.15))
    assert (mean.dataset, mean.limit) == ("mean", MEAN_TOLERANCE)
    assert mean.change == pytest.approx((0.13, -0.05))
    assert (first.agrees, second.agrees, mean.agrees) == (True, True, False)
    assert comparison_table([mean]).endswith(
        "| whvi | mean | +0.130 | ± 0.10 | −0.050 | ± 0.15 | DISAGREES |\n"
    )


@pytest.mark.parametrize(
    ("change", "agrees"),
    [((0.1, 0.1), True), ((-0.1, -0.1), True), ((0.11, 0.0), False), ((0.0, -0.11), False)],
)
def test_both_scores_must_be_within_the_limits(change: tuple[float, float], agrees: bool) -> None:
    assert Comparison("whvi", "boston", Change(*change), Change(0.1, 0.1)).agrees is agrees
    assert not Change(math.nan, 0.0).within(Change(0.1, 0.1))


def test_a_rerun_is_stored_beside_the_records_and_compared(
    uci_root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["table1", "--quick", "--data", "yacht", "--methods", "whvi", "--no-progress"]
    options += ["--data-dir", uci_root, "-o", str(tmp_path)]
    assert main([*options, "--splits", "0"]) == 0
    assert main([*options, "--check"]) == 0
    assert (
        "| whvi | yacht | +0.000 | ± 0.50 | +0.000 | ± 0.50 | agrees |" in capsys.readouterr().out
    )
    (again,) = (tmp_path / "rerun.jsonl").read_text().splitlines()
    assert json.loads(again)["split"] == 0
    path = tmp_path / "records.jsonl"
    altered = {**json.loads(path.read_text()), "rmse": 100.0}
    path.write_text(json.dumps(altered) + "\n")
    assert main([*options, "--check"]) == 1
    assert "DISAGREES" in capsys.readouterr().out
    assert main([*options, "--report-only"]) == 0
    assert "## Splits run again" in (tmp_path / "README.md").read_text()
