"""A square layer with every transform beside ``nn.Linear``, forward and backward.

One weight draw for all rows; gradients of the input and of all parameters are returned.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from benchmarks.records import Cell, timed_cell
from benchmarks.timing import Effort, Rival
from whvi import WHVILinear

TITLE = "Transforms"
TRANSFORMS = ("hadamard", "dct", "hartley", "circulant", "butterfly")
SIZES = [2**k for k in range(6, 17)]
_QUICK_SIZES = [128, 1024, 4096]
_BATCH = 64
_MOST_DENSE = 2**13  # inputs for which nn.Linear is run


def cells(effort: Effort, quick: bool) -> Iterator[Cell]:
    """One cell for every size."""
    for size in _QUICK_SIZES if quick else SIZES:
        rivals: dict[str, Rival | str] = {
            name: _rival(WHVILinear(size, size, transform=name), size) for name in TRANSFORMS
        }
        is_small = size <= _MOST_DENSE
        rivals["nn.Linear"] = _rival(nn.Linear(size, size), size) if is_small else "too large"
        yield timed_cell({"batch": _BATCH, "D": size}, rivals, effort)


def _rival(layer: nn.Module, size: int) -> Rival:
    x, grad = torch.randn(_BATCH, size, requires_grad=True), torch.randn(_BATCH, size)
    leaves = [x, *layer.parameters()]

    def call() -> tuple[Tensor, ...]:
        return torch.autograd.grad(layer(x), leaves, grad)

    return Rival(call)
