"""What a benchmark yields: cells, kept as one JSON file per section."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.timing import Effort, Rival, measure

Case = dict[str, str | int]


class Cell(NamedTuple):
    """Rivals on one task.

    Attributes:
        case: What distinguishes the task within its section, such as ``{"D": 128}``.
        values: One number per rival, in ``unit``.
        left_out: Rivals that were not measured, with the reason.
        unit: ``"s"`` or ``"MiB"``.
    """

    case: Case
    values: dict[str, float]
    left_out: dict[str, str]
    unit: str = "s"


class Section(NamedTuple):
    """All cells of one topic, and where they were measured."""

    name: str
    title: str
    machine: dict[str, Any]
    cells: list[Cell]
    skipped: str = ""  # why there are no cells


def timed_cell(case: Case, rivals: Mapping[str, Rival | str], effort: Effort) -> Cell:
    """Measure a cell; a rival given as text is left out for that reason."""
    absent = {name: rival for name, rival in rivals.items() if isinstance(rival, str)}
    present = {name: rival for name, rival in rivals.items() if isinstance(rival, Rival)}
    times = measure(present, effort)
    return Cell(case, times.seconds, {**absent, **times.left_out})


def save(section: Section, folder: Path) -> None:
    """Write ``folder/<section>.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {**section._asdict(), "cells": [cell._asdict() for cell in section.cells]}
    text = json.dumps(_rounded(record), indent=1, ensure_ascii=False)
    (folder / f"{section.name}.json").write_text(text + "\n", encoding="utf-8")


def load(folder: Path) -> dict[str, Section]:
    """Read every section that ``folder`` holds; other records there have no cells."""
    sections = {}
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if "cells" not in record:
            continue
        record["cells"] = [Cell(**cell) for cell in record["cells"]]
        sections[record["name"]] = Section(**record)
    return sections


def _rounded(value: Any) -> Any:
    """Keep four digits: more are noise."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    return value
