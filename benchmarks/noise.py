"""Standard normals beside ``torch.randn``, each from a generator of its own."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.records import Cell, timed_cell
from benchmarks.timing import Effort, Rival
from whvi._kernel.noise import normal_from_seed
from whvi.sampling import draw_seed

TITLE = "Noise"
_POWERS = [10, 13, 16, 20, 24]
_QUICK_POWERS = [13, 20]


def cells(effort: Effort, quick: bool) -> Iterator[Cell]:
    """Both data types, sizes from a cache line's worth of rows to memory."""
    for name, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        for power in _QUICK_POWERS if quick else _POWERS:
            yield _cell(name, dtype, power, effort)


def _cell(name: str, dtype: torch.dtype, power: int, effort: Effort) -> Cell:
    shape = (2**power,)
    ours, theirs = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    rivals = {
        "whvi": Rival(lambda: normal_from_seed(shape, draw_seed(ours), dtype=dtype)),
        "torch.randn": Rival(lambda: torch.randn(shape, generator=theirs, dtype=dtype)),
    }
    return timed_cell({"dtype": name, "entries": f"2^{power}"}, rivals, effort)
