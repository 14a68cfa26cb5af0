"""The structured product as one autograd node over the compiled kernel.

A :class:`Layout` maps the operands to the kernel's loops ``(replicas R, draws S, rows N, blocks
K)``; it is computed from shapes alone and cached by the callers. Operands are contiguous; stride
0 means shared. The forward pass keeps its inputs (and the noise); the backward pass computes
``u = H(s2 x)`` and ``t = H(g u)`` again while a row is in cache, which is cheaper than keeping
them. When gradients of gradients are wanted, the backward pass runs the plain composition.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whvi.noise import normal_from_seed
from whvi.transforms.backend import is_tracing, is_transformed, kernel, kernel_takes

_KEPT_NOISE = 1 << 22  # entries of noise that are kept for the backward pass; more is made again

Gradient = Tensor | None


class Layout(NamedTuple):
    """Loop sizes and strides of one kernel call, in elements.

    Attributes:
        sizes: ``(R, S, N, K, D, in_features, out_features)``.
        x: Strides over ``(R, S, N)``; blocks share ``x``.
        s1, s2: Strides over ``(R, S, K)``.
        g: Strides over ``(R, S, N, K)``; a row stride of 0 means one ``g`` for all rows.
        y: Strides over ``(R, S, N, K)`` of the output.
        bias: Stride over ``R``.
        out_shape: Shape of the output tensor.
    """

    sizes: tuple[int, int, int, int, int, int, int]
    x: tuple[int, int, int]
    s1: tuple[int, int, int]
    g: tuple[int, int, int, int]
    s2: tuple[int, int, int]
    y: tuple[int, int, int, int]
    bias: int
    out_shape: tuple[int, ...]

    @property
    def noise_shape(self) -> tuple[int, int, int, int, int]:
        """Shape ``(R, S, N, K, D)`` of the noise."""
        return self.sizes[:5]


class Operands(NamedTuple):
    """Tensors of a product; with ``scale``, ``g`` is the mean of a normal drawn for every row."""

    x: Tensor
    s1: Tensor
    g: Tensor
    s2: Tensor
    scale: Tensor | None = None
    bias: Tensor | None = None

    @property
    def given(self) -> list[Tensor]:
        """The operands that are there."""
        return [t for t in self if t is not None]


Composition = Callable[[Operands, Tensor | None], Tensor]  # (operands, noise) -> output


def can_fuse(operands: Operands) -> bool:
    """Tell whether the kernel may run on these tensors, now, under plain autograd."""
    if is_tracing() or is_transformed():
        return False
    dtype = operands.x.dtype
    return all(kernel_takes(t) and t.dtype == dtype for t in operands.given)


def fused_product(
    operands: Operands,
    layout: Layout,
    composition: Composition,
    fold: Callable[[Layout, list[Gradient]], list[Gradient]],
    seed: int = 0,
) -> Tensor:
    """Run the product in the kernel.

    Args:
        operands: Contiguous or not; they are made so.
        layout: The loops.
        composition: The same product in differentiable torch operations, for double backward.
        fold: Turns gradients in the kernel's shapes ``x (R,S,N,in)``, ``s1 (R,S,K,D)``,
            ``g (R,S,K,D)`` or ``(R,S,N,K,D)``, ``s2``, ``scale`` like ``s1``, ``bias (R,S,out)``
            into the shapes of the operands.
        seed: Stream of the noise, with ``operands.scale``.
    """
    return _Fused.apply(*operands, layout, composition, fold, seed)  # type: ignore[no-untyped-call, no-any-return]


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _arguments(
    operands: Operands, layout: Layout, seed: int, noise: Tensor | None, y: Tensor
) -> list[int]:
    """Arguments that the forward and backward kernels share, in the order of kernel.c."""
    x, s1, g, s2, scale, bias = operands
    return [
        *(x.element_size(), torch.get_num_threads()),
        *layout.sizes,
        *(x.data_ptr(), *layout.x),
        *(s1.data_ptr(), *layout.s1),
        *(g.data_ptr(), *layout.g),
        *(s2.data_ptr(), *layout.s2),
        *(_pointer(scale), seed, _pointer(noise)),
        *(_pointer(bias), layout.bias),
        *(y.data_ptr(), *layout.y),
    ]


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        assert kernel is not None  # callers have asked can_fuse
        layout, composition, fold, seed = args[6:]
        operands = Operands(*[None if t is None else t.contiguous() for t in args[:6]])
        y = torch.empty(layout.out_shape, dtype=operands.x.dtype)
        noise = None
        if operands.scale is not None and math.prod(layout.noise_shape) <= _KEPT_NOISE:
            noise = torch.empty(layout.noise_shape, dtype=y.dtype)
        kernel.product_forward(*_arguments(operands, layout, seed, noise, y))
        ctx.save_for_backward(*args[:6], noise)
        ctx.layout, ctx.composition, ctx.fold, ctx.seed = layout, composition, fold, seed
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        *tensors, noise = ctx.saved_tensors
        operands = Operands(*tensors)
        if torch.is_grad_enabled():
            gradients = _backward_by_composition(ctx, operands, noise, grads[0])
        else:
            gradients = _backward_in_kernel(ctx, operands, noise, grads[0])
        return (*gradients, None, None, None, None)


def _backward_in_kernel(
    ctx: Any, operands: Operands, noise: Tensor | None, grad: Tensor
) -> list[Gradient]:
    assert kernel is not None  # forward ran in it
    layout: Layout = ctx.layout
    replicas, draws, rows, blocks, size, in_features, out_features = layout.sizes
    operands = Operands(*[None if t is None else t.contiguous() for t in operands])
    make = operands.x.new_empty
    vectors = (replicas, draws, blocks, size)
    per_row = layout.g[2] != 0
    gradients: list[Gradient] = [
        make(replicas, draws, rows, in_features) if ctx.needs_input_grad[0] else None,
        make(vectors),
        make(layout.noise_shape) if per_row else make(vectors),
        make(vectors),
        None if operands.scale is None else make(vectors),
        None if operands.bias is None else make(replicas, draws, out_features),
    ]
    shared = _arguments(operands, layout, ctx.seed, noise, grad.contiguous())
    kernel.product_backward(*shared, *[_pointer(t) for t in gradients])
    folded: list[Gradient] = ctx.fold(layout, gradients)
    return folded


def _backward_by_composition(
    ctx: Any, operands: Operands, noise: Tensor | None, grad: Tensor
) -> list[Gradient]:
    if operands.scale is not None and noise is None:
        noise = normal_from_seed(ctx.layout.noise_shape, ctx.seed, dtype=operands.x.dtype)
    y = ctx.composition(operands, noise)
    wanted = [t for t in operands if t is not None and t.requires_grad]
    found = iter(torch.autograd.grad(y, wanted, grad, create_graph=True, allow_unused=True))
    return [next(found) if t is not None and t.requires_grad else None for t in operands]
