"""From the shapes of a broadcast product to the kernel's loops, and back for its gradients.

Leading axes that every operand treats alike are merged; what remains gets a role: rows ``N``
(``s1`` and ``s2`` are shared), blocks ``K`` (``x`` is shared) and up to two others ``R, S``.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from torch import Tensor

from whvi._checks import is_power_of_two
from whvi._kernel.product import Gradient, Layout
from whvi.errors import ShapeError

_R, _S, _N, _K = range(4)
Shape = tuple[int, ...]


class _Axis(NamedTuple):
    sizes: Shape  # of the leading axes merged into this one
    strides: Shape  # of x, s1, g, s2 and the output, in elements; 0 where shared

    @property
    def size(self) -> int:
        return prod(self.sizes)


class Broadcast(NamedTuple):
    """A kernel layout and which role each (merged) leading axis plays in it."""

    layout: Layout
    axes: tuple[_Axis, ...]
    roles: Shape
    shapes: tuple[Shape, ...]  # of x, s1, g, s2
    leading: Shape
    must_fold: bool

    def to_leading(self, tensor: Tensor) -> Tensor:
        """Bring ``(R, S, N, K, D)`` (size 1 where summed) to ``(*leading, D)`` (likewise)."""
        free = [role for role in (_R, _S, _N, _K) if role not in self.roles]
        tensor = tensor.permute(*free, *self.roles, 4)
        shape: list[int] = []
        for position, axis in enumerate(self.axes):
            summed = tensor.shape[len(free) + position] == 1
            shape += [1] * len(axis.sizes) if summed else axis.sizes
        kept = iter(shape)
        full = [1 if size == 1 else next(kept) for size in self.leading]
        return tensor.reshape(*full, tensor.shape[-1])

    def fold(self, gradients: list[Gradient]) -> list[Gradient]:
        """Sum the kernel's gradients down to the shapes of the operands."""
        *vectors, bias = gradients
        shapes = (*self.shapes, self.shapes[2])
        folded = [
            None if t is None else self.to_leading(t).sum_to_size(shape)
            for t, shape in zip(vectors, shapes, strict=True)
        ]
        return [*folded, bias]


def plan_broadcast(x: Shape, s1: Shape, g: Shape, s2: Shape, noisy: bool) -> Broadcast | None:
    """Plan the kernel call for operands of these shapes; ``None`` if it has too many axes."""
    shapes = (x, s1, g, s2)
    leading = check_shapes(*shapes)
    axes = _merge(leading, shapes, x[-1])
    roles = _assign(axes)
    if roles is None or (noisy and _mean_varies_by_row(axes, roles)):
        return None
    layout = _layout(axes, roles, x[-1], (*leading, x[-1]))
    direct = all(_is_direct(axes, roles, layout.grad_shapes[i], i) for i in range(4))
    if direct:
        layout = layout._replace(grad_shapes=(*shapes, g, ()))
    return Broadcast(layout, tuple(axes), tuple(roles), shapes, leading, not direct)


def _mean_varies_by_row(axes: list[_Axis], roles: list[int]) -> bool:
    """Tell whether a noisy product has a mean of its own for every row: not in the kernel."""
    return _N in roles and axes[roles.index(_N)].strides[2] != 0


def _is_direct(axes: list[_Axis], roles: list[int], kernel_shape: Shape, operand: int) -> bool:
    """Tell whether the kernel's gradient of an operand is the operand's, entry by entry."""
    own = [
        (role, axis.size) for role, axis in zip(roles, axes, strict=True) if axis.strides[operand]
    ]
    in_order = own == sorted(own)
    return in_order and prod(kernel_shape[:4]) == prod(size for _, size in own)


def check_shapes(*shapes: Shape) -> Shape:
    """Refuse operands that do not fit; return their broadcast leading shape."""
    described = ", ".join(
        f"{name} {tuple(shape)}" for name, shape in zip(("x", "s1", "g", "s2"), shapes, strict=True)
    )
    sizes = {shape[-1] if shape else 0 for shape in shapes}
    if len(sizes) != 1:
        raise ShapeError(f"all operands need the same last dimension, got {described}")
    if not is_power_of_two(size := sizes.pop()):
        raise ShapeError(f"the last dimension must be a power of two, got {size} in {described}")
    leading: list[int] = []
    longest = max(len(shape) for shape in shapes) - 1
    for axis in range(-longest - 1, -1):
        extents = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(extents) > 1:
            raise ShapeError(f"leading axes do not broadcast: {described}")
        leading.append(extents.pop() if extents else 1)
    return tuple(leading)


def _strides(shape: Shape, leading: Shape, size: int) -> list[int]:
    """Element strides of a contiguous ``(*shape, size)`` over ``leading``; 0 where broadcast."""
    padded = (1,) * (len(leading) - len(shape)) + shape
    strides, step = [], size
    for extent in reversed(padded):
        strides.append(0 if extent == 1 else step)
        step *= extent
    return strides[::-1]


def _merge(leading: Shape, shapes: tuple[Shape, ...], size: int) -> list[_Axis]:
    """Leading axes with their strides, neighbours merged where every operand allows it."""
    columns = [_strides(shape[:-1], leading, size) for shape in (*shapes, (*leading, size))]
    merged: list[_Axis] = []
    for extent, *strides in zip(leading, *columns, strict=True):
        if extent == 1:
            continue
        if merged and all(
            a == b * extent for a, b in zip(merged[-1].strides, strides, strict=True)
        ):
            merged[-1] = _Axis((*merged[-1].sizes, extent), tuple(strides))
        else:
            merged.append(_Axis((extent,), tuple(strides)))
    return merged


def _assign(axes: list[_Axis]) -> list[int] | None:
    roles = [-1] * len(axes)
    for index in reversed(range(len(axes))):
        x, s1, g, s2, _ = axes[index].strides
        if _N not in roles and s1 == 0 and s2 == 0 and (x or not g):
            roles[index] = _N
        elif _K not in roles and x == 0:
            roles[index] = _K
    others = [index for index, role in enumerate(roles) if role < 0]
    if len(others) > 2:
        return None
    for index, role in zip(others, (_R, _S), strict=False):
        roles[index] = role
    return roles


def _layout(axes: list[_Axis], roles: list[int], size: int, out_shape: Shape) -> Layout:
    sizes, strides = [1] * 4, [[0] * 5 for _ in range(4)]
    for axis, role in zip(axes, roles, strict=True):
        sizes[role], strides[role] = axis.size, list(axis.strides)
    r, s, n, k = strides
    rows, vectors = (*sizes[:3], 1, size), (*sizes[:2], 1, sizes[_K], size)
    per_row = (*sizes, size) if n[2] else vectors
    return Layout(
        # four loops, then three sizes: a tuple of seven, which mypy cannot count
        sizes=(*sizes, size, size, sizes[_K] * size),  # type: ignore[arg-type]
        x=(r[0], s[0], n[0]),
        s1=(r[1], s[1], k[1]),
        g=(r[2], s[2], n[2], k[2]),
        s2=(r[3], s[3], k[3]),
        y=(r[4], s[4], n[4], k[4]),
        bias=0,
        out_shape=out_shape,
        grad_shapes=(rows, vectors, per_row, vectors, vectors, ()),
    )
