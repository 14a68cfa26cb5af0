r"""A fixed ensemble of networks, all layers and draws in one call of the kernel; no gradients.

.. math:: h \mapsto \phi(s_1 \odot H (g \odot H (s_2 \odot h)) + b), \qquad f = W h + c

for S draws of ``g`` and ``W`` of each of R members. Nothing but ``f`` is written to memory, and no
value depends on other rows. The plain composition is in :mod:`whvi.tabular.functions`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from whvi._checks import block_size_for
from whvi._kernel.backend import KERNEL_DTYPES, PLAIN_TYPES, kernel

COLUMNS = 64  # displacements side by side: a multiple of what registers hold


class HiddenLayer(NamedTuple):
    """``s1, s2 (R, K·D)``, ``g (R, S, K·D)``, ``bias (R, out)``; its inputs and nonlinearity."""

    in_features: int
    is_sine: bool
    s1: Tensor
    g: Tensor
    s2: Tensor
    bias: Tensor

    def sizes(self) -> tuple[int, ...]:
        """Return what the kernel reads before the addresses."""
        size = block_size_for(self.in_features)
        blocks = self.s1.shape[-1] // size
        return (self.in_features, self.bias.shape[-1], size, blocks, int(self.is_sine))


class Displacements(NamedTuple):
    """Draws of a displacement of all parameters, ``(R, P, columns)``, and how many these are."""

    by_parameter: Tensor  # zeros fill up the columns
    num_draws: int

    @classmethod
    def of(cls, draws: Tensor) -> Displacements:
        """Lay draws ``(R, S, P)`` side by side, in the order of layers and ``s1, g, s2, bias``."""
        filled = torch.nn.functional.pad(draws, (0, 0, 0, -draws.shape[1] % COLUMNS))
        return cls(filled.mT.contiguous(), draws.shape[1])


class Network(NamedTuple):
    """Hidden layers, the last ``weight (R, S, F, in)`` and its ``bias (R, F)``."""

    hidden: Sequence[HiddenLayer]
    weight: Tensor
    bias: Tensor

    def draws(self, x: Tensor) -> Tensor:
        """Return ``f (N, R, S, F)`` at rows ``(N, in)``, or ``(R, N, in)`` of every member."""
        x = x.contiguous()
        members, draws, outputs, _ = self.weight.shape
        f = x.new_empty(x.shape[-2], members, draws, outputs)
        table, rest = self._table(x, None), (x.data_ptr(), f.data_ptr())
        kernel.network_draws(*_call(table, x), *rest)  # type: ignore[union-attr]
        return f

    def changes(
        self, x: Tensor, displacements: Displacements, *, num_outputs: int, num_kept: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Linearise one draw: ``f``, mean squares of ``J(x) δ``, and the first of these.

        Returns:
            ``(N, R, F)``, in float64 ``(N, R, O)`` of the first O outputs, and
            ``(N, R, O, num_kept)``.
        """
        x = x.contiguous()
        members, _, outputs, _ = self.weight.shape
        f = x.new_empty(x.shape[-2], members, outputs)
        variance = x.new_empty(x.shape[-2], members, num_outputs, dtype=torch.float64)
        kept = x.new_empty(x.shape[-2], members, num_outputs, num_kept)
        table = self._table(x, displacements)
        results = (f.data_ptr(), num_outputs, num_kept, variance.data_ptr(), kept.data_ptr())
        kernel.network_changes(*_call(table, x), x.data_ptr(), *results)  # type: ignore[union-attr]
        return f, variance, kept

    def _table(self, x: Tensor, displacements: Displacements | None) -> array[int]:
        """Write sizes and addresses down in the order in which kernel.c reads them."""
        members, draws, outputs, _ = self.weight.shape
        sizes = (members, draws, x.shape[-1], outputs, len(self.hidden))
        moves = (0, 0, 0, 0)
        if displacements is not None:
            panel, num_draws = displacements
            moves = (panel.shape[1], num_draws, panel.shape[2], panel.data_ptr())
        table = array("q", (*sizes, self.weight.data_ptr(), self.bias.data_ptr(), *moves))
        for layer in self.hidden:
            table.extend((*layer.sizes(), *(t.data_ptr() for t in layer[2:])))
        return table


def kernel_takes_network(network: Network, x: Tensor) -> bool:
    """Tell whether the kernel may evaluate a network at these rows, now."""
    tensors = [x, network.weight, network.bias]
    tensors += [t for layer in network.hidden for t in layer[2:]]
    return (
        kernel is not None
        and not is_compiling()
        and x.dtype in KERNEL_DTYPES
        and all(t.is_cpu and t.dtype is x.dtype and type(t) in PLAIN_TYPES for t in tensors)
        and all(t.is_contiguous() for t in tensors[1:])
    )


def _call(table: array[int], x: Tensor) -> tuple[int, ...]:
    own = x.shape[-2] * x.shape[-1] if x.dim() == 3 else 0
    address = table.buffer_info()[0]
    return x.element_size(), torch.get_num_threads(), address, x.shape[-2], own
