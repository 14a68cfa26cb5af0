r"""The GPU path: the transform and ``y = s1 * H(g * H(s2 * x))`` with its backward pass in Triton.

Up to :data:`BLOCK` entries, a row is transformed within one program, and a product is one kernel.
Longer rows take passes, ``H_{ab} = (H_a ⊗ I)(I ⊗ H_b)``: first the ``a`` pieces of ``b`` entries,
then the columns of the ``a × b`` matrix of pieces. This module is imported only where it is used:
for CUDA tensors, or with ``TRITON_INTERPRET=1``, which runs kernels in Python, on the CPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from whvi._kernel.backend import (
    HALF_TYPES,
    INTERPRETED,
    PLAIN_TYPES,
    apart,
    differentiable_gradients,
)
from whvi._kernel.layout import Shape, leading_strides
from whvi._kernel.triton_kernels import (
    product_backward_kernel,
    product_kernel,
    transform_kernel,
)

BLOCK = 4096  # entries of the longest row that one program transforms
DTYPES = (torch.float32, torch.float64, *HALF_TYPES)
_TILES = 8  # per program of a long backward pass: it writes one sum for as many
_PROGRAMS = 512  # that keep a GPU busy
_LIBRARY_LIMIT = 32768  # entries of the longest row of fast_hadamard_transform


def takes(x: Tensor) -> bool:
    """Tell whether the kernels may read the memory of ``x``."""
    on_device = x.is_cuda or INTERPRETED
    return on_device and x.dtype in DTYPES and type(x) in PLAIN_TYPES and x.numel() > 0


def transform(x: Tensor, normalize: bool) -> Tensor:
    """Return ``H x`` along the last dimension, outside autograd, in the data type of ``x``.

    ``fast_hadamard_transform`` does it where it is installed and has the data type and size.
    """
    size = x.shape[-1]
    scale = 1.0 / math.sqrt(size) if normalize else 1.0
    library = _library()
    if library is not None and x.dtype != torch.float64 and 8 <= size <= _LIBRARY_LIMIT:
        result: Tensor = library.hadamard_transform(x.detach().contiguous(), scale)
        return result
    source, inner = x.detach().contiguous(), 1
    wide = source if x.dtype not in HALF_TYPES else source.float()
    while size > BLOCK:  # pieces are not rounded to half precision between passes
        wide = _pass(wide, torch.empty_like(wide), BLOCK, inner, 1.0)
        size, inner = size // BLOCK, inner * BLOCK
    return _pass(source if inner == 1 else wide, torch.empty_like(source), size, inner, scale)


@lru_cache(maxsize=1)
def _library() -> Any:
    if importlib.util.find_spec("fast_hadamard_transform") is None:
        return None
    return importlib.import_module("fast_hadamard_transform")


def _pass(source: Tensor, target: Tensor, size: int, inner: int, scale: float) -> Tensor:
    """Transform the vectors of ``size`` entries that are ``inner`` apart."""
    num_vectors, tile = source.numel() // size, _tile(size, source.dtype)
    with torch.cuda.device_of(source):
        transform_kernel[(triton.cdiv(num_vectors, tile["ROWS"]),)](
            source, target, num_vectors, INNER=inner, SCALE=scale, **tile
        )
    return target


def _tile(size: int, dtype: torch.dtype) -> dict[str, Any]:
    """Return the constants of a tile of ``BLOCK`` entries."""
    wide = dtype == torch.float64
    constants = {"ROWS": max(1, BLOCK // size), "SIZE": size, "BITS": size.bit_length() - 1}
    return {**constants, "WIDE": wide, "num_warps": 16 if wide else 8}


class Loops(NamedTuple):
    """Loops over which operands broadcast: three outer ones, then rows."""

    sizes: Shape
    strides: tuple[Shape, ...]  # of y, x, s1, g and s2, in elements; 0 where shared

    @property
    def num_outer(self) -> int:
        """How often the rows are run through."""
        return math.prod(self.sizes[:3])

    @property
    def shared(self) -> tuple[bool, ...]:
        """Which of ``x``, ``s1``, ``g`` and ``s2`` the rows share."""
        return tuple(stride[3] == 0 and self.sizes[3] > 1 for stride in self.strides[1:])

    def num_programs(self, rows: int) -> int:
        """How many programs share the rows if each takes so many."""
        return -(-self.sizes[3] // rows)


def structured_product(operands: tuple[Tensor, ...], *, has_blocks: bool) -> Tensor | None:
    """Return ``s1 * H(g * H(s2 * x))``, or ``None`` if the kernels cannot.

    Args:
        operands: ``x, s1, g, s2``, shapes ``(..., D)`` that broadcast, of one data type.
        has_blocks: Whether the last of the leading axes are blocks, which share ``x``.
    """
    size, dtype = operands[0].shape[-1], operands[0].dtype
    if size > BLOCK or not all(takes(t) and t.dtype == dtype for t in operands):
        return None
    loops = _loops(tuple(tuple(t.shape) for t in operands), has_blocks)
    if loops is None:
        return None
    y: Tensor = _Product.apply(*operands, loops)  # type: ignore[no-untyped-call]
    return y


@lru_cache(maxsize=1024)
def _loops(shapes: tuple[Shape, ...], has_blocks: bool) -> Loops | None:
    """Plan the loops: neighbouring axes that all operands treat alike are one."""
    leading = torch.broadcast_shapes(*(shape[:-1] for shape in shapes))
    size, ndim = shapes[0][-1], len(leading)
    columns = [leading_strides(shape, ndim) for shape in ((*leading, size), *shapes)]
    axes = list(range(ndim))
    if has_blocks:  # rows last: they share most
        axes = [axes[-1], *axes[:-1]]
    merged: list[tuple[int, Shape]] = []
    for axis in axes:
        extent, strides = leading[axis], tuple(column[axis] for column in columns)
        if extent == 1:
            continue
        if merged and all(a == b * extent for a, b in zip(merged[-1][1], strides, strict=True)):
            merged[-1] = (merged[-1][0] * extent, strides)
        else:
            merged.append((extent, strides))
    if len(merged) > 4:
        return None
    merged = [(1, (0,) * 5)] * (4 - len(merged)) + merged
    return Loops(
        tuple(extent for extent, _ in merged),
        tuple(zip(*(strides for _, strides in merged), strict=True)),
    )


class _Product(torch.autograd.Function):
    """The fused product as a node of the autograd graph."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *operands, loops = given
        ctx.save_for_backward(*operands)
        ctx.loops = loops
        return _forward(operands, loops)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        operands = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of gradients
            from whvi.transforms import fwht

            operands = x, s1, g, s2 = apart(operands)
            y = s1 * fwht(g * fwht(s2 * x))
            return (*differentiable_gradients(y, operands, grads[0]), None)
        return (*_backward(operands, ctx.loops, grads[0], ctx.needs_input_grad[0]), None)


def _forward(operands: list[Tensor], loops: Loops) -> Tensor:
    x, size = operands[0], operands[0].shape[-1]
    leading = torch.broadcast_shapes(*(t.shape[:-1] for t in operands))
    y, tile = x.new_empty((*leading, size)), _tile(size, x.dtype)
    programs = loops.num_programs(tile["ROWS"])
    with torch.cuda.device_of(x):
        product_kernel[(loops.num_outer * programs,)](
            y, *(t.detach().contiguous() for t in operands),
            (*loops.sizes[1:], programs), loops.strides, SCALE=1.0 / size, **tile,
        )  # fmt: skip
    return y


def _backward(
    operands: tuple[Tensor, ...], loops: Loops, grad: Tensor, wants_x: bool
) -> list[Tensor | None]:
    """Return the gradients of the operands; rows that share one are summed by the kernel."""
    size, outer = operands[0].shape[-1], loops.num_outer
    tile = _tile(size, grad.dtype)
    is_long = outer * loops.num_programs(tile["ROWS"]) >= _TILES * _PROGRAMS
    tiles = _TILES if is_long else 1
    programs = loops.num_programs(tile["ROWS"] * tiles)
    wide = torch.float64 if grad.dtype == torch.float64 else torch.float32
    made = [
        grad.new_empty((outer, programs if shared else loops.sizes[3], size), dtype=wide)
        for shared in loops.shared
    ]
    with torch.cuda.device_of(grad):
        product_backward_kernel[(outer * programs,)](
            *(t.detach().contiguous() for t in (grad, *operands)), *made,
            (*loops.sizes[1:], programs), loops.strides, SHARED=loops.shared,
            WANTS_X=wants_x, TILES=tiles, SCALE=1.0 / size, **tile,
        )  # fmt: skip
    found = [
        _summed(value, operand, loops, strides)
        for value, operand, strides in zip(made, operands, loops.strides[1:], strict=True)
    ]
    return [None if i == 0 and not wants_x else value for i, value in enumerate(found)]


def _summed(made: Tensor, operand: Tensor, loops: Loops, strides: Shape) -> Tensor:
    """Sum ``made`` over the loops that share the operand, and lay the others out as in it."""
    apart: Tensor = made.unflatten(0, loops.sizes[:3])
    shared = [i for i in range(4) if strides[i] == 0]
    total = apart.sum(shared, keepdim=True) if shared else apart
    # loops are in another order than the axes of the operand: the largest stride comes first
    order = sorted(range(4), key=lambda i: -strides[i])
    return total.permute(*order, 4).reshape(operand.shape).to(operand.dtype)
