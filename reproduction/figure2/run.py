"""Run what is missing of Figure 2 and draw it: ``python -m reproduction.figure2 --help``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reproduction.command import check_names, grid_parser, run_to_report
from reproduction.figure2.cells import CELLS, DATASETS, METHODS, QUICK_SIDES, SIDES
from reproduction.figure2.report import write_report
from reproduction.figure2.work import Figure2Work
from reproduction.records import RecordStore
from reproduction.runner import Unit, run_units

KEY_FIELDS = ("cell", "dataset", "side", "seed")
SEEDS, QUICK_SEEDS = (0, 1, 2), (0,)


def reproduce_figure2(
    output: str | Path,
    *,
    quick: bool = False,
    methods: Sequence[str] | None = None,
    data: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    jobs: int = 1,
    progress: bool = False,
) -> Path:
    """Run what is missing of the grid and write the report; returns the folder.

    Args:
        output: Folder of ``records.jsonl``, ``summary.json``, ``README.md`` and the pictures.
        quick: Two sizes, one seed, fewer rows and little training.
        methods: Of ``whvi``, ``fourier``, ``sparse-spectrum``, ``sparse-gp``; by default all.
        data: Of the five simulators; by default all.
        seeds: Each fixes a design, a split and the starts; by default 0, 1, 2.
        jobs: Processes.
        progress: Show records done and time left on stderr (needs rich).
    """
    methods, data = methods or METHODS, data or DATASETS
    check_names("method", methods, METHODS)
    check_names("data set", data, DATASETS)
    folder = Path(output)
    store = RecordStore(folder / "records.jsonl", KEY_FIELDS)
    units = plan_figure2(methods, data, seeds or (QUICK_SEEDS if quick else SEEDS), quick=quick)
    run_units(units, Figure2Work(quick), store, jobs=jobs, progress=progress)
    write_report(list(store.read().values()), folder)
    return folder


def plan_figure2(
    methods: Sequence[str], data: Sequence[str], seeds: Sequence[int], *, quick: bool = False
) -> list[Unit]:
    """List the fits: small models first, so that a part is already a figure."""
    sides = QUICK_SIDES if quick else SIDES
    return [
        Unit(cell.name, dataset, (side,), seed)
        for side in sorted({side for each in sides.values() for side in each})
        for seed in seeds
        for dataset in data
        for cell in CELLS
        if cell.method in methods and side in sides[cell.covariance]
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    parser = grid_parser(
        "figure2",
        "Reproduce Figure 2 of the paper.",
        methods=METHODS,
        data=DATASETS,
        quick="two sizes, one seed, little training",
    )
    options = parser.parse_args(arguments)
    return run_to_report(
        lambda: reproduce_figure2(
            options.output or f"reproduction/results/figure2{'-quick' if options.quick else ''}",
            quick=options.quick,
            methods=options.methods,
            data=options.data,
            seeds=options.seeds,
            jobs=options.jobs,
            progress=not options.no_progress,
        )
    )
