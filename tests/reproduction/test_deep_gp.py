from __future__ import annotations

import json
import math
from pathlib import Path

from reproduction.__main__ import main


def test_a_quick_run_scores_every_model(tmp_path: Path) -> None:
    assert main(["deep_gp", "--quick", "-o", str(tmp_path)]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary.keys() == {"borehole"}
    committed = Path(__file__).parents[2] / "reproduction" / "results" / "deep_gp" / "summary.json"
    models = json.loads(committed.read_text())["borehole"]
    assert summary["borehole"].keys() == models.keys()
    for name, scores in summary["borehole"].items():
        assert scores.keys() == models[name].keys()
        assert all(math.isfinite(value) for value in scores.values())
