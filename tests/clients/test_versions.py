"""The table of supported versions says what is installed and tested."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `([\w-]+)` \| ([\d.]+) \|", re.MULTILINE)
TABLE = dict(ROW.findall((ROOT / "docs" / "clients.md").read_text(encoding="utf-8")))


def test_the_table_is_what_is_installed_by_make_clients() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([\w-]+)==([\d.]+)$", text, re.MULTILINE))
    assert TABLE.items() <= pinned.items()
    assert pinned.keys() - TABLE.keys() == {"ruff", "mypy"}  # tools


@pytest.mark.parametrize("package", TABLE)
def test_the_installed_version_is_the_tested_one(package: str) -> None:
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed: make clients")
    assert found.partition("+")[0] == TABLE[package]
