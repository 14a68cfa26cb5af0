r"""Hartley and cosine transforms of rows of ``2^k`` entries, in the order that they come in.

Down, a row of coefficients becomes ``Tᵀ v`` with its entries in bit-reversed order; up, such a row
becomes ``T u``. Between the two stands nothing but ``diag(g)``, so that no row is reordered. With
``T`` the Hartley matrix, the levels are those of a butterfly whose angles are ``2π n / N``, and the
DCT-II reflects coefficients ``k`` and ``D − k`` by the angle ``π k / 2D + π / 4`` at the end
(``csrc/hartley.h``). The plain composition is that by FFTs, :mod:`whvi.transforms.fourier`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from whvi._checks import is_power_of_two
from whvi._kernel.backend import kernel, kernel_takes

_SMALLEST_ROW, _LARGEST_ROW = 16, 1 << 16  # entries: of a vector register, of those measured


@dataclass(frozen=True, eq=False)
class HartleyLevels:
    """The levels for rows of one size and type.

    Attributes:
        waves: ``(D/2, 2)``, cosines and sines of ``2π n / D``.
        turns: Those of the last reflection, for a DCT.
        order: ``(D,)``: which entry stands where between down and up.
        place: Its inverse.
    """

    waves: Tensor
    turns: Tensor | None
    order: Tensor
    place: Tensor

    def down(self, v: Tensor, *, owned: bool = False) -> Tensor:
        """Return ``Tᵀ v`` along the last axis, in the order of ``order``; in place if ``owned``."""
        v = v.contiguous()
        return self._run(v, v if owned else torch.empty_like(v), up=False)

    def up(self, u: Tensor) -> Tensor:
        """Return ``T u`` along the last axis, of ``u`` in that order, which is overwritten."""
        u = u.contiguous()
        return self._run(u, u, up=True)

    def _run(self, x: Tensor, y: Tensor, *, up: bool) -> Tensor:
        assert kernel is not None
        size = x.shape[-1]
        turns = 0 if self.turns is None else self.turns.data_ptr()
        kernel.hartley(
            x.element_size(), torch.get_num_threads(), x.numel() // size, size, up,
            x.data_ptr(), self.waves.data_ptr(), turns, y.data_ptr(),
        )  # fmt: skip
        return y


def hartley_takes(size: int, *tensors: Tensor) -> bool:
    """Tell whether the kernel takes rows of this size in these tensors, outside autograd."""
    return (
        _SMALLEST_ROW <= size <= _LARGEST_ROW
        and is_power_of_two(size)
        and all(kernel_takes(t) and t.dtype is tensors[0].dtype for t in tensors)
        and not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))
    )


@lru_cache(maxsize=64)
def hartley_levels(size: int, dtype: torch.dtype, *, is_dct: bool) -> HartleyLevels:
    """Return the levels for ``size`` entries of type ``dtype``."""
    with torch.inference_mode(False):
        n = torch.arange(size // 2, dtype=torch.float64, device="cpu")
        order = _bit_reversed(size)
        if is_dct:  # transforms the entries 0, 2, 4, …, 5, 3, 1
            entry = torch.arange(size, device="cpu")
            order = torch.cat([entry[::2], entry[1::2].flip(0)])[order]
        return HartleyLevels(
            waves=_circle(2 * math.pi / size * n, dtype),
            turns=_circle(math.pi / (2 * size) * n + math.pi / 4, dtype) if is_dct else None,
            order=order,
            place=order.argsort(),
        )


def _circle(angles: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.stack([angles.cos(), angles.sin()], dim=-1).to(dtype)


def _bit_reversed(size: int) -> Tensor:
    order = torch.zeros(1, dtype=torch.int64, device="cpu")
    while len(order) < size:
        order = torch.cat([2 * order, 2 * order + 1])
    return order
