"""Blocks of 12, 20 or 28 times a power of two beside blocks padded to the next power of two.

Both maps have as many inputs and outputs as the smaller block. The third rival is the square
product of the next power of two, whose inputs and outputs fill it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.records import Cell, timed_cell
from benchmarks.timing import Effort, Rival
from whvi._checks import next_power_of_two
from whvi._kernel.layout import BlockPlan
from whvi._kernel.product import block_linear

TITLE = "Blocks of other sizes than powers of two"
SIZES = [320, 384, 640, 768, 1536, 2560, 3072, 3584, 5120]
BATCHES = [64, 1024]
_QUICK_SIZES = [384, 768, 1536]


def cells(effort: Effort, quick: bool) -> Iterator[Cell]:
    """Forward + backward of a layer without bias, its input included."""
    for batch in BATCHES[:1] if quick else BATCHES:
        for size in _QUICK_SIZES if quick else SIZES:
            power = next_power_of_two(size)
            rivals = {
                "whvi": _both_ways(batch, size, size),
                "padded": _both_ways(batch, size, power),
                "next power of two": _both_ways(batch, power, power),
            }
            yield timed_cell({"batch": batch, "D": size}, rivals, effort)


def _both_ways(batch: int, width: int, size: int) -> Rival:
    plan = BlockPlan(width, width, size, 1, is_column=False)
    shapes = [(batch, width), *[(size,)] * 3]
    x, s1, g, s2 = leaves = [(torch.randn(s) * size**-0.5).requires_grad_() for s in shapes]
    grad = torch.randn(batch, width)

    def call() -> tuple[Tensor, ...]:
        return torch.autograd.grad(block_linear(x, s1, g, s2, None, plan), leaves, grad)

    return Rival(call)
