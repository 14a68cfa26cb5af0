r"""Figure 1 of the paper: the normalised covariance of ``g`` and of ``vec(W)``, side by side.

A small network with an 8 × 8 structured layer and a full-covariance posterior is trained on a toy
regression. ``W`` is linear in ``g``, so ``cov(vec W) = A Σ Aᵀ`` with
``A[(i,j),k] = s1[i] s2[j] H[i,k] H[j,k]``: 8 random numbers correlate 64 weights.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reproduction.report import replace_file
from whvi.layers import WHVILinear
from whvi.layers.linear import RandomLinear
from whvi.layers.structured import StructuredMatrix
from whvi.likelihoods import Gaussian
from whvi.models.mlp import mlp
from whvi.plots import correlation, new_figure, plot_covariance, save_figure
from whvi.training import FitConfig, fit

_SIZE = 8
_NUM_ROWS = 1000
_NOISE_SCALE = 0.1


class Figure1(NamedTuple):
    """Posterior covariances of one trained layer, and the files they were written to."""

    cov_g: Tensor  # (D, D)
    cov_w: Tensor  # (D², D²), of vec(W) row by row
    files: tuple[Path, ...]


def reproduce_figure1(folder: Path, *, seed: int = 0, quick: bool = False) -> Figure1:
    """Train, draw the two covariances and write ``figure1.png``, ``.svg`` and ``summary.json``.

    Args:
        folder: For the files.
        seed: Of data, starting point and training.
        quick: Train for a few steps only, to see that it runs.
    """
    config = FitConfig(
        num_steps=40 if quick else 4000,
        batch_size=50,
        warmup_steps=20 if quick else 200,
        noise_hold_steps=20 if quick else 500,
        seed=seed,
    )
    x, y = toy_data(seed)
    model = build_model(seed)
    likelihood = Gaussian()
    likelihood.set_target_scaling(y)
    history = fit(model, likelihood, (x, y), config=config)
    layer = model[0]
    assert isinstance(layer, WHVILinear)  # as built
    assert isinstance(layer.matrix, StructuredMatrix)
    cov_g = layer.matrix.posterior.covariance().detach()[0]
    cov_w = layer.weight_moments().covariance.detach()
    pictures = _draw(cov_g, cov_w, folder)
    settings = {
        "seed": seed,
        "quick": quick,
        "network": f"{_SIZE} -> {_SIZE} (structured, full covariance) -> tanh -> 1",
        "data": f"{_NUM_ROWS} rows, sum of sines of random projections, noise {_NOISE_SCALE}",
        "fit": config.as_dict(),
    }
    results = {
        "settings": settings,
        "expected_log_lik": history.expected_log_lik[-1],
        "kl": history.kl[-1],
        "noise_scale": likelihood.noise_scale.tolist(),
        "g": _describe(cov_g),
        "vec_w": _describe(cov_w),
        # from these follow both covariances
        "cov_g": cov_g.tolist(),
        "s1": layer.matrix.s1.tolist(),
        "s2": layer.matrix.s2.tolist(),
    }
    numbers = folder / "summary.json"
    replace_file(numbers, json.dumps(results, indent=1) + "\n")
    return Figure1(cov_g, cov_w, (*pictures, numbers))


def toy_data(seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs ``(N, 8)`` and a smooth function of them with noise, ``(N,)``."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(_NUM_ROWS, _SIZE, generator=generator)
    directions = torch.randn(_SIZE, 2, generator=generator) / _SIZE**0.5
    noise = _NOISE_SCALE * torch.randn(_NUM_ROWS, generator=generator)
    return x, torch.sin(x @ directions).sum(-1) + noise


def build_model(seed: int) -> nn.Sequential:
    """Build 8 → 8 → 1 with a full-covariance posterior on the first layer's ``g``."""
    layer = partial(WHVILinear, posterior="full")
    model = mlp(_SIZE, (_SIZE,), activation=nn.Tanh, layer=layer)
    generator = torch.Generator().manual_seed(seed)
    for module in model:
        if isinstance(module, RandomLinear):
            module.reset_parameters(generator=generator)
    return model


def _draw(cov_g: Tensor, cov_w: Tensor, folder: Path) -> list[Path]:
    figure = new_figure(2, width=8.0, height=3.6)
    for ax, covariance, title in zip(figure.axes, (cov_g, cov_w), ("g", "vec(W)"), strict=True):
        plot_covariance(ax, covariance, f"Cov({title}), normalised")
    return save_figure(figure, folder / "figure1", formats=("png", "svg"))


def _describe(covariance: Tensor) -> dict[str, Any]:
    values = correlation(covariance)
    off_diagonal = values[~torch.eye(len(values), dtype=torch.bool)].abs()
    return {
        "size": len(covariance),
        "rank": int(torch.linalg.matrix_rank(covariance.double(), hermitian=True, rtol=1e-6)),
        "mean_absolute_correlation": off_diagonal.mean().item(),
        "largest_absolute_correlation": off_diagonal.max().item(),
    }
