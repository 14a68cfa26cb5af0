"""Which rows each member of an ensemble trains on, and which it leaves out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from whvi.training.config import seeded_generator

_FEWEST_ROWS = 10  # with fewer, nothing is left out: two rows cannot judge eight


class Folds(NamedTuple):
    """Row numbers: ``(T,)`` and ``(V,)`` shared by all members, or ``(R, T)`` and ``(R, V)``.

    Attributes:
        train, held_out: What members train on and what they leave out.
        sharing: Neighbouring members that leave out the same rows; all of them if 0.
    """

    train: Tensor
    held_out: Tensor | None
    sharing: int = 0


def common_fold(num_rows: int, fraction: float, seed: int) -> Folds:
    """Leave out the same random ``fraction`` of the rows for all members."""
    num_held_out = _num_held_out(num_rows, fraction)
    order = torch.randperm(num_rows, generator=seeded_generator("folds", seed))
    held_out = order[:num_held_out] if num_held_out else None
    return Folds(order[num_held_out:], held_out)


def rotating_folds(num_rows: int, num_members: int, fraction: float, seed: int) -> Folds:
    """Let every pair of members leave out the rows that follow those of the pair before it.

    The rows stand in random order on a circle. As a whole the ensemble has seen them all, and
    what a pair says about the rows it left out is an honest prediction: of a small ensemble,
    whose errors are nearer to those of the whole than the errors of one member are.
    """
    sharing = 2 if num_members % 2 == 0 else 1
    num_held_out = _num_held_out(num_rows, fraction)
    order = torch.randperm(num_rows, generator=seeded_generator("folds", seed))
    starts = torch.arange(num_members).unsqueeze(-1) // sharing * num_held_out
    circle = order[(starts + torch.arange(num_rows)) % num_rows]
    held_out = circle[:, :num_held_out] if num_held_out else None
    return Folds(circle[:, num_held_out:], held_out, sharing)


def _num_held_out(num_rows: int, fraction: float) -> int:
    if num_rows < _FEWEST_ROWS or fraction == 0:
        return 0
    return min(max(round(fraction * num_rows), 1), num_rows - 1)
