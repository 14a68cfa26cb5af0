"""Table 1 of the paper: regression on the UCI sets.

Writes ``records.jsonl`` (one line per method, data set, split and seed), ``choices.jsonl`` (what
each split chose on its inner validation part), and from the records ``summary.json``, ``README.md``
and the figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reproduction.data import CATALOGUE
from reproduction.records import RecordStore
from reproduction.runner import Options, plan_units, run_units
from reproduction.table1.paper import DATASETS
from reproduction.table1.report import write_table1
from reproduction.table1.work import ROWS, Table1Work, chunk_size, expected_cost
from whvi.errors import ConfigError

SEEDS = (0,)
QUICK_DATASETS = ("boston", "concrete", "energy", "yacht")
QUICK_SPLITS = 2


def reproduce_table1(
    options: Options,
    *,
    splits: Sequence[int] | None = None,
    data_dir: str | None = None,
    protocol: str = "literature",
    scores: str | None = None,
) -> Path:
    """Run what is missing of the grid and write the report; returns the folder.

    Args:
        options: ``quick`` is two splits of the four small sets with few steps, unless others are
            named.
        splits: Their numbers; by default all.
        data_dir: Folder that holds ``UCI_Datasets``.
        protocol: Whose splits: ``"literature"`` or ``"random"``; a folder holds one kind.
        scores: File of choices by another grid and the same protocol: candidates that both grids
            have keep its scores.
    """
    known = None if scores is None else _scores_of(scores, protocol)
    folder, quick = options.output, options.quick
    datasets = options.data or (QUICK_DATASETS if quick else DATASETS)
    numbers = {name: _split_numbers(name, splits, quick=quick) for name in datasets}
    store = RecordStore(folder / "records.jsonl")
    choices = RecordStore(folder / "choices.jsonl")
    work = Table1Work(choices, data_dir, quick, protocol, known)
    units = plan_units(
        options.methods or ROWS,
        numbers,
        seeds=options.seeds or SEEDS,
        chunk=chunk_size,
        cost=expected_cost,
    )
    run_units(units, work, store, options)
    write_table1(store.read_some().values(), folder)
    return folder


def _scores_of(path: str, protocol: str) -> RecordStore:
    """Refuse validation scores of other splits: their rows may be test rows here."""
    if not Path(path).is_file():
        raise ConfigError(f"there is no file of choices {path!r}; leave it out to choose anew")
    store = RecordStore(path)
    found = {row.get("protocol", "literature") for row in store.read().values()}
    if found - {protocol}:
        raise ConfigError(
            f"{path!r} has choices by the protocol {', '.join(sorted(found))}, not {protocol}; "
            "leave it out to choose anew"
        )
    return store


def _split_numbers(name: str, splits: Sequence[int] | None, *, quick: bool) -> list[int]:
    """Return the numbers that this data set has (protein has fewer than the others)."""
    available = range(CATALOGUE[name].num_splits)
    if splits is None:
        return list(available[:QUICK_SPLITS] if quick else available)
    return [k for k in splits if k in available]
