"""Inverting the cdf of a mixture: integers by bisection, real numbers by guarded Newton steps."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

_EPS = torch.finfo(torch.float64).eps


def smallest_integer(
    cdf: Callable[[Tensor], Tensor], q: float, lower: Tensor, upper: Tensor
) -> Tensor:
    """Bisect integers, keeping ``cdf(lower) < q <= cdf(upper)``."""
    lower = lower.clamp_min(-1)
    while bool((upper - lower > 1).any()):
        middle = ((lower + upper) / 2).floor()
        above = cdf(middle) >= q
        upper, lower = torch.where(above, middle, upper), torch.where(above, lower, middle)
    return upper


def root(
    cdf: Callable[[Tensor], Tensor],
    density: Callable[[Tensor], Tensor],
    q: float,
    lower: Tensor,
    upper: Tensor,
) -> Tensor:
    """Solve ``cdf(x) = q`` by Newton steps, replaced by bisection where they do not help.

    ``lower`` and ``upper`` are Cantelli's, ``std / sqrt(q (1 - q))`` apart. An entry that has
    converged stays as it is: its root does not depend on the entries beside it.
    """
    moving = torch.ones_like(lower, dtype=torch.bool)
    x, previous = (lower + upper) / 2, torch.full_like(lower, math.inf)
    std = (upper - lower) * math.sqrt(q * (1 - q))
    for _ in range(200):
        gap = cdf(x) - q
        upper, lower = torch.where(gap >= 0, x, upper), torch.where(gap < 0, x, lower)
        newton = x - gap / density(x)
        helps = (newton >= lower) & (newton <= upper) & (gap.abs() < previous / 2)
        step = torch.where(helps, newton, (lower + upper) / 2)
        step = torch.where(gap.abs() <= 8 * _EPS * q, x, step)  # the cdf knows no better
        step = torch.where(moving, step, x)
        moved, x, previous = (step - x).abs(), step, gap.abs()
        moving &= moved > 2 * _EPS * (x.abs() + std)
        if not bool(moving.any()):
            break
    return x
