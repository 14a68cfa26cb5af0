"""Sine features: what comes before and after their layer, and where its frequencies start."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from whvi._checks import check_positive
from whvi.layers.structured import StructuredMatrix

_LARGEST_FACTOR = 64.0


@final
class Tile(nn.Module):
    """Repeat the features up to ``width``: one full-width block instead of many small ones.

    Args:
        in_features: Features of the input.
        width: Features of the output.
    """

    def __init__(self, in_features: int, width: int) -> None:
        super().__init__()
        self.width, self._num_copies = width, -(-width // in_features)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., in_features)`` to ``(..., width)``; axes of stride 0 stay such."""
        shared = [slice(1) if step == 0 else slice(None) for step in x.stride()[:-1]]
        row = x[tuple(shared)].unsqueeze(-2)
        copies = row.expand(*row.shape[:-2], self._num_copies, -1)  # a gather is ten times slower
        return copies.flatten(-2)[..., : self.width].expand(*x.shape[:-1], -1)


@final
class Sine(nn.Module):
    """``√2 sin``: learned random features (unit mean square for a spread-out phase)."""

    SCALE = math.sqrt(2)

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to every element."""
        return torch.sin(x).mul_(self.SCALE)


@torch.no_grad()
def spread_frequencies(
    matrix: StructuredMatrix, *, scale: float = 1.0, generator: torch.Generator | None = None
) -> None:
    r"""Multiply the columns of every block by ``scale / |z|``, ``z ~ N(0, 1)``, in place.

    A reset leaves Gaussian weights of variance ``2 / in``. Over an independent ``|z|`` they are
    Cauchy, the spectral density of the Laplace kernel

    .. math:: k(\delta) = \prod_j e^{-|\delta_j| / \ell}, \qquad \ell = \sqrt{in / 2} / scale,

    which forests of random cuts approach (Balog et al., 2016). It sees steps, where Gaussian
    frequencies see one smooth scale. As biases start at zero, sines of ``W x`` start as features
    of ``k(x - x') - k(x + x')``; a uniform phase would give ``k(x - x')``.

    Args:
        matrix: Just reset. Columns have their own factors in every stacked block.
        scale: Of the frequencies, above zero; ``1 / |z|`` above 64 is cut off.
        generator: Draws ``z``.
    """
    check_positive("scale", scale)
    z = torch.empty_like(matrix.s2).normal_(generator=generator)
    matrix.s2.mul_(z.abs_().reciprocal_().clamp_(max=_LARGEST_FACTOR).mul_(scale))
