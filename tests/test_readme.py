"""The code of the README runs as it stands, block after block in one session."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def test_there_are_blocks():
    assert len(BLOCKS) == 4


def test_the_blocks_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    session: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), session)
    assert "WHVILinear" in capsys.readouterr().out
    torch.testing.assert_close(
        session["out"],
        session["z"] @ session["whvi"].dense_matrix(*(session[n] for n in ("s1", "g", "s2"))).T,
        atol=1e-3,  # sums of 1024 products of four normals, in float32
        rtol=1e-3,
    )
    assert session["f"].shape == (100, 5, 1)


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
    ],
)
def test_links_to_files_lead_somewhere(page):
    text = (ROOT / page).read_text()
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    written_by_make_bench = {"benchmarks/results/README.md"}
    missing = [
        target
        for target in targets
        if target not in written_by_make_bench and not ((ROOT / page).parent / target).exists()
    ]
    assert not missing


def test_every_target_of_make_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text()
    pages = README + (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"^ *make (\w+)|`make (\w+)`", pages, flags=re.MULTILINE))
    targets = {name for pair in named for name in pair if name}
    assert {"demo", "test"} <= targets
    assert targets <= set(re.findall(r"^(\w+):", makefile, flags=re.MULTILINE))
