r"""A learned ``T``: ``log2 D`` levels of 2 × 2 reflections, ``½ D log2 D`` angles.

Level ``l`` maps the pairs ``(a, b) = (x[i], x[i + 2^l])``, bit ``l`` of ``i`` being zero, by

    [a']   [cos θ   sin θ] [a]
    [b'] = [sin θ  −cos θ] [b],

and ``T`` applies level 0 first. Every level is symmetric and its own inverse, so ``Tᵀ`` is the
levels in reverse order. With all angles ``π/4``, ``T = H``.

Several levels together are small dense matrices, one for each setting of the other bits: that is
how they are multiplied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from whvi._checks import is_power_of_two, next_power_of_two
from whvi.errors import ConfigError
from whvi.transforms.mixing import Factors, Mixing

_STAGE_LEVELS = 5  # at most: matrices of 32 × 32
_STARTS = ("hadamard", "random")


def butterfly(x: Tensor, angles: Tensor, *, transpose: bool = False) -> Tensor:
    """Return ``T x``, or ``Tᵀ x``, along the last axis.

    Args:
        x: Shape ``(*batch_shape, ..., D)``.
        angles: Shape ``(*batch_shape, log2 D, D/2)``; pairs of a level in the order of ``i``.
        transpose: Apply the levels in reverse order.
    """
    return _apply(x, _stages(angles), angles.dim() - 2, transpose=transpose)


def _stages(angles: Tensor) -> list[Tensor]:
    """Return the matrices of every stage, ``(*batch_shape, high, low, 2^r, 2^r)``.

    A stage is ``r`` levels; ``high`` and ``low`` count the settings of the bits above and below.
    """
    levels = angles.shape[-2]
    count = -(-levels // _STAGE_LEVELS)
    ends = [levels * i // count for i in range(1, count + 1)]
    return [_stage(angles, first, end) for first, end in zip([0, *ends], ends, strict=False)]


def _stage(angles: Tensor, first: int, end: int) -> Tensor:
    """Multiply levels ``first`` to ``end - 1`` out."""
    low, inner = 1 << first, 1 << (end - first)
    matrices = torch.eye(inner, dtype=angles.dtype, device=angles.device)
    for level in range(first, end):
        below = 1 << (level - first)
        pairs = angles[..., level, :].unflatten(-1, (-1, inner // (2 * below), below, low))
        theta = pairs.movedim(-1, -3).unsqueeze(-1)  # (..., high, low, above, below, 1)
        c, s = theta.cos(), theta.sin()
        a, b = matrices.unflatten(-2, (-1, 2, below)).unbind(-3)  # rows that are a pair
        matrices = torch.stack([c * a + s * b, s * a - c * b], -3).flatten(-4, -2)
    return matrices


def _apply(x: Tensor, stages: list[Tensor], batch_ndim: int, *, transpose: bool) -> Tensor:
    y = x.reshape(*x.shape[:batch_ndim], -1, x.shape[-1])
    for matrices in reversed(stages) if transpose else stages:
        high, low, inner = matrices.shape[-4:-1]
        boxes = y.unflatten(-1, (high, inner, low))
        rows = boxes.movedim((-4, -3, -2, -1), (-2, -4, -1, -3))  # (..., high, low, N, inner)
        rows = rows @ (matrices if transpose else matrices.mT)
        y = rows.movedim((-2, -4, -1, -3), (-4, -3, -2, -1)).flatten(-3)
    return y.reshape(x.shape)


@final
@dataclass(frozen=True)
class Butterfly:
    """A choice of ``transform``: learned reflections.

    Attributes:
        start: ``"hadamard"``: ``T = H``. ``"random"``: uniform angles.
    """

    start: str = "hadamard"

    def __post_init__(self) -> None:
        if self.start not in _STARTS:
            raise ConfigError(f"start must be one of {', '.join(_STARTS)}, got {self.start!r}")

    def round_up(self, size: int) -> int:
        """Return the smallest size that it takes."""
        return next_power_of_two(size)

    def __call__(
        self,
        size: int,
        *,
        batch_shape: tuple[int, ...] = (),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> LearnedButterfly:
        """Make the module for vectors of ``size``."""
        if not is_power_of_two(size):
            raise ConfigError(f"a butterfly needs a power of two, got size {size}")
        levels = size.bit_length() - 1
        angles = torch.empty(*batch_shape, levels, size // 2, device=device, dtype=dtype)
        return LearnedButterfly(angles, self.start)


@final
class LearnedButterfly(nn.Module, Mixing):
    """``M(g) = T diag(g) Tᵀ`` with learned ``angles (*batch_shape, log2 D, D/2)``.

    The blocks of a layer share them; replicas have their own. They have no posterior.
    """

    def __init__(self, angles: Tensor, start: str) -> None:
        super().__init__()
        self.angles = nn.Parameter(angles)
        self.size = 1 << angles.shape[-2]
        self._start = start
        self.name = "butterfly" if start == "hadamard" else f"butterfly-{start}"
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """See :meth:`Mixing.reset_parameters`."""
        if self._start == "hadamard":
            self.angles.fill_(math.pi / 4)
        else:
            self.angles.uniform_(-math.pi, math.pi, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``T x`` along the last axis."""
        return butterfly(x, self.angles)

    def transpose(self, x: Tensor) -> Tensor:
        """Return ``Tᵀ x`` along the last axis."""
        return butterfly(x, self.angles, transpose=True)

    def mix(self, v: Tensor, g: Tensor) -> Tensor:
        """See :meth:`Mixing.mix`."""
        stages, axes = _stages(self.angles), self.angles.dim() - 2
        return _apply(g * _apply(v, stages, axes, transpose=True), stages, axes, transpose=False)

    def factors(self, v: Tensor) -> Factors:
        """See :meth:`Mixing.factors`."""
        unit = torch.eye(self.size, dtype=v.dtype, device=v.device)
        unit = unit.expand(*self.angles.shape[:-2], *unit.shape)
        return [(self.transpose(unit), self.transpose(v))]
