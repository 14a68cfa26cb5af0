"""The structured product as one autograd node over the compiled kernel.

A :class:`Layout` maps the operands to the kernel's loops ``(replicas R, draws S, rows N, blocks
K)``; it is computed from shapes alone and cached by the callers. Operands are contiguous; stride
0 means shared. The forward pass keeps its inputs (and the noise); the backward pass computes
``u = H(s2 x)`` and ``t = H(g u)`` again while a row is in cache, which is cheaper than keeping
them. When gradients of gradients are wanted, the backward pass runs the plain composition.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whvi.noise import normal_from_seed
from whvi.transforms.backend import is_tracing, is_transformed, kernel, kernel_takes

_KEPT_NOISE = 1 << 22  # entries of noise that are kept for the backward pass; more is made again

Gradient = Tensor | None
Fold = Callable[[list[Gradient]], list[Gradient]]
Composition = Callable[["Operands", Tensor | None], Tensor]  # (operands, noise) -> output


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
        grad_shapes: Shapes in which the gradients of x, s1, g, s2, scale and bias are made:
            ``(R,S,N,in)``, ``(R,S,K,D)``, ``(R,S,K,D)`` or ``(R,S,N,K,D)``, ``(R,S,K,D)`` twice
            and ``(R,S,out)``, or a reshape of these.
    """

    sizes: tuple[int, int, int, int, int, int, int]
    x: tuple[int, int, int]
    s1: tuple[int, int, int]
    g: tuple[int, int, int, int]
    s2: tuple[int, int, int]
    y: tuple[int, int, int, int]
    bias: int
    out_shape: tuple[int, ...]
    grad_shapes: tuple[tuple[int, ...], ...]

    @property
    def noise_shape(self) -> tuple[int, int, int, int, int]:
        """Shape ``(R, S, N, K, D)`` of the noise."""
        return self.sizes[:5]


class Call(NamedTuple):
    """All of a kernel call but its tensors: made once per shape, so that a call is cheap.

    Attributes:
        layout: The loops.
        table: The layout as the kernel reads it, kept alive here.
        composition: The same product in differentiable torch operations, for double backward.
        fold: Turns gradients of the layout's shapes into those of the operands; ``None`` if they
            are the same.
        log_scale: Whether ``operands.scale`` holds the logarithm of the scale.
    """

    layout: Layout
    table: array[int]
    composition: Composition
    fold: Fold | None
    log_scale: bool

    @classmethod
    def prepare(
        cls,
        layout: Layout,
        composition: Composition,
        fold: Fold | None = None,
        *,
        log_scale: bool = False,
    ) -> Call:
        """Lay out the sizes and strides in the order that kernel.c reads."""
        strides = (*layout.x, *layout.s1, *layout.g, *layout.s2, *layout.y, layout.bias)
        table = array("q", (*layout.sizes, *strides))
        return cls(layout, table, composition, fold, log_scale)


class Operands(NamedTuple):
    """Tensors of a product; with ``scale``, ``g`` is the mean of a normal drawn for every row."""

    x: Tensor
    s1: Tensor
    g: Tensor
    s2: Tensor
    scale: Tensor | None = None
    bias: Tensor | None = None


def can_fuse(operands: Operands) -> bool:
    """Tell whether the kernel may run on these tensors, now, under plain autograd."""
    if is_tracing() or is_transformed() or not kernel_takes(operands.x):
        return False
    dtype = operands.x.dtype
    return all(t is None or (t.dtype is dtype and kernel_takes(t)) for t in operands[1:])


def fused_product(operands: Operands, call: Call, seed: int = 0) -> Tensor:
    """Run the product in the kernel; ``seed`` is the stream of the noise if there is a scale."""
    y: Tensor = _apply(*operands, call, seed)
    return y


def _arguments(
    operands: Operands, call: Call, seed: int, noise: Tensor | None, y: Tensor
) -> tuple[int, ...]:
    """Arguments that the forward and backward kernels share, in the order of kernel.c."""
    x = operands.x
    pointers = [0 if t is None else t.data_ptr() for t in (*operands, noise, y)]
    table = call.table.buffer_info()[0]
    return (x.element_size(), torch.get_num_threads(), table, seed, *pointers)


def _kernel_operands(operands: Operands, call: Call) -> Operands:
    """Contiguous tensors, the scale itself in place of its logarithm."""
    x, s1, g, s2, scale, bias = operands
    if call.log_scale and scale is not None:
        scale = scale.exp()
    return Operands(
        x.contiguous(),
        s1.contiguous(),
        g.contiguous(),
        s2.contiguous(),
        None if scale is None else scale.contiguous(),
        None if bias is None else bias.contiguous(),
    )


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        assert kernel is not None  # callers have asked can_fuse
        call, seed = args[6:]
        operands = _kernel_operands(Operands(*args[:6]), call)
        y = torch.empty(call.layout.out_shape, dtype=operands.x.dtype)
        noise = None
        if operands.scale is not None and math.prod(call.layout.noise_shape) <= _KEPT_NOISE:
            noise = torch.empty(call.layout.noise_shape, dtype=y.dtype)
        kernel.product_forward(*_arguments(operands, call, seed, noise, y))
        ctx.save_for_backward(*args[:6], noise)
        ctx.call, ctx.seed = call, seed
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        *tensors, noise = ctx.saved_tensors
        run = _backward_by_composition if torch.is_grad_enabled() else _backward_in_kernel
        return (*run(ctx, Operands(*tensors), noise, grads[0]), None, None)


# Function.apply without its search for torch.func wrappers: can_fuse has excluded them
_apply: Any = super(torch.autograd.Function, _Fused).apply


def _backward_in_kernel(
    ctx: Any, operands: Operands, noise: Tensor | None, grad: Tensor
) -> list[Gradient]:
    assert kernel is not None  # forward ran in it
    call: Call = ctx.call
    operands = _kernel_operands(operands, call)
    gradients: list[Gradient] = [
        None if t is None else t.new_empty(shape)
        for t, shape in zip(operands, call.layout.grad_shapes, strict=True)
    ]
    if not ctx.needs_input_grad[0]:
        gradients[0] = None
    shared = _arguments(operands, call, ctx.seed, noise, grad.contiguous())
    kernel.product_backward(*shared, *[0 if t is None else t.data_ptr() for t in gradients])
    if call.log_scale and gradients[4] is not None and operands.scale is not None:
        gradients[4].mul_(operands.scale)  # d scale / d log scale = scale
    return gradients if call.fold is None else call.fold(gradients)


def _backward_by_composition(
    ctx: Any, operands: Operands, noise: Tensor | None, grad: Tensor
) -> list[Gradient]:
    if operands.scale is not None and noise is None:
        noise = normal_from_seed(ctx.call.layout.noise_shape, ctx.seed, dtype=operands.x.dtype)
    y = ctx.call.composition(operands, noise)
    wanted = [t for t in operands if t is not None and t.requires_grad]
    found = iter(torch.autograd.grad(y, wanted, grad, create_graph=True, allow_unused=True))
    return [next(found) if t is not None and t.requires_grad else None for t in operands]
