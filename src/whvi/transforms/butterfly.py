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
from whvi._kernel.butterfly import butterfly
from whvi.errors import ConfigError
from whvi.transforms.mixing import Factors, Mixing

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

    def mix(self, v: Tensor, g: Tensor) -> Tensor:
        """See :meth:`Mixing.mix`."""
        return self.forward(g * self.transpose(v))

    def factors(self, v: Tensor) -> Factors:
        """See :meth:`Mixing.factors`."""
        unit = torch.eye(self.size, dtype=v.dtype, device=v.device)
        unit = unit.expand(*self.angles.shape[:-2], *unit.shape)
        return [(self.transpose(unit), self.transpose(v))]
