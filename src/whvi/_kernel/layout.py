r"""From the shapes of a product to the loops of the kernel: integers only.

``y = s1 * H(g * H(s2 * x))`` broadcasts over leading axes. :class:`Views` states an operation as
such a broadcast, :class:`Layout` maps it to the four loops of the kernel. Two operations are stated
here: the public product of operands of any shape, and the map of a layer, which a
:class:`BlockPlan` makes of square blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from whvi._checks import (
    block_size_for,
    check_positive_int,
    hadamard_factor,
    next_power_of_two,
    refused_order,
)
from whvi.errors import ShapeError

Shape = tuple[int, ...]


class BlockPlan(NamedTuple):
    """How an ``in_features`` × ``out_features`` map is made of ``D × D`` blocks.

    - **stacked** (the usual case): the input is padded with zeros to ``D``
      (:func:`whvi._checks.block_size_for`); ``K`` independent blocks share that input, and the last
      one is trimmed: ``y = [W_1 x; …; W_K x][:out_features]``.
    - **column** (one side is 1): the single column or row of ``n`` weights is the leading part of
      ``vec(W)`` of one block with ``D² ≥ n``, ``D = 2**d``: ``O(√n)`` parameters for ``n`` weights.
    """

    in_features: int
    out_features: int
    block_size: int  # D
    num_blocks: int  # K
    is_column: bool  # whether the weights are read off vec(W) of one block

    @classmethod
    def for_shape(
        cls,
        in_features: int,
        out_features: int,
        round_up: Callable[[int], int] | None = None,
    ) -> BlockPlan:
        """Plan an ``in_features`` × ``out_features`` map.

        ``round_up`` finds the size of a block of another transform than Hadamard.
        """
        check_positive_int("in_features", in_features)
        check_positive_int("out_features", out_features)
        if min(in_features, out_features) == 1 and max(in_features, out_features) > 1:
            root = math.isqrt(max(in_features, out_features) - 1) + 1  # ⌈√n⌉ without floats
            return cls(in_features, out_features, (round_up or next_power_of_two)(root), 1, True)
        size = (round_up or block_size_for)(in_features)
        return cls(in_features, out_features, size, -(-out_features // size), False)

    @property
    def vector_shape(self) -> tuple[int, int]:
        """``(K, D)``: blocks and entries per block of each of ``s1``, ``g`` and ``s2``."""
        return (self.num_blocks, self.block_size)

    @property
    def vector_size(self) -> int:
        """``K·D``: entries of each of ``s1``, ``g`` and ``s2``."""
        return self.num_blocks * self.block_size

    @property
    def num_weights(self) -> int:
        """Entries of the dense matrix this plan stands for."""
        return self.in_features * self.out_features


class Views(NamedTuple):
    """Shapes that state a product as a broadcast over leading axes.

    The operands of a layer are views of the tensors that come in: their last leading axis is the
    blocks, which the output then joins with the entries and trims.
    """

    x: Shape  # (..., in_features), in_features <= D
    s1: Shape  # (..., D), as are g, s2 and scale
    g: Shape
    s2: Shape
    scale: Shape
    bias: Shape  # (..., out_features)
    leading: Shape  # axes that all of the above broadcast to
    out: Shape  # of the output

    @property
    def has_blocks(self) -> bool:
        """Whether this is the map of a layer."""
        return len(self.out) == len(self.leading)


def views_of(x: Shape, s1: Shape, g: Shape, s2: Shape, plan: BlockPlan | None) -> Views:
    """State the map of ``plan`` or, without one, the broadcast product of operands ``(..., D)``."""
    return broadcast_views(x, s1, g, s2) if plan is None else _block_views(x, len(s1) - 1, g, plan)


def _block_views(x: Shape, batch_ndim: int, g: Shape, plan: BlockPlan) -> Views:
    """Views for ``x (*batch, *inner, in)`` and ``g (*batch, *some, K·D)``."""
    batch, inner, blocks = x[:batch_ndim], x[batch_ndim:-1], plan.vector_shape
    own = g[batch_ndim:-1]  # the first of the inner axes: each of their entries has its own g
    ones = (1,) * len(inner)
    s = (*batch, *ones, *blocks)
    view = (*batch, *own, *ones[len(own) :], *blocks)
    return Views(
        x=(*batch, *inner, 1, plan.in_features),
        s1=s, g=view, s2=s, scale=s,
        bias=(*batch, *ones, 1, plan.out_features),
        leading=(*batch, *inner, plan.num_blocks),
        out=(*batch, *inner, plan.out_features),
    )  # fmt: skip


def broadcast_views(x: Shape, s1: Shape, g: Shape, s2: Shape) -> Views:
    """Views for operands ``(..., D)``; refuses shapes that do not fit."""
    named = {"x": x, "s1": s1, "g": g, "s2": s2}
    described = ", ".join(f"{name} {tuple(shape)}" for name, shape in named.items())
    sizes = {shape[-1] if shape else 0 for shape in named.values()}
    if len(sizes) != 1:
        raise ShapeError(f"all operands need the same last dimension, got {described}")
    if not hadamard_factor(size := sizes.pop()):
        raise ShapeError(f"the last dimension must be {refused_order(size)} in {described}")
    leading: list[int] = []
    for axis in range(-max(map(len, named.values())), -1):
        extents = {shape[axis] for shape in named.values() if len(shape) >= -axis} - {1}
        if len(extents) > 1:
            raise ShapeError(f"leading axes do not broadcast: {described}")
        leading.append(extents.pop() if extents else 1)
    return Views(x, s1, g, s2, g, (size,), tuple(leading), (*leading, size))


# ---- the loops of the kernel ---------------------------------------------------------------------

_R, _S, _N, _K = _LOOPS = range(4)
_X, _S1, _G, _S2, _SCALE, _BIAS, _Y = range(7)
_STRIDES = (  # in the order in which kernel.c reads them
    *((_X, loop) for loop in (_R, _S, _N)),
    *((_S1, loop) for loop in (_R, _S, _K)),
    *((_G, loop) for loop in (_R, _S, _N, _K)),
    *((_S2, loop) for loop in (_R, _S, _K)),
    *((_Y, loop) for loop in (_R, _S, _N, _K)),
    (_BIAS, _R),
)


class _Loop(NamedTuple):
    """Neighbouring leading axes that every operand treats alike, as one."""

    size: int = 1
    strides: Shape = (0,) * 7  # of each operand and the output, in elements; 0 where shared


class Layout(NamedTuple):
    """The loops of one kernel call, in the order of the leading axes: ``R, S, N, K``.

    Rows ``N`` share ``s1`` and ``s2``, blocks ``K`` share ``x``; ``R`` and ``S`` are for replicas
    and draws, or whatever else comes before the rows.
    """

    views: Views
    loops: tuple[_Loop, ...]

    @classmethod
    def of(cls, views: Views, *, noisy: bool) -> Layout | None:
        """Return the loops, or ``None`` if the kernel has too few for this broadcast."""
        left = _merge(views)
        blocks = left.pop() if left and not left[-1].strides[_X] else _Loop()
        is_rows = left and not (left[-1].strides[_S1] or left[-1].strides[_S2])
        rows = left.pop() if is_rows else _Loop()
        # in the kernel, rows that draw their own g have one mean
        if len(left) > 2 or (noisy and rows.strides[_G]):
            return None
        return cls(views, (*left, *[_Loop()] * (2 - len(left)), rows, blocks))

    @property
    def sizes(self) -> Shape:
        """``(R, S, N, K, D)``: the shape of the noise."""
        return (*(loop.size for loop in self.loops), self.views.s1[-1])

    def table(self) -> Shape:
        """Return sizes and strides in the order in which kernel.c reads them."""
        views, sizes = self.views, self.sizes
        widths = (views.x[-1], views.bias[-1] if views.has_blocks else sizes[_K] * sizes[-1])
        return (*sizes, *widths, *(self.loops[loop].strides[i] for i, loop in _STRIDES))

    def gradient_shape(self, operand: int) -> Shape:
        """Return the shape ``(R, S, N, K, width)`` in which the kernel makes a gradient."""
        R, S, N, K, _ = self.sizes
        has_rows = operand == _X or (operand == _G and self.loops[_N].strides[_G] != 0)
        has_blocks = operand not in (_X, _BIAS)
        return R, S, N if has_rows else 1, K if has_blocks else 1, self.views[operand][-1]

    def shared_loops(self, operand: int) -> list[int]:
        """Return the loops over which the kernel's gradient of an operand must be summed."""
        made = self.gradient_shape(operand)
        return [i for i in _LOOPS if made[i] > 1 and not self.loops[i].strides[operand]]


def _merge(views: Views) -> list[_Loop]:
    """Leading axes with their strides, neighbours merged where every operand allows it."""
    leading = views.leading
    output = leading_strides(views.out, len(views.out) - 1) + [views.s1[-1]] * views.has_blocks
    columns = [*(leading_strides(shape, len(leading)) for shape in views[: _BIAS + 1]), output]
    merged: list[_Loop] = []
    for extent, *strides in zip(leading, *columns, strict=True):
        if extent == 1:
            continue
        outer = merged[-1] if merged else None
        if outer and all(a == b * extent for a, b in zip(outer.strides, strides, strict=True)):
            merged[-1] = _Loop(outer.size * extent, tuple(strides))
        else:
            merged.append(_Loop(extent, tuple(strides)))
    return merged


def leading_strides(shape: Shape, ndim: int) -> list[int]:
    """Strides of a contiguous tensor over its leading axes, 0 where broadcast; ``ndim`` of them."""
    strides, step = [], shape[-1]
    for extent in reversed(shape[:-1]):
        strides.append(0 if extent == 1 else step)
        step *= extent
    return [0] * (ndim - len(strides)) + strides[::-1]
