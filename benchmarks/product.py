"""The structured product beside dense layers of the same width, forward and backward.

Every rival is a function of tensors that all require gradients, the input included, as inside a
network; gradients are returned and not accumulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.records import Cell, timed_cell
from benchmarks.rivals import mean_field, unfused_noisy_product, unfused_product
from benchmarks.timing import Effort, Rival
from whvi.functional import noisy_structured_product, structured_product

TITLE = "Structured product"
SIZES = [2**k for k in range(5, 14)]
BATCHES = [1, 16, 64, 256, 4096]
_QUICK_SIZES = [64, 128, 256, 1024, 2048]
_QUICK_BATCHES = [1, 64]
_MOST_BYTES = 2 * 2**30
_BEST_RATE = 1e11  # multiply-adds per second of a matrix product in one thread, at best

Function = Callable[..., Tensor]


def cells(effort: Effort, quick: bool) -> Iterator[Cell]:
    """Forward alone under no_grad, and forward + backward."""
    for run in ("forward + backward", "forward"):
        for batch in _QUICK_BATCHES if quick else BATCHES:
            for size in _QUICK_SIZES if quick else SIZES:
                yield _cell(run, batch, size, effort)


def _cell(run: str, batch: int, size: int, effort: Effort) -> Cell:
    matrix, rows = (size, size), (batch, size)
    structured, noisy = [rows, (size,), (size,), (size,)], [rows, *[(size,)] * 4]
    start = _both_ways if run == "forward + backward" else _forward

    def dense(function: Function, shapes: list[tuple[int, ...]], products: int) -> Rival | str:
        """``products``: matrix products of one forward pass."""
        passes = 3 if run == "forward + backward" else 1
        if 4 * size**2 * 6 * products + 4 * batch * size * 8 > _MOST_BYTES:
            return "needs more than 2 GiB"
        if products * passes * batch * size**2 / _BEST_RATE > effort.longest_call:
            return f"a call takes more than {effort.longest_call:g} s"
        return start(function, shapes)

    rivals = {
        "whvi": start(structured_product, structured),
        "whvi, noise per row": start(noisy_structured_product, noisy),
        "nn.Linear": dense(F.linear, [rows, matrix], 1),
        "mean field": dense(mean_field, [rows, matrix, matrix], 2),
        "unfused": start(unfused_product, structured),
        "unfused, torch.randn": start(unfused_noisy_product, noisy),
    }
    return timed_cell({"run": run, "batch": batch, "D": size}, rivals, effort)


def _forward(function: Function, shapes: list[tuple[int, ...]]) -> Rival:
    tensors = [torch.randn(shape) * shape[-1] ** -0.5 for shape in shapes]

    def call() -> Tensor:
        with torch.no_grad():
            return function(*tensors)

    return Rival(call)


def _both_ways(function: Function, shapes: list[tuple[int, ...]]) -> Rival:
    leaves = [(torch.randn(shape) * shape[-1] ** -0.5).requires_grad_() for shape in shapes]
    grad = torch.randn(shapes[0])

    def call() -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(*leaves), leaves, grad)

    return Rival(call)
