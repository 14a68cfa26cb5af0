"""Figure 2 of the paper: Gaussian processes, test error against the number of parameters.

Writes ``records.jsonl`` (one line per fit), and from the records ``summary.json``, ``README.md``
and the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reproduction.figure2.cells import CELLS, DATASETS, METHODS, QUICK_SIDES, SIDES
from reproduction.figure2.report import write_figure2
from reproduction.figure2.work import Figure2Work
from reproduction.records import RecordStore
from reproduction.runner import Options, Unit, run_units

KEY_FIELDS = ("cell", "dataset", "side", "seed")
SEEDS, QUICK_SEEDS = (0, 1, 2), (0,)


def reproduce_figure2(options: Options) -> Path:
    """Run what is missing of the grid and write the report; returns the folder.

    Args:
        options: ``quick`` is two sizes, one seed, fewer rows and little training; a seed fixes a
            design, a split and the starts.
    """
    store = RecordStore(options.output / "records.jsonl", KEY_FIELDS)
    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    units = plan_figure2(
        options.methods or METHODS, options.data or DATASETS, seeds, quick=options.quick
    )
    run_units(units, Figure2Work(options.quick), store, options)
    write_figure2(list(store.read_some().values()), options.output)
    return options.output


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
