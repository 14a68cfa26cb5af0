r"""Device code of the GPU path, in Triton: the transform, the product and its gradients.

A program holds a tile of ``ROWS`` vectors of ``SIZE = 2**BITS`` entries. With ``u = H(s2 x)``,
``t = H(g u)``, ``y = s1 t`` and ``ȳ`` the incoming gradient, the backward pass makes ``u`` and
``t`` again, while the tile is in registers, and

    s̄1 = ȳ t,   v̄ = H(s1 ȳ),   ḡ = v̄ u,   z̄ = H(g v̄),   s̄2 = z̄ x,   x̄ = z̄ s2.

Operands broadcast over four loops, of which the last are the rows of tiles: ``sizes`` are those of
the two loops before the rows, the rows, and the programs that share them; ``strides`` has four
numbers per operand. Half precision is computed in float32; ``WIDE`` is float64.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def hadamard(x, ROWS: tl.constexpr, SIZE: tl.constexpr, BITS: tl.constexpr):
    """Transform every row of a tile: sums over the lowest bit, which becomes the highest."""
    for _ in tl.static_range(BITS):
        even, odd = tl.split(tl.reshape(x, (ROWS, SIZE // 2, 2)))
        x = tl.reshape(tl.permute(tl.join(even + odd, even - odd), (0, 2, 1)), (ROWS, SIZE))
    return x


@triton.jit
def transform_kernel(
    source, target, num_vectors,
    INNER: tl.constexpr, SCALE: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, SIZE: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Transform vectors ``v``, with entry ``i`` at ``(v // INNER · SIZE + i) · INNER + v % INNER``.

    ``INNER = 1`` are the rows of a matrix; otherwise the columns of ``SIZE`` × ``INNER`` matrices.
    """
    v = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    first = v // INNER * (SIZE * INNER) + v % INNER
    offsets = first[:, None] + tl.arange(0, SIZE)[None, :] * INNER
    inside = (v < num_vectors)[:, None]
    x = tl.load(source + offsets, mask=inside, other=0.0).to(tl.float64 if WIDE else tl.float32)
    tl.store(target + offsets, SCALE * hadamard(x, ROWS, SIZE, BITS), mask=inside)


@triton.jit
def tile_offsets(outer, rows, sizes, strides, SIZE: tl.constexpr):
    """Offsets ``(ROWS, SIZE)`` of an operand in iteration ``outer`` of the outer three loops."""
    i, j, k = outer // (sizes[0] * sizes[1]), outer // sizes[1] % sizes[0], outer % sizes[1]
    first = i * strides[0] + j * strides[1] + k * strides[2]
    return first + rows[:, None] * strides[3] + tl.arange(0, SIZE)[None, :]


@triton.jit
def load_tile(operand, outer, rows, sizes, strides, WIDE: tl.constexpr, SIZE: tl.constexpr):
    """Load a tile; rows that do not exist are zeros."""
    offsets = tile_offsets(outer, rows, sizes, strides, SIZE)
    values = tl.load(operand + offsets, mask=(rows < sizes[2])[:, None], other=0.0)
    return values.to(tl.float64 if WIDE else tl.float32)


@triton.jit
def product_kernel(
    y, x, s1, g, s2, sizes, strides,
    SCALE: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, SIZE: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """``y = s1 * H(g * H(s2 * x))`` for one tile; ``SCALE`` is that of both transforms."""
    program = tl.program_id(0).to(tl.int64)
    outer, rows = program // sizes[3], program % sizes[3] * ROWS + tl.arange(0, ROWS)
    x_ = load_tile(x, outer, rows, sizes, strides[1], WIDE, SIZE)
    s1_ = load_tile(s1, outer, rows, sizes, strides[2], WIDE, SIZE)
    g_ = load_tile(g, outer, rows, sizes, strides[3], WIDE, SIZE)
    s2_ = load_tile(s2, outer, rows, sizes, strides[4], WIDE, SIZE)
    t = hadamard(g_ * hadamard(s2_ * x_, ROWS, SIZE, BITS), ROWS, SIZE, BITS)
    offsets = tile_offsets(outer, rows, sizes, strides[0], SIZE)
    tl.store(y + offsets, SCALE * s1_ * t, mask=(rows < sizes[2])[:, None])


@triton.jit
def keep(target, total, values, outer, rows, num_rows, SHARED: tl.constexpr, SIZE: tl.constexpr):
    """Add the gradient of a tile to the total, if rows share the operand, or write it."""
    if SHARED:
        total += tl.sum(values, 0)
    else:
        offsets = (outer * num_rows + rows[:, None]) * SIZE + tl.arange(0, SIZE)[None, :]
        tl.store(target + offsets, values, mask=(rows < num_rows)[:, None])
    return total


@triton.jit
def product_backward_kernel(
    grad, x, s1, g, s2, to_x, to_s1, to_g, to_s2, sizes, strides,
    SHARED: tl.constexpr, WANTS_X: tl.constexpr, TILES: tl.constexpr,
    SCALE: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, SIZE: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Gradients of ``TILES`` tiles: per row, or for operands that rows share one sum of all."""
    program = tl.program_id(0).to(tl.int64)
    outer = program // sizes[3]
    total_x = tl.zeros((SIZE,), tl.float64 if WIDE else tl.float32)
    total_s1, total_g, total_s2 = total_x, total_x, total_x
    for tile in range(TILES):
        rows = (program % sizes[3] * TILES + tile) * ROWS + tl.arange(0, ROWS)
        x_ = load_tile(x, outer, rows, sizes, strides[1], WIDE, SIZE)
        s1_ = load_tile(s1, outer, rows, sizes, strides[2], WIDE, SIZE)
        g_ = load_tile(g, outer, rows, sizes, strides[3], WIDE, SIZE)
        s2_ = load_tile(s2, outer, rows, sizes, strides[4], WIDE, SIZE)
        dy = SCALE * load_tile(grad, outer, rows, sizes, strides[0], WIDE, SIZE)
        u = hadamard(s2_ * x_, ROWS, SIZE, BITS)
        ds1 = dy * hadamard(g_ * u, ROWS, SIZE, BITS)
        dv = hadamard(s1_ * dy, ROWS, SIZE, BITS)
        dz = hadamard(g_ * dv, ROWS, SIZE, BITS)
        total_s1 = keep(to_s1, total_s1, ds1, outer, rows, sizes[2], SHARED[1], SIZE)
        total_g = keep(to_g, total_g, dv * u, outer, rows, sizes[2], SHARED[2], SIZE)
        total_s2 = keep(to_s2, total_s2, dz * x_, outer, rows, sizes[2], SHARED[3], SIZE)
        if WANTS_X:
            total_x = keep(to_x, total_x, dz * s2_, outer, rows, sizes[2], SHARED[0], SIZE)
    at = program * SIZE + tl.arange(0, SIZE)
    if SHARED[1]:
        tl.store(to_s1 + at, total_s1)
    if SHARED[2]:
        tl.store(to_g + at, total_g)
    if SHARED[3]:
        tl.store(to_s2 + at, total_s2)
    if WANTS_X and SHARED[0]:
        tl.store(to_x + at, total_x)
