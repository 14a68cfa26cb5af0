from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from reproduction.table1.figure import draw_figure
from reproduction.table1.report import markdown, write_table1
from reproduction.table1.summary import summarise
from tests.reproduction.conftest import record

RECORDS = [
    record("mc-dropout", "boston", 0, 3.0, 2.5),
    record("whvi", "boston", 0, 2.0, 2.0),
    record("whvi", "boston", 1, 3.0, 3.0),
    record("whvi-best", "yacht", 0, 0.3, 0.5),
    record("extra-trees", "yacht", 0, 0.2, 0.7),
]


def test_the_summary_has_the_promised_fields() -> None:
    rows = summarise(RECORDS)
    assert [(row["dataset"], row["method"]) for row in rows] == [
        ("boston", "whvi"),
        ("boston", "mc-dropout"),
        ("yacht", "whvi-best"),
        ("yacht", "extra-trees"),
    ]
    first = rows[0]
    expected = {
        "dataset": "boston", "method": "whvi", "rmse_mean": 2.5, "mnll_mean": 2.5,
        "crps_mean": 1.25, "coverage95_mean": 0.9, "num_splits": 2, "num_parameters": 100,
        "seconds": 5.0,
    }  # fmt: skip
    assert {key: first[key] for key in expected} == expected
    assert first["rmse_std"] == first["mnll_std"] == pytest.approx(math.sqrt(0.5))
    assert rows[1]["rmse_std"] == 0.0


def test_the_tables_are_golden() -> None:
    text = markdown(RECORDS)
    for line in (
        "| data | splits | whvi | whvi-best | mc-dropout | extra-trees |",
        "| boston | 2 | **2.500 ± 0.500** |  | 3.000 (1) |  |",
        "| yacht | 1 |  | 0.300 |  | **0.200** |",
        "| boston | mc-dropout | 1 | 1.000 | – | 0.500 | – |",
        "| boston | whvi | **2.500** | 3.14 ± 0.71 | −1.3 | **2.500** | 4.33 ± 1.80 | −3.7 |",
        "| boston | mc-dropout | **3.000** | 3.91 ± 0.86 | – | **2.500** | 6.90 ± 2.93 | – |",
        "| boston | whvi | 2.500 | 2.75 | PASS | 2.5 | PASS | 2.500 | 2.45 | MISS | 2.25 | MISS |",
        "| yacht | whvi-best | 0.300 | 0.55 | PASS | 0.4 | PASS | 0.500 | 0.2 | MISS | −0.4 | MISS",
    ):
        assert line in text
    assert "log2(π)" in text
    assert "0.093" in text


def test_a_cell_of_few_splits_is_marked_and_never_bold() -> None:
    lucky = [*RECORDS, record("noisy-kfac", "boston", 1, 1.0, 1.0)]
    text = markdown(lucky)
    assert "| boston | 2 | **2.500 ± 0.500** |  | 3.000 (1) | 1.000 (1) |" in text


def test_the_report_is_a_function_of_the_records(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_table1(RECORDS, tmp_path / name)
    for file in ("summary.json", "README.md", "table1.svg"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert json.loads((tmp_path / "a" / "summary.json").read_text()) == summarise(RECORDS)
    assert (tmp_path / "a" / "table1.png").read_bytes().startswith(b"\x89PNG")
    assert "table1.svg" in (tmp_path / "a" / "README.md").read_text()


def test_no_records_give_an_empty_report(tmp_path: Path) -> None:
    write_table1([], tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text()) == []
    assert "No records yet" in (tmp_path / "README.md").read_text()
    assert not (tmp_path / "table1.svg").exists()


def test_the_figure_has_a_panel_per_data_set_and_score(tmp_path: Path) -> None:
    draw_figure(RECORDS, tmp_path / "table1")
    svg = (tmp_path / "table1.svg").read_text()
    assert svg.count('id="axes_') == 4


def test_errors_of_different_orders_have_a_logarithmic_axis(tmp_path: Path) -> None:
    far = [record("whvi", "naval", 0, 1e-4, -7.0), record("noisy-kfac", "naval", 0, 0.07, -5.0)]
    draw_figure(far, tmp_path / "table1")
    assert "10^{-3}" in (tmp_path / "table1.svg").read_text()
    draw_figure(RECORDS, tmp_path / "table1")
    assert "10^{" not in (tmp_path / "table1.svg").read_text()
