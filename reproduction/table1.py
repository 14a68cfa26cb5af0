"""Table 1 of the paper: ``python -m reproduction.table1 --help``.

Writes ``records.jsonl`` (one line per method, data set, split and seed), ``choices.jsonl`` (what
each split chose on its inner validation part), and from the records ``summary.json``,
``README.md`` and the figures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from reproduction.command import check_names, grid_parser, run_to_report
from reproduction.data import CATALOGUE, UCIDataset, load_uci, random_splits
from reproduction.evaluation import evaluate
from reproduction.grids import METHODS
from reproduction.methods.protocol import DataSize
from reproduction.paper import DATASETS
from reproduction.records import Record, RecordStore
from reproduction.report import write_report
from reproduction.runner import Unit, parse_shard, plan_units, run_units
from reproduction.selection import Choice, Known, Scores, choose, training_work
from whvi.errors import ConfigError
from whvi.training.process import keep_freed_memory

SEEDS = (0,)
PROTOCOLS = ("literature", "random")
QUICK_DATASETS = ("boston", "concrete", "energy", "yacht")
QUICK_SPLITS = 2
_SPLITS_AT_ONCE = 20
_FEWER = {5_000: 10, 40_000: 3}  # from so many rows on, so that less is lost when killed


@dataclass(frozen=True)
class Table1Work:
    """Computes a unit of the table: choose, then evaluate; choices are kept for a restart.

    Attributes:
        choices_path: File of the choices.
        data_dir: Folder of the UCI sets; ``None`` for the environment variable or the cache.
        quick: Few steps and one candidate: a test of the machinery, not of the methods.
        protocol: ``"literature"``, the splits that come with the sets, or ``"random"``, the
            paper's own: random 90/10 splits, as many, drawn from the seed of the unit.
        scores_path: Another file of choices, whose validation scores need not be computed again.
    """

    choices_path: str
    data_dir: str | None = None
    quick: bool = False
    protocol: str = "literature"
    scores_path: str | None = None

    def __call__(self, unit: Unit) -> Iterator[Record]:
        """Yield the records of ``unit``."""
        torch.set_num_threads(1)  # one process per core: several threads in each would fight
        keep_freed_memory()
        method, dataset = METHODS[unit.method], self._dataset(unit)
        choices = self._choices(unit)
        missing = [k for k in unit.splits if k not in choices]
        if missing:
            found = choose(
                method,
                dataset,
                missing,
                seed=unit.seed,
                quick=self.quick,
                known=self._scores_of_family(unit),
            )
            choices |= dict(zip(missing, found, strict=True))
            self._keep(unit, missing, found)
        chosen = [choices[k] for k in unit.splits]
        for record in evaluate(method, dataset, unit.splits, chosen, seed=unit.seed):
            yield {**record, "quick": self.quick, "protocol": self.protocol}

    def _dataset(self, unit: Unit) -> UCIDataset:
        dataset = load_uci(unit.dataset, self.data_dir)
        if self.protocol == "literature":
            return dataset
        splits = random_splits(len(dataset.y), len(dataset.splits), unit.seed)
        return replace(dataset, splits=splits)

    def _choices(self, unit: Unit) -> dict[int, Choice]:
        rows = RecordStore(self.choices_path).read()
        keys = {k: (unit.method, unit.dataset, k, unit.seed) for k in unit.splits}
        return {k: _choice_of(rows[key]) for k, key in keys.items() if key in rows}

    def _scores_of_family(self, unit: Unit) -> Known:
        """Return what methods with the same layers have found out about candidates."""
        family = METHODS[unit.method].family
        known: dict[int, dict[str, Scores]] = {}
        paths = [path for path in (self.scores_path, self.choices_path) if path]
        for row in (row for path in paths for row in RecordStore(path).read().values()):
            method = METHODS.get(row["method"])  # an earlier grid may have had others
            same = (row["dataset"], row["seed"]) == (unit.dataset, unit.seed)
            if same and method and method.family == family:
                known.setdefault(row["split"], {}).update(row["scores"])
        return known

    def _keep(self, unit: Unit, splits: Sequence[int], choices: Sequence[Choice]) -> None:
        name = {"method": unit.method, "dataset": unit.dataset}
        rows = [
            {**name, "split": k, "seed": unit.seed, **choice.as_dict(), "protocol": self.protocol}
            for k, choice in zip(splits, choices, strict=True)
        ]
        RecordStore(self.choices_path).append(rows)


def _choice_of(row: Record) -> Choice:
    return Choice(row["settings"], row["noise_factor"], row["scores"], row["seconds"])


def reproduce_table1(
    output: str | Path,
    *,
    methods: Sequence[str] = tuple(METHODS),
    datasets: Sequence[str] | None = None,
    splits: Sequence[int] | None = None,
    seeds: Sequence[int] = SEEDS,
    data_dir: str | None = None,
    quick: bool = False,
    protocol: str = "literature",
    scores: str | None = None,
    jobs: int = 1,
    shard: tuple[int, int] = (1, 1),
    progress: bool = True,
) -> Path:
    """Run what is missing of the grid and write the report; returns the folder.

    Args:
        output: Folder of records and report.
        methods, datasets, splits, seeds: The grid; by default everything.
        data_dir: Folder of the UCI sets.
        quick: Two splits of the four small sets with few steps, unless others are named.
        protocol: Whose splits: ``"literature"`` or ``"random"``; a folder holds one kind.
        scores: File of choices by another grid and the same protocol: candidates that both grids
            have keep its scores.
        jobs, shard, progress: See :func:`reproduction.runner.run_units`.
    """
    datasets = datasets or (QUICK_DATASETS if quick else DATASETS)
    check_names("protocol", [protocol], PROTOCOLS)
    check_names("method", methods, METHODS)
    check_names("data set", datasets, CATALOGUE)
    numbers = {name: _split_numbers(name, splits, quick=quick) for name in datasets}
    folder = Path(output)
    store = RecordStore(folder / "records.jsonl")
    if scores is not None:
        _check_scores(scores, protocol)
    work = Table1Work(str(folder / "choices.jsonl"), data_dir, quick, protocol, scores)
    units = plan_units(methods, numbers, seeds=seeds, chunk=chunk_size, cost=expected_cost)
    run_units(units, work, store, jobs=jobs, shard=shard, progress=progress)
    write_report(store.read().values(), folder)
    return folder


def _check_scores(path: str, protocol: str) -> None:
    """Refuse validation scores of other splits: their rows may be test rows here."""
    if not Path(path).is_file():
        raise ConfigError(f"there is no file of choices {path!r}; leave it out to choose anew")
    found = {row.get("protocol", "literature") for row in RecordStore(path).read().values()}
    if found - {protocol}:
        raise ConfigError(
            f"{path!r} has choices by the protocol {', '.join(sorted(found))}, not {protocol}; "
            "leave it out to choose anew"
        )


def _split_numbers(name: str, splits: Sequence[int] | None, *, quick: bool) -> list[int]:
    """Return the numbers that this data set has (protein has fewer than the others)."""
    available = range(CATALOGUE[name].num_splits)
    if splits is None:
        return list(available[:QUICK_SPLITS] if quick else available)
    return [k for k in splits if k in available]


def chunk_size(name: str) -> int:
    """Return how many splits of a data set train in one unit."""
    sizes = [size for rows, size in _FEWER.items() if CATALOGUE[name].num_rows >= rows]
    return min(sizes, default=_SPLITS_AT_ONCE)


def expected_cost(unit: Unit) -> float:
    """Return what the time of a unit goes with, to deal the longest first; 0 for trees."""
    entry = CATALOGUE[unit.dataset]
    size = DataSize(round(0.9 * entry.num_rows), len(entry.columns))
    return len(unit.splits) * training_work(METHODS[unit.method], size)


def default_folder(protocol: str, *, quick: bool) -> str:
    """Return where results go if nothing else is said; protocols do not mix."""
    kind = "" if protocol == "literature" else f"-{protocol}"
    return f"reproduction/results/table1{kind}{'-quick' if quick else ''}"


def parse_splits(text: str) -> list[int]:
    """Read ``"0-4,7"`` as 0, 1, 2, 3, 4, 7."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        try:
            numbers.extend(range(int(first), int(last or first) + 1))
        except ValueError:
            raise ConfigError(f"splits are written like 0-4,7, got {text!r}") from None
    return numbers


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    return run_to_report(
        lambda: reproduce_table1(
            options.output or default_folder(options.protocol, quick=options.quick),
            methods=options.methods or tuple(METHODS),
            datasets=options.data,
            splits=None if options.splits is None else parse_splits(options.splits),
            seeds=options.seeds or SEEDS,
            data_dir=options.data_dir,
            quick=options.quick,
            protocol=options.protocol,
            scores=options.scores,
            jobs=options.jobs,
            shard=parse_shard(options.shard),
            progress=not options.no_progress,
        )
    )


def _parser() -> argparse.ArgumentParser:
    parser = grid_parser(
        "table1",
        "Reproduce Table 1 of the paper.",
        methods=METHODS,
        data=DATASETS,
        quick="two splits of the four small sets, few steps",
    )
    add = parser.add_argument
    add("--splits", help="such as 0-4,7; by default all")
    add("--protocol", default="literature", help="literature or random: whose 90/10 splits")
    add("--scores", help="choices.jsonl of an earlier grid, to keep scores of common candidates")
    add("--shard", default="1/1", help="i/n: do the i-th of n parts of the grid")
    add("--data-dir", help="folder of the UCI sets; by default WHVI_DATA, else a download")
    return parser


if __name__ == "__main__":
    sys.exit(main())
