r"""``fwht(x)``: multiply by the orthonormal Walsh-Hadamard matrix ``H`` in O(D log D).

``H`` is symmetric and its own inverse, so the gradient of the transform is the transform. It runs
in the compiled kernel on CPU tensors, in Triton on CUDA tensors, as an operator that torch.compile
can see, as a function that torch.func can differentiate, or as plain matrix products.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from whvi._checks import hadamard_factor, is_power_of_two, refused_order
from whvi._kernel.backend import (
    HALF_TYPES,
    PLAIN_TYPES,
    gpu_kernels,
    gpu_takes,
    is_tracing,
    is_transformed,
    kernel,
    kernel_takes,
)
from whvi.errors import ShapeError
from whvi.transforms.plain import fwht_plain

_BLOCK = 1 << 16  # entries that are float32 at a time: they stay in the cache


def fwht(x: Tensor, *, dim: int = -1, normalize: bool = True, out: Tensor | None = None) -> Tensor:
    r"""Walsh-Hadamard transform along one dimension, natural (Sylvester) order.

    ``y = H x`` with ``H[i, k] = D**-0.5 (-1)**popcount(i & k)``; ``fwht(fwht(x)) == x``. Sizes
    ``m · 2**k`` with ``m`` 12, 20 or 28 have the matrix of :func:`whvi.transforms.hadamard_matrix`.

    Args:
        x: Any shape; the size ``D`` of ``dim`` is ``m · 2**k`` with ``m`` 1, 12, 20 or 28. float32
            and float64 are native; float16 and bfloat16 are computed in float32.
        dim: The dimension to transform.
        normalize: Scale by ``D**-0.5`` (orthonormal). Without it entries grow up to ``D``-fold.
        out: Where to write the result: same shape, dtype and device. Not differentiable.

    Returns:
        A new tensor of the shape of ``x`` (or ``out``); ``x`` is not changed. Sums are formed
        before scaling, so entries beyond ``max / D`` of the data type may overflow.
    """
    _check(x, dim)
    if out is not None:
        return _write(x, dim, normalize, out)
    if dim == -1 or dim == x.dim() - 1:
        return _transform(x, normalize)
    return _transform(x.movedim(dim, -1), normalize).movedim(-1, dim).contiguous()


def fwht_(x: Tensor, *, dim: int = -1, normalize: bool = True) -> Tensor:
    """Transform ``x`` in place along ``dim`` and return it; see :func:`fwht`."""
    _check(x, dim)
    if x.requires_grad and torch.is_grad_enabled():
        return x.copy_(fwht(x, dim=dim, normalize=normalize))
    return fwht(x, dim=dim, normalize=normalize, out=x)


def _check(x: Tensor, dim: int) -> None:
    if not isinstance(x, Tensor):
        raise ShapeError(f"fwht needs a torch.Tensor, got {type(x).__name__}")
    if not x.dtype.is_floating_point:
        raise ShapeError(f"fwht needs a floating-point tensor, got {x.dtype}; convert it first")
    if not -x.dim() <= dim < x.dim():
        raise ShapeError(f"fwht: dim {dim} is out of range for shape {tuple(x.shape)}")
    if not hadamard_factor(x.shape[dim]):
        raise ShapeError(
            f"fwht along dim {dim} of shape {tuple(x.shape)} needs {refused_order(x.shape[dim])}; "
            "pad with zeros"
        )


def _transform(x: Tensor, normalize: bool) -> Tensor:
    in_blocks = _in_blocks(x)
    if x.dtype in HALF_TYPES and not (in_blocks or _on_gpu(x)):
        return _transform(x.float(), normalize).to(x.dtype)
    if is_tracing():
        compiling = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
        use_operator = compiling and kernel is not None and x.device.type == "cpu"
        return _operator(x, normalize) if use_operator else fwht_plain(x, normalize)
    if is_transformed():
        # torch does not annotate apply()
        return _Composable.apply(x, normalize)  # type: ignore[no-untyped-call, no-any-return]
    if not (in_blocks or kernel_takes(x) or _on_gpu(x)):
        return fwht_plain(x, normalize)
    if x.requires_grad and torch.is_grad_enabled():
        return cast(Tensor, _direct(x, normalize))
    return _run(x, normalize)


def _in_blocks(x: Tensor) -> bool:
    """Tell whether the kernel takes ``x`` a block of rows at a time, converted to float32."""
    readable = x.is_cpu and type(x) in PLAIN_TYPES and kernel is not None
    return readable and x.dtype in HALF_TYPES and not (is_tracing() or is_transformed())


def _on_gpu(x: Tensor) -> bool:
    """Tell whether the Triton kernels take ``x``: rows of ``2**k`` entries."""
    return is_power_of_two(x.shape[-1]) and gpu_takes(x)


def _run(x: Tensor, normalize: bool) -> Tensor:
    """Run on real memory, outside autograd."""
    if _in_blocks(x):
        return _run_in_blocks(x.detach().contiguous(), normalize)
    if not kernel_takes(x):
        kernels = gpu_kernels() if _on_gpu(x) else None
        return fwht_plain(x, normalize) if kernels is None else kernels.transform(x, normalize)
    result = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _call_kernel(x.detach().contiguous(), result, normalize)
    return result


def _run_in_blocks(x: Tensor, normalize: bool) -> Tensor:
    result, size = torch.empty_like(x), x.shape[-1]
    rows = max(1, _BLOCK // size)
    parts = (t.view(-1, size).split(rows) for t in (x, result))
    for source, target in zip(*parts, strict=True):
        wide = source.float()
        _call_kernel(wide, wide, normalize)
        target.copy_(wide)
    return result


def _call_kernel(source: Tensor, target: Tensor, normalize: bool) -> None:
    assert kernel is not None  # every caller has asked kernel_takes
    size = source.shape[-1]
    kernel.fwht(
        source.element_size(),
        torch.get_num_threads(),
        source.data_ptr(),
        target.data_ptr(),
        source.numel() // size,
        size,
        normalize,
    )


def _write(x: Tensor, dim: int, normalize: bool, out: Tensor) -> Tensor:
    """Write the transform of ``x`` to ``out``, directly if no other view of its memory is read."""
    if (out.shape, out.dtype, out.device) != (x.shape, x.dtype, x.device):
        raise ShapeError(
            f"out must be {tuple(x.shape)} {x.dtype} on {x.device}, "
            f"got {tuple(out.shape)} {out.dtype} on {out.device}"
        )
    if torch.is_grad_enabled() and (x.requires_grad or out.requires_grad):
        raise ShapeError("fwht(out=...) is not differentiable: use it under torch.no_grad()")
    direct = dim in (-1, x.dim() - 1) and x.is_contiguous() and out.is_contiguous()
    if not (direct and kernel_takes(x) and kernel_takes(out)) or _overlap(x, out):
        return out.copy_(fwht(x, dim=dim, normalize=normalize))
    _call_kernel(x, out, normalize)
    # the kernel wrote without autograd's knowledge: let saved-tensor checks notice
    if not out.is_inference():
        torch._C._autograd._unsafe_set_version_counter((out,), (out._version + 1,))
    return out


def _overlap(x: Tensor, y: Tensor) -> bool:
    """Tell whether two tensors are different views of one memory; in place is not meant."""
    same_storage = x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    return same_storage and x.data_ptr() != y.data_ptr()


class _Direct(torch.autograd.Function):
    """Least overhead: for ordinary autograd. Its backward is differentiable in turn."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, normalize: bool) -> Tensor:
        ctx.normalize = normalize
        return _run(x, normalize)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _transform(grads[0], ctx.normalize), None


# Function.apply without its search for torch.func wrappers: is_transformed() has excluded them
_direct: Any = super(torch.autograd.Function, _Direct).apply


class _Composable(torch.autograd.Function):
    """For torch.func and forward mode: rules for vmap and jvp, the kernel at the bottom."""

    @staticmethod
    def forward(x: Tensor, normalize: bool) -> Tensor:
        return _run(x, normalize)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, bool], output: Tensor) -> None:
        ctx.normalize = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _transform(grads[0], ctx.normalize), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        return _transform(tangents[0], ctx.normalize)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, None], x: Tensor, normalize: bool
    ) -> tuple[Tensor, int]:
        assert in_dims[0] is not None  # vmap rules run only when the tensor is batched
        return _transform(x.movedim(in_dims[0], 0), normalize), 0


@torch.library.custom_op("whvi::fwht", mutates_args=())
def _operator(x: Tensor, normalize: bool) -> Tensor:
    return _run(x, normalize)


@_operator.register_fake
def _(x: Tensor, normalize: bool) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _operator_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return _operator(grad, ctx.normalize), None


def _operator_vmap(
    info: Any, in_dims: tuple[int | None, None], x: Tensor, normalize: bool
) -> tuple[Tensor, int]:
    return _operator(x.movedim(in_dims[0] or 0, 0), normalize), 0


_operator.register_autograd(_operator_backward, setup_context=_Composable.setup_context)
_operator.register_vmap(_operator_vmap)
