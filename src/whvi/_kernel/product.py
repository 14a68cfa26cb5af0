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
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whvi._kernel.backend import (
    KERNEL_DTYPES,
    PLAIN_TYPES,
    is_tracing,
    is_transformed,
    kernel,
)
from whvi._kernel.layout import BlockPlan
from whvi._kernel.noise import normal_from_seed
from whvi.transforms import fwht

_KEPT_NOISE = 1 << 22  # entries of noise that are kept for the backward pass; more is made again

_SINGLE = torch.float32

Gradient = Tensor | None
Given = Sequence[Any]  # an Operands, or its first entries where the others are None
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
        self.out_shape = layout.out_shape
        self.noise_entries = math.prod(layout.noise_shape)
        self.keeps_noise = self.noise_entries <= _KEPT_NOISE

    @cached_property
    def apply(self) -> Any:
        """Run the product of ``*tensors`` as a node of the autograd graph."""
        return _node(self)

    @cached_property
    def apply_noisy(self) -> Any:
        """Run the product of ``seed, *tensors`` as a node of the autograd graph."""
        return _noisy_node(self)


class Operands(NamedTuple):
    """Tensors of a product; with ``scale``, ``g`` is the mean of a normal drawn for every row."""

    x: Tensor
    s1: Tensor
    g: Tensor
    s2: Tensor
    scale: Tensor | None = None
    bias: Tensor | None = None


def can_fuse(operands: Given) -> bool:
    """Tell whether the kernel may run on these tensors, now, under plain autograd."""
    dtype = operands[0].dtype
    if kernel is None or dtype not in KERNEL_DTYPES or is_tracing() or is_transformed():
        return False
    for t in operands:
        if t is not None and not (
            t.dtype is dtype and t.is_cpu and type(t) in PLAIN_TYPES and t.numel()
        ):
            return False
    return True


def fused_product(operands: Given, call: Call, seed: int = 0) -> Tensor:
    """Run the product in the kernel; ``seed`` is the stream of the noise if there is a scale."""
    if torch.is_grad_enabled():
        for t in operands:
            if t is not None and t.requires_grad:
                tensors = operands if operands[-1] is not None else _without_tail(operands)
                is_noisy = len(tensors) > 4 and tensors[4] is not None
                y: Tensor = call.apply_noisy(seed, *tensors) if is_noisy else call.apply(*tensors)
                return y
    return product_forward(operands, call, seed, False)[0]


def product_forward(
    operands: Given, call: Call, seed: int, keep_noise: bool
) -> tuple[Tensor, Tensor | None]:
    """Run the kernel outside autograd; return the output and, if kept, the noise.

    ``operands`` is an :class:`Operands` or its first entries, the others being ``None``.
    """
    x = operands[0]
    y = _empty_like(x) if x.shape == call.out_shape else x.new_empty(call.out_shape)
    noise = None
    if keep_noise and call.keeps_noise and len(operands) > 4 and operands[4] is not None:
        trimmed = y.numel() != call.noise_entries
        noise = y.new_empty(call.noise_entries) if trimmed else torch.empty_like(y)
    element_bytes = 4 if x.dtype is _SINGLE else 8
    _FORWARD(element_bytes, torch.get_num_threads(), call.address, seed, y, noise, *operands)
    return y, noise


def product_backward(
    operands: Given, call: Call, seed: int, noise: Tensor | None, grad: Tensor, wants_x: bool
) -> list[Gradient]:
    """Return the gradients of the operands, outside autograd; that of ``x`` only if wanted."""
    x, fold = operands[0], call.fold
    gradients: list[Gradient]
    if fold is None:
        gradients = [None if t is None else _empty_like(t) for t in operands]
    else:
        given = zip(operands, call.layout.grad_shapes, strict=False)
        gradients = [None if t is None else x.new_empty(shape) for t, shape in given]
    if not wants_x:
        gradients[0] = None
    element_bytes, threads = 4 if x.dtype is _SINGLE else 8, torch.get_num_threads()
    _BACKWARD(element_bytes, threads, call.address, seed, grad, noise, gradients, *operands)
    if fold is None:
        return gradients
    absent: list[Gradient] = [None] * (len(Operands._fields) - len(operands))
    return fold(gradients + absent)[: len(operands)]


def _empty_like(tensor: Tensor) -> Tensor:
    """Make a contiguous tensor of the same shape; to say how takes three times as long."""
    if tensor.is_contiguous():
        return torch.empty_like(tensor)
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _without_tail(operands: Given) -> Given:
    """Leave out absent operands at the end: every argument of a node costs."""
    size = len(operands)
    while operands[size - 1] is None:
        size -= 1
    return operands[:size]


def _node(call: Call) -> Any:
    """Make the node of a call; one for every call, because what a node is handed costs more."""

    class StructuredProduct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: Any) -> Tensor:
            ctx.save_for_backward(*tensors)
            return product_forward(tensors, call, 0, False)[0]

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Gradient, ...]:
            run = _backward_by_composition if torch.is_grad_enabled() else product_backward
            wants_x = ctx.needs_input_grad[0]
            return tuple(run(ctx.saved_tensors, call, 0, None, grads[0], wants_x))

    # Function.apply without its search for torch.func wrappers: can_fuse has excluded them
    return super(torch.autograd.Function, StructuredProduct).apply


def _noisy_node(call: Call) -> Any:
    """Make the node of a call with a scale."""

    class NoisyStructuredProduct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, seed: int, *tensors: Any) -> Tensor:
            y, noise = product_forward(tensors, call, seed, True)
            ctx.save_for_backward(noise, *tensors)
            ctx.seed = seed
            return y

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Gradient, ...]:
            noise, *tensors = ctx.saved_tensors
            run = _backward_by_composition if torch.is_grad_enabled() else product_backward
            wants_x = ctx.needs_input_grad[1]
            return None, *run(tensors, call, ctx.seed, noise, grads[0], wants_x)

    return super(torch.autograd.Function, NoisyStructuredProduct).apply


def _backward_by_composition(
    given: Given, call: Call, seed: int, noise: Tensor | None, grad: Tensor, wants_x: bool
) -> list[Gradient]:
    """Do what :func:`product_backward` does inside autograd, for whatever requires gradients."""
    operands = Operands(*given)
    if operands.scale is not None:
        shape = call.layout.noise_shape
        if noise is None:
            noise = normal_from_seed(shape, seed, dtype=operands.x.dtype)
        noise = noise.view(shape)
    y = call.composition(operands, noise)
    wanted = [t for t in given if t is not None and t.requires_grad]
    found = iter(torch.autograd.grad(y, wanted, grad, create_graph=True, allow_unused=True))
    return [next(found) if t is not None and t.requires_grad else None for t in given]


_FORWARD: Any = None if kernel is None else kernel.product_forward
_BACKWARD: Any = None if kernel is None else kernel.product_backward


Shape = tuple[int, ...]


class _Axes(NamedTuple):
    """Leading axes of one call: ``x`` is ``(*batch, *draws, *rows, in_features)``."""

    batch: Shape
    draws: Shape  # axes over which g differs
    rows: Shape

    @property
    def inner(self) -> Shape:
        return (*self.draws, *self.rows)


def block_linear(
    x: Tensor, s1: Tensor, g: Tensor, s2: Tensor, bias: Tensor | None, plan: BlockPlan
) -> Tensor:
    """Apply the blocks of ``plan`` with given ``g``.

    Args:
        x: Shape ``(*batch_shape, *inner, in_features)``.
        s1, s2: Shape ``(*batch_shape, K·D)``.
        g: Shape ``(*batch_shape, *some, K·D)``, where ``some`` are the first of ``inner``: none
            (one ``g`` for all rows), the draws, or all (a ``g`` for every row).
        bias: Shape ``(*batch_shape, out_features)`` or ``None``.

    Returns:
        Shape ``(*batch_shape, *inner, out_features)``.
    """
    return _run(Operands(x, s1, g, s2, None, bias), plan, 0)


def noisy_block_linear(
    x: Tensor,
    s1: Tensor,
    moments: tuple[Tensor, Tensor],
    s2: Tensor,
    bias: Tensor | None,
    plan: BlockPlan,
    seed: int,
) -> Tensor:
    """Apply the blocks with a fresh ``g ~ N(mean, exp(log_scale)²)`` for every row.

    ``moments`` is ``(mean, log_scale)``, each ``(*batch_shape, K·D)``; ``seed`` names the stream
    of the noise; others as above.
    """
    mean, log_scale = moments
    return _run(Operands(x, s1, mean, s2, log_scale, bias), plan, seed)


def _run(operands: Operands, plan: BlockPlan, seed: int) -> Tensor:
    batch_ndim = operands.s1.dim() - 1
    if can_fuse(operands):
        call = prepared_call(
            operands.x.shape, operands.g.shape, batch_ndim, plan, operands.scale is not None
        )
        return fused_product(operands, call, seed)
    axes = _axes(operands.x.shape, operands.g.shape, batch_ndim)
    noise = None
    if operands.scale is not None:
        shape = (*axes.batch, *axes.inner, *plan.vector_shape)
        noise = normal_from_seed(shape, seed, dtype=operands.x.dtype, device=operands.x.device)
    return _compose(axes, plan, operands, noise)


def _axes(x: Shape, g: Shape, batch_ndim: int) -> _Axes:
    inner = x[batch_ndim:-1]
    num_draw_axes = len(g) - 1 - batch_ndim
    return _Axes(tuple(x[:batch_ndim]), tuple(inner[:num_draw_axes]), tuple(inner[num_draw_axes:]))


def _compose(axes: _Axes, plan: BlockPlan, operands: Operands, noise: Tensor | None) -> Tensor:
    """The same map in differentiable torch operations."""
    x, s1, g, s2, scale, bias = operands
    every = (1,) * len(axes.inner)
    s1, s2 = (v.reshape(*axes.batch, *every, *plan.vector_shape) for v in (s1, s2))
    g = g.reshape(*axes.batch, *axes.draws, *(1,) * len(axes.rows), *plan.vector_shape)
    if scale is not None and noise is not None:
        scale = scale.exp().reshape(*axes.batch, *every, *plan.vector_shape)
        g = g + scale * noise.reshape(*axes.batch, *axes.inner, *plan.vector_shape)
    padded = torch.nn.functional.pad(x, (0, plan.block_size - plan.in_features)).unsqueeze(-2)
    y = (s1 * fwht(g * fwht(s2 * padded))).flatten(-2)[..., : plan.out_features]
    return y if bias is None else y + bias.reshape(*axes.batch, *every, plan.out_features)


@lru_cache(maxsize=4096)
def prepared_call(x: Shape, g: Shape, batch_ndim: int, plan: BlockPlan, noisy: bool) -> Call:
    """Prepare the kernel call for inputs of these shapes; ``noisy``: with a log-scale."""
    axes = _axes(x, g, batch_ndim)
    per_row = not axes.rows and bool(axes.draws)
    R = math.prod(axes.batch)
    S, N = (1, math.prod(axes.draws)) if per_row else (math.prod(axes.draws), math.prod(axes.rows))
    K, D = plan.vector_shape
    g_strides = (N * K * D, 0, K * D, D) if per_row else (S * K * D, K * D * (S > 1), 0, D)
    vectors = (*axes.batch, K * D) if S == 1 else (*axes.batch, S, K * D)
    bias = axes.batch if S == 1 else (*axes.batch, S)
    layout = Layout(
        sizes=(R, S, N, K, D, plan.in_features, plan.out_features),
        x=(S * N * plan.in_features, N * plan.in_features, plan.in_features),
        s1=(K * D, 0, D),
        g=g_strides,
        s2=(K * D, 0, D),
        y=(S * N * plan.out_features, N * plan.out_features, plan.out_features, D),
        bias=plan.out_features,
        out_shape=(*axes.batch, *axes.inner, plan.out_features),
        grad_shapes=(x, vectors, g, vectors, vectors, (*bias, plan.out_features)),
    )
    fold = partial(_sum_draws, len(axes.batch)) if S > 1 else None
    return Call(layout, partial(_compose, axes, plan), fold, log_scale=noisy)


def _sum_draws(axis: int, gradients: list[Gradient]) -> list[Gradient]:
    """Sum over draws what all draws share: everything but ``x`` and ``g``."""
    x, s1, g, s2, scale, bias = gradients
    s1, s2, scale, bias = (None if t is None else t.sum(axis) for t in (s1, s2, scale, bias))
    return [x, s1, g, s2, scale, bias]
