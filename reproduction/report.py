"""What all reports share: averages, paired differences, Markdown tables, and the files themselves.

An experiment writes ``records.jsonl``; from the records alone come ``summary.json`` (rows of
averages) and ``README.md`` (tables). :func:`write_report` writes both.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduction.records import Record

SummaryRow = dict[str, Any]
SCORES = ("rmse", "mnll")


def write_report(folder: Path, summary: Any, page: str) -> None:
    """Write ``summary.json`` and ``README.md``."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "summary.json", json.dumps(summary, indent=1) + "\n")
    replace_file(folder / "README.md", page)


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically: a reader sees the old one or the new one."""
    temporary = path.with_suffix(path.suffix + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


# Averages -----------------------------------------------------------------------------------------


def mean(records: Iterable[Record], field: str) -> float:
    """Return the mean of a field over records."""
    return statistics.fmean(float(record[field]) for record in records)


def std(records: Iterable[Record], field: str) -> float:
    """Return the standard deviation of a field, divisor n − 1; 0 for one record."""
    return _std([float(record[field]) for record in records])


def _std(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def grouped(records: Iterable[Record], *fields: str) -> dict[Any, list[Record]]:
    """Return the records by the tuple of these fields; groups and records keep their order."""
    groups: dict[Any, list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record[field] for field in fields), []).append(record)
    return groups


def summarise_seeds(
    records: Iterable[Record],
    methods: Iterable[str],
    scores: Sequence[str],
    others: Sequence[str] = ("num_parameters", "num_train", "cpu_seconds"),
) -> list[SummaryRow]:
    """Average the records of every method over seeds, in the order of ``methods``."""
    groups = grouped(records, "method")
    return [
        {
            "method": name,
            "num_seeds": len(own),
            **{f"{score}_mean": mean(own, score) for score in scores},
            **{f"{score}_std": std(own, score) for score in scores},
            **{other: round(mean(own, other), 1) for other in others},
        }
        for name in methods
        if (own := groups.get((name,)))
    ]


def seed_cells(row: SummaryRow, scores: Sequence[str]) -> list[str]:
    """Return method, number of seeds, and mean ± standard error of every score."""
    seeds = row["num_seeds"]
    cells = [with_error(row[f"{s}_mean"], row[f"{s}_std"], seeds, ".4f") for s in scores]
    return [row["method"], str(seeds), *cells]


def with_error(value: float, spread: float, count: int, style: str) -> str:
    """Return ``mean ± standard error`` of ``count`` values; one alone has no error."""
    error = "" if count < 2 else f" ± {spread / math.sqrt(count):{style}}"
    return number(value, style) + error


# Paired differences: most of the spread of a score comes from the splits


@dataclass(frozen=True)
class Difference:
    """A score of the rival and of the reference on the splits that both have.

    Attributes:
        rival, reference: Means over the splits.
        standard_error: Of the mean difference ``rival − reference``.
    """

    rival: float
    reference: float
    standard_error: float

    @property
    def mean(self) -> float:
        """``rival − reference``: positive where the reference is better."""
        return self.rival - self.reference


@dataclass(frozen=True)
class Pair:
    """A rival beside the reference on one data set.

    Attributes:
        dataset, rival: Names.
        num_splits: How many (split, seed) both have.
        differences: By score.
    """

    dataset: str
    rival: str
    num_splits: int
    differences: dict[str, Difference]


def paired_differences(
    records: Iterable[Record], reference: str, scores: Sequence[str] = SCORES
) -> list[Pair]:
    """Compare every other method with ``reference`` wherever they share splits and seeds."""
    by_cell: dict[tuple[str, str], dict[tuple[int, int], Record]] = {}
    for record in records:
        cell = by_cell.setdefault((record["dataset"], record["method"]), {})
        cell[record["split"], record["seed"]] = record
    pairs = []
    for (dataset, rival), theirs in by_cell.items():
        ours = by_cell.get((dataset, reference), {})
        shared = sorted(ours.keys() & theirs.keys())
        if rival != reference and shared:
            found = {
                score: _difference([(theirs[k][score], ours[k][score]) for k in shared])
                for score in scores
            }
            pairs.append(Pair(dataset, rival, len(shared), found))
    return pairs


def _difference(both: list[tuple[float, float]]) -> Difference:
    rival, reference = (statistics.fmean(each) for each in zip(*both, strict=True))
    differences = [theirs - ours for theirs, ours in both]
    return Difference(rival, reference, _std(differences) / math.sqrt(len(both)))


# Cells and tables


def heading(title: str, records: Iterable[Record]) -> str:
    """Return the first lines of a page; they say if its records are those of a quick run."""
    quick = any(record["quick"] for record in records)
    return f"# {title}\n\n" + ("**A quick run: it tests the machinery only.**\n\n" if quick else "")


def number(value: float, style: str) -> str:
    """Format with a true minus sign."""
    return format(value, style).replace("-", "−")


def in_standard_errors(difference: float, standard_error: float) -> str:
    """Return ``difference / standard_error`` with its sign, or a dash if there is no error."""
    return number(difference / standard_error, "+.1f") if standard_error else "–"


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """Lay out ``lines`` of cells, the first being the header."""
    if len(lines) < 2:
        return "No records yet.\n"
    rule = ["---"] * len(lines[0])
    return "".join(f"| {' | '.join(line)} |\n" for line in (lines[0], rule, *lines[1:]))
