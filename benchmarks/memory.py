"""One row of a very wide product, forward + backward: memory, and how time grows with width."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks.records import Cell, timed_cell
from benchmarks.timing import Effort, Rival
from whvi.functional import noisy_structured_product, structured_product

TITLE = "Memory and growth with the width"
POWERS = range(16, 22)
_ROW_POWER = 20
_STATUS = Path("/proc/self/status")


def cells(effort: Effort, quick: bool) -> Iterator[Cell]:
    """Peak memory in a fresh process, then times at doubled widths, all sizes as rivals."""
    for work in ("product", "product, noise per row"):
        yield _memory_cell(work)
    for work in ("product", "product, noise per row"):
        rivals = {f"2^{power}": Rival(_row(work, 2**power)) for power in POWERS}
        yield timed_cell({"quantity": "time", "work": work}, rivals, effort)


def _row(work: str, size: int) -> Callable[[], object]:
    grad = torch.randn(1, size)
    x = torch.randn(1, size, requires_grad=True)
    vectors = [torch.randn(size, requires_grad=True) for _ in range(4 if "noise" in work else 3)]
    product = noisy_structured_product if "noise" in work else structured_product
    return lambda: torch.autograd.grad(product(x, *vectors), [x, *vectors], grad)


def _memory_cell(work: str) -> Cell:
    case = {"quantity": "peak memory", "work": work, "D": f"2^{_ROW_POWER}"}
    if not _STATUS.exists():
        return Cell(case, {}, {"whvi": "needs /proc"}, "MiB")
    command = [sys.executable, "-m", "benchmarks.memory", work]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    dense = 2 * 4 * 2 ** (2 * _ROW_POWER) // 2**40  # a float32 matrix and its gradient
    left_out = {"nn.Linear": f"weight and gradient take {dense} TiB"}
    return Cell(case, {"whvi": json.loads(output)}, left_out, "MiB")


def _child(work: str) -> None:
    torch.set_num_threads(1)
    print(resident(partial(_row, work), 1024, 2**_ROW_POWER))


def resident(make: Callable[[int], Callable[[], object]], small: int, size: int) -> float:
    """Return the MiB that work of ``size`` adds to a process that has done a small one.

    ``VmHWM`` is the high-water mark of this program alone; the one of ``getrusage`` would begin
    at the size of the parent process.
    """
    make(small)()
    before = _status("VmRSS")
    make(size)()
    return (_status("VmHWM") - before) / 1024


def peak_memory() -> float:
    """Return the most MiB that this program has had so far."""
    return _status("VmHWM") / 1024


def _status(key: str) -> int:
    """Read a size in KiB."""
    for line in _STATUS.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    raise KeyError(key)


if __name__ == "__main__":
    _child(sys.argv[1])
