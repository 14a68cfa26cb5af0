"""On a host that others use: late calls with two threads, and a whole ``whvi fit``."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.records import Case, Cell
from benchmarks.timing import Effort
from whvi.transforms import fwht

TITLE = "Sharing the host"
_NUM_CALLS, _BLOCK = 500, 50
_POWERS = [16, 18, 20]
_BUSY_LOOP = "while True: pass"
_TWO_THREADS = """
import torch
torch.set_num_threads(2)
x = torch.randn(512, 512)
while True:
    x @ x
"""


def cells(effort: Effort, quick: bool) -> Iterator[Cell]:
    """The 99th percentile of calls while all cores are busy, then a fit beside one program."""
    before = torch.get_num_threads()
    with _programs(_BUSY_LOOP, os.cpu_count() or 1):
        for power in _POWERS:
            yield _late_calls(power)
    torch.set_num_threads(before)
    if not quick:
        yield _fit()


@contextlib.contextmanager
def _programs(code: str, number: int) -> Iterator[None]:
    """Run so many other programs meanwhile."""
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(number)]
    try:
        time.sleep(2)  # until they have imported what they need
        yield
    finally:
        for program in running:
            program.kill()
            program.wait()


def _late_calls(power: int) -> Cell:
    x = torch.randn(2**power // 1024, 1024)
    out = torch.empty_like(x)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(_NUM_CALLS // _BLOCK):
        for number, times in seconds.items():
            torch.set_num_threads(number)
            for _ in range(_BLOCK):
                start = time.perf_counter()
                fwht(x, out=out)
                times.append(time.perf_counter() - start)
    case: Case = {"quantity": "99th percentile", "work": f"transform of 2^{power} entries"}
    one, two = (sorted(times)[_NUM_CALLS * 99 // 100] for times in seconds.values())
    return Cell(case, {"1 thread": one, "2 threads": two}, {})


def _fit() -> Cell:
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.csv"
        _write_table(table)
        alone = _seconds_to_fit(table)
        with _programs(_TWO_THREADS, 1):
            beside = _seconds_to_fit(table)
    case: Case = {"quantity": "seconds", "work": "whvi fit of 300 rows"}
    return Cell(case, {"alone": alone, "beside a program of two threads": beside}, {})


def _write_table(path: Path) -> None:
    x = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    y = 2 * x[:, :1] + x[:, 1:2].square()
    header = ",".join([*(f"x{i}" for i in range(8)), "y"])
    rows = [",".join(f"{v:.5f}" for v in row) for row in torch.cat([x, y], 1).tolist()]
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")


def _seconds_to_fit(table: Path) -> float:
    model = str(table.with_suffix(".whvi"))
    command = ["fit", str(table), "--target", "y", "--output", model, "-q"]
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "whvi", *command], check=True)
    return time.perf_counter() - start
