"""Run what is missing of Figure 2 and draw it: ``python -m whvi.experiments.figure2 --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from whvi.errors import ConfigError, WhviError
from whvi.experiments.figure2.cells import CELLS, DATASETS, METHODS, QUICK_SIDES, SIDES
from whvi.experiments.figure2.report import write_report
from whvi.experiments.figure2.work import Figure2Work
from whvi.experiments.records import RecordStore
from whvi.experiments.runner import Unit, run_units

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
    _check_names("method", methods, METHODS)
    _check_names("data set", data, DATASETS)
    folder = Path(output)
    store = RecordStore(folder / "records.jsonl", KEY_FIELDS)
    units = plan_figure2(methods, data, seeds or (QUICK_SEEDS if quick else SEEDS), quick=quick)
    run_units(units, Figure2Work(quick), store, jobs=jobs, progress=progress)
    write_report(list(store.read().values()), folder)
    return folder


def plan_figure2(
    methods: Sequence[str], data: Sequence[str], seeds: Sequence[int], *, quick: bool = False
) -> list[Unit]:
    """List the fits: seed by seed, small models first, so that a part is already a figure."""
    sides = QUICK_SIDES if quick else SIDES
    return [
        Unit(cell.name, dataset, (side,), seed)
        for seed in seeds
        for side in sorted({side for each in sides.values() for side in each})
        for dataset in data
        for cell in CELLS
        if cell.method in methods and side in sides[cell.covariance]
    ]


def _check_names(kind: str, names: Sequence[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no {kind} {name!r}; choose from {', '.join(known)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    output = options.output or f"results/figure2{'-quick' if options.quick else ''}"
    try:
        folder = reproduce_figure2(
            output,
            quick=options.quick,
            methods=options.methods,
            data=options.data,
            seeds=options.seeds,
            jobs=options.jobs,
            progress=not options.no_progress,
        )
    except WhviError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(folder / "README.md")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m whvi.experiments.figure2", description="Reproduce Figure 2 of the paper."
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="two sizes, one seed, little training")
    add("--methods", nargs="+", metavar="NAME", help=f"of {', '.join(METHODS)}")
    add("--data", nargs="+", metavar="NAME", help=f"of {', '.join(DATASETS)}")
    add("--seeds", nargs="+", type=int, help="by default 0 1 2")
    add("--jobs", type=int, default=1, help="processes")
    add("--output", help="folder of records and report; by default results/figure2[-quick]")
    add("--no-progress", action="store_true", help="no progress bar")
    return parser
