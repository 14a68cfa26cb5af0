"""Run a grid of (method, data, split, seed), one record each, in any number of attempts.

A *unit* is what trains in one pass: some splits of one (method, data, seed). A unit whose records
are partly there goes on with the missing splits. Units are spread over processes by joblib, over
machines by Dask or Ray (``engines.py``), and ``shard`` divides them among machines that share
nothing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from joblib import Parallel, cpu_count, delayed
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.progress import TimeRemainingColumn as Remaining

from reproduction.engines import connected, run_on_engine
from reproduction.records import Record, RecordStore
from reproduction.report import write_report
from whvi.errors import DataError
from whvi.training.process import keep_freed_memory


class Unit(NamedTuple):
    """Splits of one method on one data set."""

    method: str
    dataset: str
    splits: tuple[int, ...]
    seed: int

    def key(self, split: int) -> Record:
        """Return the fields by which the record of a split is known."""
        return {"method": self.method, "dataset": self.dataset, "split": split, "seed": self.seed}


Work = Callable[[Unit], Iterable[Record]]
"""Computes the records of a unit; may yield them one by one."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every experiment can be asked for.

    Attributes:
        output: Folder of records and report.
        quick: A reduced run that tests the machinery, not the methods.
        methods, data, seeds: Part of the grid; by default everything.
        jobs: Processes, or with a cluster units under way; ``-1`` for all cores.
        backend: Who runs units: ``"local"`` processes, a ``"dask"`` or a ``"ray"`` cluster.
        scheduler: Address of the cluster; without, one is started on this machine.
        shard: ``(i, n)``: do every n-th unit, from the i-th; for machines that share nothing.
        progress: Show records done and time left on stderr.
        report_only: Compute no records; make the report from those that are there.
    """

    output: Path
    quick: bool = False
    methods: Sequence[str] | None = None
    data: Sequence[str] | None = None
    seeds: Sequence[int] | None = None
    jobs: int = 1
    backend: str = "local"
    scheduler: str | None = None
    shard: tuple[int, int] = (1, 1)
    progress: bool = False
    report_only: bool = False


def installed(
    methods: Iterable[str], missing_package: Callable[[str], str | None], options: Options
) -> list[str]:
    """Return the methods that can run; say on stderr which packages the others need."""
    missing = {name: missing_package(name) for name in methods}
    if not options.report_only:
        for name, package in missing.items():
            if package:
                print(
                    f"{name} is left out: the package {package} is not installed", file=sys.stderr
                )
    return [name for name, package in missing.items() if not package]


def plan_units(
    methods: Sequence[str],
    splits: Mapping[str, Sequence[int]],
    *,
    seeds: Sequence[int] = (0,),
    chunk: Callable[[str], int],
    cost: Callable[[Unit], float] = lambda unit: 0.0,
) -> list[Unit]:
    """List the units of a grid, at most ``chunk(dataset)`` splits in each.

    Methods keep their order, because later ones may use what earlier ones found out. Within a
    method the units with the largest ``cost`` come first, so that all processes end together.
    """
    units: list[Unit] = []
    for method in methods:
        own = []
        for dataset, numbers in splits.items():
            size = chunk(dataset)
            for seed in seeds:
                for start in range(0, len(numbers), size):
                    part = tuple(numbers[start : start + size])
                    own.append(Unit(method, dataset, part, seed))
        units += sorted(own, key=cost, reverse=True)
    return units


def missing_units(units: Iterable[Unit], store: RecordStore) -> list[Unit]:
    """Leave out the splits whose records are there."""
    known = set(store.read())
    remaining = []
    for unit in units:
        splits = tuple(k for k in unit.splits if (*unit.key(k).values(),) not in known)
        if splits:
            remaining.append(unit._replace(splits=splits))
    return remaining


def run_units(units: Sequence[Unit], work: Work, store: RecordStore, options: Options) -> None:
    """Compute and store the records that are missing.

    Args:
        units: The whole grid; the shard is taken from it, then what is there is left out.
        work: Computes the records of a unit.
        store: Where records go, each as soon as it is known.
        options: Jobs, shard and progress.
    """
    if options.report_only:
        return
    index, count = options.shard
    own = units[index - 1 :: count]
    remaining = missing_units(own, store)
    total = sum(len(unit.splits) for unit in remaining)
    with _progress_bar(total, shown=options.progress) as advance:
        for unit in _done(remaining, work, store, options):
            advance(unit)
    if lost := missing_units(own, store):
        count = sum(len(unit.splits) for unit in lost)
        raise DataError(
            f"{count} of {total} records were not made, the first of them by {lost[0]}; "
            "run it again"
        )


def run_and_report(
    units: Sequence[Unit],
    work: Work,
    options: Options,
    summarise: Callable[[list[Record]], Any],
    page: Callable[[list[Record]], str],
) -> Path:
    """Run what is missing, write the report on all records, and return the folder."""
    store = RecordStore(options.output / "records.jsonl")
    run_units(units, work, store, options)
    records = list(store.read_some().values())
    write_report(options.output, summarise(records), page(records))
    return options.output


def _done(
    units: Sequence[Unit], work: Work, store: RecordStore, options: Options
) -> Iterator[Unit]:
    """Yield units as they are finished."""
    if options.backend != "local":
        if units:
            with connected(options.backend, options.scheduler) as engine:
                yield from run_on_engine(engine, units, work, store, jobs=options.jobs)
        return
    jobs = cpu_count() if options.jobs == -1 else options.jobs
    if jobs == 1:
        for unit in units:
            yield _run_unit(unit, work, store)
        return
    tasks = (delayed(_run_unit)(unit, work, store) for unit in units)
    yield from Parallel(n_jobs=jobs, return_as="generator_unordered", pre_dispatch=jobs)(tasks)


def _run_unit(unit: Unit, work: Work, store: RecordStore) -> Unit:
    """Compute and store what is still missing (another process may have stored some of it)."""
    torch.set_num_threads(1)  # one process per core: several threads in each would compete
    keep_freed_memory()
    for missing in missing_units([unit], store):
        for record in work(missing):
            store.append([record])
    return unit


@contextlib.contextmanager
def _progress_bar(total: int, *, shown: bool) -> Iterator[Callable[[Unit], None]]:
    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), MofNCompleteColumn(), Elapsed(), Remaining())
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task("records", total=total)

        def advance(unit: Unit) -> None:
            name = f"{unit.method} on {unit.dataset} done"
            bar.update(task, advance=len(unit.splits), description=name)

        yield advance
