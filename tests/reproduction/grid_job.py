"""A toy grid, killed and restarted: ``python grid_job.py RECORDS TIMES``.

The parent imports once and never works; every attempt is a forked child.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from reproduction.records import Record, RecordStore
from reproduction.runner import Options, Unit, plan_units, run_units

METHODS = ("a", "b", "c")
SPLITS = {"d": range(20), "e": range(20)}


def work(unit: Unit) -> Iterator[Record]:
    for split in unit.splits:
        time.sleep(0.003)
        name = {"method": unit.method, "dataset": unit.dataset, "split": split, "seed": unit.seed}
        yield {**name, "pad": "x" * 5000}


def attempt(path: str) -> int:
    """Start the grid in a child; returns its process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            units = plan_units(METHODS, SPLITS, chunk=lambda name: 5)
            run_units(units, work, RecordStore(path), Options(output=Path(path).parent))
            code = 0
        finally:
            os._exit(code)
    return pid


def main(path: str, times: int) -> int:
    rng = random.Random(times)
    for _ in range(times):
        pid = attempt(path)
        time.sleep(rng.uniform(0.0, 0.2))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(os.waitpid(attempt(path), 0)[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
