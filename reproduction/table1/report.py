"""The report of Table 1, made from records and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from reproduction.records import Record, RecordStore
from reproduction.report import (
    SCORES,
    Pair,
    SummaryRow,
    in_standard_errors,
    markdown_table,
    number,
    paired_differences,
    write_report,
)
from reproduction.table1.figure import draw_figure
from reproduction.table1.paper import AIMS, DATASETS, FLOORS, MNLL_OFFSET, PAPER_COLUMN, TABLE_1
from reproduction.table1.rerun import RERUN_FILE, compare, comparison_table
from reproduction.table1.summary import order, own_table, rivals_table, summarise
from reproduction.table1.work import ROWS

_REFERENCES = ("whvi", "whvi-best", "WHVIRegressor")  # beside which the other methods are put


def write_table1(records: Iterable[Record], folder: Path) -> None:
    """Write ``summary.json``, ``README.md`` and the figure."""
    records = list(records)
    page = markdown(records, RecordStore(folder / RERUN_FILE).read().values())
    write_report(folder, summarise(records), page)
    if records:
        draw_figure(records, folder / "table1")


def markdown(records: Sequence[Record], rerun: Iterable[Record] = ()) -> str:
    """Return the tables as a page.

    Args:
        records: Those of the table.
        rerun: Records of splits that were run again, see :mod:`reproduction.table1.rerun`.
    """
    rows = summarise(records)
    compared = compare(records, rerun)
    parts = [
        "# Table 1: regression on the UCI sets\n",
        "**A quick run: few steps, no choice. It tests the machinery only.**\n"
        if any(record.get("quick") for record in records)
        else "",
        "Made from `records.jsonl` by `python -m reproduction table1`; protocol and methods: "
        "[table1.md](../../table1.md). Test parts of the literature's 90/10 splits; RMSE and MNLL "
        "of the predictive mixture, natural log, units of the target; mean ± standard error over "
        "splits, the best mean of each row in bold. A number in brackets is the number of splits "
        "of a cell that has fewer than others in its row; such a cell is never bold: compare it in "
        "the paired tables below.\n",
        "![One dot per split, the paper's value as a line](table1.svg)\n" if records else "",
        "## In short\n\nRMSE / MNLL of our methods and of the paper's:\n\n" + own_table(records),
        "Other methods beside `whvi` on the splits that both have (their number in brackets): "
        "ratio of RMSE / difference of MNLL.\n\n" + rivals_table(records),
        "## RMSE\n\n" + _grid(rows, "rmse"),
        "## MNLL\n\n" + _grid(rows, "mnll"),
        *(_paired(name, paired_differences(records, name)) for name in _REFERENCES),
        "## Against the paper\n\n"
        "`Δ/se`: our mean minus the printed one, in our standard errors (negative is better).\n\n"
        + _against_paper(rows),
        "## Floors and aims\n\n" + _goals(rows),
        "## More scores\n\n" + _details(rows),
        "## Splits run again\n\n" + comparison_table(compared) if compared else "",
        _notes(),
    ]
    return "\n".join(part for part in parts if part)


def _grid(rows: Sequence[SummaryRow], score: str) -> str:
    """One line per data set, one column per method."""
    found = {(row["dataset"], row["method"]): row for row in rows}
    methods = [m for m in ROWS if any(row["method"] == m for row in rows)]
    lines = [["data", "splits", *methods]]
    for dataset in [d for d in DATASETS if any(row["dataset"] == d for row in rows)]:
        cells = [found.get((dataset, method)) for method in methods]
        here = [row for row in cells if row is not None]
        splits = max(row["num_splits"] for row in here)
        best = min(row[f"{score}_mean"] for row in here if row["num_splits"] == splits)
        shown = [_score_cell(row, score, best, splits) for row in cells]
        lines.append([dataset, str(splits), *shown])
    return markdown_table(lines)


def _score_cell(row: SummaryRow | None, score: str, best: float, splits: int) -> str:
    if row is None:
        return ""
    mean = row[f"{score}_mean"]
    text = _with_error(mean, _se(row, score), row["num_splits"], row["dataset"], score)
    if row["num_splits"] < splits:
        return f"{text} ({row['num_splits']})"
    return f"**{text}**" if mean == best else text


def _paired(reference: str, pairs: Sequence[Pair]) -> str:
    """Every other method minus ``reference``, on the splits that both have."""
    if not pairs:
        return ""
    lines = [["data", "method", "splits", "RMSE: difference", "Δ/se", "MNLL: difference", "Δ/se"]]
    for pair in sorted(pairs, key=lambda pair: order((pair.dataset, pair.rival))):
        cells = [pair.dataset, pair.rival, str(pair.num_splits)]
        for score in SCORES:
            difference = pair.differences[score]
            both = (difference.mean, difference.standard_error)
            cells.append(_with_error(*both, pair.num_splits, pair.dataset, score))
            cells.append(in_standard_errors(*both))
        lines.append(cells)
    return (
        f"## Split by split beside `{reference}`\n\n"
        f"Score of the method minus score of `{reference}` on the splits that both have, mean ± "
        f"standard error: positive where `{reference}` is better.\n\n{markdown_table(lines)}"
    )


def _against_paper(rows: Sequence[SummaryRow]) -> str:
    lines = [["data", "method", "RMSE", "paper", "Δ/se", "MNLL", "paper", "Δ/se"]]
    for row in rows:
        column = PAPER_COLUMN.get(row["method"])
        if column is None or row["dataset"] not in TABLE_1[column]:
            continue
        printed = TABLE_1[column][row["dataset"]]
        cells = [row["dataset"], row["method"]]
        for score, value in (("rmse", printed.rmse), ("mnll", printed.mnll)):
            ours, theirs = row[f"{score}_mean"], value.mean
            text = _number(ours, row["dataset"], score)
            cells.append(f"**{text}**" if ours < theirs else text)
            cells.append(f"{theirs:.2f} ± {value.std:.2f}")
            cells.append(in_standard_errors(ours - theirs, _se(row, score)))
        lines.append(cells)
    return markdown_table(lines)


def _goals(rows: Sequence[SummaryRow]) -> str:
    header = ["data", "method", "RMSE", "floor", "", "aim", "", "MNLL", "floor", "", "aim", ""]
    lines = [header]
    for row in rows:
        if row["method"] not in FLOORS or row["dataset"] not in AIMS:
            continue
        floor, aim = FLOORS[row["method"]][row["dataset"]], AIMS[row["dataset"]]
        cells = [row["dataset"], row["method"]]
        for score in ("rmse", "mnll"):
            ours = row[f"{score}_mean"]
            cells.append(_number(ours, row["dataset"], score))
            for goal in (getattr(floor, score), getattr(aim, score)):
                cells += [number(goal, "g"), "PASS" if ours <= goal else "MISS"]
        lines.append(cells)
    return markdown_table(lines)


def _details(rows: Sequence[SummaryRow]) -> str:
    lines = [
        ["data", "method", "CRPS", "coverage of 95 %", "per-draw RMSE", "per-draw MNLL",
         "parameters", "seconds", "splits", "duplicates"]
    ]  # fmt: skip
    for row in rows:
        name = row["dataset"]
        lines.append(
            [
                name,
                row["method"],
                _number(row["crps_mean"], name, "rmse"),
                f"{100 * row['coverage95_mean']:.1f} %",
                _number(row["rmse_per_draw_mean"], name, "rmse"),
                _number(row["mnll_per_draw_mean"], name, "mnll"),
                f"{row['num_parameters']:,}",
                f"{row['seconds']:.0f}",
                str(row["num_splits"]),
                f"{row['num_duplicates_mean']:.1f}",
            ]
        )
    return markdown_table(lines)


def _notes() -> str:
    return f"""## Notes

- **The printed MNLL column.** The authors' public code has `log2(π)` where `log(2π)` belongs,
  which lowers every MNLL by ½ (log 2π − log2 π) = {MNLL_OFFSET:.3f}.
  `log(RMSE) + ½ log(2πe) − 0.093` gives the printed 2.71, 2.79 and −1.19 of powerplant, protein
  and kin8nm. Ours is computed right and compared with the value as printed, which favours the
  paper by that much.
- **Per-draw averages.** The authors' code averages over posterior draws the RMSE and the negative
  log-likelihood of each draw alone. By Jensen's inequality both are at least those of the
  predictive mixture, which is what the tables above show; the averages stand in the last table.
- **Noise factor.** The noise of every method is multiplied by one number per split, fitted on its
  inner validation rows; `mnll_unscaled` in the records is without it.
  `WHVIRegressor` does so by itself, within its own training rows.
- **Parameters** count all members of an ensemble; for noisy K-FAC, means and Kronecker factors;
  for trees, leaves. **Seconds** sum over splits the choice of hyper-parameters and the final fits,
  on one thread each; a candidate whose scores were known, from a method of the same layers or from
  an earlier grid, costs nothing. **Duplicates**: test rows per split whose
  inputs also stand among the training rows.
"""


# Numbers and cells

_DECIMALS = {"naval": 6, "kin8nm": 4}


def _number(value: float, dataset: str, score: str) -> str:
    return number(value, f".{_DECIMALS.get(dataset, 3) if score == 'rmse' else 3}f")


def _with_error(mean: float, error: float, num_splits: int, dataset: str, score: str) -> str:
    """``mean ± standard error``; one split has no error."""
    values = (mean, error) if num_splits > 1 else (mean,)
    return " ± ".join(_number(value, dataset, score) for value in values)


def _se(row: SummaryRow, score: str) -> float:
    """Standard error of the mean over splits."""
    return float(row[f"{score}_std"]) / math.sqrt(row["num_splits"])
