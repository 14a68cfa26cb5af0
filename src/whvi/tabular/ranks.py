"""Inputs by their ranks among the training rows."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor


@final
class NormalScores:
    r"""Inputs by their ranks: ``z = Φ⁻¹(share of training rows below x)``, a feature at a time.

    Every feature of the training rows becomes standard normal, however skewed or heavy-tailed it
    was. Equal values have the middle of their ranks; the outermost are half a row from 0 and 1.

    Args:
        x: Training rows of R replicas, shape ``(R, N, d)``.
    """

    def __init__(self, x: Tensor) -> None:
        self._sorted = x.mT.contiguous().sort(dim=-1).values  # (R, d, N)

    def __call__(self, x: Tensor) -> Tensor:
        """Map ``(R, M, d)`` to the same shape."""
        num_rows, values = self._sorted.shape[-1], x.mT.contiguous()
        below = torch.searchsorted(self._sorted, values)
        upto = torch.searchsorted(self._sorted, values, right=True)
        share = (below + upto).double() / (2 * num_rows)
        edge = 0.5 / num_rows
        z: Tensor = torch.special.ndtri(share.clamp(edge, 1 - edge)).to(x.dtype)
        return z.mT.contiguous()
