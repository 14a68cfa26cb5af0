"""Which kernel runs: the compiled one, or none and why.

Environment variables, read once at import: ``WHVI_KERNEL=0`` turns the compiled kernel off,
``WHVI_ISA`` (``avx512``, ``avx2``, ``baseline``) chooses its instruction set, ``WHVI_TRITON=0``
turns the kernels for CUDA tensors off.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _is_tracing, _len_torch_dispatch_stack
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_compiling

KERNEL_DTYPES = (torch.float32, torch.float64)
HALF_TYPES = (torch.float16, torch.bfloat16)
_Made = TypeVar("_Made")
PLAIN_TYPES = (Tensor, torch.nn.Parameter)  # not fake, batched or otherwise wrapped tensors


class Backend(NamedTuple):
    """The compiled kernel, if it is active, and a sentence that says so or why not."""

    kernel: ModuleType | None
    reason: str


def _load() -> Backend:
    if os.environ.get("WHVI_KERNEL", "1") == "0":
        return Backend(None, "turned off by WHVI_KERNEL=0")
    try:
        import whvi._kernel._compiled as compiled
    except ModuleNotFoundError:
        return Backend(None, "not built: install a C compiler and install the package again")
    except ImportError as error:
        return Backend(None, f"not loadable: {error}")
    return Backend(compiled, "compiled kernel active")


backend = _load()
kernel = backend.kernel


def kernel_takes(x: Tensor) -> bool:
    """Tell whether the compiled kernel may read the memory of ``x``."""
    return kernel is not None and x.is_cpu and x.dtype in KERNEL_DTYPES and type(x) in PLAIN_TYPES


def kept(make: Callable[..., _Made]) -> Callable[..., _Made]:
    """Keep what ``make`` returns for each of its arguments, usable in and out of inference mode."""

    @lru_cache(maxsize=64)
    def cached(*arguments: Any, **options: Any) -> _Made:
        with torch.inference_mode(False):
            return make(*arguments, **options)

    return cached


_GPU_OFF = os.environ.get("WHVI_TRITON", "1") == "0"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@lru_cache(maxsize=1)
def gpu_kernels() -> ModuleType | None:
    """Return the Triton kernels, or ``None`` if they are turned off or Triton is absent."""
    if _GPU_OFF or importlib.util.find_spec("triton") is None:
        return None
    import whvi._kernel.triton as kernels

    return kernels


def gpu_takes(x: Tensor) -> bool:
    """Tell whether the Triton kernels may read the memory of ``x``, now."""
    if not (x.is_cuda or INTERPRETED) or is_tracing():
        return False
    kernels = gpu_kernels()
    return kernels is not None and bool(kernels.takes(x))


def is_tracing() -> bool:
    """Tell whether operations are being recorded: by torch.compile, export, make_fx or jit.

    Such a record would miss what the kernel does to memory by itself.
    """
    return is_compiling() or _len_torch_dispatch_stack() > 0 or _is_tracing()


def is_transformed() -> bool:
    """Tell whether torch.func or forward-mode differentiation is active: tensors are wrapped."""
    return _are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_vmapped() -> bool:
    """Tell whether ``torch.vmap`` is active."""
    if is_compiling() or not _are_functorch_transforms_active():
        return False
    stack = get_interpreter_stack() or []
    return any(level.key() == TransformType.Vmap for level in stack)


def autocast_dtype(x: Tensor, parameter: Tensor) -> torch.dtype | None:
    """Return what autocast wants a layer to give for ``x``; ``None`` where it is off.

    As in torch, float64 is left alone.
    """
    if not _has_autocast(x) or torch.float64 in (x.dtype, parameter.dtype):
        return None
    return torch.get_autocast_dtype(x.device.type)


def without_autocast(like: Tensor) -> contextlib.AbstractContextManager[object]:
    """Return a context in which operations on the device of ``like`` keep their data types."""
    if not _has_autocast(like):
        return contextlib.nullcontext()
    return torch.autocast(like.device.type, enabled=False)


def _has_autocast(like: Tensor) -> bool:
    return not like.is_meta and torch.is_autocast_enabled(like.device.type)


def apart(tensors: Iterable[Tensor | None]) -> list[Any]:
    """Return aliases of the inputs of a node, for :func:`differentiable_gradients`.

    One input may be made of another (a layer used twice: of its own weights). Gradients of aliases
    do not go on from the one into the other, which autograd does by itself.
    """
    return [None if t is None else t.view_as(t) for t in tensors]


def differentiable_gradients(
    y: Tensor, inputs: Sequence[Tensor | None], grad: Tensor
) -> list[Tensor | None]:
    """Return the gradients of a plain composition ``y``, themselves differentiable.

    For the backward pass of a node when gradients of gradients are wanted.
    """
    wanted = [t for t in inputs if t is not None and t.requires_grad]
    found = iter(torch.autograd.grad(y, wanted, grad, create_graph=True, allow_unused=True))
    return [next(found) if t is not None and t.requires_grad else None for t in inputs]
