"""The estimators with their defaults on 26 tables that people have, beside trees and networks.

Writes ``records.jsonl`` (one line per method, table and fold), and from the records alone
``summary.json`` and ``README.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reproduction.runner import Options, Unit, installed, plan_units, run_and_report
from reproduction.tables.data import NUM_FOLDS, load_table, table_names
from reproduction.tables.methods import METHODS, missing_package
from reproduction.tables.report import markdown, summarise
from reproduction.tables.work import TablesWork

QUICK_TABLES = ("machine", "sacramento", "doctor-visits", "credit")


def reproduce_tables(
    options: Options, *, folds: Sequence[int] | None = None, data_dir: str | None = None
) -> Path:
    """Run what is missing and write the report; returns the folder."""
    units = []
    if not options.report_only:
        chosen = installed(options.methods or METHODS, missing_package, options)
        tables = options.data or (QUICK_TABLES if options.quick else table_names(data_dir))
        numbers = folds or ((0,) if options.quick else tuple(range(NUM_FOLDS)))
        units = _units(chosen, tables, numbers, options, data_dir)
    return run_and_report(units, TablesWork(data_dir, options.quick), options, summarise, markdown)


def _units(
    methods: Sequence[str],
    tables: Sequence[str],
    folds: Sequence[int],
    options: Options,
    data_dir: str | None,
) -> list[Unit]:
    sizes, tasks = {}, {}
    for name in tables:
        table = load_table(name, data_dir)
        sizes[name], tasks[name] = len(table.y), table.task
    units: list[Unit] = []
    for name in methods:
        method = METHODS[name]
        fitting = {
            table: tuple(folds)
            for table in tables
            if tasks[table] in method.tasks and sizes[table] <= (method.most_rows or sizes[table])
        }
        units += plan_units((name,), fitting, seeds=options.seeds or (0,), chunk=lambda _: 1)
    return units
