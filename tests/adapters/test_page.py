"""The code of docs/adapters.md runs as it stands; its counts are those of the layers."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import nn

from whvi import WHVILinear

PAGE = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text()


def test_the_code_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    session: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL):
        exec(compile(block, "adapters.md", "exec"), session)
    assert all(type(session["plain"][i]) is nn.Linear for i in (0, 2, 4))


def test_the_counts_are_right() -> None:
    rows = re.findall(r"`num_blocks=(\d+)` \| ([\d,]+) \|", PAGE)
    assert len(rows) == 3
    for num_blocks, count in rows:
        layer = WHVILinear(384, 384, bias=False, num_blocks=int(num_blocks))
        assert sum(p.numel() for p in layer.parameters()) == int(count.replace(",", ""))
