"""The report of the gap experiment, made from its records and from nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from reproduction.gaps.figure import draw_gaps, draw_toy
from reproduction.gaps.methods import BEFORE, ROWS, RUN
from reproduction.gaps.splits import MOST_TEST_ROWS, MOST_TRAINING_ROWS
from reproduction.gaps.summary import summarise
from reproduction.gaps.toy_fits import ToyFit, gap_ratio, read_toy
from reproduction.gaps.work import FILES, with_before
from reproduction.methods import estimator
from reproduction.records import Record, RecordStore
from reproduction.report import SummaryRow, markdown_table, number, write_report
from reproduction.table1.paper import DATASETS
from whvi.errors import DataError

TABLE_1 = "table1/records.jsonl"
"""Whose estimator is that of this experiment, in distribution."""

Choose = Callable[[SummaryRow], float]
Show = Callable[[SummaryRow], str]


def write_gaps(folder: Path) -> None:
    """Write ``summary.json``, ``README.md`` and the figures."""
    parts = read_parts(folder)
    fits = read_toy(folder)
    if not fits and not any(parts.values()):
        raise DataError(f"{folder} has no records: there is nothing to report")
    summary = {part: summarise(records) for part, records in parts.items()}
    toy = [{"method": name, **gap_ratio(fit, fits)} for name, fit in fits.items()]
    write_report(folder, {**summary, "toy": toy}, markdown(parts, fits))
    if parts["gaps"]:
        draw_gaps(parts["gaps"], folder / "gaps")
    if fits:
        draw_toy(fits, folder / "toy")


def read_parts(folder: Path) -> dict[str, list[Record]]:
    """Read the records of every part; those of the literature's splits are Table 1's."""
    files = {**FILES, "literature": f"../{TABLE_1}"}
    read = {part: list(RecordStore(folder / name).read().values()) for part, name in files.items()}
    read["literature"] = [r for r in read["literature"] if r["method"] == estimator.NAME]
    return {part: with_before(records) for part, records in read.items()}


def markdown(parts: dict[str, list[Record]], fits: dict[str, ToyFit]) -> str:
    """Return the page."""
    rows = summarise(parts["gaps"])
    quick = any(record["quick"] for records in parts.values() for record in records)
    warning = "**A quick run: few steps, no choice. It tests the machinery only.**\n"
    sections = [
        "# Between the data: gap splits of the UCI sets\n",
        warning if quick else "",
        _introduction(parts["gaps"]),
        "![MNLL, one dot per column](gaps.svg)\n" if rows else "",
        "## MNLL: mean over columns (worst column)\n\n" + _grid(rows),
        "## 90 % intervals: coverage, per cent (median width)\n\n" + _intervals(rows),
        "## Every score\n\n" + _details(rows),
        "## Column by column: MNLL\n\n" + _columns(parts["gaps"]),
        "## In distribution: the literature's splits\n\n" + _beside(parts["literature"]),
        "## Few rows: 20 to train on\n\n" + _beside(parts["few"]),
        "## The toy beside NUTS\n\n" + _toy(fits),
    ]
    return "\n".join(section for section in sections if section)


def _introduction(records: Sequence[Record]) -> str:
    found = {record["method"] for record in records}
    absent = [f"`{name}`" for name in RUN if name not in found]
    commits = sorted(
        {str(r["commit"]) for r in records if r["method"] == BEFORE and "near" not in r}
    )
    return (
        "Made from the records beside it by `python -m reproduction gaps`; protocol and methods: "
        "[gaps.md](../../gaps.md). Every input column has a split: the middle third of the rows in "
        f"its order is tested. At most {MOST_TRAINING_ROWS:,} training and {MOST_TEST_ROWS:,} test "
        "rows per column, drawn with the seed: that concerns kin8nm, naval, powerplant and "
        "protein. Natural log, units of the target; the best mean of a row is bold; a cell with "
        "fewer columns than others in its row shows their number and is never bold.\n"
        + (
            f"\n`{BEFORE}` was recorded at commit {', '.join(commits)}; where it was not "
            "run, it is the weight draws alone of the same fit as `WHVIRegressor`.\n"
            if commits
            else ""
        )
        + (f"\nNo records yet: {', '.join(absent)}.\n" if absent else "")
    )


def _grid(rows: Sequence[SummaryRow]) -> str:
    def cell(row: SummaryRow) -> str:
        return f"{number(row['mnll_mean'], '.2f')} ({number(row['mnll_worst'], '.2f')})"

    return _matrix(rows, cell, best=lambda row: float(row["mnll_mean"]))


def _intervals(rows: Sequence[SummaryRow]) -> str:
    def cell(row: SummaryRow) -> str:
        return f"{100 * row['coverage90_mean']:.0f} ({row['width90_mean']:.3g})"

    return _matrix(rows, cell, best=lambda row: abs(float(row["coverage90_mean"]) - 0.9))


def _matrix(rows: Sequence[SummaryRow], cell: Show, best: Choose) -> str:
    """One line per data set, one column per method."""
    methods = [name for name in ROWS if any(row["method"] == name for row in rows)]
    lines = [["data", "columns", *methods]]
    for dataset in DATASETS:
        here = {row["method"]: row for row in rows if row["dataset"] == dataset}
        if not here:
            continue
        most = max(row["num_splits"] for row in here.values())
        least = min(best(row) for row in here.values() if row["num_splits"] == most)
        texts = []
        for name in methods:
            row = here.get(name)
            text = cell(row) if row else ""
            if row and row["num_splits"] < most:
                text += f" [{row['num_splits']}]"
            elif row and best(row) == least:
                text = f"**{text}**"
            texts.append(text)
        lines.append([dataset, str(most), *texts])
    return markdown_table(lines)


_CELLS: tuple[tuple[str, Show], ...] = (
    ("data", lambda row: str(row["dataset"])),
    ("method", lambda row: str(row["method"])),
    ("columns", lambda row: str(row["num_splits"])),
    ("RMSE", lambda row: f"{row['rmse_mean']:.4g}"),
    ("MNLL", lambda row: number(row["mnll_mean"], ".3f")),
    ("worst", lambda row: number(row["mnll_worst"], ".2f")),
    ("in column", lambda row: str(row["worst_split"])),
    ("CRPS", lambda row: f"{row['crps_mean']:.4g}"),
    ("50 % covers", lambda row: f"{100 * row['coverage50_mean']:.1f} %"),
    ("width", lambda row: f"{row['width50_mean']:.3g}"),
    ("90 % covers", lambda row: f"{100 * row['coverage90_mean']:.1f} %"),
    ("width", lambda row: f"{row['width90_mean']:.3g}"),
    ("parameters", lambda row: f"{row['num_parameters']:,}"),
    ("seconds", lambda row: f"{row['seconds']:.0f}"),
)


def _details(rows: Sequence[SummaryRow]) -> str:
    shown = [[show(row) for _, show in _CELLS] for row in rows]
    return markdown_table([[title for title, _ in _CELLS], *shown])


def _columns(records: Sequence[Record]) -> str:
    methods = [name for name in ROWS if any(r["method"] == name for r in records)]
    lines = [["data", "column", "distinct values", "training rows", "test rows", *methods]]
    found = {(r["dataset"], r["split"], r["method"]): r for r in records}
    for dataset in DATASETS:
        for column in sorted({k for name, k, _ in found if name == dataset}):
            cells = [found.get((dataset, column, name)) for name in methods]
            first = next(r for r in cells if r)
            sizes = [f"{first[k]:,}" for k in ("num_distinct", "num_train", "num_test")]
            values = [number(r["mnll"], ".2f") if r else "" for r in cells]
            lines.append([dataset, str(column), *sizes, *values])
    return markdown_table(lines)


def _beside(records: Iterable[Record]) -> str:
    """The estimator before and after, each on the splits that it has."""
    header = ["data", "method", "splits", "RMSE", "MNLL", "CRPS", "90 % covers", "width"]
    shows = [_CELLS[k][1] for k in (0, 1, 2, 3, 4, 7, 10, 11)]
    return markdown_table([header, *([show(row) for show in shows] for row in summarise(records))])


def _toy(fits: dict[str, ToyFit]) -> str:
    lines = [["method", "std of f in the middle of the gap", "÷ NUTS", "at the data", "R-hat"]]
    for name, fit in fits.items():
        found = gap_ratio(fit, fits)
        ratio = found["ratio"]
        rhat = f"{max(fit.rhat):.3f}" if fit.rhat else ""
        middle, data = f"{found['middle']:.3f}", f"{found['at_data']:.3f}"
        lines.append([name, middle, "" if ratio is None else f"{ratio:.2f}", data, rhat])
    picture = "![The toy](toy.svg)\n\n" if fits else ""
    return picture + markdown_table(lines)
