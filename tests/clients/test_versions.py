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


def test_the_oldest_versions_are_those_of_the_package() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    accepted = dict(re.findall(r'"([\w-]+)(?:\[\w+\])?>=([\d.]+)"', text))
    accepted["python"] = re.findall(r'requires-python = ">=([\d.]+)"', text)[0]
    page = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `([\w-]+)` \| ≥ ([\d.]+) \|", page, re.MULTILINE))
    assert told.items() <= accepted.items()
    assert {"python", "torch", "numpy", "scikit-learn", "pandas"} <= told.keys()
    assert told.keys() >= {name for name in TABLE if name in ("transformers", "lightning")}


@pytest.mark.parametrize("package", TABLE)
def test_the_installed_version_is_the_tested_one(package: str) -> None:
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed: make clients")
    assert found.partition("+")[0] == TABLE[package]
