"""An epoch of a variational autoencoder (784 – width – width – 50), beside its rivals.

Steps of ``whvi.fit`` on batches of 128 binary images, counted up to the 60,000 images of an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

import whvi
from benchmarks.records import Cell, timed_cell
from benchmarks.timing import Effort, Rival
from whvi.models import vae

TITLE = "Variational autoencoder, seconds per epoch"
_WIDTHS, _BATCH, _STEPS, _IMAGES = (512, 2048), 128, 4, 60_000
_KINDS = {"whvi": "whvi", "dense": "dense", "mean field (whvi)": "mean_field"}


def cells(effort: Effort, quick: bool) -> Iterator[Cell]:
    """Training by width."""
    for width in _WIDTHS[:1] if quick else _WIDTHS:
        rivals = {name: Rival(_steps(layer, width)) for name, layer in _KINDS.items()}
        cell = timed_cell({"width": width}, rivals, effort)
        scale = _IMAGES / (_STEPS * _BATCH)
        yield cell._replace(values={name: t * scale for name, t in cell.values.items()})


def _steps(layer: str, width: int) -> Callable[[], object]:
    block_sizes = (64, 32) if width == _WIDTHS[0] else (256, 256)
    model = vae((784,), (width, width), 50, layer=layer, block_sizes=block_sizes)
    x = torch.bernoulli(torch.full((_STEPS * _BATCH, 784), 0.2))
    config = whvi.FitConfig(
        num_steps=_STEPS, batch_size=_BATCH, learning_rate=1e-3, record_every=_STEPS
    )
    return lambda: whvi.fit(model, model.bound(), (x, x), config=config)
