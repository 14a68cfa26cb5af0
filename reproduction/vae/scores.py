r"""Likelihoods of test images, and how well a model notices images unlike its own.

With ``L_s(x) = log p(x | W_s)`` for decoders ``W_s`` (weight draws, or members of an ensemble):

    likelihood     −log mean_s exp L_s(x)
    WAIC           −(mean_s L_s(x) − var_s L_s(x))        (Choi et al., 2019)
    disagreement   std_s L_s(x)

Each is larger for outsiders. **The main score, declared before any outsider was scored, is the
disagreement**, for every method with more than one decoder; a single dense model has only the
likelihood, which is its main score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reproduction.vae.methods import Method
from whvi.metrics import auroc
from whvi.models import Vae
from whvi.training.config import seeded_generator

MAIN_SCORE = "disagreement"


@dataclass(frozen=True)
class Sizes:
    """How much is computed.

    Attributes:
        epochs: Of training.
        rows_500, rows_5000: First test images for bounds with so many importance samples.
        rows_ood: First test images of each set for out-of-distribution scores.
        num_decoders: Weight draws of one model for those scores.
        num_latents: Latents per decoder for those scores; members of an ensemble share out the
            same total.
    """

    epochs: int = 14
    rows_500: int = 2_000
    rows_5000: int = 1_000
    rows_ood: int = 4_000
    num_decoders: int = 16
    num_latents: int = 10


QUICK = Sizes(epochs=1, rows_500=20, rows_5000=4, rows_ood=30, num_decoders=3, num_latents=4)


def bounds(model: Vae, x: Tensor, sizes: Sizes, seed: int) -> dict[str, float]:
    """Return mean negative bounds on test images with 1, 500 and 5,000 importance samples."""
    rows = {1: len(x), 500: sizes.rows_500, 5000: sizes.rows_5000}
    found = {}
    for num, count in rows.items():
        generator = seeded_generator(f"bound {num}", seed)
        values = model.log_likelihood(x[:count], num_importance=num, generator=generator)
        found[f"nll_{num}"] = -float(values.mean())
        found[f"nll_{num}_rows"] = min(count, len(x))
    return found


def decoder_log_likelihoods(
    models: Sequence[Vae], method: Method, x: Tensor, sizes: Sizes, seed: int
) -> Tensor:
    """Return ``L_s(x)``, ``(S, N)``."""
    total = sizes.num_decoders * sizes.num_latents
    per_model = sizes.num_decoders if method.layer != "dense" else 1
    num_latents = max(1, total // (per_model * len(models)))
    generator = seeded_generator("decoders", seed)
    draws = [
        model.log_likelihood_draws(
            x, num_weights=per_model, num_latents=num_latents, generator=generator
        )
        for model in models
    ]
    return torch.cat(draws)


def outsider_scores(values: Tensor) -> dict[str, Tensor]:
    """Turn ``L (S, N)`` into scores ``(N,)``; one decoder gives the likelihood alone."""
    values = values.double()
    found = {"likelihood": -(values.logsumexp(0) - math.log(len(values)))}
    if len(values) > 1:
        found["waic"] = -(values.mean(0) - values.var(0))
        found["disagreement"] = values.std(0)
    return found


def detection(inside: Tensor, outside: Tensor) -> dict[str, float]:
    """Return the AUROC of every score, from ``L`` of insiders and outsiders."""
    ours, theirs = outsider_scores(inside), outsider_scores(outside)
    is_outside = torch.cat([torch.zeros(inside.shape[1]), torch.ones(outside.shape[1])])
    return {name: float(auroc(torch.cat([ours[name], theirs[name]]), is_outside)) for name in ours}
