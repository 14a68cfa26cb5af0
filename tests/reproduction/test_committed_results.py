"""Pages and summaries in ``reproduction/results`` are those that the records beside them give."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from reproduction.__main__ import main

RESULTS = Path(__file__).parents[2] / "reproduction" / "results"
EXPERIMENTS = ("ood", "vae", "cifar", "clinc", "transforms", "tables")
COMMITTED = [name for name in EXPERIMENTS if (RESULTS / name / "records.jsonl").exists()]


@pytest.mark.parametrize("name", COMMITTED)
def test_the_page_is_made_from_the_records(name: str, tmp_path: Path) -> None:
    for path in (RESULTS / name).glob("*.jsonl"):
        shutil.copy(path, tmp_path)
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert records
    assert not any(record["quick"] for record in records)
    assert main([name, "--report-only", "-o", str(tmp_path)]) == 0
    for made in ("README.md", "summary.json"):
        assert (tmp_path / made).read_text() == (RESULTS / name / made).read_text()
