"""Pictures of trained autoencoders: samples, reconstructions, a walk between latents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from whvi import MeanWeights, WeightDraws, sampling
from whvi.models import Vae
from whvi.plots import save_figure
from whvi.training.config import seeded_generator

_COLUMNS = 12


@torch.no_grad()
def draw_samples(models: Mapping[str, Vae], path: Path) -> None:
    """Write mean images of latents from the prior, two rows per method, the same latents for all.

    The two rows of a method are two draws of its weights; a dense model has one set of them.
    """
    generator = seeded_generator("figure latents", 0)
    z = torch.randn(_COLUMNS, next(iter(models.values())).config.num_latents, generator=generator)
    rows = {}
    for name, model in models.items():
        for k in (1, 2) if model.config.layer != "dense" else (1,):
            with sampling(WeightDraws(None, seeded_generator("figure weights", k))):
                rows[f"{name}, draw {k}" if model.config.layer != "dense" else name] = model.decode(
                    z
                )
    _write(rows, path)


@torch.no_grad()
def draw_reconstructions(models: Mapping[str, Vae], x: Tensor, path: Path) -> None:
    """Write test images and their reconstructions by posterior mean weights."""
    x = x[:_COLUMNS]
    with sampling(MeanWeights()):
        rows = {name: model.reconstruct(x) for name, model in models.items()}
    _write({"images": x, **rows}, path)


@torch.no_grad()
def draw_interpolation(models: Mapping[str, Vae], x: Tensor, path: Path) -> None:
    """Write the images on a straight line between the latents of two test images."""
    share = torch.linspace(0, 1, _COLUMNS).unsqueeze(-1)
    rows = {}
    with sampling(MeanWeights()):
        for name, model in models.items():
            first, last = model.encode(x[:2]).mean
            rows[name] = model.decode((1 - share) * first + share * last)
    _write(rows, path)


def _write(rows: Mapping[str, Tensor], path: Path) -> None:
    figure = Figure(figsize=(0.7 * _COLUMNS + 1.6, 0.72 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), _COLUMNS, squeeze=False)
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        for axis, image in zip(line, images, strict=False):
            axis.imshow(image.reshape(28, 28).numpy(), cmap="gray_r", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    save_figure(figure, path, formats=("png",))
