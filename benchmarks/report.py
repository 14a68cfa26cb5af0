"""Write the results as Markdown: the floors first, then one table per section."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.floors import FLOORS, Verdict, floors_of, judge
from benchmarks.records import Cell, Section

_INTRODUCTION = """\
# Benchmark results

Written by `python -m benchmarks`; do not edit. Every time is the minimum over interleaved bursts
of calls. **Only ratios mean something on another machine**: a column "rival" shows how many times
as long the rival takes as the first column (more than 1: the first is faster).
"""


def write_report(sections: dict[str, Section], path: Path) -> None:
    """Write the Markdown file for the sections that were run."""
    path.write_text(render(sections), encoding="utf-8")


def render(sections: dict[str, Section]) -> str:
    """Return the whole report."""
    parts = [_INTRODUCTION, f"{_listed(_shared_facts(sections))}.\n", _floors(sections)]
    if "product" in sections:
        parts.append(_product_grids(sections["product"]))
    parts += [_section(section, _shared_facts(sections)) for section in sections.values()]
    return "\n".join(parts)


def _shared_facts(sections: dict[str, Section]) -> dict[str, Any]:
    """Return what is the same for all sections: not the load, unless by chance."""
    machines = [section.machine for section in sections.values()]
    first, *others = machines or [{}]
    return {
        key: value
        for key, value in first.items()
        if not key.startswith("load") and all(machine.get(key) == value for machine in others)
    }


def _listed(facts: dict[str, Any]) -> str:
    return ", ".join(f"{key}: {value}" for key, value in facts.items())


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _floors(sections: dict[str, Section]) -> str:
    verdicts = [judge(floor, sections.get(floor.section)) for floor in FLOORS]
    passed = sum(verdict.word == "PASS" for verdict in verdicts)
    header = ["section", "where", "floor", "worst figure", "at", ""]
    title = f"## Floors: {passed} of {len(verdicts)} hold\n"
    return f"{title}\n{_table(header, map(_floor_row, verdicts))}"


def _floor_row(verdict: Verdict) -> list[str]:
    floor, cell = verdict.floor, verdict.cell
    where = ", ".join(f"{key} {_wanted(value)}" for key, value in floor.where.items())
    figure = "–" if cell is None else f"{verdict.figure:.3g}"
    at = "" if cell is None else _free_part(cell, floor.where)
    return [floor.section, where, str(floor), figure, at, verdict.word]


def _wanted(value: object) -> str:
    if not isinstance(value, tuple):
        return str(value)
    return f"{value[0]}…{value[-1]}" if len(value) > 2 else " or ".join(map(str, value))


def _free_part(cell: Cell, where: dict[str, object]) -> str:
    """Say which of the cells under a floor this is."""
    fixed = {key for key, value in where.items() if not isinstance(value, tuple)}
    return ", ".join(f"{key} {value}" for key, value in cell.case.items() if key not in fixed)


def _product_grids(section: Section) -> str:
    """Batch by width: how many times as long ``nn.Linear`` takes, shared g / noise per row."""
    parts = ["## Product: time of nn.Linear ÷ ours (one g for all rows / noise per row)\n"]
    for run in dict.fromkeys(cell.case["run"] for cell in section.cells):
        chosen = [cell for cell in section.cells if cell.case["run"] == run]
        sizes = list(dict.fromkeys(cell.case["D"] for cell in chosen))
        batches = list(dict.fromkeys(cell.case["batch"] for cell in chosen))
        found = {(cell.case["batch"], cell.case["D"]): _pair(cell) for cell in chosen}
        rows = [[str(batch), *[found[batch, size] for size in sizes]] for batch in batches]
        header = [f"{run}: batch", *[f"D={size}" for size in sizes]]
        parts.append(_table(header, rows))
    return "\n".join(parts)


def _pair(cell: Cell) -> str:
    dense = cell.values.get("nn.Linear")
    if dense is None:
        return "–"
    return " / ".join(_ratio(dense / cell.values[n]) for n in ("whvi", "whvi, noise per row"))


def _section(section: Section, shared: dict[str, Any]) -> str:
    own = {key: section.machine[key] for key in section.machine if key not in shared}
    parts = [f"## {section.title}\n", f"{_listed(own)}.\n"]
    if section.skipped:
        parts.append(f"Skipped: {section.skipped}\n")
    parts += _tables(section)
    return "\n".join(parts)


def _tables(section: Section) -> Iterator[str]:
    """Yield one table for each set of columns that the cells of the section have."""
    groups: dict[tuple[tuple[str, ...], ...], list[Cell]] = {}
    for cell in section.cells:
        names = tuple(dict.fromkeys([*cell.values, *cell.left_out]))
        key = (tuple(cell.case), tuple(sorted(names)), (cell.unit,))
        groups.setdefault(key, []).append(cell)
    for cells in groups.values():
        rivals = _rivals_of(cells)
        header = [*cells[0].case, f"{rivals[0]}, {_shown_unit(cells[0])}", *rivals[1:], "floors"]
        yield _table(header, [_row(section.name, cell, rivals) for cell in cells])
        reasons = {f"{name}: {why}" for cell in cells for name, why in cell.left_out.items()}
        if reasons:
            yield f"Left out (–): {'; '.join(sorted(reasons))}.\n"


def _rivals_of(cells: list[Cell]) -> list[str]:
    """Names in the order of the fullest cell."""
    fullest = max(cells, key=lambda cell: len(cell.values))
    return list(dict.fromkeys([*fullest.values, *fullest.left_out]))


def _shown_unit(cell: Cell) -> str:
    return "µs" if cell.unit == "s" else cell.unit


def _row(section: str, cell: Cell, rivals: list[str]) -> list[str]:
    first = cell.values.get(rivals[0])
    factor = 1e6 if cell.unit == "s" else 1
    shown = "–" if first is None else f"{first * factor:.4g}"
    ratios = [
        _ratio(cell.values[name] / first) if first and name in cell.values else "–"
        for name in rivals[1:]
    ]
    return [*map(str, cell.case.values()), shown, *ratios, _verdicts(section, cell)]


def _verdicts(section: str, cell: Cell) -> str:
    """Say what holds; name what does not, with its figure."""
    judged = list(floors_of(section, cell))
    missed = [f"MISS {floor}: {figure:.3g}" for floor, figure in judged if not floor.holds(figure)]
    return "; ".join(missed) if missed else ("PASS" if judged else "")


def _ratio(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.3g}"
