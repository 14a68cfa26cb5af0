r"""The structured product as one autograd node over the compiled kernel.

``y = s1 * H((g + scale * noise) * H(s2 * x)) + bias``: :func:`_compose` is this line in torch
operations. It defines what the kernel computes, and runs wherever the kernel cannot: on other
devices, under torch.compile and torch.func, and for gradients of gradients. The kernel's forward
pass keeps its operands and the noise; its backward pass computes ``H(s2 x)`` and ``H(g H(s2 x))``
again while a row is in cache, which is cheaper than keeping them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _is_tracing, _len_torch_dispatch_stack
from torch.autograd import forward_ad
from torch.compiler import is_compiling, is_exporting

from whvi._checks import is_power_of_two
from whvi._kernel.backend import (
    KERNEL_DTYPES,
    PLAIN_TYPES,
    apart,
    differentiable_gradients,
    gpu_kernels,
    gpu_takes,
    is_transformed,
    kernel,
)
from whvi._kernel.layout import BlockPlan, Layout, Shape, Views, views_of
from whvi._kernel.noise import normal_from_seed
from whvi.transforms import fwht

_KEPT_NOISE = 1 << 22  # entries of noise that are kept for the backward pass; more is made again
_FORWARD: Any = None if kernel is None else kernel.product_forward
_BACKWARD: Any = None if kernel is None else kernel.product_backward

Gradient = Tensor | None
Given = Sequence[Any]  # an Operands or a plain tuple of the same: a record costs time to make


class Operands(NamedTuple):
    """Tensors of a product; with ``scale``, ``g`` is the mean of a normal drawn for every row."""

    x: Tensor
    s1: Tensor
    g: Tensor
    s2: Tensor
    scale: Tensor | None = None
    bias: Tensor | None = None


def block_linear(
    x: Tensor, s1: Tensor, g: Tensor, s2: Tensor, bias: Tensor | None, plan: BlockPlan
) -> Tensor:
    """Apply ``y = [W_1 x; …; W_K x][:out] + b``, ``W_k = diag(s1_k) H diag(g_k) H diag(s2_k)``.

    Args:
        x: Shape ``(*batch_shape, *inner, in_features)``, padded with zeros to ``D``.
        s1, s2: Shape ``(*batch_shape, K·D)``.
        g: Shape ``(*batch_shape, *some, K·D)``, where ``some`` are the first of ``inner``: none
            (one ``g`` for all rows), the draws, or all (a ``g`` for every row).
        bias: Shape ``(*batch_shape, out_features)`` or ``None``.
        plan: The blocks.

    Returns:
        Shape ``(*batch_shape, *inner, out_features)``.
    """
    return product((x, s1, g, s2, None, bias), plan)


def noisy_block_linear(
    x: Tensor,
    s1: Tensor,
    moments: tuple[Tensor, Tensor],
    s2: Tensor,
    bias: Tensor | None,
    plan: BlockPlan,
    seed: int | Tensor,
) -> Tensor:
    """Apply the blocks with a fresh ``g ~ N(mean, exp(log_scale)²)`` for every row.

    ``moments`` is ``(mean, log_scale)``, each ``(*batch_shape, K·D)``; ``seed`` names the stream
    of the noise; others as in :func:`block_linear`.
    """
    mean, log_scale = moments
    return product((x, s1, mean, s2, log_scale, bias), plan, seed)


def product(operands: Given, plan: BlockPlan | None, seed: int | Tensor = 0) -> Tensor:
    """Run the map of ``plan`` (whose scale is a logarithm) or, without, the broadcast product."""
    x, s1, g, s2, scale, _ = operands
    if plan is not None and is_compiling() and _can_be_an_operator(operands):
        stream = seed if isinstance(seed, Tensor) else None
        # apply() is not annotated in torch.
        made: Tensor = _TracedProduct.apply(*operands, stream, plan.out_features)  # type: ignore[no-untyped-call]
        return made
    if can_fuse(operands):
        prepared = prepare(x.shape, s1.shape, g.shape, s2.shape, plan, scale is not None)
        if prepared is not None:
            if torch.is_grad_enabled():
                y: Tensor = prepared.apply(seed, *operands)
                return y
            return product_forward(operands, prepared, int(seed), False)[0]
    views = views_of(x.shape, s1.shape, g.shape, s2.shape, plan)
    noise = None
    if scale is not None:
        shape = (*views.leading, s1.shape[-1] if plan is None else plan.block_size)
        noise = normal_from_seed(shape, seed, dtype=x.dtype, device=x.device)
    return _compose(Operands(*operands), views, noise, plan is not None)


def _compose(operands: Operands, views: Views, noise: Tensor | None, log_scale: bool) -> Tensor:
    """The product in torch operations; ``noise`` is ``(*leading, D)``."""
    x, s1, g, s2 = (t.reshape(shape) for t, shape in zip(operands[:4], views[:4], strict=True))
    if operands.scale is not None and noise is not None:
        scale = operands.scale.reshape(views.scale)
        g = g + (scale.exp() if log_scale else scale) * noise
    if x.shape[-1] < s2.shape[-1]:
        x = torch.nn.functional.pad(x, (0, s2.shape[-1] - x.shape[-1]))
    y = _on_gpu((x, s1, g, s2), views)
    if y is None:
        y = s1 * fwht(g * fwht(s2 * x))
    if views.has_blocks:
        y = y.flatten(-2)[..., : views.out[-1]]
    return y if operands.bias is None else y + operands.bias.reshape(views.bias).squeeze(-2)


def _on_gpu(operands: tuple[Tensor, ...], views: Views) -> Tensor | None:
    """Run the product in one Triton kernel, if there is one that takes the operands."""
    usable = is_power_of_two(operands[1].shape[-1]) and gpu_takes(operands[0])
    if not usable or is_transformed() or (kernels := gpu_kernels()) is None:
        return None
    y: Tensor | None = kernels.structured_product(operands, has_blocks=views.has_blocks)
    return y


def _can_be_an_operator(operands: Given) -> bool:
    """Tell whether a graph may call the kernel; what is exported has torch's own operators only."""
    dtype = operands[0].dtype
    return (
        kernel is not None
        and not is_exporting()
        and dtype in KERNEL_DTYPES
        and all(t is None or (t.dtype == dtype and t.device.type == "cpu") for t in operands)
    )


def can_fuse(operands: Given) -> bool:
    """Tell whether the kernel may run on these tensors, now, under plain autograd."""
    dtype = operands[0].dtype
    if (
        kernel is None
        or dtype not in KERNEL_DTYPES
        # backend.is_tracing() and is_transformed(), without the calls
        or is_compiling()
        or _len_torch_dispatch_stack() > 0
        or _is_tracing()
        or _are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    ):
        return False
    for t in operands:
        if t is not None and not (
            t.dtype is dtype and t.is_cpu and type(t) in PLAIN_TYPES and t.numel()
        ):
            return False
    return True


class PreparedProduct:
    """All of a kernel call but its tensors: made once per shape, so that a call is cheap."""

    def __init__(self, layout: Layout, log_scale: bool) -> None:
        self.layout, self.log_scale = layout, log_scale
        self._table = array("q", (*layout.table(), int(log_scale)))
        self.address = self._table.buffer_info()[0]
        self.out_shape = layout.views.out
        self.noise_entries = math.prod(layout.sizes)
        self.shared: list[tuple[int, list[int], Shape]] = []  # operands whose gradients are sums
        for operand in range(len(Operands._fields)):
            if loops := layout.shared_loops(operand):
                self.shared.append((operand, loops, layout.gradient_shape(operand)))

    @cached_property
    def apply(self) -> Any:
        """Run the product of ``seed, *operands`` as a node of the autograd graph."""
        return _node(self)


@lru_cache(maxsize=4096)
def prepare(
    x: Shape, s1: Shape, g: Shape, s2: Shape, plan: BlockPlan | None, noisy: bool
) -> PreparedProduct | None:
    """Prepare the call for operands of these shapes; ``None`` if the kernel has too few loops."""
    layout = Layout.of(views_of(x, s1, g, s2, plan), noisy=noisy)
    return None if layout is None else PreparedProduct(layout, log_scale=plan is not None and noisy)


def _node(prepared: PreparedProduct) -> Any:
    """Make the autograd node of a prepared product: to hand it over at every call costs more."""

    class StructuredProduct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, seed: int, *operands: Any) -> Tensor:
            y, noise = product_forward(operands, prepared, seed, True)
            ctx.save_for_backward(noise, *operands)
            ctx.seed = seed
            return y

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Gradient, ...]:
            noise, *operands = ctx.saved_tensors
            if torch.is_grad_enabled():
                return None, *_composed_backward(operands, prepared, ctx.seed, noise, grads[0])
            wants_x = ctx.needs_input_grad[1]
            return None, *product_backward(operands, prepared, ctx.seed, noise, grads[0], wants_x)

    # Function.apply without its search for torch.func wrappers: can_fuse has excluded them
    return super(torch.autograd.Function, StructuredProduct).apply


class _TracedProduct(torch.autograd.Function):
    """The product of operands, seed and outputs, for a graph of torch.compile.

    A formula registered with the operator would do, and cost every call a walk through Python.
    """

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *tensors, out_features = given
        ctx.save_for_backward(*tensors)
        ctx.out_features = out_features
        y: Tensor = torch.ops.whvi.product(*tensors, out_features)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        tensors, needs = ctx.saved_tensors, ctx.needs_input_grad[: len(Operands._fields)]
        found = torch.ops.whvi.product_backward(grads[0], *tensors, ctx.out_features, needs[0])
        return (*(g if need else None for g, need in zip(found, needs, strict=True)), None, None)


def product_forward(
    operands: Given,
    prepared: PreparedProduct,
    seed: int,
    keep_noise: bool,
    into: tuple[Tensor, Tensor | None] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Run the kernel outside autograd; return the output and, if kept, the noise.

    ``into`` are results of an earlier call of the same kind, which are written over.
    """
    x = operands[0]
    if into is not None:
        y, noise = into
    else:
        y = _empty_like(x) if x.shape == prepared.out_shape else x.new_empty(prepared.out_shape)
        noise = None
        if keep_noise and operands[4] is not None and prepared.noise_entries <= _KEPT_NOISE:
            trimmed = y.numel() != prepared.noise_entries
            noise = y.new_empty(prepared.noise_entries) if trimmed else torch.empty_like(y)
    element_bytes = 4 if x.dtype is torch.float32 else 8
    _FORWARD(element_bytes, torch.get_num_threads(), prepared.address, seed, y, noise, *operands)
    return y, noise


def product_backward(
    operands: Given,
    prepared: PreparedProduct,
    seed: int,
    noise: Tensor | None,
    grad: Tensor,
    wants_x: bool,
    into: list[Gradient] | None = None,
) -> list[Gradient]:
    """Return the gradients of the operands, outside autograd; that of ``x`` only if wanted.

    ``into`` are gradients of an earlier call of the same kind, which are written over; sums over
    shared axes are made anew all the same.
    """
    x = operands[0]
    gradients = into
    if gradients is None or prepared.shared:
        gradients = [None if t is None else _empty_like(t) for t in operands]
        for i, _, made_shape in prepared.shared:
            if operands[i] is not None:
                gradients[i] = x.new_empty(made_shape)
        if not wants_x:
            gradients[0] = None
    element_bytes, threads = 4 if x.dtype is torch.float32 else 8, torch.get_num_threads()
    _BACKWARD(element_bytes, threads, prepared.address, seed, grad, noise, gradients, *operands)
    for i, loops, _ in prepared.shared:
        if (made := gradients[i]) is not None:
            gradients[i] = made.sum(loops).view(operands[i].shape)
    return gradients


def _composed_backward(
    given: Given, prepared: PreparedProduct, seed: int, noise: Tensor | None, grad: Tensor
) -> list[Gradient]:
    """Do what :func:`product_backward` does inside autograd, for whatever requires gradients."""
    operands, layout = Operands(*apart(given)), prepared.layout
    if operands.scale is not None:
        if noise is None:
            noise = normal_from_seed(layout.sizes, seed, dtype=operands.x.dtype)
        noise = noise.view(*layout.views.leading, layout.sizes[-1])
    y = _compose(operands, layout.views, noise, prepared.log_scale)
    return differentiable_gradients(y, operands, grad)


def _empty_like(tensor: Tensor) -> Tensor:
    """Make a contiguous tensor of the same shape; passing memory_format is three times slower."""
    if tensor.is_contiguous():
        return torch.empty_like(tensor)
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)
