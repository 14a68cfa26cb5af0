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
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whvi.noise import normal_from_seed
from whvi.transforms.backend import (
    PLAIN_TYPES,
    is_tracing,
    is_transformed,
    kernel,
    kernel_takes,
)

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


class Call:
    """All of a kernel call but its tensors: made once per shape, so that a call is cheap.

    Args:
        layout: The loops.
        composition: The same product in differentiable torch operations, for double backward.
        fold: Turns gradients of the layout's shapes into those of the operands; ``None`` if they
            are the same.
        log_scale: Whether ``operands.scale`` holds the logarithm of the scale.
    """

    __slots__ = ("address", "composition", "fold", "keeps_noise", "layout", "table")

    def __init__(
        self,
        layout: Layout,
        composition: Composition,
        fold: Fold | None = None,
        *,
        log_scale: bool = False,
    ) -> None:
        strides = (*layout.x, *layout.s1, *layout.g, *layout.s2, *layout.y, layout.bias)
        # in the order that kernel.c reads
        self.table = array("q", (*layout.sizes, *strides, int(log_scale)))
        self.address = self.table.buffer_info()[0]
        self.layout, self.composition, self.fold = layout, composition, fold
        self.keeps_noise = math.prod(layout.noise_shape) <= _KEPT_NOISE


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
    for t in operands:
        if t is None:
            continue
        if not (t.dtype is dtype and t.is_cpu and type(t) in PLAIN_TYPES and t.numel()):
            return False
    return True


def fused_product(operands: Operands, call: Call, seed: int = 0) -> Tensor:
    """Run the product in the kernel; ``seed`` is the stream of the noise if there is a scale."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands):
        y: Tensor = _apply(call, seed, *_without_tail(operands))
        return y
    return product_forward(operands, call, seed, False)[0]


def product_forward(
    operands: Operands, call: Call, seed: int, keep_noise: bool
) -> tuple[Tensor, Tensor | None]:
    """Run the kernel outside autograd; return the output and, if kept, the noise."""
    noise = None
    if operands.scale is not None and keep_noise and call.keeps_noise:
        noise = operands.x.new_empty(call.layout.noise_shape)
    y = operands.x.new_empty(call.layout.out_shape)
    _run(_FORWARD, call, seed, (*operands, noise, y), ())
    return y, noise


def product_backward(
    operands: Operands, call: Call, seed: int, noise: Tensor | None, grad: Tensor, wants_x: bool
) -> list[Gradient]:
    """Return the gradients of all operands, outside autograd; that of ``x`` only if wanted."""
    wanted = operands if wants_x else (None, *operands[1:])
    gradients: list[Gradient]
    if call.fold is None:
        gradients = [None if t is None else _empty_like(t) for t in wanted]
    else:
        shapes = call.layout.grad_shapes
        make = operands.x.new_empty
        gradients = [None if t is None else make(s) for t, s in zip(wanted, shapes, strict=True)]
    _run(_BACKWARD, call, seed, (*operands, noise, grad), gradients)
    return gradients if call.fold is None else call.fold(gradients)


def _empty_like(tensor: Tensor) -> Tensor:
    """Make a contiguous tensor of the same shape; this way it takes half the time."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _without_tail(operands: Operands) -> tuple[Tensor | None, ...]:
    """Leave out absent operands at the end: every argument of a node costs."""
    if operands.bias is not None:
        return operands
    return operands[:5] if operands.scale is not None else operands[:4]


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, seed: int, *tensors: Any) -> Tensor:
        y, noise = product_forward(Operands(*tensors), call, seed, True)
        ctx.save_for_backward(*tensors)
        ctx.rest = call, seed, noise
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors
        operands = Operands(*tensors)
        call, seed, noise = ctx.rest
        if torch.is_grad_enabled():
            found = _backward_by_composition(call, seed, operands, noise, grads[0])
        else:
            wants_x = ctx.needs_input_grad[2]
            found = product_backward(operands, call, seed, noise, grads[0], wants_x)
        return (None, None, *found[: len(tensors)])


# Function.apply without its search for torch.func wrappers: can_fuse has excluded them
_apply: Any = super(torch.autograd.Function, _Fused).apply
_FORWARD: Any = None if kernel is None else kernel.product_forward
_BACKWARD: Any = None if kernel is None else kernel.product_backward


def _run(
    function: Any,
    call: Call,
    seed: int,
    tensors: tuple[Tensor | None, ...],
    results: Sequence[Gradient],
) -> None:
    """Call the kernel.

    Args:
        function: ``product_forward`` or ``product_backward`` of the kernel.
        call, seed: As in :func:`fused_product`.
        tensors: x, s1, g, s2, scale, bias, noise, and y or its gradient.
        results: Where gradients go.
    """
    ready = [None if t is None else t.contiguous() for t in tensors]
    pointers = [0 if t is None else t.data_ptr() for t in ready]
    targets = [0 if t is None else t.data_ptr() for t in results]
    # the last tensor, y or its gradient, is always there
    element_bytes = 4 if tensors[-1].dtype is torch.float32 else 8  # type: ignore[union-attr]
    function(element_bytes, torch.get_num_threads(), call.address, seed, *pointers, *targets)


def _backward_by_composition(
    call: Call, seed: int, operands: Operands, noise: Tensor | None, grad: Tensor
) -> list[Gradient]:
    if operands.scale is not None and noise is None:
        noise = normal_from_seed(call.layout.noise_shape, seed, dtype=operands.x.dtype)
    y = call.composition(operands, noise)
    wanted = [t for t in operands if t is not None and t.requires_grad]
    found = iter(torch.autograd.grad(y, wanted, grad, create_graph=True, allow_unused=True))
    return [next(found) if t is not None and t.requires_grad else None for t in operands]
