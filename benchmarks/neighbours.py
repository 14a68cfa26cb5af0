"""Times of the transform at sizes that were once slow, beside those of half and twice the size."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.records import Case, Cell
from benchmarks.timing import Effort, Rival, measure
from whvi._kernel.backend import kernel
from whvi.transforms import fwht, fwht_

TITLE = "Transform: neighbouring sizes"
_SIZES = [512, 4096]
_POWERS = [22, 24]
_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_INSTRUCTION_SETS = ["avx512", "avx2", "baseline"]


def missing() -> str:
    """Say what the section lacks, or nothing."""
    return "" if kernel else "no compiled kernel"


def cells(effort: Effort, quick: bool) -> Iterator[Cell]:
    """Every instruction set, in place and into an output; those the machine lacks have no time."""
    assert kernel is not None  # or the section is missing
    before = kernel.instruction_set()
    try:
        for name in [before] if quick else _INSTRUCTION_SETS:
            if name in kernel.instruction_sets():
                kernel.use(name)
                yield from _cells_of(name, effort, [22] if quick else _POWERS)
            else:
                absent = {"whvi": "not measured: the machine has no such instruction set"}
                yield Cell({"instruction set": name}, {}, absent)
    finally:
        kernel.use(before)


def _cells_of(name: str, effort: Effort, powers: list[int]) -> Iterator[Cell]:
    for power in powers:
        for dtype in _DTYPES:
            x = torch.zeros(2**power, dtype=_DTYPES[dtype])  # zeros: in place they stay finite
            for mode, out in (("in place", None), ("output", torch.empty_like(x))):
                case: Case = {"instruction set": name, "entries": f"2^{power}", "dtype": dtype}
                for size in _SIZES:
                    yield _cell({**case, "mode": mode, "D": size}, x, out, effort)


def _cell(case: Case, x: torch.Tensor, out: torch.Tensor | None, effort: Effort) -> Cell:
    size = int(case["D"])
    rivals = {}
    for width in (size // 2, size, 2 * size):
        rows, into = x.view(-1, width), None if out is None else out.view(-1, width)
        call = partial(fwht_, rows) if into is None else partial(fwht, rows, out=into)
        rivals[str(width)] = Rival(call)
    with torch.no_grad():
        seconds = measure(rivals, effort).seconds
    around = (seconds[str(size // 2)] + seconds[str(2 * size)]) / 2
    return Cell(case, {"whvi": seconds[str(size)], "mean of D/2 and 2 D": around}, {})
