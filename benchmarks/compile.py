"""Three layers in eager mode and by ``torch.compile(fullgraph=True)``: a forward pass, batch 64."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from benchmarks.records import Cell, timed_cell
from benchmarks.timing import Effort, Rival
from whvi import LocalReparameterization, MeanWeights, WHVILinear, sampling

TITLE = "torch.compile"
_WIDTHS = [128, 1024]
_BATCH = 64
_SAMPLERS: dict[str, Callable[[], object] | None] = {
    "new weights": None,
    "mean weights": MeanWeights,
    "noise per row": LocalReparameterization,
}


def cells(effort: Effort, quick: bool) -> Iterator[Cell]:
    """Every sampler, without and with a graph of gradients."""
    for width in _WIDTHS:
        layers = [WHVILinear(width, width) for _ in range(3)]
        model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
        compiled = torch.compile(model, fullgraph=True)
        x = torch.randn(_BATCH, width)
        for name in ["new weights"] if quick else _SAMPLERS:
            for gradients in (False, True):
                pair = {"eager": model, "compiled": compiled}
                torch._dynamo.reset()  # variants of one function are tried one after the other
                _call(compiled, x, name, gradients)()
                rivals = {n: Rival(_call(m, x, name, gradients)) for n, m in pair.items()}
                case = {"width": width, "weights": name, "gradients": str(gradients)}
                yield timed_cell(case, rivals, effort)


def _call(model: Callable[[Tensor], Tensor], x: Tensor, name: str, gradients: bool) -> Callable:
    make = _SAMPLERS[name]

    def call() -> None:
        with torch.set_grad_enabled(gradients):
            if make is None:
                model(x)
            else:
                with sampling(make()):
                    model(x)

    return call
