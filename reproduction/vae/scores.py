r"""Likelihoods of test images, and how well a model notices images unlike its own.

With ``L_s(x) = log p(x | z_s, W_s) p(z_s) / q(z_s | x)`` for draws ``s`` of weights and latents (an
ensemble shares out the draws among its members, a dense model has one ``W``):

    likelihood     −log mean_s exp L_s(x)
    WAIC           −(mean_s L_s(x) − var_s L_s(x))        (Choi et al., 2019)
    disagreement   std_s L_s(x)

Each is larger for outsiders. **The main score, declared before a trained model saw any outsider, is
the disagreement, for all methods.**
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from whvi.metrics import auroc
from whvi.models import Vae
from whvi.training.config import seeded_generator

MAIN_SCORE = "disagreement"


@dataclass(frozen=True)
class Sizes:
    """How much is computed.

    Attributes:
        epochs: Of training.
        rows: First test images for a bound, by the number of importance samples.
        rows_ood: First test images of each set for out-of-distribution scores.
        num_draws: Draws of weights and latents for those scores.
    """

    epochs: int = 12
    rows: Mapping[int, int] = field(default_factory=lambda: {1: 10_000, 500: 2_000, 5_000: 1_000})
    rows_ood: int = 3_000
    num_draws: int = 100


QUICK = Sizes(epochs=1, rows={1: 60, 500: 20, 5_000: 4}, rows_ood=30, num_draws=10)


def bounds(model: Vae, x: Tensor, rows: Mapping[int, int], seed: int) -> dict[str, float]:
    """Return mean negative bounds; ``rows`` are first test images, by importance samples."""
    found = {}
    for num, count in rows.items():
        generator = seeded_generator(f"bound {num}", seed)
        values = model.log_likelihood(x[:count], num_importance=num, generator=generator)
        found[f"nll_{num}"] = -float(values.mean())
        found[f"nll_{num}_rows"] = min(count, len(x))
    return found


def log_weight_draws(models: Sequence[Vae], x: Tensor, num_draws: int, seed: int) -> Tensor:
    """Return ``L_s(x)``, ``(num_draws, N)``, each with weights and a latent of its own."""
    generator = seeded_generator("outsiders", seed)
    draws = [
        model.log_likelihood_draws(
            x, num_weights=num_draws // len(models), num_latents=1, generator=generator
        )
        for model in models
    ]
    return torch.cat(draws)


def outsider_scores(values: Tensor) -> dict[str, Tensor]:
    """Turn ``L (S, N)`` into scores ``(N,)``."""
    values = values.double()
    return {
        "likelihood": math.log(len(values)) - values.logsumexp(0),
        "waic": values.var(0) - values.mean(0),
        "disagreement": values.std(0),
    }


def detection(inside: Tensor, outside: Tensor) -> dict[str, float]:
    """Return the AUROC of every score, from ``L`` of insiders and outsiders."""
    ours, theirs = outsider_scores(inside), outsider_scores(outside)
    is_outside = torch.cat([torch.zeros(inside.shape[1]), torch.ones(outside.shape[1])])
    return {name: float(auroc(torch.cat([ours[name], theirs[name]]), is_outside)) for name in ours}
