"""A 3 × 3 convolution of 32 images of 32 × 32, one weight draw, beside ``nn.Conv2d``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn

from benchmarks.memory import resident
from benchmarks.records import Cell, timed_cell
from benchmarks.timing import Effort, Rival
from whvi import LocalReparameterization, MeanFieldConv2d, WHVIConv2d, sampling

TITLE = "Convolution"
_CHANNELS = [16, 32, 64, 128, 256]
_BATCH, _SIZE = 32, 32
_KINDS: dict[str, Callable[..., nn.Module]] = {"whvi": WHVIConv2d, "nn.Conv2d": nn.Conv2d}


def cells(effort: Effort, quick: bool) -> Iterator[Cell]:
    """Forward + backward by width, then the memory that both add to a fresh process."""
    for channels in _CHANNELS[:2] if quick else _CHANNELS:
        rivals = {name: Rival(_call(kind, channels)) for name, kind in _KINDS.items()}
        rivals["whvi, noise per patch"] = Rival(_local(WHVIConv2d, channels))
        rivals["mean field (whvi), noise per patch"] = Rival(_local(MeanFieldConv2d, channels))
        yield timed_cell({"quantity": "time", "channels": channels}, rivals, effort)
    for channels in _CHANNELS[:1] if quick else _CHANNELS:
        values = {name: _peak(name, channels) for name in _KINDS}
        yield Cell({"quantity": "peak memory", "channels": channels}, values, {}, "MiB")


def _call(kind: Callable[..., nn.Module], channels: int) -> Callable[[], object]:
    layer = kind(channels, channels, 3, padding=1)
    x = torch.randn(_BATCH, channels, _SIZE, _SIZE, requires_grad=True)
    inputs, grad = [x, *layer.parameters()], torch.randn_like(x)
    return lambda: torch.autograd.grad(layer(x), inputs, grad)


def _local(kind: Callable[..., nn.Module], channels: int) -> Callable[[], object]:
    call = _call(kind, channels)

    def run() -> None:
        with sampling(LocalReparameterization()):
            call()

    return run


def _peak(name: str, channels: int) -> float:
    command = [sys.executable, "-m", "benchmarks.conv", name, str(channels)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(output))


def _child(name: str, channels: int) -> None:
    torch.set_num_threads(1)
    print(json.dumps(resident(partial(_call, _KINDS[name]), 1, channels)))


if __name__ == "__main__":
    _child(sys.argv[1], int(sys.argv[2]))
