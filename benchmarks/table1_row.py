"""How long a row of Table 1 takes: all splits of all sets by one method, from short runs.

    python -m benchmarks.table1_row [--method whvi] [--data NAME ...] [--jobs 2] [--json FILE]

Every unit of the row (see ``reproduction.runner``) does what the table does, choice, final fit
and prediction, with a fortieth and with an eighth of the steps. The time of all steps is the line
through both; a row is its units one after the other in ``jobs`` processes. Needs the UCI sets.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, delayed

from benchmarks.machine import describe_machine
from reproduction.data import CATALOGUE, load_uci
from reproduction.evaluation import evaluate
from reproduction.grids import METHODS
from reproduction.methods.kfac import NoisyKFACMethod
from reproduction.methods.networks import NetworkMethod
from reproduction.methods.protocol import DataSize, Settings
from reproduction.paper import DATASETS
from reproduction.runner import Unit, plan_units
from reproduction.selection import choose
from reproduction.table1 import chunk_size, expected_cost
from whvi.training.process import keep_freed_memory

TRAINED = [n for n, m in METHODS.items() if isinstance(m, NetworkMethod | NoisyKFACMethod)]
_FEW, _MORE = 40, 8  # the steps are divided by; closer together, noise decides


def with_fewer_steps(name: str, share: int) -> NetworkMethod | NoisyKFACMethod:
    """The method with every candidate's steps divided by ``share``."""
    method = METHODS[name]
    assert isinstance(method, NetworkMethod | NoisyKFACMethod)
    grid = method.candidates

    def shortened(size: DataSize) -> tuple[Settings, ...]:
        return tuple({**each, "steps": int(each["steps"]) // share} for each in grid(size))

    return replace(method, candidates=shortened)


def seconds_of(unit: Unit, share: int) -> float:
    """Run a unit with fewer steps."""
    method, dataset = with_fewer_steps(unit.method, share), load_uci(unit.dataset)
    start = time.perf_counter()
    choices = choose(method, dataset, unit.splits, seed=unit.seed)
    for _ in evaluate(method, dataset, unit.splits, choices, seed=unit.seed):
        pass
    return time.perf_counter() - start


def estimate(unit: Unit) -> float:
    """Return the seconds that ``unit`` takes with all its steps."""
    torch.set_num_threads(1)
    keep_freed_memory()
    seconds_of(unit._replace(splits=unit.splits[:1]), _FEW)  # the first call of everything
    few, more = (seconds_of(unit, share) for share in (_FEW, _MORE))
    per_step_share = (more - few) / (1 / _MORE - 1 / _FEW)
    return few + per_step_share * (1 - 1 / _FEW)


def elapsed(seconds: Sequence[float], jobs: int) -> float:
    """Return when the last of ``jobs`` processes ends; each takes the next unit when it is free."""
    free = [0.0] * jobs
    for each in seconds:
        first = free.index(min(free))
        free[first] += each
    return max(free)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", choices=TRAINED, default="whvi")
    parser.add_argument("--data", nargs="+", choices=DATASETS, default=list(DATASETS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    splits = {name: list(range(CATALOGUE[name].num_splits)) for name in options.data}
    units = plan_units([options.method], splits, chunk=chunk_size, cost=expected_cost)
    names = [f"{unit.dataset}, {len(unit.splits)} splits" for unit in units]
    # units of one name are alike: the first stands for all
    first = dict(zip(reversed(names), reversed(units), strict=True))
    alike = sorted(first, key=names.index)
    found = Parallel(n_jobs=options.jobs)(delayed(estimate)(first[name]) for name in alike)
    seconds = dict(zip(alike, found, strict=True))
    total = elapsed([seconds[name] for name in names], options.jobs)
    for name, each in seconds.items():
        print(f"{name:22s} {names.count(name)} × {each:6.0f} s")
    print(f"{options.method}: {total / 60:.1f} minutes in {options.jobs} processes")
    if options.json:
        record: dict[str, Any] = {
            "machine": describe_machine(1),
            "method": options.method,
            "jobs": options.jobs,
            "units": names,
            "seconds_per_unit": seconds,
            "minutes": total / 60,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
