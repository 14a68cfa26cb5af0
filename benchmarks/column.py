"""One output of a million inputs, one weight draw for all rows, beside ``nn.Linear``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from benchmarks.records import Cell, timed_cell
from benchmarks.timing import Effort, Rival
from whvi import WHVILinear

TITLE = "Single output"
_IN_FEATURES, _BATCH = 10**6, 16


def cells(effort: Effort, quick: bool) -> Iterator[Cell]:
    """Forward, then forward and backward; a fresh draw at every call."""
    x, grad = torch.randn(_BATCH, _IN_FEATURES), torch.randn(_BATCH, 1)
    layers = {"whvi": WHVILinear(_IN_FEATURES, 1), "nn.Linear": nn.Linear(_IN_FEATURES, 1)}
    for run in ("forward", "forward + backward"):
        rivals = {name: Rival(_call(layer, run, x, grad)) for name, layer in layers.items()}
        yield timed_cell({"run": run, "in": _IN_FEATURES, "batch": _BATCH}, rivals, effort)


def _call(layer: nn.Module, run: str, x: torch.Tensor, grad: torch.Tensor) -> Callable[[], object]:
    parameters = list(layer.parameters())
    if run == "forward":
        return lambda: layer(x)
    return lambda: torch.autograd.grad(layer(x), parameters, grad)
