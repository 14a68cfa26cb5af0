"""Paired differences and their averages over data sets, by hand."""

from __future__ import annotations

import json

import pytest

from reproduction.transforms.report import averages, write_page

FACTS = {"seed": 0, "num_parameters": 10, "num_steps": 5, "num_train": 7, "cpu_seconds": 1.0}


def record(method, dataset, split, **scores):
    return {"method": method, "dataset": dataset, "split": split, "quick": False, **FACTS, **scores}


def table(method, dataset, errors):
    return [
        record(method, dataset, k, rmse=error, mnll=error - 1) for k, error in enumerate(errors)
    ]


RECORDS = [
    *table("hadamard", "boston", [2.0, 3.0]),
    *table("dct", "boston", [2.5, 3.7]),
    *table("hadamard", "yacht", [1.0, 1.0]),
    *table("dct", "yacht", [0.5, 0.7]),
]


def test_averages_weigh_data_sets_equally() -> None:
    (mnll,) = averages(RECORDS, ("mnll",))
    assert mnll.mean == pytest.approx((0.6 - 0.4) / 2)
    # two splits whose differences are 0.2 apart: 0.2 / √2 / √2 each
    assert mnll.standard_error == pytest.approx(0.1 * 2**0.5 / 2)
    assert (mnll.num_less, mnll.num_more, mnll.num_sets) == (1, 1, 2)


def test_the_page_and_the_summary(tmp_path) -> None:
    image = [
        record(method, "fashion-mnist", k, accuracy=value, nll=1 - value)
        for method, value in (("hadamard", 0.8), ("butterfly", 0.9))
        for k in range(2)
    ]
    write_page([*RECORDS, *image], tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert "| dct | 2 | 3.1 | +0.6 ± 0.1 |" in page
    assert "+0.1000 ± 0.0000 (0 / 0 of 1)" in page
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {row["dataset"] for row in summary["rows"]} == {"boston", "yacht", "fashion-mnist"}
    assert (tmp_path / "transforms.png").exists()


def test_without_records(tmp_path) -> None:
    write_page([], tmp_path)
    assert "No records yet" in (tmp_path / "README.md").read_text()
