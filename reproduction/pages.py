"""What the reports of the experiments share: spread, Markdown tables, files replaced at once."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path


def std(values: Sequence[float]) -> float:
    """Return the standard deviation, divisor n − 1; 0 for one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """Lay out ``lines`` of cells, the first being the header."""
    rule = ["---"] * len(lines[0])
    return "".join(f"| {' | '.join(line)} |\n" for line in (lines[0], rule, *lines[1:]))


def replace_file(path: Path, text: str) -> None:
    """Replace a file at once: a reader sees the old one or the new one."""
    temporary = path.with_suffix(path.suffix + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
