r"""A learned ``T``: ``log2 D`` levels of 2 × 2 reflections, ``½ D log2 D`` angles.

    [a']   [cos θ   sin θ] [a]
    [b'] = [sin θ  −cos θ] [b]        for the pairs (a, b) = (x[i], x[i + 2^l]) of level l

(:mod:`whvi._kernel.butterfly`). With all angles ``π/4``, ``T = H``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from whvi._checks import is_power_of_two, next_power_of_two
from whvi._kernel.butterfly import (
    butterfly,
    coefficients,
    levels_take,
    rows_of,
    run_levels,
    run_levels_backward,
)
from whvi.errors import ConfigError
from whvi.transforms.mixing import Factors, MixingByHand

__all__ = ["Butterfly", "LearnedButterfly", "butterfly"]

_STARTS = ("hadamard", "random")
_LEAST_ROW = 16  # entries of the rows that the kernel takes


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
class LearnedButterfly(nn.Module, MixingByHand):
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

    @property
    def learned(self) -> tuple[Tensor, ...]:  # type: ignore[override]  # an attribute elsewhere
        """See :attr:`MixingByHand.learned`."""
        return (self.angles,)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``T x`` along the last axis."""
        return butterfly(x, self.angles) if self.size >= _LEAST_ROW else self._multiply(x)

    def transpose(self, x: Tensor) -> Tensor:
        """Return ``Tᵀ x`` along the last axis."""
        if self.size < _LEAST_ROW:
            return self._multiply(x, transpose=True)
        return butterfly(x, self.angles, transpose=True)

    def _multiply(self, x: Tensor, *, transpose: bool = False) -> Tensor:
        """Do the same by the dense ``T``: faster than levels of torch operations."""
        unit = torch.eye(self.size, dtype=x.dtype, device=x.device)
        batch_shape = self.angles.shape[:-2]
        T = butterfly(unit.expand(*batch_shape, *unit.shape), self.angles).mT
        rows = x.reshape(*batch_shape, -1, self.size)
        return (rows @ (T if transpose else T.mT)).reshape(x.shape)

    def mix(self, v: Tensor, g: Tensor, *learned: Tensor) -> Tensor:
        """See :meth:`Mixing.mix`."""
        if not learned:
            return self.forward(g * self.transpose(v))
        (angles,) = learned
        return butterfly(g * butterfly(v, angles, transpose=True), angles)

    def has_gradients_for(self, x: Tensor) -> bool:
        """See :meth:`MixingByHand.has_gradients_for`."""
        return levels_take(x, self.angles)

    def run(
        self, v: Tensor, g: Tensor, *, owned: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See :meth:`MixingByHand.run`."""
        turns, rows = coefficients(self.angles), rows_of(v, self.angles).contiguous()
        u = run_levels(rows, turns, True, owned=owned).view(v.shape)
        w = rows_of(g * u, self.angles)
        t = run_levels(w, turns, False, owned=True).view(v.shape)
        return t, (g, u, t, *turns)

    def gradients(
        self, kept: tuple[Tensor, ...], grad: Tensor, g_shape: torch.Size, *, owned: bool = False
    ) -> tuple[Tensor, ...]:
        """See :meth:`MixingByHand.gradients`."""
        g, u, t, cosines, sines = kept
        turns, u_rows, t_rows = (cosines, sines), rows_of(u, cosines), rows_of(t, cosines)
        rows = rows_of(grad, cosines).contiguous()
        to_w, of_last = run_levels_backward(rows, t_rows, turns, False, owned=owned)
        to_w = to_w.view(u.shape)
        to_g = (to_w * u).sum_to_size(g_shape)
        to_u = rows_of(to_w.mul_(g), cosines)
        to_v, of_first = run_levels_backward(to_u, u_rows, turns, True, owned=True)
        return to_v.view(u.shape), to_g, of_last.add_(of_first)

    def factors(self, v: Tensor) -> Factors:
        """See :meth:`Mixing.factors`."""
        unit = torch.eye(self.size, dtype=v.dtype, device=v.device)
        unit = unit.expand(*self.angles.shape[:-2], *unit.shape)
        return [(self.transpose(unit), self.transpose(v))]
