"""Honesty where there are no data: gap splits of the UCI sets, and the toy beside NUTS.

Writes ``records.jsonl`` (gap splits) and ``few.jsonl`` (20 training rows), one line per method,
data set, split and seed; from these and from Table 1's records of ``WHVIRegressor`` it makes
``summary.json``, ``README.md`` and the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reproduction.data import load_uci
from reproduction.gaps.methods import RUN, missing_package
from reproduction.gaps.report import write_gaps
from reproduction.gaps.splits import NUM_DRAWS_OF_ROWS, gap_columns
from reproduction.gaps.toy_fits import run_toy
from reproduction.gaps.work import FILES, GapsWork
from reproduction.methods import estimator
from reproduction.records import RecordStore
from reproduction.runner import Options, Unit, installed, run_units

DATASETS = ("energy", "boston", "yacht", "concrete", "powerplant", "kin8nm", "naval", "protein")
"""In the order in which they are run."""
SEEDS = (0,)
PARTS = (*FILES, "toy")
_QUICK_SPLITS = 2


def reproduce_gaps(
    options: Options,
    *,
    parts: Sequence[str] = PARTS,
    splits: Sequence[int] | None = None,
    data_dir: str | None = None,
) -> Path:
    """Run what is missing and write the report; returns the folder.

    Args:
        options: ``quick`` is two splits of energy and yacht with few steps.
        parts: Of :data:`PARTS`; gap splits have all methods, few rows ``WHVIRegressor``.
        splits: Columns, or numbers of splits; by default all.
        data_dir: Folder that holds ``UCI_Datasets``.
    """
    present = installed(options.methods or RUN, missing_package, options)
    datasets = options.data or (("energy", "yacht") if options.quick else DATASETS)
    if "toy" in parts and not options.report_only:
        run_toy(options.output, quick=options.quick)
    for part in () if options.report_only else [part for part in parts if part != "toy"]:
        units = []
        for dataset in datasets:
            numbers = _numbers(part, dataset, data_dir)
            if options.quick:
                numbers = numbers[:_QUICK_SPLITS]
            numbers = tuple(k for k in numbers if splits is None or k in splits)
            units += _units(part, dataset, numbers, present, options)
        store = RecordStore(options.output / FILES[part])
        work = GapsWork(part, data_dir, options.quick, store)
        run_units(units, work, store, options)
    write_gaps(options.output)
    return options.output


def _units(
    part: str, dataset: str, numbers: tuple[int, ...], present: Sequence[str], options: Options
) -> list[Unit]:
    """List the units of one data set."""
    possible = RUN if part == "gaps" else (estimator.NAME,)
    chosen = [name for name in present if name in possible]
    seeds = options.seeds or SEEDS
    return [Unit(name, dataset, numbers, k) for name in chosen for k in seeds if numbers]


def _numbers(part: str, dataset: str, data_dir: str | None) -> tuple[int, ...]:
    """Return the splits that a data set has in a part of the experiment."""
    if part == "gaps":
        return tuple(column.number for column in gap_columns(load_uci(dataset, data_dir).x))
    return tuple(range(NUM_DRAWS_OF_ROWS))
